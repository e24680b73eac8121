//! `cauchyfs bench papers`.

use super::arguments::PapersArguments;
use super::progress_bar_of;
use crate::bench::papers::{self, PapersError, PapersReport, PapersWishes, Source};
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
    let bar = progress_bar_of("sources");
    bar.set_length(wishes.sources.len() as u64);
    let told = |source: &str, done: usize| {
        bar.set_position(done as u64);
        bar.set_message(source.to_owned());
    };
    let measured = papers::run(&wishes, told);
    bar.finish_and_clear();
    match measured {
        Ok(report) => show(&report, arguments.json)?,
        Err(PapersError::PapersSite(error)) => {
            let advice = "`cauchyfs bench papers --source fast19,thesis` needs no GPU";
            return Err(Failure::environment(error).advise(advice));
        }
        Err(error @ PapersError::Paper { .. }) => return Err(failed(error, &wishes, arguments)?),
    }
    Ok(Outcome::Done)
}

/// Prints what was measured before a source failed; returns the failure.
fn failed(
    error: PapersError,
    wishes: &PapersWishes,
    arguments: &PapersArguments,
) -> Result<Failure, Failure> {
    let mut advice = None;
    if let PapersError::Paper { paper, report, .. } = &error {
        if !report.tables.is_empty() {
            show(report, arguments.json)?;
        }
        let others = wishes.sources.iter().filter(|source| *source != paper);
        let others: Vec<&str> = others.map(|source| source.name()).collect();
        if !others.is_empty() {
            let others = others.join(",");
            advice = Some(format!(
                "`cauchyfs bench papers --source {others}` leaves it out"
            ));
        }
    }
    let failure = Failure::environment(error);
    Ok(match advice {
        Some(advice) => failure.advise(advice),
        None => failure,
    })
}

/// Prints a report.
fn show(report: &PapersReport, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return terminal::json(report).map_err(Failure::environment);
    }
    terminal::report(&report.to_string());
    Ok(())
}
