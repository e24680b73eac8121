//! The index database's storage: equal copies on several members.
//!
//! The database sees one file. Every write goes to all copies, every sync waits for all of them; a
//! read is served by any copy, and by another if a frame is damaged. A copy that fails is given up,
//! and [`refill`] makes another in the background.
//!
//! # Invariants
//!
//! - A head is written only after everything it refers to is durable on every copy that it names, and the head before
//!   it as well. Any of these copies that is left is as good as the one with the newest head. A copy whose own head is
//!   older than that is stale.
//! - A copy that missed a write loses its heads, durably, or its member is failed, before the next
//!   sync succeeds. So the newest head among members that may be trusted is never out of date.
//! - The last durable head of a copy is not overwritten: there are two slots.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use redb::StorageBackend;

use super::MetaError;
use super::disk::{Answer, Disk, write_op};
use crate::format::frame::{self, DB_HEADER_BYTES, FRAME_BYTES, Frame, Head, PAGE_BYTES, Place};
use crate::format::{MemberIndex, VolumeId};
use crate::store::StoreErrorKind;

mod alone;
mod btree_page;
mod compare;
mod len;
mod open;
mod page_reader;
pub(super) mod refill;
mod reserve;
mod structure;
mod survey;
mod undo;
mod unfinished;
mod verify;

pub use verify::VerifiedIndex;

/// Pages that wait in memory before they are written even without a sync.
const MAX_BUFFERED_PAGES: usize = 2048;

/// Frames written in one operation.
const MAX_RUN_FRAMES: usize = 256;

/// Pages of a new index file.
const FIRST_PAGES: u64 = 512;

/// Sequences that are left out at a mount, so that what was cut off is told from what is written next.
const CUT_OFF_SEQUENCES: u64 = 1 << 20;

const PAGE: u64 = PAGE_BYTES as u64;

type Page = Arc<[u8; PAGE_BYTES]>;

/// The copies of the index.
#[derive(Debug)]
pub(super) struct Mirror {
    disk: Arc<Disk>,
    name: Arc<str>,
    volume: VolumeId,
    tag: u32,
    /// The number of copies that there should be.
    wanted: usize,
    writable: bool,
    /// A copy had no space since the last reset, so nothing more is written for this commit.
    out_of_space: AtomicBool,
    /// Nothing is written: not before [`Mirror::begin`], and not while not even a reset had space. The
    /// database is read, and what it writes on being opened stays in memory.
    suspended: AtomicBool,
    front: Mutex<Front>,
    /// The highest sequence of a frame that counts.
    newest_frame: AtomicU64,
    /// Sequences that no valid frame has: after the head that was found, and before those written since. A frame with
    /// one of them belongs to a commit that was never finished, or to heads that are lost.
    cut_off: Range<u64>,
    /// Pages below this one are the same on all copies, as far as can be known: see [`compare`].
    compared: AtomicU64,
    /// Written by the database, not yet by us. A page stays here until every copy has it.
    buffered: Mutex<BTreeMap<u64, Page>>,
    /// Copies that hold every page. Changed only under `io`.
    copies: RwLock<Vec<Copied>>,
    /// Members whose copies were repaired since they have them, or since the mount.
    mended: Mutex<BTreeSet<MemberIndex>>,
    /// The number of pages of copies that were rewritten, besides those that a scrub repaired.
    repaired_pages: AtomicU64,
    /// Members whose copies were found damaged although their checksums are right, and were left out.
    damaged: Mutex<BTreeSet<MemberIndex>>,
    /// Intact frames of one page and one sequence were seen that differ.
    disputed: AtomicBool,
    /// A page or the header was refused since the copies were chosen.
    misshapen: AtomicBool,
    /// Pages named by those that were read, until [`Mirror::begin`].
    claims: Mutex<Option<structure::Claims>>,
    /// Trees of the pages that are not those of records.
    kinds: Mutex<btree_page::Kinds>,
    /// Pages that the database has read since the survey began.
    walked: Mutex<Option<survey::PageSet>>,
    /// Held while anything is written. Lock order: `io`, then any one of the others.
    io: Mutex<Io>,
}

