//! Memory that begins where it is fast.

use std::ops::{Deref, DerefMut};

use crate::bench::BenchError;

/// The alignment: two cache lines, which CPUs write past the caches. It is a line of a GPU, too.
const ALIGNMENT: usize = 128;

/// So many bytes, from a multiple of [`ALIGNMENT`] on.
pub(super) struct Room {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Room {
    /// Returns so many zeros.
    ///
    /// # Errors
    ///
    /// [`BenchError::NoRoom`] if the system does not give the memory.
    pub(super) fn new(bytes: usize) -> Result<Self, BenchError> {
        let mut memory = Vec::new();
        let given = memory.try_reserve_exact(bytes + ALIGNMENT);
        given.map_err(|_| BenchError::NoRoom { bytes })?;
        memory.resize(bytes + ALIGNMENT, 0);
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Ok(Self {
            memory,
            start,
            bytes,
        })
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.bytes]
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_has_all_its_bytes_and_is_aligned() {
        for bytes in [0, 1, 1000, 1 << 20] {
            let mut room = Room::new(bytes).expect("little memory");
            assert_eq!(room.len(), bytes);
            assert!(room.as_ptr().addr().is_multiple_of(ALIGNMENT));
            room.fill(1);
            assert!(room.iter().all(|&byte| byte == 1));
        }
    }
}
