//! Pins: a reader's word that it may still use what it looked up.
//!
//! Every pin has a ticket, counted up. A thread that takes something out of the index notes the next ticket. It frees
//! the thing once no older pin is left, because later look-ups cannot find it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::workers::ByThread;

/// The tickets of the pins that are held, with the number of pins that share each. They are few: a thread has one or
/// two pins at a time.
type HeldTickets = Mutex<Vec<(u64, usize)>>;

#[derive(Debug, Default)]
struct PinTable {
    /// The ticket of the next pins. Pins share a ticket if there is no fence between them.
    next: AtomicU64,
    held: ByThread<HeldTickets>,
}

/// The pins of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins(Arc<PinTable>);

/// Keeps what its holder looked up readable; let it go soon.
#[derive(Debug)]
#[must_use = "a pin holds only while it is kept"]
pub struct Pin<'a> {
    held: &'a HeldTickets,
    ticket: u64,
}

/// A point in time that each pin is older or newer than.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PinFence(u64);

impl Pins {
    /// Takes a pin.
    pub(crate) fn pin(&self) -> Pin<'_> {
        let held = self.0.held.own();
        let mut tickets = held.lock();
        // Under the lock: a caller that takes a fence and then finds no pin here knows that a pin which comes later
        // has a newer ticket.
        let ticket = self.0.next.load(Ordering::Acquire);
        match tickets.iter_mut().find(|(known, _)| *known == ticket) {
            Some((_, count)) => *count += 1,
            None => tickets.push((ticket, 1)),
        }
        drop(tickets);
        Pin { held, ticket }
    }

    /// Returns a fence between the pins taken so far and those to come.
    pub(crate) fn fence(&self) -> PinFence {
        PinFence(self.0.next.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Returns whether no pin from before `fence` is held.
    pub(crate) fn has_passed(&self, fence: PinFence) -> bool {
        let has_none = |held: &HeldTickets| held.lock().iter().all(|(it, _)| *it >= fence.0);
        self.0.held.all().all(has_none)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut tickets = self.held.lock();
        if let Some(at) = tickets.iter().position(|(it, _)| *it == self.ticket) {
            tickets[at].1 -= 1;
            if tickets[at].1 == 0 {
                tickets.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_passed_when_the_pins_from_before_it_are_gone_whatever_comes_after() {
        let pins = Pins::default();
        let (first, second) = (pins.pin(), pins.pin());
        let fence = pins.fence();
        let later = pins.pin();
        assert!(!pins.has_passed(fence));
        drop(first);
        assert!(!pins.has_passed(fence));
        drop(second);
        assert!(pins.has_passed(fence));
        let next = pins.fence();
        assert!(!pins.has_passed(next));
        drop(later);
        assert!(pins.has_passed(next));
    }

    #[test]
    fn no_thread_takes_a_pin_that_a_fence_from_before_it_waits_for() {
        let pins = Pins::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let fence = pins.fence();
                        // The other threads release each pin after a moment.
                        while !pins.has_passed(fence) {
                            std::thread::yield_now();
                        }
                        let later = pins.pin();
                        assert!(later.ticket >= fence.0);
                        let next = pins.fence();
                        assert!(!pins.has_passed(next));
                    }
                });
            }
        });
        assert!(pins.0.held.all().all(|held| held.lock().is_empty()));
    }
}
