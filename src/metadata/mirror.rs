//! The index database's storage: equal copies on several members.
//!
//! The database sees one file. Every write goes to all copies, every sync waits for all of them; a
//! read is served by any copy, and by another if a frame is damaged. A copy that fails is given up,
//! and [`refill`] makes another in the background.
//!
//! Each part owns its state:
//!
//! - [`PageBuffer`]: the pages and the header that the database wrote and the copies lack.
//! - [`CopySet`]: the members that have copies, over their files ([`CopyFiles`]).
//! - [`PageReader`]: reads frames, compares those of all copies, and names the wrong ones.
//! - [`CopyWriter`]: writes frames and heads, and repairs, refills and verifies copies.
//! - [`StructureCheck`]: keeps crafted pages from the database.
//! - [`WriteMode`]: whether anything may be written.
//! - [`RepairLog`]: the account of repaired pages.
//!
//! # Invariants
//!
//! - A head is written only after everything it refers to is durable on every copy that it names, and the head before
//!   it as well. Any of these copies that is left is as good as the one with the newest head. A copy whose own head is
//!   older than that is stale.
//! - A copy that missed a write loses its heads, durably, or its member is failed, before the next
//!   sync succeeds. So the newest head among members that may be trusted is never out of date.
//! - The last durable head of a copy is not overwritten: there are two slots.
//!
//! Locks, in order: `writer`, then any one lock of another part. No part holds a lock of its own while it calls
//! another part. The writer is held while members are written to, and no other lock is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use redb::StorageBackend;

use super::disk::Disk;
use super::error::MetaError;
use crate::format::MemberIndex;
use crate::format::frame::{self, Head, PAGE_BYTES};
use crate::membership::Access;
use copy_set::CopySet;
use files::{CopyFiles, FIRST_PAGES, FoundCopy, IndexCopy, PAGE, file_bytes};
use page_buffer::{Front, PageBuffer};
use page_reader::{PageReader, WrongFrame, page_mut};
use repair_log::RepairLog;
use structure::StructureCheck;
use survey::Survey;
use unfinished::was_never_used;
use write_mode::WriteMode;
use writer::{CopyWriter, Heads, WriterParts};

mod btree_page;
mod copy_set;
mod files;
mod page_buffer;
mod page_reader;
mod page_set;
pub(super) mod placement;
mod refill;
mod repair_log;
mod reserve;
mod structure;
mod survey;
mod unfinished;
mod verify;
mod write_mode;
mod writer;

pub use verify::VerifiedIndex;

/// The copies of the index, as one storage for the database.
#[derive(Debug)]
pub(super) struct Mirror {
    copies: Arc<CopySet>,
    buffer: Arc<PageBuffer>,
    reader: Arc<PageReader>,
    mode: Arc<WriteMode>,
    repairs: Arc<RepairLog>,
    structure: StructureCheck,
    /// Held while anything is written.
    writer: Mutex<CopyWriter>,
}

impl Mirror {
    /// Makes empty copies on the members with most room.
    pub(super) fn create(disk: &Arc<Disk>) -> Result<Arc<Self>, MetaError> {
        let mut members = Vec::new();
        for member in disk.members().membership().live() {
            members.push((Reverse(disk.free_bytes(member)?), member));
        }
        members.sort_unstable();
        let files = CopyFiles::new(disk);
        let mut copies = Vec::new();
        let file_bytes = file_bytes(FIRST_PAGES * PAGE);
        for (_, member) in members.into_iter().take(wanted_copies(disk)) {
            files.create(member, file_bytes)?;
            copies.push(IndexCopy {
                member,
                file_bytes,
                slot: 1,
            });
        }
        let copies = Arc::new(CopySet::new(Arc::new(files), copies));
        let reader = PageReader::of_new(&copies);
        Ok(Self::new(
            copies,
            reader,
            WriteMode::begun(),
            Heads::empty(),
        ))
    }

