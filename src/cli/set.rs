//! `cauchyfs set`.

use serde::Serialize;

use super::args::SetArguments;
use super::client::LiveMount;
use super::create::stripe_unit;
use super::failure::{Failure, Outcome};
use super::rebuild::{follow, leave};
use super::report::codes_lines;
use super::shell::quoted_path;
use super::terminal;
use crate::control::protocol::{Answer, CodeChange, Request};
use crate::control::report::{CodeReport, GeometryReport};

/// The document that `set --show --json` prints.
#[derive(Debug, Serialize)]
struct Document<'a> {
    geometry: &'a GeometryReport,
    codes: &'a [CodeReport],
}

/// Has the daemon change the code of its volume, shows how far it is, and says what was counted afterwards.
///
/// # Errors
///
/// If nothing of ours is mounted there, the code is refused, or the daemon cannot go on.
pub(super) fn run(arguments: &SetArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    if arguments.show {
        return show(&mount, arguments.rebuild.json);
    }
    let change = CodeChange {
        data: arguments.data,
        parity: arguments.parity,
        code: arguments.code.clone(),
        unit_bytes: arguments.stripe_unit.map(stripe_unit).transpose()?,
    };
    if change == CodeChange::default() {
        let place = quoted_path(&arguments.mountpoint);
        return Err(Failure::usage(
            "nothing to change: give --data, --parity, --code or --stripe-unit",
        )
        .advise(format!("`cauchyfs set --show {place}` shows how it is")));
    }
    let request = Request::SetCode {
        change,
        bytes_per_second: arguments.rebuild.rate,
    };
    let Answer::Ordered(order) = mount.ask(&request)? else {
        return Err(mount.beside_the_point());
    };
    let followed = follow(&mount, order, arguments.rebuild.json)?;
    Ok(followed.unwrap_or_else(|| leave("the change goes on", &mount, None)))
}

/// Prints the code of new data, and how much data has which.
fn show(mount: &LiveMount, json: bool) -> Result<Outcome, Failure> {
    let report = mount.report()?;
    if json {
        let document = Document {
            geometry: &report.geometry,
            codes: &report.codes,
        };
        terminal::json(&document).map_err(Failure::environment)?;
    } else {
        terminal::report(&codes_lines(&report));
    }
    Ok(Outcome::Done)
}
