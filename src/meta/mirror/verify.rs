//! Reading every frame and every head of all copies, and repairing each copy from the others.

use std::io;

use super::compare::{Compared, PIECE_PAGES};
use super::{Copied, Io, Mirror, PAGE};
use crate::format::MemberIndex;
use crate::format::frame::{HEAD_BYTES, Head};
use crate::members::Patience;
use crate::meta::verify::VerifiedIndex;

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
            verified.repaired += self.drop_short_copies() + self.verify_heads(&mut io)?;
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
        verified.repaired += behind.len() as u64;
        verified.damaged = damaged;
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

    /// Gives up copies whose files were cut short: others are made in their place. Returns how many.
    fn drop_short_copies(&self) -> u64 {
        let copies = self.copies.read().clone();
        let is_short = |copy: &&Copied| {
            let found = self.disk.len(copy.member, &self.name);
            matches!(found, Ok(found) if found < Some(copy.file_bytes))
        };
        let short: Vec<MemberIndex> = copies.iter().filter(is_short).map(|c| c.member).collect();
        if short.len() == copies.len() {
            return 0;
        }
        for member in &short {
            log::warn!("member {member}: its copy of the index was cut short; another is made");
            self.give_up(*member);
        }
        short.len() as u64
    }

    /// Reads both heads of each copy. If one is damaged or out of date, all are written anew, in both
    /// slots. Returns how many were wrong.
    fn verify_heads(&self, io: &mut Io) -> io::Result<u64> {
        let copies = self.copies.read().clone();
        let wrong: u64 = copies.iter().map(|copy| self.wrong_heads(io, *copy)).sum();
        if wrong > 0 {
            for _slot in 0..2 {
                let durable = io.durable.clone();
                self.write_heads(io, durable)?;
            }
        }
        Ok(wrong)
    }

    fn wrong_heads(&self, io: &Io, copy: Copied) -> u64 {
        let Ok(bytes) = self.disk.read(copy.member, &self.name, 0, 2 * HEAD_BYTES) else {
            // It is left behind by now, or its file is gone.
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
