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
pub use table::{Missing, Row, Source, Table, Unit};

use crate::bench::{BenchError, Isal, bus::Gpus, lane::Arena, machine::cpu_name};
use crate::codec::select;
use crate::cuda::DeviceError;
use site::Site;

/// The measurements to make.
#[derive(Debug, Clone)]
pub struct PapersWishes {
    /// The sources.
    pub sources: Vec<Source>,
    /// Seconds that most figures take.
    pub seconds: f64,
}

/// Measures what is wished for. `progress` is called before each source, with its name and their number.
///
/// # Errors
///
/// [`BenchError`] if the system gives no memory or no threads, or a GPU fails.
pub fn run(
    wishes: &PapersWishes,
    progress: impl Fn(&str, usize),
) -> Result<PapersReport, BenchError> {
    let gpus = if wishes.sources.iter().any(|source| source.needs_gpu()) {
        present(Gpus::open())?
    } else {
        None
    };
    let mut site = Site {
        engine: select("auto")?,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        isal: Isal::load().ok(),
        gpus,
        arena: Arena::default(),
        time: Duration::try_from_secs_f64(wishes.seconds).unwrap_or(Duration::MAX),
    };
    let mut tables = Vec::new();
    for &source in &wishes.sources {
        progress(source.name(), wishes.sources.len());
        tables.push(match source {
            Source::GCrs => gcrs::measure(&mut site)?,
            Source::Fast19 => fast19::measure(&mut site)?,
            Source::Thesis => thesis::measure(&site)?,
            Source::GpuRscode => gpu_rscode::measure(&mut site)?,
            Source::Opencl => opencl::measure(&mut site)?,
        });
    }
    Ok(PapersReport {
        cpu: cpu_name(),
        threads: site.threads,
        engine: site.engine.name(),
        gpu: site.gpus.as_ref().map(|gpus| gpus.name().to_owned()),
        isal: site.isal.as_ref().map(|isal| isal.library().to_owned()),
        tables,
    })
}

/// Returns the GPUs, or nothing on a machine without one.
///
/// # Errors
///
/// If there is one, and it cannot be used: figures without it would be misleading.
fn present<T>(opened: Result<T, DeviceError>) -> Result<Option<T>, DeviceError> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.is_absence() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machine_without_a_gpu_goes_on_without_it() {
        assert_eq!(present(Ok(1)), Ok(Some(1)));
        for absent in [DeviceError::NoDriver, DeviceError::NoDevice] {
            assert_eq!(present::<()>(Err(absent)), Ok(None));
        }
        let reason = "out of order".to_owned();
        let broken = DeviceError::BadDriver { reason };
        assert_eq!(present::<()>(Err(broken.clone())), Err(broken));
    }
}