/// The part of the database that is in the heads.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Front {
    db_header: [u8; DB_HEADER_BYTES],
    db_bytes: u64,
}

/// A copy of the index.
#[derive(Clone, Copy, Debug)]
struct Copied {
    member: MemberIndex,
    file_bytes: u64,
    /// The slot of its last durable head.
    slot: u8,
}

/// The state that writing needs.
#[derive(Debug)]
struct Io {
    /// Of what was written last, a head or pages.
    sequence: u64,
    /// Of the last head that is durable on all copies.
    durable_sequence: u64,
    /// The copies that it names.
    named: Vec<MemberIndex>,
    /// The last front that is durable on all copies.
    durable: Front,
    /// A newer head was written, but is not durable on all copies.
    head_in_doubt: bool,
    /// Pages or lengths of files were written since the last sync.
    unsynced: bool,
    /// A member that is being given a copy.
    arriving: Option<refill::Arriving>,
    /// Members that could take no copy, until the next commit or for some rounds of looking for one.
    refused: Vec<MemberIndex>,
    /// The number of rounds that found no member since one was refused.
    vain_rounds: u32,
    /// Copies whose members had no space since the last head, to be moved elsewhere.
    cramped: Vec<MemberIndex>,
    /// Copies that are to be moved elsewhere before a write finds no space.
    leaving: Vec<MemberIndex>,
    /// Members that keep space back for their copy.
    ballast: BTreeSet<MemberIndex>,
}

impl Mirror {
    /// Returns the storage to give to the database. It does not keep the copies open: a database may be leaked
    /// after a panic.
    pub(super) fn backend(self: &Arc<Self>) -> Backend {
        Backend(Arc::downgrade(self))
    }

    /// Returns the members that have copies.
    pub(super) fn members(&self) -> Vec<MemberIndex> {
        self.copies.read().iter().map(|copy| copy.member).collect()
    }

    /// Says whether a copy had no space since the last [`Mirror::reset`]. The database need not pass
    /// on the error that it met first.
    pub(super) fn ran_out_of_space(&self) -> bool {
        self.out_of_space.load(Ordering::Acquire)
    }

