//! Threads that are waited for until their work is done, not until they end.
//!
//! The kernel lets no thread end before every operation that it handed to an `io_uring` has ended. An
//! operation can hang, on a dead mount say. A caller that joined its thread would wait for good, long after
//! the thread gave the operation up. So no thread is joined here: a thread reports when its work is done.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Some threads; dropping this waits for none of them. A clone stands for the same threads.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<AtWork>);

#[derive(Debug, Default)]
struct AtWork {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Threads {
    /// Starts a thread, on every CPU that the process may use.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub fn start(
        &self,
        name: impl Into<String>,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let present = Present::among(&self.0);
        let work = move || {
            // Everything that the work holds is dropped before it counts as done.
            let _present = present;
            use_every_cpu();
            work();
        };
        thread::Builder::new()
            .name(name.into())
            .spawn(work)
            .map(drop)
    }

    /// Waits until all that was started has done its work, or panicked.
    pub fn wait(&self) {
        let mut count = self.0.count.lock();
        while *count > 0 {
            self.0.changed.wait(&mut count);
        }
    }

    /// Waits as [`Self::wait`], but no longer than `patience`. Returns whether all work is done.
    #[must_use]
    pub fn wait_for(&self, patience: Duration) -> bool {
        let mut count = self.0.count.lock();
        let is_at_work = |count: &mut usize| *count > 0;
        self.0
            .changed
            .wait_while_for(&mut count, is_at_work, patience);
        *count == 0
    }
}

/// Lets the calling thread run on every CPU that this process may use. A thread begins on the CPUs of the thread that
/// started it. A thread that serves a queue of requests is pinned to a single CPU for most of the time.
pub fn use_every_cpu() {
    let process = rustix::process::getpid();
    // Without it, the thread is slower and nothing else.
    if let Ok(cpus) = sched_getaffinity(Some(process)) {
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// A thread that is at work.
struct Present(Arc<AtWork>);

impl Present {
    fn among(at_work: &Arc<AtWork>) -> Self {
        *at_work.count.lock() += 1;
        Self(Arc::clone(at_work))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if thread::panicking() {
            let current = thread::current();
            tracing::error!("thread {} panicked", current.name().unwrap_or("unnamed"));
        }
        *self.0.count.lock() -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::{self, Receiver};

    use rustix::thread::CpuSet;

    use super::*;

    /// Keeps its thread from ending until the other end is dropped.
    struct Stuck(Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _released = self.0.recv();
        }
    }

    thread_local! {
        static STUCK: RefCell<Option<Stuck>> = const { RefCell::new(None) };
    }

    #[test]
    fn work_that_is_done_is_not_waited_for_though_its_thread_cannot_end() {
        let threads = Threads::default();
        let (release, released) = mpsc::channel();
        let ours = Arc::new(());
        let held = Arc::clone(&ours);
        threads
            .start("stuck", move || {
                assert_eq!(Arc::strong_count(&held), 2);
                STUCK.set(Some(Stuck(released)));
            })
            .expect("a thread");
        threads.wait();
        assert_eq!(Arc::strong_count(&ours), 1, "the work holds nothing more");
        drop(release);
    }

    #[test]
    fn a_thread_that_a_pinned_thread_starts_runs_on_every_cpu() {
        let cpus = || sched_getaffinity(None).expect("the CPUs of this thread");
        let all = cpus();
        let only = (0..CpuSet::MAX_CPU)
            .find(|&cpu| all.is_set(cpu))
            .expect("one at least");
        let (tell, told) = mpsc::channel();
        // A thread of its own, as the one of this test may run others.
        let pinned = thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(only);
            sched_setaffinity(None, &one).expect("it is one of its own");
            let threads = Threads::default();
            threads
                .start("free", move || tell.send(cpus()).expect("it is awaited"))
                .expect("a thread");
            threads.wait();
        });
        assert_eq!(told.recv(), Ok(all));
        pinned.join().expect("no panic");
    }

    #[test]
    fn a_panic_ends_the_work() {
        let threads = Threads::default();
        threads
            .start("panics", || panic!("on purpose"))
            .expect("a thread");
        threads.wait();
    }
}
