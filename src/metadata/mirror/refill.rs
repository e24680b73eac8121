//! Giving another member a copy of the index, a piece at a time, while work goes on.

use std::io;
use std::sync::Arc;

use super::files::{IndexCopy, PAGE, Page, file_bytes};
use super::placement::{CopyCandidate, Placement};
use super::reserve;
use super::writer::{CopyWriter, IncomingCopy};
use crate::format::MemberIndex;
use crate::format::frame::{self, PAGE_BYTES};
use crate::membership::Wait;
use crate::store::StoreError;

/// Pages copied in one go: 2 MiB.
const PIECE_PAGES: u64 = (2 << 20) / PAGE_BYTES as u64;

impl CopyWriter {
    /// Copies a piece of the index to a member that is to get a copy, if one is to. Returns whether
    /// there may be more to do.
    pub(super) fn refill(&mut self) -> io::Result<bool> {
        if self.heads.in_doubt {
            // No copy has space for a head, and only a commit tries that again.
            return Ok(false);
        }
        self.remove_offline()?;
        self.reserve.keep(&self.copies.members());
        let Some(incoming) = self.incoming else {
            return Ok(self.drop_surplus()? || self.start_copy());
        };
        let db_bytes = self.heads.durable.db_bytes.max(self.buffer.db_bytes());
        let end = db_bytes.div_ceil(PAGE);
        if incoming.next_page < end {
            self.copy_piece(incoming, PIECE_PAGES.min(end - incoming.next_page))?;
        } else {
            self.complete_copy(incoming, end)?;
        }
        Ok(true)
    }

    /// Gives up a copy if there are more than wanted, because the volume has less parity by now. Returns whether there was
    /// something to do. All copies are compared before: the one that goes may be the only one with the newest frame of a
    /// page. The heads of the others stop naming it before its file goes.
    fn drop_surplus(&mut self) -> io::Result<bool> {
        if self.copies.members().len() <= self.placement.wanted() {
            return Ok(false);
        }
        if self.compare()? {
            return Ok(true);
        }
        // Members that fail here lose their copies, and the others may be no surplus.
        self.sync_files()?;
        let members = self.copies.members();
        if members.len() <= self.placement.wanted() {
            return Ok(true);
        }
        let Some(member) = self.least_wanted(&members) else {
            return Ok(false);
        };
        self.copies.retain(|copy| copy != member);
        let durable = self.heads.durable.clone();
        self.write_heads(durable)?;
        self.give_up(member);
        tracing::info!(
            journal.member = %member,
            "member {member} has no copy of the index any more: fewer suffice"
        );
        Ok(true)
    }

    /// Chooses the member whose copy is wanted least: one that is drained, then one without room, then the one with least.
    fn least_wanted(&self, members: &[MemberIndex]) -> Option<MemberIndex> {
        let files = self.copies.files();
        let draining = files.members().membership().draining();
        members.iter().copied().min_by_key(|member| {
            let free_bytes = files.disk().free_bytes(*member).unwrap_or(0);
            let stays = !draining.contains(member);
            (stays, !self.is_to_move(*member), free_bytes)
        })
    }

    /// Chooses a member and makes its file, if copies are lacking. Returns whether one was chosen.
    fn start_copy(&mut self) -> bool {
        let Some(member) = self.next_member() else {
            self.placement.note_vain_round();
            return false;
        };
        match self.create_file(member) {
            Ok(()) => {
                tracing::info!("copying the index to member {member}");
                let holders = self.copies.members();
                let replaces = holders.into_iter().find(|holder| self.is_to_move(*holder));
                self.incoming = Some(IncomingCopy {
                    member,
                    replaces,
                    next_page: 1,
                });
            }
            Err(error) => self.cancel_copy(member, &error),
        }
        true
    }

