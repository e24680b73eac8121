//! Giving another member a copy of the index, a piece at a time, while work goes on.

use std::io;

use super::{Copied, Io, Mirror, PAGE, Page, len::file_bytes};
use crate::format::MemberIndex;
use crate::format::frame::{self, PAGE_BYTES};
use crate::members::Patience;
use crate::meta::disk::write_op;
use crate::store::StoreError;

/// Pages copied in one go: 2 MiB.
const PIECE_PAGES: u64 = (2 << 20) / PAGE_BYTES as u64;

/// The number of rounds without a usable member after which members that could take no copy are asked again.
pub(in crate::meta) const VAIN_ROUNDS: u32 = 32;

/// A member that is being given a copy. Pages written meanwhile go to it as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    pub(super) member: MemberIndex,
    /// A member without room, or that is being emptied, whose copy is given up for it.
    replaces: Option<MemberIndex>,
    next_page: u64,
}

impl Mirror {
    /// Has the copies of these members, and of no others, moved to where there is room for them: what has
    /// become of their own room is known before a write fails for it.
    pub(in crate::meta) fn move_off(&self, members: &[MemberIndex]) {
        self.io.lock().leaving = members.to_vec();
    }

    /// Copies a piece of the index to a member that is to get a copy, if one is to. Says whether
    /// there may be more to do.
    pub(in crate::meta) fn refill(&self) -> io::Result<bool> {
        if !self.writable {
            return Ok(false);
        }
        let mut io = self.io.lock();
        if io.head_in_doubt {
            // No copy has space for a head, and only a commit tries that again.
            return Ok(false);
        }
        self.forget_dead(&mut io)?;
        self.keep_reserve_under(&mut io);
        let Some(arriving) = io.arriving else {
            return Ok(self.start(&mut io));
        };
        let db_bytes = io.durable.db_bytes.max(self.front.lock().db_bytes);
        let end = db_bytes.div_ceil(PAGE);
        if arriving.next_page < end {
            self.copy_piece(&mut io, arriving, PIECE_PAGES.min(end - arriving.next_page))?;
        } else {
            self.admit(&mut io, arriving, end)?;
        }
        Ok(true)
    }

    /// Chooses a member and makes its file, if copies are lacking.
    fn start(&self, io: &mut Io) -> bool {
        let Some(member) = self.next_member(io) else {
            // They may have space by now, and no commit may ever tell: it lacks the very space of a copy.
            io.vain_rounds += 1;
            if io.vain_rounds >= VAIN_ROUNDS {
                io.refused.clear();
                io.vain_rounds = 0;
            }
            return false;
        };
        match self.welcome(member) {
            Ok(()) => {
                log::info!("copying the index to member {member}");
                let holders = self.members();
                let mut short = holders
                    .iter()
                    .filter(|holder| self.is_to_move(io, **holder));
                io.arriving = Some(Arriving {
                    member,
                    replaces: short.next().copied(),
                    next_page: 1,
                });
            }
            Err(error) => self.turn_away(io, member, &error),
        }
        true
    }

    /// Gives a member no copy after all, and takes away what it has of one.
    pub(super) fn turn_away(&self, io: &mut Io, member: MemberIndex, error: &StoreError) {
        log::warn!("member {member} gets no copy of the index: {error}");
        io.arriving = None;
        io.refused.push(member);
        io.vain_rounds = 0;
        if !error.is_member_failure() {
            self.wipe(member);
        }
    }

