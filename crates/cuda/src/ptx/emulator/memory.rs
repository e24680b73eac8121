//! Memory of the emulator, with an end.

/// Bytes from [`Memory::START`] on, and constants and the shared memory of a block elsewhere.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    constants: Vec<u8>,
    shared: Vec<SharedByte>,
}

/// A byte of shared memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SharedByte {
    /// Nothing was written yet.
    Unwritten,
    /// A copy is on its way to it, so that its value is not defined.
    InFlight,
    Written(u8),
}

impl Memory {
    /// Address of the first byte.
    pub(crate) const START: u64 = 0x7000_0000_0000;
    /// Address of the constants of a module.
    pub(super) const CONSTANTS: u64 = 0x100;
    /// Address of the first byte of shared memory.
    pub(super) const SHARED: u64 = 0x400;

    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            constants: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// Gives a block so many bytes of shared memory, with nothing in them.
    pub(super) fn start_block(&mut self, shared_bytes: usize) {
        self.shared = vec![SharedByte::Unwritten; shared_bytes];
    }

    /// Reads a byte or a word of shared memory.
    pub(super) fn shared(&self, at: u64, bytes: usize) -> u32 {
        assert!(at.is_multiple_of(bytes as u64), "{at:#x} is not aligned");
        let range = &self.shared[shared_offset(at)..][..bytes];
        let read = range.iter().rev().map(|&byte| match byte {
            SharedByte::Written(value) => value,
            SharedByte::Unwritten => panic!("{at:#x} is read, but never written"),
            SharedByte::InFlight => panic!("{at:#x} is read while bytes are in flight to it"),
        });
        read.fold(0, |word, byte| word << 8 | u32::from(byte))
    }

    /// Writes words of shared memory, all at once.
    pub(super) fn store_shared_words(&mut self, at: u64, words: &[u32]) {
        let bytes = 4 * words.len() as u64;
        assert!(at.is_multiple_of(bytes), "{at:#x} is not aligned");
        for (address, &word) in (at..).step_by(4).zip(words) {
            self.store_shared(address, 4, word);
        }
    }

    /// Reads words of shared memory, all at once.
    pub(super) fn shared_words(&self, at: u64, count: usize) -> Vec<u32> {
        let bytes = 4 * count as u64;
        assert!(at.is_multiple_of(bytes), "{at:#x} is not aligned");
        let addresses = (at..).step_by(4).take(count);
        addresses.map(|address| self.shared(address, 4)).collect()
    }

    /// Writes a byte or a word of shared memory.
    pub(super) fn store_shared(&mut self, at: u64, bytes: usize, word: u32) {
        assert!(at.is_multiple_of(bytes as u64), "{at:#x} is not aligned");
        let range = &mut self.shared[shared_offset(at)..][..bytes];
        for (byte, new) in range.iter_mut().zip(word.to_le_bytes()) {
            let is_free = *byte != SharedByte::InFlight;
            assert!(
                is_free,
                "{at:#x} is written while bytes are in flight to it"
            );
            *byte = SharedByte::Written(new);
        }
    }

    /// Begins a copy of so many bytes to shared memory.
    pub(super) fn start_copy(&mut self, at: u64, bytes: usize) {
        assert!(at.is_multiple_of(bytes as u64), "{at:#x} is not aligned");
        for byte in &mut self.shared[shared_offset(at)..][..bytes] {
            let is_free = *byte != SharedByte::InFlight;
            assert!(
                is_free,
                "{at:#x} is copied to while bytes are in flight to it"
            );
            *byte = SharedByte::InFlight;
        }
    }

    /// Ends a copy that was [started](Self::start_copy).
    pub(super) fn end_copy(&mut self, at: u64, words: &[u32]) {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        for (byte, new) in self.shared[shared_offset(at)..].iter_mut().zip(bytes) {
            *byte = SharedByte::Written(new);
        }
    }

    pub(super) fn set_constants(&mut self, words: &[u32]) {
        self.constants = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    }

    pub(super) fn byte(&self, at: u64) -> u8 {
        self.bytes[offset(at)]
    }

    /// Reads words, all at once.
    pub(super) fn words(&self, at: u64, count: usize) -> Vec<u32> {
        assert!(
            at.is_multiple_of(4 * count as u64),
            "{at:#x} is not aligned"
        );
        let bytes = if at < Self::START {
            let start = usize::try_from(at - Self::CONSTANTS).expect("fits");
            &self.constants[start..start + 4 * count]
        } else {
            &self.bytes[offset(at)..][..4 * count]
        };
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    pub(super) fn store(&mut self, at: u64, words: &[u32]) {
        assert!(
            at.is_multiple_of(4 * words.len() as u64),
            "{at:#x} is not aligned"
        );
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes[offset(at)..][..bytes.len()].copy_from_slice(&bytes);
    }
}

fn offset(at: u64) -> usize {
    usize::try_from(at - Memory::START).expect("an address that was handed out")
}

fn shared_offset(at: u64) -> usize {
    usize::try_from(at - Memory::SHARED).expect("an address in shared memory")
}
