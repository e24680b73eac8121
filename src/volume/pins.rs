//! Pins: a reader's word that it may still use what it looked up.
//!
//! Every pin has a ticket, counted up. A thread that takes something out of the index notes the next ticket. It frees
//! the thing once no older pin is left, because later look-ups cannot find it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The number of pins held, by ticket. Pins share a ticket if no thread noted one in between.
    held: BTreeMap<u64, usize>,
}

/// The pins of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins(Arc<Mutex<State>>);

/// Keeps what its holder looked up readable; let it go soon.
#[derive(Debug)]
#[must_use = "a pin holds only while it is kept"]
pub struct Pin {
    pins: Pins,
    ticket: u64,
}

/// A moment that pins are older or newer than.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

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

    /// Returns a moment between the pins taken so far and those to come.
    pub(crate) fn moment(&self) -> Moment {
        let mut state = self.0.lock();
        state.next += 1;
        Moment(state.next)
    }

    /// Returns whether no pin from before `moment` is held.
    pub(crate) fn passed(&self, moment: Moment) -> bool {
        let state = self.0.lock();
        state
            .held
            .first_key_value()
            .is_none_or(|(&ticket, _)| ticket >= moment.0)
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
    fn a_moment_passes_when_the_pins_from_before_it_are_gone_whatever_comes_after() {
        let pins = Pins::default();
        let (first, second) = (pins.pin(), pins.pin());
        let moment = pins.moment();
        let later = pins.pin();
        assert!(!pins.passed(moment));
        drop(first);
        assert!(!pins.passed(moment));
        drop(second);
        assert!(pins.passed(moment));
        let next = pins.moment();
        assert!(!pins.passed(next));
        drop(later);
        assert!(pins.passed(next));
    }
}
