//! Comparing and verifying the copies of the index, and repairing each copy from the others.

use std::collections::BTreeMap;
use std::io;

use super::files::{IndexCopy, PAGE};
use super::writer::CopyWriter;
use crate::format::MemberIndex;
use crate::format::frame::{HEAD_BYTES, Head, PAGE_BYTES};
use crate::membership::Wait;

/// Pages compared in one go: 1 MiB.
pub(super) const PIECE_PAGES: u64 = (1 << 20) / PAGE_BYTES as u64;

/// The result of verifying a piece of the copies of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedIndex {
    /// The page to go on with.
    pub next: u64,
    /// Pages and heads of copies that were damaged or out of date, and are right now, durably.
    pub repaired: u64,
    /// The number of these that each member had; a copy that was cut short counts as one.
    pub found: BTreeMap<MemberIndex, u64>,
    /// Pages that are damaged on every copy. They need not hold anything that is used.
    pub damaged: u64,
}

impl VerifiedIndex {
    fn add(&mut self, member: MemberIndex, pieces: u64) {
        *self.found.entry(member).or_default() += pieces;
        self.repaired += pieces;
    }
}

impl CopyWriter {
    /// Compares the copies of some more pages, and writes the newest frame over all others. Returns whether
    /// there is more to do. All pages are compared once a mount.
    pub(super) fn compare(&mut self) -> io::Result<bool> {
        if !matches!(self.mode.writes_through(), Ok(true)) {
            return Ok(false);
        }
        let first = self.reader.compared();
        let end = self.heads.durable.db_bytes.div_ceil(PAGE);
        if first >= end {
            // All beyond was written since.
            self.reader.note_compared(u64::MAX);
            return Ok(false);
        }
        let count = PIECE_PAGES.min(end - first);
        let compared = self.reader.compare(first..first + count, Wait::Full);
        self.repair_all(&compared)?;
        self.repairs.count(compared.wrong.len());
        self.reader.note_compared(first + count);
        Ok(true)
    }

    /// Verifies some pages of all copies, and before the first of them the heads. Returns `None` behind
    /// the last page. Nothing is verified of a page that was not written yet.
    pub(super) fn verify(&mut self, first: u64) -> io::Result<Option<VerifiedIndex>> {
        if !matches!(self.mode.writes_through(), Ok(true)) || self.heads.in_doubt {
            return Ok(None);
        }
        self.remove_offline()?;
        let mut verified = VerifiedIndex::default();
        if first == 0 {
            let short = self.give_up_short_copies();
            let wrong = self.verify_heads()?;
            for (member, found) in short.into_iter().map(|member| (member, 1)).chain(wrong) {
                self.note_wrong(&mut verified, member, found);
            }
        }
        // Page 0 is in the heads.
        let first = first.max(1);
        let end = self.heads.durable.db_bytes.div_ceil(PAGE);
        if first >= end && verified.repaired == 0 {
            return Ok(None);
        }
        let count = PIECE_PAGES.min(end.saturating_sub(first));
        let compared = self.reader.compare(first..first + count, Wait::Full);
        verified.next = first + count;
        verified.damaged = compared.damaged;
        for wrong in &compared.wrong {
            self.note_wrong(&mut verified, wrong.member, 1);
        }
        if !compared.wrong.is_empty() {
            self.repair_all(&compared)?;
            self.sync_files()?;
        }
        Ok(Some(verified))
    }

    /// Notes pieces of a member's copy that were wrong, and are repaired.
    fn note_wrong(&self, verified: &mut VerifiedIndex, member: MemberIndex, pieces: u64) {
        self.copies
            .files()
            .members()
            .io()
            .count_wrong(member, pieces);
        verified.add(member, pieces);
    }

    /// Gives up copies whose files were cut short: others are made in their place. Returns their members.
    fn give_up_short_copies(&mut self) -> Vec<MemberIndex> {
        let copies = self.copies.list();
        let is_short = |copy: &&IndexCopy| {
            let found = self.copies.files().len(copy.member);
            matches!(found, Ok(found) if found < Some(copy.file_bytes))
        };
        let short: Vec<MemberIndex> = copies.iter().filter(is_short).map(|c| c.member).collect();
        if short.len() == copies.len() {
            return Vec::new();
        }
        for member in &short {
            tracing::warn!(%member, "its copy of the index was cut short; another is made");
            self.give_up(*member);
        }
        short
    }

    /// Reads both heads of each copy. If one is damaged or out of date, all are rewritten, in both
    /// slots. Returns how many of each copy were wrong.
    fn verify_heads(&mut self) -> io::Result<Vec<(MemberIndex, u64)>> {
        let copies = self.copies.list();
        let wrong = copies
            .iter()
            .map(|copy| (copy.member, self.count_wrong_heads(*copy)));
        let wrong: Vec<_> = wrong.filter(|(_, heads)| *heads > 0).collect();
        if !wrong.is_empty() {
            for _slot in 0..2 {
                let durable = self.heads.durable.clone();
                self.write_heads(durable)?;
            }
        }
        Ok(wrong)
    }

    fn count_wrong_heads(&self, copy: IndexCopy) -> u64 {
        let files = self.copies.files();
        let Ok(bytes) = files.head_slots(copy.member) else {
            // Its member is marked missing by now, or its file is gone.
            return 0;
        };
        let slots = bytes.as_chunks::<HEAD_BYTES>().0.iter().zip(0u8..);
        let is_wrong = |(bytes, slot): &(&[u8; HEAD_BYTES], u8)| match Head::decode(bytes) {
            Ok(head) if head.volume != files.volume() => true,
            Ok(head) => *slot == copy.slot && head.sequence != self.heads.durable_sequence,
            // A slot that was never written is no damage.
            Err(_) => *slot == copy.slot || bytes.iter().any(|byte| *byte != 0),
        };
        let wrong = slots.filter(is_wrong).count() as u64;
        if wrong > 0 {
            tracing::warn!(
                member = %copy.member,
                "{wrong} heads of its copy of the index are wrong"
            );
        }
        wrong
    }
}
