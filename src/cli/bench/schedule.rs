//! `cauchyfs bench schedule`.

use super::arguments::ScheduleArguments;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::terminal;
use crate::codec::{self, CodeId, Codec, CodecError, Freedom, Geometry, Studied};

/// A geometry of a code that XORs packets, and the literature's count for it if there is one.
type Case = (CodeId, Geometry, Option<usize>);

/// Counts the XORs that codes of packets take, and looks for schedules with fewer if asked to.
///
/// # Errors
///
/// If what was asked for is no code of packets.
pub(super) fn run(arguments: &ScheduleArguments) -> Result<Outcome, Failure> {
    let cases = cases(arguments)?;
    for &(code, geometry, _) in &cases {
        code.check(geometry).map_err(Failure::usage)?;
    }
    terminal::line("code      k+m    FAST '19   here  of it");
    for &(code, geometry, literature) in &cases {
        let count = count(code, geometry).map_err(Failure::usage)?;
        let study = literature.map_or("–".to_owned(), |literature| literature.to_string());
        let ratio = literature.map_or("–".to_owned(), |literature| {
            format!("{}%", 100 * count / literature)
        });
        terminal::line(format_args!(
            "{:<9} {:<6} {study:>8} {count:>6} {ratio:>6}",
            code.to_string(),
            geometry.to_string()
        ));
    }
    if let Some(tries) = arguments.search {
        let freedom = if arguments.new_points {
            Freedom::Everything
        } else {
            Freedom::Schedule
        };
        terminal::line("");
        for (code, geometry, _) in cases {
            let found = codec::search(code, geometry, freedom, tries).map_err(Failure::usage)?;
            terminal::report(&found.to_string());
        }
    }
    Ok(Outcome::Done)
}

fn count(code: CodeId, geometry: Geometry) -> Result<usize, CodecError> {
    let codec = Codec::new(code, geometry, codec::select("auto")?)?;
    codec
        .packet_operations()
        .ok_or(CodecError::UnknownCodeNumber { number: code.0 })
}

/// Returns the study's geometries that fit what was given, or the one given if it is none of them.
fn cases(arguments: &ScheduleArguments) -> Result<Vec<Case>, Failure> {
    let code = arguments.code.as_deref().map(CodeId::from_name);
    let code = code.transpose().map_err(Failure::usage)?;
    let of_bytes = [CodeId::RS_CAUCHY, CodeId::RS_FFT];
    if let Some(code) = of_bytes
        .into_iter()
        .find(|&of_bytes| code == Some(of_bytes))
    {
        return Err(
            Failure::usage(format!("{code} multiplies bytes; it has no schedule"))
                .advise("the codes with one are crs-w4 to crs-w8"),
        );
    }
    let studied = codec::study().filter(|studied| {
        let (k, m) = (
            studied.geometry.data_shards(),
            studied.geometry.parity_shards(),
        );
        code.is_none_or(|code| code == studied.code)
            && arguments.data.is_none_or(|data| data == k)
            && arguments.parity.is_none_or(|parity| parity == m)
    });
    let found: Vec<Case> = studied.map(case).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let (Some(code), Some(data), Some(parity)) = (code, arguments.data, arguments.parity) else {
        return Err(Failure::usage("the study has no such geometry")
            .advise("give --code, --data and --parity for any other"));
    };
    let geometry = Geometry::new(data, parity).map_err(Failure::usage)?;
    Ok(vec![(code, geometry, None)])
}

fn case(studied: Studied) -> Case {
    (studied.code, studied.geometry, Some(studied.operations))
}
