//! The figures of the literature, and beside them those of this machine.
//!
//! Each source has a module with its figures, which measures the same here. Figures that were not found are left out,
//! and a note under the table says so.

mod encoder;
mod fast19;
mod gcrs;
mod gpu_rscode;
mod opencl;
mod queue;
mod report;
mod site;
mod table;
mod thesis;

use std::time::Duration;

pub use report::PapersReport;
pub use table::{Missing, Ours, PaperRow, Published, Source, Table, Unit};

use crate::bench::{
    BenchError, Isal,
    bus::{Gpus, present},
    lane::Arena,
    machine::cpu_name,
};
use crate::codec::select;
use site::PapersSite;

/// The measurements to make.
#[derive(Debug, Clone)]
pub struct PapersWishes {
    /// The sources.
    pub sources: Vec<Source>,
    /// Seconds that most figures take.
    pub seconds: f64,
}

/// The reason why not all sources were measured.
#[derive(Debug, thiserror::Error)]
pub enum PapersError {
    /// None was, because the machine has a GPU that cannot be used, or no engine.
    #[error(transparent)]
    PapersSite(#[from] BenchError),

    /// One failed, and those after it were not tried.
    #[error("{}: {error}", paper.name())]
    Paper {
        /// The source that failed.
        paper: Source,
        /// The reason.
        #[source]
        error: BenchError,
        /// The tables of the sources before it.
        report: Box<PapersReport>,
    },
}

/// Measures what is wished for. `progress` is called before each source, with its name and how many are done.
///
/// # Errors
///
/// [`PapersError`] if the system gives no memory or no threads, or a GPU fails.
pub fn run(
    wishes: &PapersWishes,
    progress: impl Fn(&str, usize),
) -> Result<PapersReport, PapersError> {
    let gpus = if wishes.sources.iter().any(|source| source.needs_gpu()) {
        present(Gpus::open_first()).map_err(BenchError::from)?
    } else {
        None
    };
    let mut site = PapersSite {
        engine: select("auto").map_err(BenchError::from)?,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        isal: Isal::load().ok(),
        gpus,
        arena: Arena::default(),
        time: Duration::try_from_secs_f64(wishes.seconds).unwrap_or(Duration::MAX),
    };
    let (tables, failed) = in_turn(&wishes.sources, progress, |source| match source {
        Source::GCrs => gcrs::measure(&mut site),
        Source::Fast19 => fast19::measure(&mut site),
        Source::Thesis => thesis::measure(&site),
        Source::GpuRscode => gpu_rscode::measure(&mut site),
        Source::Opencl => opencl::measure(&mut site),
    });
    let report = PapersReport {
        cpu: cpu_name(),
        threads: site.threads,
        engine: site.engine.name(),
        gpu: site.gpus.as_ref().map(|gpus| gpus.name().to_owned()),
        isal: site.isal.as_ref().map(|isal| isal.library().to_owned()),
        tables,
    };
    match failed {
        None => Ok(report),
        Some((paper, error)) => Err(PapersError::Paper {
            paper,
            error,
            report: Box::new(report),
        }),
    }
}

/// Measures one source after the other, up to the first that fails; returns what was measured, and that failure.
fn in_turn<T>(
    sources: &[Source],
    progress: impl Fn(&str, usize),
    mut measure: impl FnMut(Source) -> Result<T, BenchError>,
) -> (Vec<T>, Option<(Source, BenchError)>) {
    let mut tables = Vec::new();
    for (done, &source) in sources.iter().enumerate() {
        progress(source.name(), done);
        match measure(source) {
            Ok(table) => tables.push(table),
            Err(error) => return (tables, Some((source, error))),
        }
    }
    (tables, None)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_source_that_fails_is_named_and_those_before_it_are_kept() {
        let told = RefCell::new(Vec::new());
        let progress = |name: &str, done| told.borrow_mut().push((name.to_owned(), done));
        let (tables, failed) = in_turn(&Source::ALL, progress, |source| match source {
            Source::Thesis => Err(BenchError::NotDecoded),
            source => Ok(source),
        });
        assert_eq!(tables, [Source::GCrs, Source::Fast19]);
        let (paper, error) = failed.expect("the thesis");
        let expected = ["g-crs", "fast19", "thesis"].map(str::to_owned);
        let expected = expected.into_iter().zip(0..);
        assert_eq!(told.into_inner(), expected.collect::<Vec<_>>());
        let error = PapersError::Paper {
            paper,
            error,
            report: Box::new(PapersReport {
                cpu: None,
                threads: 1,
                engine: "scalar",
                gpu: None,
                isal: None,
                tables: Vec::new(),
            }),
        };
        let text = "thesis: a decoder gave other bytes than were encoded";
        assert_eq!(error.to_string(), text);
    }
}