    /// Chooses the member with most room among those that have no copy, if copies are lacking or to move. One
    /// that is drained is the last resort where they are lacking.
    fn next_member(&self) -> Option<MemberIndex> {
        let holders = self.copies.members();
        let are_lacking = holders.len() < self.placement.wanted();
        let staying = holders.iter().filter(|member| !self.is_to_move(**member));
        if staying.count() >= self.placement.wanted() {
            return None;
        }
        let files = self.copies.files();
        let draining = files.members().membership().draining();
        let mut without = files.members().membership().live();
        without.retain(|member| {
            !holders.contains(member)
                && !self.placement.is_refused(*member)
                && (are_lacking || !draining.contains(member))
        });
        // One that takes the place of a copy without space is to have some.
        let needed = if are_lacking {
            0
        } else {
            file_bytes(self.buffer.db_bytes()) + 2 * reserve::least_bytes(files.disk(), holders)
        };
        let candidates = without.into_iter().filter_map(|member| {
            Some(CopyCandidate {
                member,
                free_bytes: files.disk().free_bytes(member).ok()?,
                is_draining: draining.contains(&member),
            })
        });
        Placement::choose(candidates, needed)
    }

    /// Returns whether a copy is to be elsewhere: its member lacks space for it, or is drained.
    fn is_to_move(&self, member: MemberIndex) -> bool {
        self.placement.is_to_move(member)
            || !self.reserve.is_complete_on(member)
            || self
                .copies
                .files()
                .members()
                .membership()
                .draining()
                .contains(&member)
    }

    /// Makes an empty file, without a head, on a member.
    fn create_file(&self, member: MemberIndex) -> Result<(), StoreError> {
        let db_bytes = self.buffer.db_bytes();
        let files = self.copies.files();
        files.create(member, frame::FRAMES_START)?;
        files.truncate(member, file_bytes(db_bytes))
    }

    fn copy_piece(&mut self, incoming: IncomingCopy, count: u64) -> io::Result<()> {
        // The newest that any copy has: a member that lost a write shows an older frame.
        let range = incoming.next_page..incoming.next_page + count;
        let pages: Vec<_> = self
            .reader
            .compare(range, Wait::Full)
            .newest
            .into_iter()
            .map(|(page, (sequence, bytes))| (page, sequence, bytes))
            .collect();
        let runs = pages.chunk_by(|(page, ..), (next, ..)| page + 1 == *next);
        let files = Arc::clone(self.copies.files());
        let write = |run: &[(u64, u64, Page)]| {
            let frames = run.iter();
            let data =
                files.encode(frames.map(|(page, sequence, bytes)| (*page, *sequence, &**bytes)));
            let offset = frame::frame_offset(run[0].0);
            (incoming.member, files.write_op(offset, &data))
        };
        self.check_answers(files.run(runs.map(write).collect()))?;
        if let Some(incoming) = &mut self.incoming {
            incoming.next_page += count;
        }
        Ok(())
    }

    /// Counts a copy that is complete, and names it in all heads.
    fn complete_copy(&mut self, incoming: IncomingCopy, end: u64) -> io::Result<()> {
        let member = incoming.member;
        let file_bytes = frame::frame_offset(end);
        let files = self.copies.files();
        let mut answers = vec![(member, files.truncate(member, file_bytes))];
        answers.extend(files.sync(&[member]));
        self.check_answers(answers)?;
        if self.incoming.take().is_none() {
            return Ok(());
        }
        let durable = self.heads.durable.clone();
        if self.heads.named.contains(&member) {
            // No head before its first one names it, so that an empty slot beside that is known to be new.
            self.write_heads(durable.clone())?;
        }
        self.repairs.forget(member);
        self.copies.add(IndexCopy {
            member,
            file_bytes,
            slot: 1,
        });
        self.write_heads(durable)?;
        tracing::info!(journal.member = %member, "member {member} has a copy of the index");
        self.reserve.make(member);
        self.give_up_replaced(incoming.replaces);
        Ok(())
    }

    /// Gives up the copy in whose place another was made, unless one was lost meanwhile.
    fn give_up_replaced(&mut self, replaced: Option<MemberIndex>) {
        let members = self.copies.members();
        if members.len() > self.placement.wanted()
            && let Some(member) = replaced.filter(|member| members.contains(member))
        {
            self.give_up(member);
        }
    }
}