    /// Returns whether what the database writes goes to the members.
    ///
    /// # Errors
    ///
    /// If a copy had no space.
    fn writes_through(&self) -> io::Result<bool> {
        if !self.writable || self.suspended.load(Ordering::Acquire) {
            return Ok(false);
        }
        if self.ran_out_of_space() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(true)
        }
    }

    /// Writes every buffered page to all copies. Nothing is durable yet.
    fn flush(&self, io: &mut Io) -> io::Result<()> {
        self.forget_dead(io)?;
        let pages: Vec<(u64, Page)> = self
            .buffered
            .lock()
            .iter()
            .map(|(page, bytes)| (*page, Arc::clone(bytes)))
            .collect();
        if pages.is_empty() {
            return Ok(());
        }
        let db_bytes = self.front.lock().db_bytes;
        self.extend(io, db_bytes)?;
        let mut targets = self.members();
        targets.extend(io.arriving.as_ref().map(|arriving| arriving.member));
        io.sequence += 1;
        let sequence = io.sequence;
        self.newest_frame.store(sequence, Ordering::Release);
        let mut ops = Vec::new();
        for run in pages.chunk_by(|(page, _), (next, _)| page + 1 == *next) {
            for run in run.chunks(MAX_RUN_FRAMES) {
                let data = self.frames(run.iter().map(|(page, bytes)| (*page, sequence, &**bytes)));
                let offset = frame::frame_offset(run[0].0);
                ops.extend(
                    targets
                        .iter()
                        .map(|member| (*member, write_op(&self.name, offset, &data))),
                );
            }
        }
        io.unsynced = true;
        let answers = self.disk.run(ops);
        self.settle(io, answers)?;
        let mut buffered = self.buffered.lock();
        for (page, bytes) in pages {
            if buffered
                .get(&page)
                .is_some_and(|now| Arc::ptr_eq(now, &bytes))
            {
                buffered.remove(&page);
            }
        }
        Ok(())
    }

    /// Returns frames of pages that follow one another, each with its number and its sequence.
    fn frames<'a>(&self, run: impl Iterator<Item = (u64, u64, &'a [u8; PAGE_BYTES])>) -> Bytes {
        let mut data = BytesMut::with_capacity(run.size_hint().0 * FRAME_BYTES);
        for (page, sequence, bytes) in run {
            Frame { sequence, bytes }.put(self.place(page), &mut data);
        }
        data.freeze()
    }

    fn place(&self, page: u64) -> Place {
        Place {
            tag: self.tag,
            page,
        }
    }

    /// Makes everything written so far durable on all copies.
    fn sync(&self, io: &mut Io) -> io::Result<()> {
        self.flush(io)?;
        let front = self.front.lock().clone();
        if front == io.durable {
            return self.sync_files(io);
        }
        self.extend(io, front.db_bytes)?;
        self.write_heads(io, front)?;
        // Since the last one, room may have been made.
        io.refused.clear();
        self.cut(io)
    }

    /// Makes the files of all copies durable as they are.
    fn sync_files(&self, io: &mut Io) -> io::Result<()> {
        let answers = self.disk.sync(&self.members(), &self.name);
        self.settle(io, answers)?;
        io.unsynced = false;
        Ok(())
    }

    /// Makes all pages durable, then writes `front` into the heads of all copies and makes it durable.
    fn write_heads(&self, io: &mut Io, front: Front) -> io::Result<()> {
        // Also for a database that would find out from a torn page that its last commit is not there:
        // a torn frame is an error, and nothing of it is shown.
        if io.unsynced {
            self.sync_files(io)?;
        }
        io.sequence += 1;
        io.head_in_doubt = true;
        let head = Head {
            volume: self.volume,
            sequence: io.sequence,
            durable: io.durable_sequence,
            db_bytes: front.db_bytes,
            copies: self.members(),
            db_header: front.db_header,
        };
        let data = Bytes::copy_from_slice(&head.encode());
        let named = head.copies;
        let write = |copy: &Copied| {
            (
                copy.member,
                write_op(&self.name, frame::head_offset(1 - copy.slot), &data),
            )
        };
        let ops = self.copies.read().iter().map(write).collect();
        let answers = self.disk.run(ops);
        self.settle(io, answers)?;
        self.sync_files(io)?;
        for copy in self.copies.write().iter_mut() {
            copy.slot = 1 - copy.slot;
        }
        io.cramped.clear();
        io.head_in_doubt = false;
        io.durable_sequence = io.sequence;
        io.named = named;
        io.durable = front;
        Ok(())
    }

    /// Gives up copies whose members have failed.
    fn forget_dead(&self, io: &mut Io) -> io::Result<()> {
        let live = self.disk.members().live();
        if io
            .arriving
            .as_ref()
            .is_some_and(|arriving| !live.contains(&arriving.member))
        {
            io.arriving = None;
        }
        let mut copies = self.copies.write();
        copies.retain(|copy| live.contains(&copy.member));
        if copies.is_empty() {
            Err(none_left())
        } else {
            Ok(())
        }
    }

    /// Gives up copies whose members failed an operation.
    ///
    /// # Errors
    ///
    /// If no copy would be left; or if a copy had no space, with
    /// [`StorageFull`](io::ErrorKind::StorageFull): the copy is good, but the database must go back
    /// to what is durable ([`Mirror::reset`]).
    fn settle(&self, io: &mut Io, answers: Vec<Answer>) -> io::Result<()> {
        let mut full = false;
        for (member, answer) in answers {
            let Err(error) = answer else { continue };
            if io
                .arriving
                .as_ref()
                .is_some_and(|arriving| arriving.member == member)
            {
                self.turn_away(io, member, &error);
            } else if error.kind() == StoreErrorKind::NoSpace {
                full = true;
                if !io.cramped.contains(&member) {
                    io.cramped.push(member);
                }
            } else if !error.is_member_failure() {
                // The file is gone from under us.
                self.disk.fail(member, &error);
            }
        }
        self.forget_dead(io)?;
        if full {
            self.out_of_space.store(true, Ordering::Release);
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn buffer_page(&self, page: u64, bytes: Page) -> io::Result<()> {
        // Before it is buffered: a page that leaves the buffer is known to be the database's.
        self.kinds.lock().note_written(page);
        let full = {
            let mut buffered = self.buffered.lock();
            buffered.insert(page, bytes);
            buffered.len() >= MAX_BUFFERED_PAGES
        };
        if full && self.writes_through()? {
            return self.flush(&mut self.io.lock());
        }
        Ok(())
    }

    /// Takes a write that lies within one page.
    fn write_in_page(&self, page: u64, skip: usize, data: &[u8]) -> io::Result<()> {
        if page == 0 {
            let mut front = self.front.lock();
            let Some(target) = front.db_header.get_mut(skip..skip + data.len()) else {
                return Err(io::Error::other(
                    "the database's header has outgrown the index head",
                ));
            };
            target.copy_from_slice(data);
            return Ok(());
        }
        let mut bytes = [0; PAGE_BYTES];
        if data.len() < PAGE_BYTES {
            self.read_pages(page, &mut bytes)?;
        }
        bytes[skip..skip + data.len()].copy_from_slice(data);
        self.buffer_page(page, Arc::new(bytes))
    }

    fn check_range(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_some_and(|end| end <= self.front.lock().db_bytes) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "beyond the end of the index",
        ))
    }
}