    /// Opens the newest copies among the members that may be trusted. To be written to, it waits for
    /// [`Mirror::begin`].
    pub(super) fn open(disk: &Arc<Disk>) -> Result<Arc<Self>, MetaError> {
        let live = disk.members().membership().live();
        let mut sources = disk.members().current_at_open();
        sources.retain(|member| live.contains(member));
        let files = CopyFiles::new(disk);
        let found = sources.iter().filter_map(|member| files.find(*member));
        let mut found: Vec<FoundCopy> = found.collect();
        found.sort_by_key(|found| Reverse(found.head.sequence));
        let Some(newest) = found.first().map(|found| found.head.clone()) else {
            return Err(if was_never_used(disk) {
                MetaError::Unfinished
            } else {
                MetaError::NoIndex {
                    members: sources.len(),
                }
            });
        };
        found.retain(|found| is_current(found, &newest));
        let oldest = found.iter().map(|found| found.head.sequence).min();
        let is_other =
            |head: &Head| head.sequence == newest.sequence && Front::of(head) != Front::of(&newest);
        let is_disputed = found.iter().any(|found| is_other(&found.head));
        let mode = WriteMode::suspended(disk.members().access() == Access::ReadWrite);
        let copies = found.into_iter().map(|found| found.copy).collect();
        let copies = Arc::new(CopySet::new(Arc::new(files), copies));
        let reader = PageReader::of_found(&copies, newest.sequence, is_disputed);
        let heads = Heads::found(&newest, oldest.unwrap_or(newest.durable));
        Ok(Self::new(copies, reader, mode, heads))
    }

    /// Opens one copy by itself. Nothing is ever written to it.
    pub(super) fn open_single(&self, member: MemberIndex) -> Option<Arc<Self>> {
        let files = self.copies.files();
        let FoundCopy { copy, head } = files.find(member)?;
        let copies = Arc::new(CopySet::new(Arc::clone(files), vec![copy]));
        let reader = PageReader::of_found(&copies, head.sequence, false);
        let heads = Heads::found(&head, head.durable);
        let mode = WriteMode::suspended(false);
        Some(Self::new(copies, reader, mode, heads))
    }

    fn new(copies: Arc<CopySet>, reader: PageReader, mode: WriteMode, heads: Heads) -> Arc<Self> {
        let disk = Arc::clone(copies.files().disk());
        let buffer = Arc::new(PageBuffer::new(heads.durable.clone()));
        let (reader, mode) = (Arc::new(reader), Arc::new(mode));
        let repairs: Arc<RepairLog> = Arc::default();
        let structure =
            StructureCheck::new(&buffer, &mode, disk.members().shape().most_stripe_bytes());
        let parts = WriterParts {
            copies: Arc::clone(&copies),
            buffer: Arc::clone(&buffer),
            reader: Arc::clone(&reader),
            mode: Arc::clone(&mode),
            repairs: Arc::clone(&repairs),
        };
        let writer = Mutex::new(CopyWriter::new(parts, heads, wanted_copies(&disk)));
        Arc::new(Self {
            copies,
            buffer,
            reader,
            mode,
            repairs,
            structure,
            writer,
        })
    }

    /// Returns the storage to give to the database. It does not keep the copies open: a database may be leaked
    /// after a panic.
    pub(super) fn backend(self: &Arc<Self>) -> Backend {
        Backend(Arc::downgrade(self))
    }

    /// Begins to write: makes what lies on other members useless, and what the database wrote on being
    /// opened durable on all copies, with the same head.
    pub(super) fn begin(&self) -> Result<(), MetaError> {
        let mut writer = self.writer.lock();
        writer.wipe_others().map_err(meta_error)?;
        self.mode.begin();
        self.structure.reset();
        writer.begin().map_err(meta_error)
    }

    /// Returns the files of members.
    pub(super) fn disk(&self) -> &Arc<Disk> {
        self.copies.files().disk()
    }

    /// Returns where a member's copy is.
    pub(super) fn path(&self, member: MemberIndex) -> String {
        self.copies.files().path(member)
    }

    /// Returns the members that have copies.
    pub(super) fn members(&self) -> Vec<MemberIndex> {
        self.copies.members()
    }

    /// Looks for every copy once more, and returns the members on which it is.
    pub(super) fn found_copies(&self) -> Vec<MemberIndex> {
        self.copies.find_all()
    }

    /// Returns the length of the database in bytes.
    pub(super) fn db_bytes(&self) -> u64 {
        self.buffer.db_bytes()
    }

    /// Returns whether the volume was made and never written to since.
    pub(super) fn was_never_used(&self) -> bool {
        was_never_used(self.disk())
    }

    /// Returns whether something may have been written since the copies were opened.
    pub(super) fn has_begun(&self) -> bool {
        self.mode.has_begun()
    }

