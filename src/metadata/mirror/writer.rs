//! Writing pages and heads to all copies of the index.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::copy_set::{CopySet, none_left};
use super::files::{FIRST_PAGES, IndexCopy, PAGE, Page, file_bytes};
use super::page_buffer::{Front, PageBuffer};
use super::page_reader::{Compared, PageReader, WrongFrame};
use super::placement::Placement;
use super::repair_log::RepairLog;
use super::reserve::Reserve;
use super::write_mode::WriteMode;
use crate::format::MemberIndex;
use crate::format::frame::{self, Head, PAGE_BYTES};
use crate::metadata::disk::MemberAnswer;
use crate::store::{StoreError, StoreErrorKind};

/// Frames written in one operation.
const MAX_RUN_FRAMES: usize = 256;

/// Bytes that a file may grow by with its space reserved, and the part of what is free that this may
/// take. The database doubles its length up to 4 GiB, and then grows by as much at a time: reserving
/// all of that would take space from data, and from the index itself.
const MAX_RESERVED_GROWTH: u64 = 256 << 20;
const MAX_RESERVED_PART: u64 = 8;

/// State of the heads of the copies.
#[derive(Debug)]
pub(super) struct Heads {
    /// The sequence of what was written last, a head or pages.
    pub(super) sequence: u64,
    /// The sequence of the last head that is durable on all copies.
    pub(super) durable_sequence: u64,
    /// The copies that it names.
    pub(super) named: Vec<MemberIndex>,
    /// The last front that is durable on all copies.
    pub(super) durable: Front,
    /// A newer head was written, but is not durable on all copies.
    pub(super) in_doubt: bool,
}

impl Heads {
    /// Returns the heads of copies that are empty.
    pub(super) fn empty() -> Self {
        Self {
            sequence: 0,
            durable_sequence: 0,
            named: Vec::new(),
            durable: Front::empty(),
            in_doubt: false,
        }
    }

    /// Returns the heads of copies that were found, all of which were durable with the sequence `oldest` already.
    pub(super) fn found(newest: &Head, oldest: u64) -> Self {
        Self {
            sequence: newest.sequence,
            // The first head that is written makes durable what was read before it says so.
            durable_sequence: oldest,
            named: newest.copies.clone(),
            durable: Front::of(newest),
            in_doubt: false,
        }
    }
}

/// A member that is being given a copy. Pages written meanwhile go to it as well.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingCopy {
    pub(super) member: MemberIndex,
    /// A member without room, or that is drained, whose copy is given up for it.
    pub(super) replaces: Option<MemberIndex>,
    pub(super) next_page: u64,
}

/// The parts that a [`CopyWriter`] works with.
#[derive(Clone, Debug)]
pub(super) struct WriterParts {
    pub(super) copies: Arc<CopySet>,
    pub(super) buffer: Arc<PageBuffer>,
    pub(super) reader: Arc<PageReader>,
    pub(super) mode: Arc<WriteMode>,
    pub(super) repairs: Arc<RepairLog>,
}

/// Writer of pages and heads: nothing else changes the copies.
#[derive(Debug)]
pub(super) struct CopyWriter {
    pub(super) copies: Arc<CopySet>,
    pub(super) buffer: Arc<PageBuffer>,
    pub(super) reader: Arc<PageReader>,
    pub(super) mode: Arc<WriteMode>,
    pub(super) repairs: Arc<RepairLog>,
    pub(super) heads: Heads,
    pub(super) placement: Placement,
    pub(super) reserve: Reserve,
    pub(super) incoming: Option<IncomingCopy>,
    /// Pages or lengths of files were written since the last sync.
    unsynced: bool,
}

impl CopyWriter {
    pub(super) fn new(parts: WriterParts, heads: Heads, wanted_copies: usize) -> Self {
        let reserve = Reserve::new(parts.copies.files().disk());
        Self {
            copies: parts.copies,
            buffer: parts.buffer,
            reader: parts.reader,
            mode: parts.mode,
            repairs: parts.repairs,
            heads,
            placement: Placement::new(wanted_copies),
            reserve,
            incoming: None,
            unsynced: false,
        }
    }

