//! The gate that keeps the size of a file still while the kernel is told of it.

use std::thread;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::Ino;

use super::error::FsError;

/// Gates that inodes share.
const SLOTS: usize = 64;

/// The longest wait for the kernel. It may wait for a page, and the thread that reads this page may be the one that waits.
const PATIENCE: Duration = Duration::from_secs(1);

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

    /// Lets a change of the size of `ino` pass. The gate stays open until the guard is dropped.
    ///
    /// # Errors
    ///
    /// [`FsError::SizeInUse`] if the gate stays closed.
    pub(super) fn pass(&self, ino: Ino) -> Result<RwLockReadGuard<'_, ()>, FsError> {
        let passed = self.slot(ino).try_read_for(PATIENCE);
        passed.ok_or(FsError::SizeInUse)
    }

    /// Closes the gate of `ino` once no change is passing it. It never holds back changes before that.
    pub(super) fn close(&self, ino: Ino) -> RwLockWriteGuard<'_, ()> {
        loop {
            if let Some(closed) = self.slot(ino).try_write() {
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
    fn changes_of_size_pass_together_and_none_passes_a_closed_gate() {
        let gate = SizeGate::new();
        let first = gate.pass(Ino(1)).unwrap();
        drop(gate.pass(Ino(1)).unwrap());
        drop(first);
        let closed = gate.close(Ino(1));
        assert!(matches!(gate.pass(Ino(1)), Err(FsError::SizeInUse)));
        drop(gate.pass(Ino(2)).unwrap());
        drop(closed);
        drop(gate.pass(Ino(1)).unwrap());
    }

    #[test]
    fn a_gate_is_closed_only_after_the_last_change_has_passed() {
        let gate = SizeGate::new();
        let passing = gate.pass(Ino(1)).unwrap();
        thread::scope(|scope| {
            let closing = scope.spawn(|| drop(gate.close(Ino(1))));
            // It lets others pass meanwhile.
            drop(gate.pass(Ino(1)).unwrap());
            assert!(!closing.is_finished());
            drop(passing);
        });
    }
}
