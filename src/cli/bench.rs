//! `cauchyfs bench`.

mod arguments;
mod fs;
mod papers;
mod rateless;
mod schedule;

use indicatif::{ProgressBar, ProgressStyle};

pub(super) use arguments::BenchArguments;
use arguments::{CodecArguments, What};

use super::failure::{Failure, Outcome};
use super::terminal;
use crate::bench::{self, BenchError, Wishes};
use crate::codec::{CodeId, Geometry};

/// Measures or counts what was asked for.
///
/// # Errors
///
/// If it cannot be measured on this machine, or not at all.
pub(super) fn run(arguments: &BenchArguments) -> Result<Outcome, Failure> {
    match &arguments.what {
        What::Codec(arguments) => codec(arguments),
        What::Fs(arguments) => fs::run(arguments),
        What::Papers(arguments) => papers::run(arguments),
        What::Rateless(arguments) => rateless::run(arguments),
        What::Schedule(arguments) => schedule::run(arguments),
    }
}

fn codec(arguments: &CodecArguments) -> Result<Outcome, Failure> {
    let wishes = wishes(arguments)?;
    let bar = progress_bar();
    let told = |row: &bench::Row, total: usize| {
        bar.set_length(total as u64);
        bar.set_message(format!("{} {}", row.engine, row.code));
        bar.inc(1);
    };
    let report = bench::run(&wishes, told).map_err(|error| match error {
        BenchError::NoMemory { .. } | BenchError::NoThread(_) => Failure::environment(error),
        _ => Failure::usage(error).advise("see `cauchyfs bench codec --help`"),
    })?;
    bar.finish_and_clear();
    if arguments.json {
        terminal::json(&report).map_err(Failure::environment)?;
    } else {
        terminal::report(&report.to_string());
    }
    Ok(Outcome::Done)
}

/// Returns a bar of rows that shows itself only on a terminal.
fn progress_bar() -> ProgressBar {
    progress_bar_of("rows")
}

/// Returns a bar of such things that shows itself only on a terminal.
fn progress_bar_of(things: &str) -> ProgressBar {
    let template = format!("{{bar:30}} {{pos}}/{{len}} {things}, {{msg}}");
    let style = ProgressStyle::with_template(&template);
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn wishes(arguments: &CodecArguments) -> Result<Wishes, Failure> {
    let codes: Result<Vec<CodeId>, _> = arguments
        .codes
        .iter()
        .map(|name| CodeId::from_name(name))
        .collect();
    Ok(Wishes {
        geometries: geometries(&arguments.data, &arguments.parity)?,
        shard_bytes: arguments.shard_bytes.clone(),
        threads: arguments.threads.clone(),
        stripes: arguments.stripes.clone(),
        engines: arguments.engines.clone(),
        codes: codes.map_err(Failure::usage)?,
        operations: arguments
            .operations
            .iter()
            .map(|&name| name.into())
            .collect(),
        working_sets: arguments
            .working_sets
            .iter()
            .map(|&name| name.into())
            .collect(),
        seconds: arguments.seconds.unwrap_or_default(),
    })
}

/// Returns all combinations of the numbers given; where only one sort is, the usual geometries that
/// have them. Empty if nothing narrows the choice.
fn geometries(data: &[usize], parity: &[usize]) -> Result<Vec<Geometry>, Failure> {
    if data.is_empty() || parity.is_empty() {
        let fits = |list: &[usize], count| list.is_empty() || list.contains(&count);
        let found: Vec<Geometry> = bench::usual_geometries()
            .filter(|g| fits(data, g.data_shards()) && fits(parity, g.parity_shards()))
            .collect();
        if found.is_empty() {
            return Err(
                Failure::usage("no geometry that is usually measured has these shards")
                    .advise("give both --data and --parity for any other"),
            );
        }
        return Ok(found);
    }
    let pairs = data
        .iter()
        .flat_map(|&k| parity.iter().map(move |&m| (k, m)));
    let geometries: Result<_, _> = pairs.map(|(k, m)| Geometry::new(k, m)).collect();
    geometries.map_err(Failure::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(data: &[usize], parity: &[usize]) -> Vec<String> {
        let geometries = geometries(data, parity).expect("there are some");
        geometries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_number_narrows_the_usual_geometries_and_two_make_their_own() {
        assert_eq!(names(&[], &[]).len(), bench::usual_geometries().count());
        assert_eq!(names(&[10], &[]), ["10+4"]);
        assert_eq!(names(&[], &[4]), ["10+4", "16+4"]);
        assert_eq!(names(&[7, 8], &[1, 2]), ["7+1", "7+2", "8+1", "8+2"]);
        assert!(geometries(&[7], &[]).is_err());
        assert!(geometries(&[200], &[100]).is_err());
    }
}