    /// Makes useless what lies on members without a copy.
    ///
    /// # Errors
    ///
    /// If no copy is left.
    pub(super) fn wipe_others(&mut self) -> io::Result<()> {
        self.remove_offline()?;
        let files = Arc::clone(self.copies.files());
        for member in files.members().membership().live() {
            if self.copies.contains(member) {
                continue;
            }
            if matches!(files.len(member), Ok(Some(_))) {
                files.wipe(member);
            }
            self.reserve.remove(member);
        }
        Ok(())
    }

    /// Makes what the database wrote on being opened durable on all copies, with the same head.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        // The writes of a killed daemon were read, but may not be durable, and the head before them is
        // overwritten next.
        self.sync_files()?;
        self.heads.sequence = self.heads.sequence.max(self.reader.first_sequence());
        self.flush()?;
        let front = self.buffer.front();
        self.extend(front.db_bytes)?;
        self.write_heads(front)
    }

    /// Writes every buffered page to all copies. Nothing is durable yet.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.remove_offline()?;
        let pages = self.buffer.pages();
        if pages.is_empty() {
            return Ok(());
        }
        self.extend(self.buffer.db_bytes())?;
        let files = Arc::clone(self.copies.files());
        let mut targets = self.copies.members();
        targets.extend(self.incoming.map(|incoming| incoming.member));
        self.heads.sequence += 1;
        let sequence = self.heads.sequence;
        self.reader.set_newest_frame(sequence);
        let mut ops = Vec::new();
        for run in pages.chunk_by(|(page, _), (next, _)| page + 1 == *next) {
            for run in run.chunks(MAX_RUN_FRAMES) {
                let data =
                    files.encode(run.iter().map(|(page, bytes)| (*page, sequence, &**bytes)));
                let offset = frame::frame_offset(run[0].0);
                let write = |member: &MemberIndex| (*member, files.write_op(offset, &data));
                ops.extend(targets.iter().map(write));
            }
        }
        self.unsynced = true;
        self.check_answers(files.run(ops))?;
        self.buffer.remove_written(pages);
        Ok(())
    }

    /// Makes everything written so far durable on all copies.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        let front = self.buffer.front();
        if front == self.heads.durable {
            return self.sync_files();
        }
        self.extend(front.db_bytes)?;
        self.write_heads(front)?;
        self.placement.forget_refusals();
        self.cut()
    }

    /// Makes the files of all copies durable as they are.
    pub(super) fn sync_files(&mut self) -> io::Result<()> {
        let answers = self.copies.files().sync(&self.copies.members());
        self.check_answers(answers)?;
        self.unsynced = false;
        Ok(())
    }

    /// Makes all pages durable, then writes `front` into the heads of all copies and makes it durable.
    pub(super) fn write_heads(&mut self, front: Front) -> io::Result<()> {
        // Also for a database that would find out from a torn page that its last commit is not there:
        // a torn frame is an error, and nothing of it is shown.
        if self.unsynced {
            self.sync_files()?;
        }
        self.heads.sequence += 1;
        self.heads.in_doubt = true;
        let files = Arc::clone(self.copies.files());
        let head = Head {
            volume: files.volume(),
            sequence: self.heads.sequence,
            durable: self.heads.durable_sequence,
            db_bytes: front.db_bytes,
            copies: self.copies.members(),
            db_header: front.db_header,
        };
        let data = Bytes::copy_from_slice(&head.encode());
        let write = |copy: &IndexCopy| {
            let offset = frame::head_offset(1 - copy.slot);
            (copy.member, files.write_op(offset, &data))
        };
        let ops = self.copies.list().iter().map(write).collect();
        self.check_answers(files.run(ops))?;
        self.sync_files()?;
        self.copies.flip_slots();
        self.placement.replace_without_space(Vec::new());
        self.heads.in_doubt = false;
        self.heads.durable_sequence = self.heads.sequence;
        self.heads.named = head.copies;
        self.heads.durable = front;
        Ok(())
    }

    /// Gives up copies whose members have failed.
    ///
    /// # Errors
    ///
    /// If no copy is left.
    pub(super) fn remove_offline(&mut self) -> io::Result<()> {
        let live = self.copies.files().members().membership().live();
        self.incoming = self
            .incoming
            .filter(|incoming| live.contains(&incoming.member));
        self.copies.remove_offline()
    }

    /// Gives up copies whose members failed an operation.
    ///
    /// # Errors
    ///
    /// If no copy would be left; or if a copy had no space, with
    /// [`StorageFull`](io::ErrorKind::StorageFull): the copy is good, but the database must go back
    /// to what is durable ([`CopyWriter::reset`]).
    pub(super) fn check_answers(&mut self, answers: Vec<MemberAnswer>) -> io::Result<()> {
        let mut full = false;
        for (member, answer) in answers {
            let Err(error) = answer else { continue };
            if self
                .incoming
                .is_some_and(|incoming| incoming.member == member)
            {
                self.cancel_copy(member, &error);
            } else if error.kind() == StoreErrorKind::NoSpace {
                full = true;
                self.placement.note_without_space(member);
            } else if !error.is_member_failure() {
                // The file is gone from under us.
                self.copies.files().fail(member, &error);
            }
        }
        self.remove_offline()?;
        if full {
            self.mode.set_out_of_space(true);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Gives a member no copy after all, and removes what it has of one.
    pub(super) fn cancel_copy(&mut self, member: MemberIndex, error: &StoreError) {
        tracing::warn!(journal.member = %member, "member {member} gets no copy of the index: {error}");
        self.incoming = None;
        self.placement.refuse(member);
        if !error.is_member_failure() {
            self.copies.files().wipe(member);
        }
    }

    /// Takes a member's copy out of the set.
    pub(super) fn give_up(&mut self, member: MemberIndex) {
        self.copies.retain(|copy| copy != member);
        self.copies.files().wipe(member);
        self.reserve.remove(member);
    }

    /// Writes a page over its wrong frame on one member.
    pub(super) fn repair(&mut self, wrong: WrongFrame, bytes: &[u8; PAGE_BYTES]) -> io::Result<()> {
        let files = self.copies.files();
        let data = files.encode(std::iter::once((wrong.page, wrong.sequence, bytes)));
        let op = files.write_op(frame::frame_offset(wrong.page), &data);
        let answers = files.run(vec![(wrong.member, op)]);
        self.check_answers(answers)
    }

    /// Writes the newest frame of each page over the wrong ones.
    pub(super) fn repair_all(&mut self, compared: &Compared) -> io::Result<()> {
        for wrong in &compared.wrong {
            self.repairs.log_once(wrong.member, wrong.page);
            let (_, bytes): &(u64, Page) = &compared.newest[&wrong.page];
            self.repair(*wrong, bytes)?;
        }
        Ok(())
    }

    /// Makes every copy's file long enough for the whole database, so that no read of a page meets
    /// the file's end. The space is reserved, unless the database grows by too much at once.
    pub(super) fn extend(&mut self, db_bytes: u64) -> io::Result<()> {
        let len = file_bytes(db_bytes);
        let mut short = self.copies.list();
        short.retain(|copy| copy.file_bytes < len);
        self.unsynced |= !short.is_empty();
        let files = self.copies.files();
        let grow = |copy: IndexCopy| {
            let reserved = self.may_reserve(copy.member, len - copy.file_bytes)
                && files.reserve(copy.member, copy.file_bytes..len).is_ok();
            // Much of a longer database may never be written: let the writes decide.
            let grown = if reserved {
                Ok(())
            } else {
                files.truncate(copy.member, len)
            };
            if grown.is_ok() {
                self.copies.note_len(copy.member, len);
            }
            (copy.member, grown)
        };
        let answers = short.into_iter().map(grow).collect();
        self.check_answers(answers)
    }

    fn may_reserve(&self, member: MemberIndex, growth: u64) -> bool {
        let free = self.copies.files().disk().free_bytes(member).unwrap_or(0);
        growth <= MAX_RESERVED_GROWTH.min(free / MAX_RESERVED_PART)
    }

    /// Gives back what the copies' files have beyond the durable length of the database.
    fn cut(&mut self) -> io::Result<()> {
        let len = file_bytes(self.heads.durable.db_bytes.max(FIRST_PAGES * PAGE));
        let mut long = self.copies.list();
        long.retain(|copy| copy.file_bytes > len);
        let cut = |copy: IndexCopy| {
            // First, so that readers of that range know that the end has moved.
            self.copies.note_len(copy.member, len);
            let cut = match self.copies.files().truncate(copy.member, len) {
                Err(error) if error.kind() == StoreErrorKind::NoSpace => {
                    tracing::debug!("{error}: the unused end of the file stays");
                    Ok(())
                }
                other => other,
            };
            (copy.member, cut)
        };
        let answers = long.into_iter().map(cut).collect();
        self.check_answers(answers)
    }

    /// Goes back to what is durable, after the members had no space for what the database wrote since, and writes
    /// nothing more. The database has been closed before; once opened again, it can be read.
    pub(super) fn suspend(&mut self) {
        self.mode.suspend();
        self.buffer.revert(self.heads.durable.clone());
    }

    /// Goes back to what is durable, and then begins to write again. If no copy has space even for
    /// undoing what was written, [`WriteMode::is_out_of_space`] still says so afterwards.
    ///
    /// # Errors
    ///
    /// If a member that has the space does not answer, or all writing has ended.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.mode.check_open()?;
        self.suspend();
        // All writes since the last durable head are given up.
        self.unsynced = false;
        if self.heads.in_doubt {
            // It must be gone before pages that it names are used again.
            match self.undo_head() {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                undone => undone?,
            }
        }
        self.mode.set_out_of_space(false);
        self.mode.resume();
        self.cut()
    }

    /// Writes the durable front into the heads again. Copies without space even for that are given
    /// up if others have it: they would hold back all other copies.
    fn undo_head(&mut self) -> io::Result<()> {
        let known = self.placement.replace_without_space(Vec::new());
        loop {
            let durable = self.heads.durable.clone();
            let undone = self.write_heads(durable);
            let full = self.placement.replace_without_space(known.clone());
            let is_full =
                matches!(&undone, Err(error) if error.kind() == io::ErrorKind::StorageFull);
            let members = self.copies.members();
            if !is_full || members.iter().all(|member| full.contains(member)) {
                return undone;
            }
            for member in full {
                tracing::warn!(journal.member = %member, "member {member} has no space for its copy of the index");
                self.give_up(member);
            }
        }
    }

    /// Continues with some of the copies, which are sound. If something is written, the others are wiped, and made again
    /// later.
    ///
    /// # Errors
    ///
    /// If none of these copies can be found.
    pub(super) fn keep_only(&mut self, sound: &[MemberIndex]) -> io::Result<()> {
        let mut damaged = self.copies.members();
        damaged.retain(|member| !sound.contains(member));
        for member in &damaged {
            self.copies.files().members().io().count_wrong(*member, 1);
        }
        if self.mode.has_begun() {
            for member in &damaged {
                self.give_up(*member);
            }
        } else {
            self.read_only_from(sound)?;
        }
        self.buffer.clear();
        self.copies.exclude(damaged);
        self.reader.forget_dispute();
        Ok(())
    }

    /// Reads some of the copies from now on, as their heads are on the members.
    fn read_only_from(&mut self, sound: &[MemberIndex]) -> io::Result<()> {
        self.copies.retain(|member| sound.contains(&member));
        let files = self.copies.files();
        let heads: Vec<Head> = sound
            .iter()
            .filter_map(|member| Some(files.find(*member)?.head))
            .collect();
        let newest = heads.iter().max_by_key(|head| head.sequence);
        let newest = newest.ok_or_else(none_left)?;
        let oldest = heads.iter().map(|head| head.sequence).min();
        let oldest = oldest.unwrap_or(newest.durable);
        self.heads = Heads {
            in_doubt: self.heads.in_doubt,
            ..Heads::found(newest, oldest)
        };
        self.buffer.revert(Front::of(newest));
        self.reader.set_newest_frame(newest.sequence);
        Ok(())
    }
}