    /// Returns whether a copy had no space since the last [`Mirror::reset`].
    pub(super) fn is_out_of_space(&self) -> bool {
        self.mode.is_out_of_space()
    }

    /// Returns whether intact frames of one page and one sequence were seen that differ: no write leaves that.
    pub(super) fn is_disputed(&self) -> bool {
        self.reader.is_disputed()
    }

    /// Returns whether a page or the header was refused since the copies were chosen.
    pub(super) fn is_malformed(&self) -> bool {
        self.structure.is_malformed()
    }

    /// Verifies the header of the database, and where its tables begin.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] if it is not as the database writes it; or if a page cannot be read.
    pub(super) fn check_structure(&self) -> io::Result<()> {
        let read_pages = |first, out: &mut [u8]| self.read_pages(first, out);
        self.structure
            .check(self.copies.longest_file(), &read_pages)
    }

    /// Returns how many pages were rewritten since the mount, besides those that a scrub repaired.
    pub(super) fn repaired_pages(&self) -> u64 {
        self.repairs.pages()
    }

    /// Copies a piece of the index to a member that is to get a copy, if one is to. Returns whether
    /// there may be more to do.
    pub(super) fn refill(&self) -> io::Result<bool> {
        if self.mode.is_writable() {
            self.writer.lock().refill()
        } else {
            Ok(false)
        }
    }

    /// Has the copies of these members, and of no others, moved to where there is room for them: what has
    /// become of their own room is known before a write fails for it.
    pub(super) fn move_off(&self, members: &[MemberIndex]) {
        self.writer.lock().placement.move_off(members);
    }

    /// Compares the copies of some more pages, and writes the newest frame over all others. Returns whether
    /// there is more to do.
    pub(super) fn compare(&self) -> io::Result<bool> {
        self.writer.lock().compare()
    }

    /// Verifies some pages of all copies, and before the first of them the heads. Returns `None` behind
    /// the last page.
    pub(super) fn verify(&self, first: u64) -> io::Result<Option<VerifiedIndex>> {
        self.writer.lock().verify(first)
    }

