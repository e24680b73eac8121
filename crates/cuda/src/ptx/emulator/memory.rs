//! Memory of the emulator, with an end.

/// Bytes from [`Memory::START`] on, and constants elsewhere.
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    constants: Vec<u8>,
}

impl Memory {
    /// Address of the first byte.
    pub(crate) const START: u64 = 0x7000_0000_0000;
    /// Address of the constants of a module.
    pub(super) const CONSTANTS: u64 = 0x100;

    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            constants: Vec::new(),
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