    /// Chooses the member with most room among those that have no copy, if copies are lacking or to move. One
    /// that is being emptied is the last resort where they are lacking.
    fn next_member(&self, io: &Io) -> Option<MemberIndex> {
        let members = self.members();
        let are_lacking = members.len() < self.wanted;
        let staying = members
            .iter()
            .filter(|member| !self.is_to_move(io, **member));
        if staying.count() >= self.wanted {
            return None;
        }
        let leaving = self.disk.members().leaving();
        let is_leaving = |member: &MemberIndex| leaving.contains(member);
        let mut without = self.disk.members().live();
        without.retain(|member| !members.contains(member) && !io.refused.contains(member));
        without.retain(|member| are_lacking || !is_leaving(member));
        let sized = without.into_iter();
        let sized = sized.filter_map(|member| Some((self.disk.free_bytes(member).ok()?, member)));
        // One that takes the place of a copy without space is to have some.
        let needed = if are_lacking {
            0
        } else {
            file_bytes(self.db_bytes()) + 2 * self.reserve_bytes()
        };
        sized
            .filter(|(free, _)| *free >= needed)
            .max_by_key(|(free, member)| (!is_leaving(member), *free))
            .map(|(_, member)| member)
    }

    /// Says whether a copy is to be elsewhere: its member lacks space for it, or is being emptied.
    fn is_to_move(&self, io: &Io, member: MemberIndex) -> bool {
        io.cramped.contains(&member)
            || io.leaving.contains(&member)
            || !io.ballast.contains(&member)
            || self.disk.members().leaving().contains(&member)
    }

    /// Makes an empty file, without a head, on a member.
    fn welcome(&self, member: MemberIndex) -> Result<(), StoreError> {
        let db_bytes = self.front.lock().db_bytes;
        self.disk.create(member, &self.name, frame::FRAMES_START)?;
        self.disk.truncate(
            member,
            &self.name,
            frame::frame_offset(db_bytes.div_ceil(PAGE)),
        )
    }

    fn copy_piece(&self, io: &mut Io, arriving: Arriving, count: u64) -> io::Result<()> {
        // The newest that any copy has: a member that lost a write shows an older frame.
        let pages: Vec<_> = self
            .read_from_all(arriving.next_page, count, Patience::Full)
            .newest
            .into_iter()
            .map(|(page, (sequence, bytes))| (page, sequence, bytes))
            .collect();
        let runs = pages.chunk_by(|(page, ..), (next, ..)| page + 1 == *next);
        let write = |run: &[(u64, u64, Page)]| {
            let data = self.frames(
                run.iter()
                    .map(|(page, sequence, bytes)| (*page, *sequence, &**bytes)),
            );
            (
                arriving.member,
                write_op(&self.name, frame::frame_offset(run[0].0), &data),
            )
        };
        let answers = self.disk.run(runs.map(write).collect());
        self.settle(io, answers)?;
        if let Some(arriving) = &mut io.arriving {
            arriving.next_page += count;
        }
        Ok(())
    }

    /// Counts a copy that is complete, and names it in all heads.
    fn admit(&self, io: &mut Io, arriving: Arriving, end: u64) -> io::Result<()> {
        let member = arriving.member;
        let file_bytes = frame::frame_offset(end);
        let grown = self.disk.truncate(member, &self.name, file_bytes);
        let mut answers = vec![(member, grown)];
        answers.extend(self.disk.sync(&[member], &self.name));
        self.settle(io, answers)?;
        if io.arriving.take().is_none() {
            return Ok(());
        }
        let durable = io.durable.clone();
        if io.named.contains(&member) {
            // No head before its first one names it, so that an empty slot beside that is known to be new.
            self.write_heads(io, durable.clone())?;
        }
        self.mended.lock().remove(&member);
        self.copies.write().push(Copied {
            member,
            file_bytes,
            slot: 1,
        });
        self.write_heads(io, durable)?;
        log::info!("member {member} has a copy of the index");
        if self.add_ballast(member) {
            io.ballast.insert(member);
        }
        self.leave_one(io, arriving.replaces);
        Ok(())
    }

    /// Gives up the copy in whose place another was made, unless one was lost meanwhile.
    fn leave_one(&self, io: &mut Io, replaced: Option<MemberIndex>) {
        let members = self.members();
        if members.len() > self.wanted
            && let Some(member) = replaced.filter(|member| members.contains(member))
        {
            io.ballast.remove(&member);
            self.give_up(member);
        }
    }
}