    /// Returns how many pages of each copy are not what the newest commit is made of, and how many heads cannot
    /// be what was written. `walk` has the database read all of its pages; it is called if copies differ.
    pub(super) fn survey(
        &self,
        walk: impl FnOnce() -> Result<(), MetaError>,
    ) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        let db_bytes = self.writer.lock().heads.durable.db_bytes;
        let survey = Survey {
            copies: &self.copies,
            reader: &self.reader,
            db_bytes,
        };
        survey.run(walk)
    }

    /// Returns how many bytes every copy keeps in reserve at least.
    pub(super) fn reserve_bytes(&self) -> u64 {
        reserve::least_bytes(self.disk(), self.copies.members())
    }

    /// Keeps space in reserve beside every copy that does not. Returns whether all do now.
    pub(super) fn keep_reserve(&self) -> bool {
        self.writer.lock().reserve.keep(&self.copies.members())
    }

    /// Gives the copies their reserves, also those of earlier mounts.
    pub(super) fn release_reserve(&self) {
        let mut writer = self.writer.lock();
        writer.reserve.release(&self.copies.members());
    }

    /// Goes back to what is durable, after the members had no space for what the database wrote since, and writes
    /// nothing more. The database has been closed before; once opened again, it can be read.
    pub(super) fn suspend(&self) {
        self.writer.lock().suspend();
    }

    /// Like [`Mirror::suspend`], and then begins to write again, unless no copy has space even for
    /// undoing what was written: [`Mirror::is_out_of_space`] still says so then.
    pub(super) fn reset(&self) -> io::Result<()> {
        self.writer.lock().reset()
    }

    /// Goes back to what is durable, before the copies are tried. The database has been closed before.
    ///
    /// # Errors
    ///
    /// If no copy is left, none has space for undoing what was written, or the copies are closed.
    pub(super) fn go_back(&self) -> io::Result<()> {
        let mut writer = self.writer.lock();
        self.mode.check_open()?;
        if self.mode.has_begun() {
            writer.reset()
        } else {
            writer.suspend();
            Ok(())
        }
    }

    /// Continues with some of the copies, which are sound. If something is written, the others are wiped, and made again
    /// later.
    ///
    /// # Errors
    ///
    /// If none of these copies can be found.
    pub(super) fn keep_only(&self, sound: &[MemberIndex]) -> io::Result<()> {
        let mut writer = self.writer.lock();
        writer.keep_only(sound)?;
        self.structure.reset();
        Ok(())
    }

    /// Ends all writing of pages and heads. A reader may go on after this, because a member that hangs held it up. It repairs no
    /// wrong page that it found, and tries no other copies.
    pub(super) fn close(&self) {
        let _writer = self.writer.lock();
        self.mode.close();
    }

    /// Fills `out` with whole pages from `first` on; page 0 is not among them. Frames that are wrong are repaired.
    fn read_pages(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let missing = self.buffer.read(first, out);
        for wrong in self.reader.read(first, missing, out)? {
            self.repair(wrong, page_mut(out, first, wrong.page));
        }
        Ok(())
    }

    /// Writes a page over its wrong frame on one member, unless another thread is writing just now; then the next
    /// reader will do it. After [`Self::close`] it writes nothing.
    fn repair(&self, wrong: WrongFrame, bytes: &[u8; PAGE_BYTES]) {
        let WrongFrame { member, page, .. } = wrong;
        let Some(mut writer) = self.writer.try_lock() else {
            return;
        };
        // Asked under the lock: a close lets a repair that has begun end, and no other begins.
        if !matches!(self.mode.writes_through(), Ok(true)) || !self.copies.contains(member) {
            return;
        }
        self.repairs.log_once(member, page);
        self.disk().members().io().count_wrong(member, 1);
        match writer.repair(wrong, bytes) {
            Ok(()) => self.repairs.count(1),
            Err(error) => tracing::warn!("cannot repair page {page} of the index: {error}"),
        }
    }

    /// Fills `out` from a place within one page.
    fn read_in_page(&self, page: u64, skip: usize, out: &mut [u8]) -> io::Result<()> {
        if page == 0 {
            self.buffer.read_header(skip, out);
            return Ok(());
        }
        let mut whole = [0; PAGE_BYTES];
        self.read_pages(page, &mut whole)?;
        out.copy_from_slice(&whole[skip..skip + out.len()]);
        Ok(())
    }

    /// Takes a write that lies within one page.
    fn write_in_page(&self, page: u64, skip: usize, data: &[u8]) -> io::Result<()> {
        if page == 0 {
            return self.buffer.write_header(skip, data);
        }
        let mut bytes = [0; PAGE_BYTES];
        if data.len() < PAGE_BYTES {
            self.read_pages(page, &mut bytes)?;
        }
        bytes[skip..skip + data.len()].copy_from_slice(data);
        // Before it is buffered: a page that leaves the buffer is known to be the database's.
        self.structure.note_written(page);
        let is_full = self.buffer.insert(page, Arc::new(bytes));
        if is_full && self.mode.writes_through()? {
            return self.writer.lock().flush();
        }
        Ok(())
    }
}

/// Returns whether a copy is as good as the one with the newest head: named by that head, and no older
/// than what was durable on all copies that it names. An older one is stale.
fn is_current(found: &FoundCopy, newest: &Head) -> bool {
    let FoundCopy { copy, head } = found;
    if !newest.copies.contains(&copy.member) {
        return false;
    }
    if head.sequence < newest.durable {
        tracing::warn!(
            member = %copy.member,
            "its copy of the index is from an earlier time (head {} of at least {}): is the directory a stale copy, \
             restored from a backup?",
            head.sequence,
            newest.durable
        );
        return false;
    }
    true
}

fn wanted_copies(disk: &Disk) -> usize {
    disk.members().shape().geometry().parity_shards() + 1
}

/// Tells a want of space, which passes, from failures that do not.
fn meta_error(error: io::Error) -> MetaError {
    match error.kind() {
        io::ErrorKind::StorageFull => MetaError::NoSpace,
        _ => MetaError::poisoned(error),
    }
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
        Ok(self.mirror()?.db_bytes())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mirror = self.mirror()?;
        mirror.buffer.check_range(offset, out.len())?;
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
                mirror.structure.check_page(page, head)?;
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
        self.mirror()?.buffer.set_len(len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mirror = self.mirror()?;
        if mirror.mode.writes_through()? {
            mirror.writer.lock().sync()
        } else {
            Ok(())
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mirror = self.mirror()?;
        mirror.buffer.check_range(offset, data.len())?;
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

#[cfg(test)]
mod tests;
