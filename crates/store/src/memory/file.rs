//! One file of a memory disk: what it reads as, what of that is durable, and what lies between.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use super::content::{BLOCK, Content};
use super::cut::CutPolicy;
use crate::StoreErrorKind;

/// The unit that a disk writes at once: a power cut leaves a sector old or new, never mixed.
const SECTOR: u64 = 512;

/// A file with the changes that no sync has made durable.
#[derive(Clone, Debug)]
pub(super) struct File {
    current: Content,
    durable: Content,
    /// Turns `durable` into `current`, in this order.
    pending: Vec<Change>,
    allocated: Allocated,
}

/// One change that a power cut may undo.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, data: Vec<u8> },
    Zero { offset: u64, len: u64 },
    SetLen(u64),
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, data } => content.write(*offset, data),
            Self::Zero { offset, len } => content.zero(*offset, *len),
            Self::SetLen(len) => content.set_len(*len),
        }
    }

    /// Applies those parts of the change that survive.
    fn apply_some(&self, content: &mut Content, random: &mut Xoshiro256PlusPlus) {
        match self {
            Self::Write { offset, data } => {
                for (start, sector) in sectors(*offset, data) {
                    if random.random() {
                        content.write(start, sector);
                    }
                }
                // The new length can reach the disk without the bytes.
                let end = offset + data.len() as u64;
                if random.random() && content.len() < end {
                    content.set_len(end);
                }
            }
            Self::Zero { .. } | Self::SetLen(_) => {
                if random.random() {
                    self.apply(content);
                }
            }
        }
    }
}

impl File {
    /// Makes a durable file of zeros with space for `reserved` bytes of it.
    pub(super) fn new(len: u64, reserved: u64, free_bytes: u64) -> Result<Self, StoreErrorKind> {
        let mut allocated = Allocated::default();
        allocated.add(0, reserved, free_bytes)?;
        let content = Content::zeros(len);
        Ok(Self {
            durable: content.clone(),
            current: content,
            pending: Vec::new(),
            allocated,
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.current.len()
    }

    /// Returns the space that the file takes, in bytes.
    pub(super) fn used_bytes(&self) -> u64 {
        self.allocated.count * BLOCK as u64
    }

    pub(super) fn has_unsynced(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Fills `buf`, or returns false if the file ends too early.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let end = offset.checked_add(buf.len() as u64);
        let covered = end.is_some_and(|end| end <= self.current.len());
        if covered {
            self.current.read(offset, buf);
        }
        covered
    }

    pub(super) fn write(
        &mut self,
        offset: u64,
        data: &[u8],
        free_bytes: u64,
    ) -> Result<(), StoreErrorKind> {
        self.allocated.add(offset, data.len() as u64, free_bytes)?;
        if !data.is_empty() {
            self.change(Change::Write {
                offset,
                data: data.to_vec(),
            });
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, len: u64) {
        self.allocated.remove(len, u64::MAX - len);
        if len != self.current.len() {
            self.change(Change::SetLen(len));
        }
    }

    pub(super) fn reserve(
        &mut self,
        offset: u64,
        len: u64,
        reserved: u64,
        free_bytes: u64,
    ) -> Result<(), StoreErrorKind> {
        self.allocated.add(offset, reserved, free_bytes)?;
        if len > 0 && offset + len > self.current.len() {
            self.change(Change::SetLen(offset + len));
        }
        Ok(())
    }

    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        self.allocated.remove(offset, len);
        self.change(Change::Zero { offset, len });
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Decides what a power cut leaves; `random` is there exactly for a reordering policy.
    pub(super) fn cut(&mut self, policy: CutPolicy, random: Option<&mut Xoshiro256PlusPlus>) {
        match random {
            Some(random) => {
                for change in self.pending.drain(..) {
                    change.apply_some(&mut self.durable, random);
                }
            }
            None if policy == CutPolicy::Keep => self.sync(),
            None => self.pending.clear(),
        }
        self.current = self.durable.clone();
        let len = self.current.len();
        self.allocated.remove(len, u64::MAX - len);
    }

    /// Changes bytes in every version at once. Returns whether the file covers the range.
    pub(super) fn corrupt(&mut self, offset: u64, len: usize, change: impl Fn(&mut [u8])) -> bool {
        let mut bytes = vec![0; len];
        let end = offset.saturating_add(len as u64);
        if !self.read(offset, &mut bytes) {
            return false;
        }
        change(&mut bytes);
        if end <= self.durable.len() {
            self.durable.write(offset, &bytes);
        }
        // Also the last of the unsynced writes, so that syncing them does not undo the damage.
        self.change(Change::Write {
            offset,
            data: bytes,
        });
        true
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }
}

/// Splits a write at sector boundaries: offset and bytes of each part.
fn sectors(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut rest = data;
    let mut at = offset;
    std::iter::from_fn(move || {
        let room = usize::try_from(SECTOR - at % SECTOR).expect("a sector fits a usize");
        let (sector, behind) = rest.split_at(room.min(rest.len()));
        let start = at;
        at += sector.len() as u64;
        rest = behind;
        (!sector.is_empty()).then_some((start, sector))
    })
}

/// The blocks of a file that have space on the disk: one bit each.
#[derive(Clone, Debug, Default)]
struct Allocated {
    words: Vec<u64>,
    count: u64,
}

/// Bits of a word.
const BITS: u64 = u64::BITS as u64;

impl Allocated {
    /// Takes space for every block that the range touches, or for none.
    fn add(&mut self, offset: u64, len: u64, free_bytes: u64) -> Result<(), StoreErrorKind> {
        if len == 0 {
            return Ok(());
        }
        let size = BLOCK as u64;
        let end = offset.checked_add(len).ok_or(StoreErrorKind::NoSpace)?;
        let blocks = offset / size..end.div_ceil(size);
        let free_blocks = free_bytes / size;
        let new = blocks.end - blocks.start - self.count_in(&blocks);
        if new > free_blocks {
            return Err(StoreErrorKind::NoSpace);
        }
        let words = word_of(blocks.end - 1) + 1;
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
        for block in blocks {
            self.words[word_of(block)] |= 1 << (block % BITS);
        }
        self.count += new;
        Ok(())
    }

    /// Gives back the space of every block that lies wholly in the range.
    fn remove(&mut self, offset: u64, len: u64) {
        let size = BLOCK as u64;
        let end = offset.saturating_add(len) / size;
        let blocks = offset.div_ceil(size)..end.min(self.words.len() as u64 * BITS);
        for block in blocks {
            let (word, bit) = (&mut self.words[word_of(block)], 1 << (block % BITS));
            if *word & bit != 0 {
                *word &= !bit;
                self.count -= 1;
            }
        }
    }

    fn count_in(&self, blocks: &std::ops::Range<u64>) -> u64 {
        let known = blocks.start..blocks.end.min(self.words.len() as u64 * BITS);
        known
            .filter(|block| self.words[word_of(*block)] >> (block % BITS) & 1 == 1)
            .count() as u64
    }
}

fn word_of(block: u64) -> usize {
    usize::try_from(block / BITS).expect("a bitmap that fits memory")
}
