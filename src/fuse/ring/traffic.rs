//! The pattern in which requests come: from one program at a time, or from several at once.
//!
//! A program that waits for each answer takes turns with the daemon. If the threads of queues may run on all CPUs, the
//! program keeps one CPU and the daemon another, with their caches. The CPU of the daemon is idle between requests, so a
//! thread can watch for the next one instead of sleeping. Requests that are served at once stand for several programs,
//! which leave no CPU idle. Such requests are best served where they were made.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

use super::watching::{Losses, Sight};

/// With several programs, one request in so many is looked at. All threads write to the score, so they do so rarely. The
/// number is odd, as requests of two kinds may come in turns.
const SAMPLED: usize = 31;

/// The highest score that requests make, and the score of a new mount.
const MOST: u32 = 32;

/// The score above which several programs are at work.
const SEVERAL: u32 = 16;

/// The points of a request that is served beside another. A request that is served alone takes off a point.
const BESIDE: u32 = 4;

/// The score where other programs leave no CPU idle. It takes about 16,000 requests to try again.
const BUSY: u32 = 512;

/// Watches how many requests are served at once.
pub(in crate::fuse) struct Traffic {
    /// Of each queue, the requests that are being served, and how many came.
    queues: Box<[CachePadded<QueueTraffic>]>,
    /// The requests of `/dev/fuse` that are being served.
    beside: CachePadded<AtomicUsize>,
    /// Rises with requests that are served beside others. Some may be left out.
    score: CachePadded<AtomicU32>,
    is_single: CachePadded<AtomicBool>,
    /// True while a thread watches for the next request.
    is_watched: CachePadded<AtomicBool>,
    losses: CachePadded<Losses>,
}

#[derive(Default)]
struct QueueTraffic {
    served: AtomicUsize,
    came: AtomicUsize,
}

impl Traffic {
    /// Begins with a mount of so many queues, of which it expects several programs.
    pub(super) fn new(queues: u16) -> Self {
        Self {
            queues: (0..queues).map(|_| CachePadded::default()).collect(),
            beside: CachePadded::default(),
            score: CachePadded::new(AtomicU32::new(MOST)),
            is_single: CachePadded::default(),
            is_watched: CachePadded::default(),
            losses: CachePadded::default(),
        }
    }

    /// Counts a request of `queue` as served until the result is dropped. Most writes come from the kernel. It writes many
    /// pages back and waits for no single answer. So a request that `is_write` takes no point off.
    pub(super) fn serve(&self, queue: u16, is_write: bool) -> Served<'_> {
        let queue = &self.queues[usize::from(queue)];
        let came = queue.came.fetch_add(1, Ordering::Relaxed);
        queue.served.fetch_add(1, Ordering::Relaxed);
        // Requests of a single program come in patterns, so all are looked at.
        if self.is_single() || came.is_multiple_of(SAMPLED) {
            self.note(is_write);
        }
        Served(&queue.served)
    }

    /// Counts a request of `/dev/fuse` as served until the result is dropped. A FORGET follows a request of the same
    /// program, but its thread takes another CPU. So requests that come meanwhile are served beside it.
    pub(in crate::fuse) fn serve_beside(&self) -> Served<'_> {
        self.beside.fetch_add(1, Ordering::Relaxed);
        Served(&self.beside)
    }

    /// Notes whether the request that is served now is served beside others.
    fn note(&self, is_write: bool) {
        let served = self.queues.iter().map(|queue| &queue.served);
        let served = served.chain([&*self.beside]);
        let served = served.map(|served| served.load(Ordering::Relaxed));
        let before = self.score.load(Ordering::Relaxed);
        let score = if served.sum::<usize>() > 1 {
            (before + BESIDE).min(before.max(MOST))
        } else {
            before.saturating_sub(u32::from(!is_write))
        };
        if score != before {
            let order = Ordering::Relaxed;
            // Another thread was faster. Its score may be that of a busy machine.
            if self
                .score
                .compare_exchange(before, score, order, order)
                .is_err()
            {
                return;
            }
        }
        if score == 0 || score > SEVERAL {
            self.set_single(score == 0);
        }
    }

    /// Notes what a watch saw. Watches end for long if other programs leave no CPU idle.
    pub(super) fn note_watch(&self, sight: Sight) {
        if !self.losses.note(sight) {
            self.note_busy();
        }
    }

    /// Notes that other programs leave no CPU idle. Requests are then served where they were made.
    fn note_busy(&self) {
        self.score.store(BUSY, Ordering::Relaxed);
        self.set_single(false);
    }

    fn set_single(&self, is_single: bool) {
        // All threads read it, so it is not written without need.
        if self.is_single() != is_single {
            self.is_single.store(is_single, Ordering::Relaxed);
        }
    }

    /// Returns whether requests come from one program at a time.
    pub(super) fn is_single(&self) -> bool {
        self.is_single.load(Ordering::Relaxed)
    }

    /// Returns a turn to watch for the next request of a single program. No other thread has one until it is dropped.
    pub(super) fn turn_to_watch(&self) -> Option<WatchTurn<'_>> {
        let is_free = self.is_single() && !self.is_watched.swap(true, Ordering::Relaxed);
        is_free.then(|| WatchTurn(&self.is_watched))
    }
}

