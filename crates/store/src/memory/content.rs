//! The bytes of one version of a file, in blocks that versions share.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Size of a block in bytes.
pub(super) const BLOCK: usize = 4096;

/// Sparse bytes: what was never written reads as zeros.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: u64,
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

impl Content {
    /// `len` zeros.
    pub(super) fn zeros(len: u64) -> Self {
        Self {
            len,
            blocks: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf`; what lies beyond the end reads as zeros.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        for (block, within, range) in pieces(offset, buf.len()) {
            let target = &mut buf[range];
            match self.blocks.get(&block) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + target.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Overwrites bytes, growing if they end beyond the end.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        for (block, within, range) in pieces(offset, data.len()) {
            let source = &data[range];
            let bytes = self
                .blocks
                .entry(block)
                .or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(bytes)[within..within + source.len()].copy_from_slice(source);
        }
        if !data.is_empty() {
            self.len = self.len.max(offset + data.len() as u64);
        }
    }

    /// Sets the length; bytes cut off do not come back.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.len = len;
    }

    /// Makes a range read as zeros, without changing the length.
    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len);
        if offset >= end {
            return;
        }
        let size = BLOCK as u64;
        let (first, last) = (offset / size, (end - 1) / size);
        let touched: Vec<u64> = self
            .blocks
            .range(first..=last)
            .map(|(&block, _)| block)
            .collect();
        for block in touched {
            let start = block * size;
            let from = to_index(offset.saturating_sub(start));
            let to = to_index((end - start).min(size));
            if from == 0 && (to == BLOCK || end == self.len) {
                self.blocks.remove(&block);
            } else if let Some(bytes) = self.blocks.get_mut(&block) {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
        }
    }
}

/// Splits a range at block boundaries: block, offset within it, range of the caller's memory.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = to_index(at % BLOCK as u64);
        let count = (BLOCK - within).min(len - done);
        let range = done..done + count;
        done += count;
        Some((at / BLOCK as u64, within, range))
    })
}

/// An offset inside a block as an index.
fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset within a block fits a usize")
}
