//! Reading every frame and every head of all copies, and repairing each copy from the others.

use std::collections::BTreeMap;
use std::io;

use super::compare::{Compared, PIECE_PAGES};
use super::{Copied, Io, Mirror, PAGE};
use crate::format::MemberIndex;
use crate::format::frame::{HEAD_BYTES, Head};
use crate::members::Patience;

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

impl Mirror {
    /// Verifies some pages of all copies, and before the first of them the heads. Returns `None` behind
    /// the last page. Nothing is verified of a page that was not written yet.
    pub(in crate::meta) fn verify(&self, first: u64) -> io::Result<Option<VerifiedIndex>> {
        let mut io = self.io.lock();
        if !matches!(self.writes_through(), Ok(true)) || io.head_in_doubt {
            return Ok(None);
        }
        self.forget_dead(&mut io)?;
        let mut verified = VerifiedIndex::default();
        if first == 0 {
            let short = self.drop_short_copies();
            let wrong = self.verify_heads(&mut io)?;
            for (member, found) in short.into_iter().map(|member| (member, 1)).chain(wrong) {
                self.note_wrong(&mut verified, member, found);
            }
        }
        // Page 0 is in the heads.
        let first = first.max(1);
        let end = io.durable.db_bytes.div_ceil(PAGE);
        if first >= end && verified.repaired == 0 {
            return Ok(None);
        }
        let count = PIECE_PAGES.min(end.saturating_sub(first));
        let Compared {
            newest,
            behind,
            damaged,
        } = self.read_from_all(first, count, Patience::Full);
        verified.next = first + count;
        verified.damaged = damaged;
        for (member, _) in &behind {
            self.note_wrong(&mut verified, *member, 1);
        }
        if !behind.is_empty() {
            let compared = Compared {
                newest,
                behind,
                damaged,
            };
            self.bring_up(&mut io, &compared)?;
            self.sync_files(&mut io)?;
        }
        Ok(Some(verified))
    }

    /// Takes note of pieces of a member's copy that were wrong, and are repaired.
    fn note_wrong(&self, verified: &mut VerifiedIndex, member: MemberIndex, pieces: u64) {
        self.disk.members().count_wrong(member, pieces);
        *verified.found.entry(member).or_default() += pieces;
        verified.repaired += pieces;
    }

    /// Gives up copies whose files were cut short: others are made in their place. Returns their members.
    fn drop_short_copies(&self) -> Vec<MemberIndex> {
        let copies = self.copies.read().clone();
        let is_short = |copy: &&Copied| {
            let found = self.disk.len(copy.member, &self.name);
            matches!(found, Ok(found) if found < Some(copy.file_bytes))
        };
        let short: Vec<MemberIndex> = copies.iter().filter(is_short).map(|c| c.member).collect();
        if short.len() == copies.len() {
            return Vec::new();
        }
        for member in &short {
            log::warn!("member {member}: its copy of the index was cut short; another is made");
            self.give_up(*member);
        }
        short
    }

    /// Reads both heads of each copy. If one is damaged or out of date, all are rewritten, in both
    /// slots. Returns how many of each copy were wrong.
    fn verify_heads(&self, io: &mut Io) -> io::Result<Vec<(MemberIndex, u64)>> {
        let copies = self.copies.read().clone();
        let wrong = copies
            .iter()
            .map(|copy| (copy.member, self.wrong_heads(io, *copy)));
        let wrong: Vec<_> = wrong.filter(|(_, heads)| *heads > 0).collect();
        if !wrong.is_empty() {
            for _slot in 0..2 {
                let durable = io.durable.clone();
                self.write_heads(io, durable)?;
            }
        }
        Ok(wrong)
    }

    fn wrong_heads(&self, io: &Io, copy: Copied) -> u64 {
        let Ok(bytes) = self.disk.read(copy.member, &self.name, 0, 2 * HEAD_BYTES) else {
            // Its member is marked missing by now, or its file is gone.
            return 0;
        };
        let slots = bytes.as_chunks::<HEAD_BYTES>().0.iter().zip(0u8..);
        let is_wrong = |(bytes, slot): &(&[u8; HEAD_BYTES], u8)| match Head::decode(bytes) {
            Ok(head) if head.volume != self.volume => true,
            Ok(head) => *slot == copy.slot && head.sequence != io.durable_sequence,
            // A slot that was never written is no damage.
            Err(_) => *slot == copy.slot || bytes.iter().any(|byte| *byte != 0),
        };
        let wrong = slots.filter(is_wrong).count() as u64;
        if wrong > 0 {
            log::warn!(
                "member {}: {wrong} heads of its copy of the index are wrong",
                copy.member
            );
        }
        wrong
    }
}
