//! The gate that keeps the size of a file still while the kernel is told of it.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::Ino;

/// Gates that inodes share.
const SLOTS: usize = 64;

/// The longest wait of a change. The kernel takes a size before it waits for a page, and so has taken it by then.
const PATIENCE: Duration = Duration::from_millis(200);

/// The longest wait for changes that are passing. One may wait for a member that hangs.
const CLOSING_PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two looks at a gate that changes of size pass.
const POLL: Duration = Duration::from_millis(2);

/// Gates, taken before all other locks. Changes of size pass them, and a notice to the kernel closes one.
pub(super) struct SizeGate([RwLock<()>; SLOTS]);

impl SizeGate {
    /// Returns open gates.
    pub(super) fn new() -> Self {
        Self([const { RwLock::new(()) }; SLOTS])
    }

    fn slot(&self, ino: Ino) -> &RwLock<()> {
        let slot = usize::try_from(ino.0).unwrap_or_default() % SLOTS;
        &self.0[slot]
    }

    /// Lets a change of the size of `ino` pass. The gate stays open until the guard is dropped. If the kernel does not come
    /// back from a notice, the change passes without a guard.
    pub(super) fn pass(&self, ino: Ino) -> Option<RwLockReadGuard<'_, ()>> {
        self.slot(ino).try_read_for(PATIENCE)
    }

    /// Closes the gate of `ino` once no change is passing it. It never holds back changes before that. Returns none if they
    /// take long.
    pub(super) fn close(&self, ino: Ino) -> Option<RwLockWriteGuard<'_, ()>> {
        let begun = Instant::now();
        loop {
            let closed = self.slot(ino).try_write();
            if closed.is_some() || begun.elapsed() > CLOSING_PATIENCE {
                return closed;
            }
            thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_size_pass_together_and_none_passes_a_closed_gate_at_once() {
        let gate = SizeGate::new();
        let first = gate.pass(Ino(1)).unwrap();
        drop(gate.pass(Ino(1)).unwrap());
        drop(first);
        let closed = gate.close(Ino(1)).unwrap();
        assert!(gate.pass(Ino(1)).is_none());
        drop(gate.pass(Ino(2)).unwrap());
        drop(closed);
        drop(gate.pass(Ino(1)).unwrap());
    }

    #[test]
    fn a_gate_is_not_closed_while_a_change_passes() {
        let gate = SizeGate::new();
        let passing = gate.pass(Ino(1)).unwrap();
        thread::scope(|scope| {
            let closing = scope.spawn(|| gate.close(Ino(1)).is_none());
            // It lets others pass meanwhile.
            drop(gate.pass(Ino(1)).unwrap());
            assert!(closing.join().unwrap());
        });
        drop(passing);
        assert!(gate.close(Ino(1)).is_some());
    }
}
