//! Pins: a reader's word that it may still use what it looked up.
//!
//! Every pin has a ticket, counted up. A thread that takes something out of the index notes the next ticket. It frees
//! the thing once no older pin is left, because later look-ups cannot find it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct PinTickets {
    next: u64,
    /// The number of pins held, by ticket. Pins share a ticket if no thread noted one in between.
    held: BTreeMap<u64, usize>,
}

/// The pins of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins(Arc<Mutex<PinTickets>>);

/// Keeps what its holder looked up readable; let it go soon.
#[derive(Debug)]
#[must_use = "a pin holds only while it is kept"]
pub struct Pin {
    pins: Pins,
    ticket: u64,
}

/// A point in time that each pin is older or newer than.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PinFence(u64);

impl Pins {
    /// Takes a pin.
    pub(crate) fn pin(&self) -> Pin {
        let mut state = self.0.lock();
        let ticket = state.next;
        *state.held.entry(ticket).or_default() += 1;
        Pin {
            pins: self.clone(),
            ticket,
        }
    }

    /// Returns a fence between the pins taken so far and those to come.
    pub(crate) fn fence(&self) -> PinFence {
        let mut state = self.0.lock();
        state.next += 1;
        PinFence(state.next)
    }

    /// Returns whether no pin from before `fence` is held.
    pub(crate) fn has_passed(&self, fence: PinFence) -> bool {
        let state = self.0.lock();
        state
            .held
            .first_key_value()
            .is_none_or(|(&ticket, _)| ticket >= fence.0)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.pins.0.lock();
        if let Some(count) = state.held.get_mut(&self.ticket) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&self.ticket);
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
}
