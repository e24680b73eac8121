//! Files that only take space: reserved where the filesystem can, else filled with bytes that cannot be compressed.

use std::sync::Arc;

use bytes::Bytes;

use super::io::MemberIo;
use crate::format::MemberIndex;
use crate::store::{Op, Pool, StoreError};

/// Bytes that are written at once to fill a file.
const NOISE_BYTES: usize = 1 << 20;

impl MemberIo {
    /// Makes a file that takes the space of `len` bytes, in the place of any file of that name. Where space cannot be
    /// reserved, it writes bytes that no filesystem can compress.
    ///
    /// # Errors
    ///
    /// The answer of the member; nothing is left of the file then, unless removing it fails, too.
    pub fn fill(&self, member: MemberIndex, name: &Arc<str>, len: u64) -> Result<(), StoreError> {
        let filled = self.try_fill(member, name, len);
        if filled.is_err()
            && let Err(error) = self.one(member, remove_op(name))
        {
            tracing::debug!("member {member} keeps the rest of a file: {error}");
        }
        filled
    }

    fn try_fill(&self, member: MemberIndex, name: &Arc<str>, len: u64) -> Result<(), StoreError> {
        self.one(member, remove_op(name))?;
        let file = Arc::clone(name);
        let reserves = self.call(member, "create", move |store| {
            store.create(&file, len)?;
            if store.space()?.reserves {
                return Ok(true);
            }
            // So that its length says how much of it was written.
            store.truncate(&file, 0)?;
            Ok(false)
        })?;
        if reserves {
            return Ok(());
        }
        let noise = noise();
        let mut offset = 0;
        while offset < len {
            let left = usize::try_from(len - offset).unwrap_or(usize::MAX);
            let data = noise.slice(..noise.len().min(left));
            let written = data.len() as u64;
            let name = Arc::clone(name);
            self.one(member, Op::Write { name, offset, data })?;
            offset += written;
        }
        let name = Arc::clone(name);
        self.one(member, Op::Sync { name })
    }

    fn one(&self, member: MemberIndex, op: Op) -> Result<(), StoreError> {
        let outcomes = self.run(vec![(member, op)]);
        outcomes
            .into_iter()
            .try_for_each(|outcome| outcome.map(drop))
    }
}

fn remove_op(name: &Arc<str>) -> Op {
    Op::Remove {
        name: Arc::clone(name),
    }
}

/// Returns a megabyte that cannot be compressed, in memory fit for any way of writing.
fn noise() -> Bytes {
    let mut noise = Pool::new(0).buffer(NOISE_BYTES);
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for word in noise.chunks_exact_mut(size_of::<u64>()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    noise.freeze()
}
