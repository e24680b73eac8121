//! Turns of the threads that wait for requests on `/dev/fuse`.
//!
//! The kernel hands a request to the thread that waits longest. If many wait, each request wakes another one, on a CPU that
//! has halted meanwhile. So few threads wait at a time, and the others rest until all that wait have got a request.
//!
//! # Invariants
//!
//! - While a thread rests, another one waits for a request, or was told to.
//! - No thread rests once the device has ended.

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The most threads that wait while none works. For each that works one more may wait, so that few rest under load.
const IDLE: usize = 4;

/// Gives threads turns in waiting for requests.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    /// Wakes a thread that rests.
    starved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that wait for a request.
    waiting: usize,
    /// Threads that work on one.
    working: usize,
    /// Threads that rest until they are woken.
    resting: usize,
    has_ended: bool,
}

impl State {
    fn has_turn(&self) -> bool {
        self.waiting < IDLE + self.working || self.has_ended
    }
}

/// The turn of a thread, which waits for a request. If it is dropped without one, all other threads see the end as well.
#[derive(Debug)]
struct TurnToWait<'a> {
    /// `None` once there is a request.
    turns: Option<&'a Turns>,
}

/// The work of a thread on a request, until it is dropped.
#[derive(Debug)]
pub(super) struct Work<'a> {
    turns: &'a Turns,
}

impl Turns {
    /// Rests until it is this thread's turn to wait, and then waits for a request with `receive`, which returns `None` once
    /// the device has ended. The caller keeps the [`Work`] for as long as it works on the request.
    ///
    /// # Errors
    ///
    /// Those of `receive`.
    pub(super) fn receive<T, E>(
        &self,
        receive: impl FnOnce() -> Result<Option<T>, E>,
    ) -> Result<Option<(T, Work<'_>)>, E> {
        let mut state = self.state.lock();
        while !state.has_turn() {
            state.resting += 1;
            self.starved.wait(&mut state);
            state.resting -= 1;
        }
        let turn = self.take(state);
        let received = receive()?;
        Ok(received.map(|request| (request, turn.begin())))
    }

    fn take(&self, mut state: MutexGuard<'_, State>) -> TurnToWait<'_> {
        state.waiting += 1;
        TurnToWait { turns: Some(self) }
    }
}

impl<'a> TurnToWait<'a> {
    /// Begins the work on a request. If no thread waits any more, wakes one that rests.
    fn begin(mut self) -> Work<'a> {
        let turns = self.turns.take().expect("a turn has one request");
        let mut state = turns.state.lock();
        state.waiting -= 1;
        state.working += 1;
        let is_starved = state.waiting == 0 && state.resting > 0;
        drop(state);
        if is_starved {
            turns.starved.notify_one();
        }
        Work { turns }
    }
}

impl Drop for TurnToWait<'_> {
    fn drop(&mut self) {
        if let Some(turns) = self.turns {
            let mut state = turns.state.lock();
            state.waiting -= 1;
            state.has_ended = true;
            drop(state);
            turns.starved.notify_all();
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.turns.state.lock().working -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::sync::{Arc, Barrier};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Takes a turn to wait, if there is one.
    fn turn(turns: &Turns) -> Option<TurnToWait<'_>> {
        let state = turns.state.lock();
        state.has_turn().then(|| turns.take(state))
    }

    #[test]
    fn few_threads_wait_and_one_more_for_each_that_works() {
        let turns = Turns::default();
        let mut waiting: Vec<_> = (0..IDLE).map(|_| turn(&turns).unwrap()).collect();
        assert!(turn(&turns).is_none(), "enough wait");
        let first = waiting.pop().unwrap().begin();
        waiting.push(turn(&turns).expect("it takes the place of the one that works"));
        waiting.push(turn(&turns).expect("there may be more requests"));
        assert!(turn(&turns).is_none(), "enough wait for one that works");
        drop(first);
        assert!(turn(&turns).is_none(), "one more waits than has to");
        let works: Vec<_> = waiting.drain(..2).map(TurnToWait::begin).collect();
        drop(works);
        waiting.push(turn(&turns).expect("three wait"));
        assert!(turn(&turns).is_none(), "enough wait");
        for turn in waiting {
            drop(turn.begin());
        }
    }

    #[test]
    fn every_thread_waits_for_the_end_once_one_of_them_has_seen_it() {
        let turns = Turns::default();
        let waiting: Vec<_> = (0..IDLE).map(|_| turn(&turns).unwrap()).collect();
        assert!(turn(&turns).is_none());
        drop(waiting);
        let more: Vec<_> = (0..IDLE * 3).map(|_| turn(&turns)).collect();
        assert!(more.iter().all(Option::is_some));
    }

    /// The way in which the device ends.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum End {
        Unmounted,
        Error,
        Panic,
    }

    /// Waits until the threads of a test have reached a state.
    fn reach(turns: &Turns, is_reached: impl Fn(&State) -> bool) {
        let began = Instant::now();
        while !is_reached(&turns.state.lock()) {
            assert!(began.elapsed() < PATIENCE, "{turns:?}");
            thread::yield_now();
        }
    }

    /// Each of more threads than may wait gets one request, and gives it back once all have one. Then the device ends.
    #[test]
    fn threads_that_rest_are_woken_for_requests_and_at_the_end() {
        let threads = IDLE * 4;
        for end in [End::Unmounted, End::Error, End::Panic] {
            let turns = Arc::new(Turns::default());
            let all_work = Arc::new(Barrier::new(threads));
            let served = Arc::new(AtomicUsize::new(0));
            let (requests, received) = channel::<()>();
            let received = Arc::new(Mutex::new(received));
            let (ended, ends) = channel();
            for _ in 0..threads {
                let (turns, all_work) = (Arc::clone(&turns), Arc::clone(&all_work));
                let (received, ended) = (Arc::clone(&received), ended.clone());
                let served = Arc::clone(&served);
                thread::spawn(move || {
                    let receive = || match (received.lock().recv(), end) {
                        (Ok(()), _) => Ok(Some(())),
                        (Err(_), End::Unmounted) => Ok(None),
                        (Err(disconnected), End::Error) => Err(disconnected),
                        (Err(disconnected), End::Panic) => panic!("{disconnected}"),
                    };
                    let _ended = scopeguard::guard(ended, |ended| ended.send(()).unwrap());
                    while let Ok(Some(((), _work))) = turns.receive(receive) {
                        all_work.wait();
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let rest_at_first = threads - IDLE;
            reach(&turns, |state| {
                (state.waiting, state.resting) == (IDLE, rest_at_first)
            });
            (0..threads).for_each(|_| requests.send(()).unwrap());
            reach(&turns, |state| {
                let are_back = state.waiting + state.resting == threads;
                are_back && served.load(Ordering::SeqCst) == threads
            });
            assert!(turns.state.lock().resting > 0, "{turns:?}");
            drop(requests);
            for thread in 0..threads {
                let end = ends.recv_timeout(PATIENCE);
                assert_ne!(end, Err(RecvTimeoutError::Timeout), "thread {thread}");
            }
        }
    }
}
