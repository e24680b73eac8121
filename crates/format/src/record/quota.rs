//! Quotas of directories.

use bytes::BufMut;

use super::{Record, VERSION, Value};
use crate::{FormatError, Ino, QuotaId, wire::Reader};

/// The course of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaState {
    /// Its limits hold, and it counts everything below its directory.
    #[default]
    InForce,
    /// Its limits hold, and not everything below its directory is counted yet.
    Counting,
    /// It has no limits any more. What it still counts belongs to the quota around it.
    Lifted,
}

/// The usage that a quota counts or limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    /// Bytes of files, as `st_blocks` counts them: in units of 512 for each file.
    pub bytes: u64,
    /// Inodes, directories included.
    pub files: u64,
}

/// A quota of a directory: `b'p' quota`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The directory. It is counted itself.
    pub root: Ino,
    /// The quota of a directory around it, which counts the same inodes; else [`QuotaId::NONE`].
    pub outer: QuotaId,
    /// Its course.
    pub state: QuotaState,
    /// The usage of all inodes that name this quota, or one that lies in it.
    pub usage: QuotaUsage,
    /// The most bytes, if limited.
    pub max_bytes: Option<u64>,
    /// The most inodes, if limited.
    pub max_files: Option<u64>,
}

/// Bytes of a record with all optional fields.
const MAX_LEN: usize = 50;

mod flag {
    pub(super) const MAX_BYTES: u8 = 1;
    pub(super) const MAX_FILES: u8 = 2;
    pub(super) const COUNTING: u8 = 4;
    pub(super) const LIFTED: u8 = 8;
}

impl Quota {
    fn flags(&self) -> u8 {
        let state = match self.state {
            QuotaState::InForce => 0,
            QuotaState::Counting => flag::COUNTING,
            QuotaState::Lifted => flag::LIFTED,
        };
        let max_bytes = u8::from(self.max_bytes.is_some()) * flag::MAX_BYTES;
        let max_files = u8::from(self.max_files.is_some()) * flag::MAX_FILES;
        state | max_bytes | max_files
    }
}

impl Record for Quota {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(MAX_LEN);
        value.put_u8(VERSION);
        value.put_u8(self.flags());
        value.put_u64_le(self.root.0);
        value.put_u64_le(self.outer.0);
        value.put_u64_le(self.usage.bytes);
        value.put_u64_le(self.usage.files);
        for limit in [self.max_bytes, self.max_files].into_iter().flatten() {
            value.put_u64_le(limit);
        }
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("quota", bytes);
        reader.version(VERSION)?;
        let flags = reader.u8()?;
        let limits = flags & (flag::MAX_BYTES | flag::MAX_FILES);
        let state = match flags & !limits {
            0 => QuotaState::InForce,
            flag::COUNTING => QuotaState::Counting,
            flag::LIFTED if limits == 0 => QuotaState::Lifted,
            _ => return Err(reader.bad("flags", flags)),
        };
        let (root, outer) = (Ino(reader.u64()?), QuotaId(reader.count("outer quota")?));
        let usage = QuotaUsage {
            bytes: reader.u64()?,
            files: reader.u64()?,
        };
        let mut limit = |bit: u8| {
            let is_there = flags & bit != 0;
            is_there.then(|| reader.u64()).transpose()
        };
        let quota = Self {
            root,
            outer,
            state,
            usage,
            max_bytes: limit(flag::MAX_BYTES)?,
            max_files: limit(flag::MAX_FILES)?,
        };
        reader.finish()?;
        Ok(quota)
    }
}
