//! `cauchyfs balance`.

use super::args::BalanceArguments;
use super::client::LiveMount;
use super::failure::{Failure, Outcome};
use super::rebuild::{follow, leave};
use crate::control::protocol::{Answer, Request};

/// Has the daemon move data from the fullest members to the emptiest, shows how far it is, and says what was counted
/// afterwards.
///
/// # Errors
///
/// If nothing of ours is mounted there, or the daemon cannot go on.
pub(super) fn run(arguments: &BalanceArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    let request = Request::Balance {
        bytes_per_second: arguments.rebuild.rate,
    };
    let Answer::Ordered(order) = mount.ask(&request)? else {
        return Err(mount.beside_the_point());
    };
    let followed = follow(&mount, order, arguments.rebuild.json)?;
    Ok(followed.unwrap_or_else(|| leave("balancing goes on", &mount, None)))
}
