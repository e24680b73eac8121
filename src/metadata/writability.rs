//! The answer to one question: may anything still be written?

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::MetaError;
use crate::membership::Access;

/// State that ends all writing: the access, a close, and the first failure that left journal or index in doubt.
#[derive(Debug)]
pub(super) struct Writability {
    access: Access,
    closed: AtomicBool,
    /// The first failure that left journal or index in doubt.
    poison: OnceLock<String>,
}

impl Writability {
    pub(super) fn new(access: Access) -> Self {
        Self {
            access,
            closed: AtomicBool::new(false),
            poison: OnceLock::new(),
        }
    }

    /// Returns whether the volume was opened for reading only.
    pub(super) fn is_read_only(&self) -> bool {
        self.access == Access::ReadOnly
    }

    /// Refuses to write after a failure, after a close, and to a volume that was opened for reading only. Takes no lock,
    /// because every change asks.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`], [`MetaError::Closed`] or [`MetaError::ReadOnly`].
    pub(super) fn check(&self) -> Result<(), MetaError> {
        if let Some(reason) = self.poison.get() {
            return Err(MetaError::Poisoned {
                reason: reason.clone(),
            });
        }
        if self.is_closed() {
            return Err(MetaError::Closed);
        }
        match self.access {
            Access::ReadOnly => Err(MetaError::ReadOnly),
            Access::ReadWrite => Ok(()),
        }
    }

    /// Remembers the first failure after which nothing may be written, and returns it.
    pub(super) fn poison(&self, error: MetaError) -> MetaError {
        let reason = self.poison.get_or_init(|| match error {
            MetaError::Poisoned { reason } => reason,
            other => other.to_string(),
        });
        MetaError::Poisoned {
            reason: reason.clone(),
        }
    }

    /// Ends all writing.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Returns whether [`Writability::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_the_reason_for_good() {
        let writability = Writability::new(Access::ReadWrite);
        assert!(writability.check().is_ok());
        writability.poison(MetaError::poisoned("first"));
        let later = writability.poison(MetaError::NoSpace);
        assert!(matches!(later, MetaError::Poisoned { reason } if reason == "first"));
        writability.close();
        let refused = writability.check();
        assert!(matches!(refused, Err(MetaError::Poisoned { reason }) if reason == "first"));
    }

    #[test]
    fn nothing_is_written_after_a_close_or_to_a_volume_opened_for_reading() {
        let writability = Writability::new(Access::ReadWrite);
        writability.close();
        assert!(matches!(writability.check(), Err(MetaError::Closed)));
        let writability = Writability::new(Access::ReadOnly);
        assert!(matches!(writability.check(), Err(MetaError::ReadOnly)));
    }
}
