//! `cauchyfs bench papers`.

use super::arguments::PapersArguments;
use super::progress_bar;
use crate::bench::papers::{self, PapersWishes, Source};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::terminal;

/// Measures what the literature has figures for.
///
/// # Errors
///
/// If this machine cannot measure it.
pub(super) fn run(arguments: &PapersArguments) -> Result<Outcome, Failure> {
    let sources = match &arguments.sources[..] {
        [] => Source::ALL.to_vec(),
        names => names.iter().map(|&name| name.into()).collect(),
    };
    let wishes = PapersWishes {
        sources,
        seconds: arguments.seconds,
    };
    let bar = progress_bar();
    let told = |source: &str, total: usize| {
        bar.set_length(total as u64);
        bar.set_message(source.to_owned());
        bar.inc(1);
    };
    let report = papers::run(&wishes, told).map_err(|error| {
        let advice = "leave its source out: `cauchyfs bench papers --help` lists the sources";
        Failure::environment(error).advise(advice)
    })?;
    bar.finish_and_clear();
    if arguments.json {
        terminal::json(&report).map_err(Failure::environment)?;
    } else {
        terminal::report(&report.to_string());
    }
    Ok(Outcome::Done)
}
