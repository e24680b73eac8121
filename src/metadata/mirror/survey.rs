//! The survey of the copies of the index, which changes nothing.
//!
//! Copies may differ and all be right: what a commit that was cut off has left, or one for which there was no
//! space, lies in pages that nothing refers to. So where copies differ, the database is asked which pages it
//! is made of: of these, every copy has to have the newest frame.

use std::collections::{BTreeMap, HashSet};

use super::copy_set::CopySet;
use super::files::PAGE;
use super::page_reader::PageReader;
use super::page_set::PageSet;
use super::verify::PIECE_PAGES;
use crate::format::frame::{HEAD_BYTES, Head};
use crate::format::{FormatError, MemberIndex};
use crate::membership::Wait;
use crate::metadata::error::MetaError;

/// The content of one copy's head slots: an intact head of this volume, or why there is none.
struct Slots {
    member: MemberIndex,
    slots: Vec<Result<Head, Absence>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// Nothing was ever written there, or it was zeroed.
    Empty,
    /// A write may have been cut off.
    Torn,
    /// No write leaves this.
    Foreign,
}

/// Look at the copies of the index that changes nothing.
pub(super) struct Survey<'a> {
    pub(super) copies: &'a CopySet,
    pub(super) reader: &'a PageReader,
    /// The durable length of the database.
    pub(super) db_bytes: u64,
}

impl Survey<'_> {
    /// Returns how many pages of each copy are not what the newest commit is made of, and how many heads cannot
    /// be what was written. `walk` has the database read all of its pages; it is called if copies differ.
    pub(super) fn run(
        &self,
        walk: impl FnOnce() -> Result<(), MetaError>,
    ) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        let mut wrong = self.count_wrong_heads();
        for member in self.copies.excluded() {
            *wrong.entry(member).or_default() += 1;
        }
        let (behind, are_damaged) = self.find_differences();
        if behind.is_empty() && !are_damaged {
            return Ok(wrong);
        }
        let walked = self.reader.record_walk(walk)?;
        for (member, behind) in behind {
            *wrong.entry(member).or_default() += behind.count_common(&walked);
        }
        wrong.retain(|_, count| *count > 0);
        Ok(wrong)
    }

    /// Compares all copies. Returns the pages of which each lacks the newest frame, and whether there are any
    /// that are damaged on all.
    fn find_differences(&self) -> (BTreeMap<MemberIndex, PageSet>, bool) {
        let end = self.db_bytes.div_ceil(PAGE);
        let mut behind: BTreeMap<MemberIndex, PageSet> = BTreeMap::new();
        let mut are_damaged = false;
        // Page 0 is in the heads.
        let mut first = 1;
        while first < end {
            let count = PIECE_PAGES.min(end - first);
            let compared = self.reader.compare(first..first + count, Wait::Full);
            for wrong in compared.wrong {
                behind.entry(wrong.member).or_default().insert(wrong.page);
            }
            are_damaged |= compared.damaged > 0;
            first += count;
        }
        (behind, are_damaged)
    }

    fn count_wrong_heads(&self) -> BTreeMap<MemberIndex, u64> {
        let copies: Vec<Slots> = self
            .copies
            .members()
            .into_iter()
            .filter_map(|member| self.read_slots(member))
            .collect();
        let known: HashSet<(u64, MemberIndex)> = copies.iter().flat_map(Slots::named).collect();
        let count = |copy: &Slots| (copy.member, copy.count_wrong(&known));
        copies
            .iter()
            .map(count)
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    fn read_slots(&self, member: MemberIndex) -> Option<Slots> {
        let bytes = self.copies.files().head_slots(member).ok()?;
        let volume = self.copies.files().volume();
        let slots = bytes.as_chunks::<HEAD_BYTES>().0.iter();
        let decode = |slot: &[u8; HEAD_BYTES]| match Head::decode(slot) {
            Ok(head) if head.volume == volume => Ok(head),
            Ok(_) => Err(Absence::Foreign),
            Err(_) if slot.iter().all(|byte| *byte == 0) => Err(Absence::Empty),
            // A write that is cut off within the first sector leaves this sector as it was.
            Err(FormatError::Magic { .. }) if slot[..8] != [0; 8] => Err(Absence::Foreign),
            Err(_) => Err(Absence::Torn),
        };
        Some(Slots {
            member,
            slots: slots.map(decode).collect(),
        })
    }
}

impl Slots {
    /// Returns the members that each head names, by its sequence.
    fn named(&self) -> impl Iterator<Item = (u64, MemberIndex)> {
        let heads = self.slots.iter().flatten();
        heads.flat_map(|head| head.copies.iter().map(|copy| (head.sequence, *copy)))
    }

    /// Counts slots whose content no cut-off write can have left. `known` says which head names which members.
    fn count_wrong(&self, known: &HashSet<(u64, MemberIndex)>) -> u64 {
        let heads = self.slots.iter().flatten();
        let Some(newest) = heads.max_by_key(|head| head.sequence) else {
            return self.slots.len() as u64;
        };
        let is_wrong = |slot: &&Result<Head, Absence>| match slot {
            // When the newest was written, the other slot held the one that was durable before it.
            Ok(head) => head.sequence < newest.durable,
            Err(Absence::Empty) => known.contains(&(newest.durable, self.member)),
            Err(Absence::Torn) => false,
            Err(Absence::Foreign) => true,
        };
        self.slots.iter().filter(is_wrong).count() as u64
    }
}