/// The time for which a request is served.
pub(in crate::fuse) struct Served<'a>(&'a AtomicUsize);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The right to watch for the next request.
pub(super) struct WatchTurn<'a>(&'a AtomicBool);

impl Drop for WatchTurn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Serves so many requests of two queues in turns, one at a time.
    fn serve_alone(traffic: &Traffic, requests: u16) {
        for number in 0..requests {
            drop(traffic.serve(number % 2, false));
        }
    }

    fn single() -> Traffic {
        let traffic = Traffic::new(2);
        serve_alone(&traffic, 2048);
        assert!(traffic.is_single());
        traffic
    }

    #[test]
    fn a_program_is_single_after_a_thousand_requests_that_were_served_alone() {
        let traffic = Traffic::new(2);
        serve_alone(&traffic, 500);
        assert!(!traffic.is_single());
        serve_alone(&traffic, 1548);
        assert!(traffic.is_single());
    }

    #[test]
    fn pages_that_the_kernel_writes_back_are_no_sign_of_a_single_program() {
        let traffic = Traffic::new(2);
        for _ in 0..10_000 {
            drop(traffic.serve(0, true));
        }
        assert!(!traffic.is_single());
        for _ in 0..2048 {
            drop(traffic.serve(0, true));
            drop(traffic.serve(0, false));
        }
        assert!(traffic.is_single(), "a program syncs after each write");
    }

    #[test]
    fn a_program_of_many_is_never_taken_for_a_single_one() {
        for beside in [0, 1] {
            let traffic = Traffic::new(2);
            let other = traffic.serve(beside, false);
            for _ in 0..10_000 {
                drop(traffic.serve(0, false));
                assert!(!traffic.is_single(), "the other is in queue {beside}");
            }
            drop(other);
            serve_alone(&traffic, 2048);
            assert!(traffic.is_single(), "it ended long ago");
        }
    }

    #[test]
    fn a_few_requests_beside_others_end_the_time_of_a_single_program() {
        let traffic = single();
        let other = traffic.serve(1, false);
        for _ in 0..5 {
            drop(traffic.serve(0, false));
        }
        assert!(!traffic.is_single());
        drop(other);
        serve_alone(&traffic, 400);
        assert!(!traffic.is_single(), "it comes back later");
        serve_alone(&traffic, 2048);
        assert!(traffic.is_single());
    }

    #[test]
    fn a_machine_without_idle_cpus_is_tried_again_after_many_requests() {
        let traffic = single();
        traffic.note_watch(Sight::Found);
        assert!(traffic.is_single());
        for _ in 0..4 {
            traffic.note_watch(Sight::Gap(Duration::from_millis(1)));
        }
        assert!(!traffic.is_single() && traffic.turn_to_watch().is_none());
        serve_alone(&traffic, 15_000);
        assert!(!traffic.is_single());
        serve_alone(&traffic, 2048);
        assert!(traffic.is_single());
    }

    #[test]
    fn a_single_program_may_send_two_requests_at_once_now_and_then() {
        let traffic = single();
        for _ in 0..1000 {
            serve_alone(&traffic, 8);
            let _first = traffic.serve(0, false);
            drop(traffic.serve(0, false));
            assert!(traffic.is_single());
        }
    }

    /// Serves a FORGET beside one of so many requests, again and again. Returns whether they pass for a single program's.
    fn is_single_with_a_forget_in(requests: u16) -> bool {
        let traffic = single();
        (0..100).all(|_| {
            serve_alone(&traffic, requests - 1);
            let _forget = traffic.serve_beside();
            serve_alone(&traffic, 1);
            traffic.is_single()
        })
    }

    #[test]
    fn many_requests_beside_forgets_stand_for_several_programs_and_few_do_not() {
        assert!(is_single_with_a_forget_in(10));
        assert!(!is_single_with_a_forget_in(3));
    }

    #[test]
    fn one_thread_at_a_time_watches_and_none_where_several_programs_are_at_work() {
        assert!(Traffic::new(2).turn_to_watch().is_none());
        let traffic = single();
        let turn = traffic.turn_to_watch();
        assert!(turn.is_some() && traffic.turn_to_watch().is_none());
        drop(turn);
        assert!(traffic.turn_to_watch().is_some());
    }
}
