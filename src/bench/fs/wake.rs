//! The time in which a thread runs on another CPU that was idle.
//!
//! A request to FUSE wakes the daemon, and the answer wakes the program. Such a wake may cost more than the request if it
//! reaches a halted CPU, above all in a virtual machine: there the host takes part.

use std::io::{self, Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// The time for which a virtual machine waits for work before it halts a CPU, in nanoseconds.
pub(super) const POLL_PARAMETER: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// The wakes of one measurement.
const ROUNDS: usize = 1001;

/// The time that a wake takes, and the setting that it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Wake {
    /// The median time from the wake of a thread until it runs, in microseconds.
    pub median_us: f64,
    /// The nanoseconds for which this virtual machine waits for work before it halts a CPU; none on other machines.
    pub guest_poll_ns: Option<u64>,
}

impl Wake {
    /// Measures it between two CPUs that this process may use. Returns none if it may use one alone.
    ///
    /// # Errors
    ///
    /// If the system has no pipe or thread left to give.
    pub fn measure() -> io::Result<Option<Self>> {
        let allowed = sched_getaffinity(None)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let Some((first, second)) = cpus.next().zip(cpus.next()) else {
            return Ok(None);
        };
        let mut trips = round_trips(first, second)?;
        trips.sort_unstable();
        let median = trips[trips.len() / 2];
        Ok(Some(Self {
            median_us: median.as_secs_f64() / 2.0 * 1e6,
            guest_poll_ns: number_in(Path::new(POLL_PARAMETER)),
        }))
    }
}

/// Returns the times in which a byte goes from a thread on one CPU to one on the other, and back.
fn round_trips(here: usize, there: usize) -> io::Result<Vec<Duration>> {
    let (mut asked, mut ask) = io::pipe()?;
    let (mut answered, mut answer) = io::pipe()?;
    thread::scope(|scope| {
        let echo = thread::Builder::new().spawn_scoped(scope, move || {
            pin_to(there)?;
            let mut byte = [0];
            // The end of the pipe ends the thread.
            while asked.read(&mut byte)? == 1 {
                answer.write_all(&byte)?;
            }
            Ok(())
        })?;
        let asking = thread::Builder::new().spawn_scoped(scope, move || {
            pin_to(here)?;
            let mut trip = || {
                let began = Instant::now();
                ask.write_all(&[0])?;
                answered.read_exact(&mut [0])?;
                Ok(began.elapsed())
            };
            (0..ROUNDS).map(|_| trip()).collect::<io::Result<Vec<_>>>()
        })?;
        let panicked = |_| io::Error::other("a thread that measures panicked");
        let trips = asking.join().map_err(panicked)?;
        let echoed: io::Result<()> = echo.join().map_err(panicked)?;
        echoed?;
        trips
    })
}

fn pin_to(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the number in a file of the kernel. A kernel without that file has none.
fn number_in(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wake_between_two_cpus_is_timed() {
        let Some(wake) = Wake::measure().unwrap() else {
            return;
        };
        assert!(wake.median_us > 0.0, "{wake:?}");
    }

    #[test]
    fn both_threads_end_if_one_cpu_cannot_be_had() {
        let none = CpuSet::MAX_CPU - 1;
        assert!(round_trips(0, none).is_err());
        assert!(round_trips(none, 0).is_err());
    }

    #[test]
    fn a_kernel_without_the_parameter_has_no_number() {
        let kept = tempfile::tempdir().unwrap();
        let path = kept.path().join("guest_halt_poll_ns");
        assert_eq!(number_in(&path), None);
        std::fs::write(&path, "200000\n").unwrap();
        assert_eq!(number_in(&path), Some(200_000));
    }
}
