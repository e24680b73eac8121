//! `cauchyfs bench rateless`.

use super::arguments::RatelessArguments;
use super::progress_bar;
use crate::bench::BenchError;
use crate::bench::rateless::{self, RatelessWishes};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::terminal;

/// Measures the random code.
///
/// # Errors
///
/// If there is no such code, or this machine cannot measure it.
pub(super) fn run(arguments: &RatelessArguments) -> Result<Outcome, Failure> {
    let wishes = RatelessWishes {
        packets: arguments.packets.clone(),
        messages: arguments.messages.clone(),
        trials: arguments.trials,
        seconds: arguments.seconds,
    };
    let bar = progress_bar();
    let told = |row: &str, total: usize| {
        bar.set_length(total as u64);
        bar.set_message(row.to_owned());
        bar.inc(1);
    };
    let report = rateless::run(&wishes, told).map_err(|error| match error {
        BenchError::NoRoom { .. } | BenchError::NoWorkers(_) | BenchError::NotDecoded => {
            Failure::environment(error)
        }
        _ => Failure::usage(error).advise("see `cauchyfs bench rateless --help`"),
    })?;
    bar.finish_and_clear();
    if arguments.json {
        terminal::json(&report).map_err(Failure::environment)?;
    } else {
        terminal::report(&report.to_string());
    }
    Ok(Outcome::Done)
}
