//! The CPUs of the threads of queues.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to the CPU of a queue. It stays where it is if the CPU is offline or not allowed.
pub(super) fn pin_to(queue: u16) {
    bind_to(cpu_of(queue));
}

/// Returns whether this process may use the CPU of a queue.
pub(super) fn may_use(queue: u16) -> bool {
    let cpu = usize::from(queue);
    let process = rustix::process::getpid();
    cpu < CpuSet::MAX_CPU && sched_getaffinity(Some(process)).is_ok_and(|cpus| cpus.is_set(cpu))
}

/// The time for which the calling thread is pinned to the CPU of a queue. Dropping it gives back the CPUs from before.
pub(super) struct OnQueueCpu {
    before: Result<CpuSet, Errno>,
}

impl OnQueueCpu {
    /// Begins now.
    pub(super) fn to(queue: u16) -> Self {
        let before = sched_getaffinity(None);
        pin_to(queue);
        Self { before }
    }
}

impl Drop for OnQueueCpu {
    fn drop(&mut self) {
        bind_to(self.before);
    }
}

/// Returns the set of one CPU, if it can be in a set.
fn cpu_of(queue: u16) -> Result<CpuSet, Errno> {
    let cpu = usize::from(queue);
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(set)
}

fn bind_to(cpus: Result<CpuSet, Errno>) {
    let bound = cpus.and_then(|cpus| sched_setaffinity(None, &cpus));
    if let Err(errno) = bound {
        tracing::debug!("a thread keeps its CPUs: {errno}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::use_every_cpu;

    fn cpus() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect()
    }

    #[test]
    fn a_thread_is_pinned_and_gets_its_cpus_back() {
        std::thread::spawn(|| {
            use_every_cpu();
            let all = cpus();
            let last = u16::try_from(all[all.len() - 1]).unwrap();
            let pinned = OnQueueCpu::to(last);
            assert_eq!(cpus(), [usize::from(last)]);
            assert!(all.iter().all(|cpu| may_use(u16::try_from(*cpu).unwrap())));
            assert!(!may_use(u16::MAX));
            drop(pinned);
            assert_eq!(cpus(), all);
            pin_to(last);
            pin_to(u16::MAX);
            assert_eq!(cpus(), [usize::from(last)], "no machine has the other CPU");
            use_every_cpu();
            assert_eq!(cpus(), all);
        })
        .join()
        .unwrap();
    }
}