/// Tells a want of space, which passes, from failures that do not.
pub(super) fn meta_error(error: io::Error) -> MetaError {
    match error.kind() {
        io::ErrorKind::StorageFull => MetaError::NoSpace,
        _ => MetaError::poisoned(error),
    }
}

fn none_left() -> io::Error {
    io::Error::other("no copy of the index is left")
}

/// Returns the page of a byte and the byte's place in it.
fn split(offset: u64) -> (u64, usize) {
    let skip = usize::try_from(offset % PAGE).expect("a remainder is below the page size");
    (offset / PAGE, skip)
}

/// A [`Mirror`] as the database sees it.
#[derive(Debug)]
pub(super) struct Backend(Weak<Mirror>);

impl Backend {
    fn mirror(&self) -> io::Result<Arc<Mirror>> {
        let closed = || io::Error::other("the copies of the index are closed");
        self.0.upgrade().ok_or_else(closed)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.mirror()?.front.lock().db_bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mirror = self.mirror()?;
        mirror.check_range(offset, out.len())?;
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (page, skip) = split(at);
            let whole = if page == 0 || skip > 0 {
                0
            } else {
                rest.len() / PAGE_BYTES * PAGE_BYTES
            };
            let len = if whole > 0 {
                whole
            } else {
                rest.len().min(PAGE_BYTES - skip)
            };
            let (head, tail) = rest.split_at_mut(len);
            if whole > 0 {
                mirror.read_pages(page, head)?;
                mirror.check_page(page, head)?;
            } else {
                mirror.read_in_page(page, skip, head)?;
            }
            at += len as u64;
            rest = tail;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > frame::MAX_DB_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mirror = self.mirror()?;
        mirror.front.lock().db_bytes = len;
        mirror.buffered.lock().split_off(&len.div_ceil(PAGE));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mirror = self.mirror()?;
        if mirror.writes_through()? {
            mirror.sync(&mut mirror.io.lock())
        } else {
            Ok(())
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mirror = self.mirror()?;
        mirror.check_range(offset, data.len())?;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (page, skip) = split(at);
            let (head, tail) = rest.split_at(rest.len().min(PAGE_BYTES - skip));
            mirror.write_in_page(page, skip, head)?;
            at += head.len() as u64;
            rest = tail;
        }
        Ok(())
    }
}
