//! The operations that an executor runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Buffer, StoreError, StoreRef};

/// One operation on a file of a store.
#[derive(Debug)]
pub enum Op {
    /// Fills `buf`, which comes back as the answer.
    Read {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Decides how much is read.
        buf: Buffer,
    },
    /// [`Store::write_at`](crate::Store::write_at).
    Write {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The bytes to write.
        data: Bytes,
    },
    /// [`Store::write_durably`](crate::Store::write_durably).
    WriteDurably {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The bytes to write.
        data: Bytes,
    },
    /// [`Store::sync`](crate::Store::sync).
    Sync {
        /// The file.
        name: Arc<str>,
    },
    /// [`Store::create`](crate::Store::create).
    Create {
        /// The file.
        name: Arc<str>,
        /// Its length in bytes.
        len: u64,
    },
    /// [`Store::remove`](crate::Store::remove).
    Remove {
        /// The file.
        name: Arc<str>,
    },
    /// [`Store::punch`](crate::Store::punch).
    Punch {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// [`Store::probe`](crate::Store::probe).
    Probe,
}

impl Op {
    /// Returns the file and a verb, for messages.
    pub(super) fn describe(&self) -> (&str, &'static str) {
        match self {
            Self::Read { name, .. } => (name, "read"),
            Self::Write { name, .. } | Self::WriteDurably { name, .. } => (name, "write"),
            Self::Sync { name } => (name, "sync"),
            Self::Create { name, .. } => (name, "create"),
            Self::Remove { name } => (name, "remove"),
            Self::Punch { name, .. } => (name, "punch"),
            Self::Probe => ("directory", "find"),
        }
    }
}

/// One operation on one store.
#[derive(Debug)]
pub struct StoreRequest {
    /// The store that it goes to.
    pub store: StoreRef,
    /// The operation.
    pub op: Op,
}

impl StoreRequest {
    /// Reads into `buf`, all of it.
    #[must_use]
    pub fn read(store: &StoreRef, name: impl Into<Arc<str>>, offset: u64, buf: Buffer) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Read {
                name: name.into(),
                offset,
                buf,
            },
        }
    }

    /// Writes all of `data`.
    #[must_use]
    pub fn write(store: &StoreRef, name: impl Into<Arc<str>>, offset: u64, data: Bytes) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Write {
                name: name.into(),
                offset,
                data,
            },
        }
    }

    /// Writes all of `data`, and makes it durable.
    #[must_use]
    pub fn write_durably(
        store: &StoreRef,
        name: impl Into<Arc<str>>,
        offset: u64,
        data: Bytes,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::WriteDurably {
                name: name.into(),
                offset,
                data,
            },
        }
    }

    /// Makes a file durable.
    #[must_use]
    pub fn sync(store: &StoreRef, name: impl Into<Arc<str>>) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Sync { name: name.into() },
        }
    }

    /// Makes a file of `len` bytes.
    #[must_use]
    pub fn create(store: &StoreRef, name: impl Into<Arc<str>>, len: u64) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Create {
                name: name.into(),
                len,
            },
        }
    }

    /// Removes a file.
    #[must_use]
    pub fn remove(store: &StoreRef, name: impl Into<Arc<str>>) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Remove { name: name.into() },
        }
    }

    /// Gives back the space of a range.
    #[must_use]
    pub fn punch(store: &StoreRef, name: impl Into<Arc<str>>, offset: u64, len: u64) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Punch {
                name: name.into(),
                offset,
                len,
            },
        }
    }

    /// Checks that the directory is still the one that was opened.
    #[must_use]
    pub fn probe(store: &StoreRef) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Probe,
        }
    }

    /// The error for an operation that did not answer.
    pub(super) fn hung(store: &StoreRef, op: &Op, timeout: Duration) -> StoreError {
        let (name, action) = op.describe();
        StoreError::hung(store.label(), action, name, timeout)
    }

    /// The error for an operation whose caller does not wait any more.
    pub(super) fn slow(store: &StoreRef, op: &Op) -> StoreError {
        let (name, action) = op.describe();
        StoreError::slow(store.label(), action, name)
    }
}

/// The result of one request: the filled buffer of a read, nothing for any other success.
pub type Outcome = Result<Option<Buffer>, StoreError>;
