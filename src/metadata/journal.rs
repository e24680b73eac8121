//! Writing the journal: two files in every live member, used in turn.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::batch::Value;
use super::disk::Disk;
use super::error::MetaError;
use super::index::Position;
use crate::format::journal::{self, JournalGeneration, Preview, RecordHeader, StripeData};
use crate::format::key::Key;
use crate::format::{BLOCK_SIZE, Lsn, MemberIndex, files};
use crate::membership::Wait;
use crate::store::{Buffer, StoreError, StoreErrorKind};

/// Smallest and largest size that a journal file is made with, in bytes.
const FILE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=journal::MAX_FILE_BYTES;

/// A journal file is this part of the smallest member.
const MEMBER_PART: u64 = 64;

/// Bytes of the members' journals compared at once.
const COMPARED_BYTES: usize = 1 << 20;

/// Returns the names of the two files.
pub(super) fn names() -> [Arc<str>; 2] {
    files::JOURNALS.map(Into::into)
}

/// Returns how long each file is to be when a volume is made.
pub(super) fn size_for(disk: &Disk) -> Result<u64, MetaError> {
    let mut smallest = u64::MAX;
    for member in disk.members().membership().live() {
        smallest = smallest.min(disk.free_bytes(member)?);
    }
    let size = (smallest / MEMBER_PART).clamp(*FILE_BYTES.start(), *FILE_BYTES.end());
    Ok(size.next_multiple_of(BLOCK_SIZE as u64))
}

/// Makes the files of a new volume.
pub(super) fn create(disk: &Disk) -> Result<(), MetaError> {
    let size = size_for(disk)?;
    let members = disk.members().membership().live();
    for name in &names() {
        for member in &members {
            disk.create(*member, name, size)?;
        }
        let new = members.iter().map(|member| (*member, 0..size)).collect();
        let failed = disk.members().io().write_zeros(name, new);
        if let Some((_, error)) = failed.into_iter().next() {
            return Err(error.into());
        }
    }
    Ok(())
}

/// The end of the journal, where records are added.
#[derive(Debug)]
pub(super) struct Journal {
    disk: Arc<Disk>,
    names: [Arc<str>; 2],
    generation: JournalGeneration,
    /// Bytes of each file; none takes more.
    size: u64,
    tail: Mutex<Tail>,
    read_back: Mutex<ReadBack>,
    /// The bits of an `f32`, so that asking does not wait for an append.
    fill: AtomicU32,
}

#[derive(Debug)]
struct Tail {
    /// The file that takes the next record.
    current: usize,
    files: [File; 2],
    last: Lsn,
}

#[derive(Clone, Copy, Debug)]
struct File {
    /// Bytes of records that the index may lack.
    used: u64,
    /// The first of these records.
    first: Lsn,
    /// Its newest record.
    last: Lsn,
}

/// The place of a record.
#[derive(Clone, Copy, Debug)]
struct RecordLocation {
    file: usize,
    offset: u64,
    lsn: Lsn,
}

/// Records that are read back, to see whether the files still hold them.
#[derive(Debug, Default)]
struct ReadBack {
    newest: Option<RecordLocation>,
    /// For each member the one that was the newest when it answered last, until it is written over. A member that does
    /// not answer is asked for it again.
    earlier: BTreeMap<MemberIndex, RecordLocation>,
}

impl ReadBack {
    /// Forgets the records that a new one overwrites, before it is written.
    fn forget_overwritten(&mut self, file: usize, offset: u64) {
        // Files are written from their beginning on.
        let stays = |location: &RecordLocation| location.file != file || location.offset < offset;
        self.newest = self.newest.filter(stays);
        self.earlier.retain(|_, location| stays(location));
    }
}

impl Journal {
    /// Starts a generation after record `last`. The files are made, or given their length, where a member
    /// lacks them; what they hold belongs to other generations.
    pub(super) fn start(
        disk: &Arc<Disk>,
        generation: JournalGeneration,
        last: Lsn,
    ) -> Result<Self, MetaError> {
        let names = names();
        let size = Self::existing_size(disk, &names)?;
        let live = disk.members().membership().live();
        for name in &names {
            let prepare =
                |member: &MemberIndex| Some((*member, prepare(disk, *member, name, size)?));
            let new = live.iter().filter_map(prepare).collect();
            let failed = disk.members().io().write_zeros(name, new).into_iter();
            for (member, error) in failed.filter(|(_, error)| !error.is_member_failure()) {
                tracing::info!(%member, "records in its {name} may take longer at first: {error}");
            }
        }
        if disk.members().membership().is_failed() {
            return Err(MetaError::poisoned(
                "too few members are left for a journal",
            ));
        }
        let file = File {
            used: 0,
            first: Lsn(0),
            last: Lsn(0),
        };
        let tail = Mutex::new(Tail {
            current: 0,
            files: [file; 2],
            last,
        });
        Ok(Self {
            disk: Arc::clone(disk),
            names,
            generation,
            size,
            tail,
            read_back: Mutex::default(),
            fill: AtomicU32::new(0),
        })
    }

    fn existing_size(disk: &Disk, names: &[Arc<str>; 2]) -> Result<u64, MetaError> {
        let lens = disk
            .members()
            .membership()
            .live()
            .into_iter()
            .flat_map(|member| {
                names
                    .iter()
                    .filter_map(move |name| disk.len(member, name).ok().flatten())
            });
        let block = BLOCK_SIZE as u64;
        // Of the shortest: one that had to grow is no reason for the others to, on members that may
        // be full by now.
        let whole = lens
            .map(|len| len / block * block)
            .filter(|len| len >= FILE_BYTES.start());
        match whole.min() {
            Some(len) => Ok(len.min(*FILE_BYTES.end())),
            None => size_for(disk),
        }
    }

    /// Returns what an index will have reached that takes in everything appended so far.
    pub(super) fn position(&self) -> Position {
        Position {
            lsn: self.tail.lock().last,
            generation: self.generation,
        }
    }

    /// Returns how long each file is meant to be.
    pub(super) fn file_bytes(&self) -> u64 {
        self.size
    }

    /// Returns how full the files are: 1.0 if both are.
    pub(super) fn fill(&self) -> f32 {
        f32::from_bits(self.fill.load(Ordering::Relaxed))
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a trigger for checkpoints need not be exact"
    )]
    fn note_fill(&self, tail: &Tail) {
        let used = (tail.files[0].used + tail.files[1].used) as f32;
        self.fill
            .store((used / (2 * self.size) as f32).to_bits(), Ordering::Relaxed);
    }

    /// Adds a record, durable on every member that is live when this returns.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`] and [`MetaError::JournalFull`] if nothing has changed; after anything
    /// else nothing more may be appended.
    pub(super) fn append(
        &self,
        entries: &[(&Key, Option<&Value>)],
        data: &[StripeData],
    ) -> Result<Lsn, MetaError> {
        let mut tail = self.tail.lock();
        let body = entries
            .iter()
            .map(|(key, value)| journal::entry_bytes(key, value.map(|value| &**value)))
            .sum::<usize>()
            + data.iter().map(journal::stripe_bytes).sum::<usize>();
        let len = journal::padded_bytes(body);
        let offset = self.find_place(&mut tail, len as u64)?;
        let lsn = Lsn(tail.last.0 + 1);
        let members = self.disk.members();
        let header = RecordHeader {
            volume: members.shape().volume_id(),
            epoch: members.membership().epoch(),
            lsn,
            generation: self.generation,
        };
        let mut record = self.disk.buffer(len);
        journal::encode(&header, entries, data, &mut record);
        let current = tail.current;
        self.read_back.lock().forget_overwritten(current, offset);
        let live = members.acknowledged().begin(lsn, members.membership());
        let acknowledged = self
            .write(&live, &self.names[current], offset, &record.freeze())
            .inspect_err(|_| self.note_needed(&tail))?;
        members
            .acknowledged()
            .note(&acknowledged, self.generation, lsn);
        self.read_back.lock().newest = Some(RecordLocation {
            file: current,
            offset,
            lsn,
        });
        let file = &mut tail.files[current];
        if offset == 0 {
            file.first = lsn;
        }
        file.used = offset + len as u64;
        file.last = lsn;
        tail.last = lsn;
        self.note_fill(&tail);
        Ok(lsn)
    }

    /// Returns where in the current file a record of `len` bytes goes; the other file becomes the current
    /// one if it is empty and this one is full.
    fn find_place(&self, tail: &mut Tail, len: u64) -> Result<u64, MetaError> {
        let fits = |file: &File| len <= self.size - file.used;
        let other = 1 - tail.current;
        if !fits(&tail.files[tail.current]) {
            if tail.files[other].used > 0 || !fits(&tail.files[other]) {
                return Err(MetaError::JournalFull);
            }
            tail.current = other;
        }
        Ok(tail.files[tail.current].used)
    }

    /// Writes durably on these members, and returns those that acknowledged it. One that fails is marked missing,
    /// and so is one that has no space, if enough are left without it.
    ///
    /// Each member takes the record as one request, which answers once the record is durable. Until the last member
    /// has answered, any set of members may hold the record, as after a power cut between writes and syncs.
    fn write(
        &self,
        live: &[MemberIndex],
        name: &Arc<str>,
        offset: u64,
        record: &bytes::Bytes,
    ) -> Result<Vec<MemberIndex>, MetaError> {
        let mut full = Vec::new();
        let mut written = Vec::with_capacity(live.len());
        for (member, answer) in self.disk.write_durably(live, name, offset, record) {
            match answer {
                Ok(()) => written.push(member),
                Err(error) if error.kind() == StoreErrorKind::NoSpace => full.push((member, error)),
                Err(error) if !error.is_member_failure() => self.disk.fail(member, &error),
                Err(_) => {}
            }
        }
        let needed = self.disk.members().shape().geometry().data_shards();
        if !full.is_empty() && written.len() < needed {
            self.void(&written, name, offset);
            // No member has it, so it can be written again when there is space.
            return Err(MetaError::NoSpace);
        }
        for (member, error) in full {
            self.disk.fail(member, &error);
        }
        if written.is_empty() || self.disk.members().membership().is_failed() {
            return Err(MetaError::poisoned("too few members took a journal record"));
        }
        Ok(written)
    }

    /// Makes sure that no reader finds a record there. Its content may reach the index by another way, with newer
    /// changes, and must not come after them.
    fn void(&self, members: &[MemberIndex], name: &Arc<str>, offset: u64) {
        let mut nothing = self.disk.buffer(BLOCK_SIZE);
        nothing.fill(0);
        let nothing = nothing.freeze();
        for (member, answer) in self.disk.write_durably(members, name, offset, &nothing) {
            if let Err(error) = answer {
                self.disk.fail(member, &error);
            }
        }
    }

    /// Returns whether members hold different records among those that the index may lack. A member that cannot be read is
    /// marked missing, or has a file that was cut short.
    pub(super) fn differs(&self) -> bool {
        let tail = self.tail.lock();
        let mut files = tail.files.iter().zip(&self.names);
        files.any(|(file, name)| {
            (0..file.used)
                .step_by(COMPARED_BYTES)
                .any(|offset| self.differs_at(name, offset, file.used))
        })
    }

    fn differs_at(&self, name: &Arc<str>, offset: u64, end: u64) -> bool {
        let len = (end - offset).min(COMPARED_BYTES as u64);
        let len = usize::try_from(len).expect("a piece fits memory");
        let members = self.disk.members().membership().live();
        let reads = members.into_iter().map(|member| (member, len));
        let read = self.disk.read_each(reads, name, offset, Wait::Full);
        let mut first: Option<Buffer> = None;
        for (member, answer) in read {
            let is_same = match (answer, &first) {
                (Ok(bytes), Some(first)) => *bytes == **first,
                (Ok(bytes), None) => {
                    first = Some(bytes);
                    true
                }
                (Err(error), _) => error.is_member_failure(),
            };
            if !is_same {
                tracing::warn!(%member, "its {name} is not what others have");
                return true;
            }
        }
        false
    }

    /// Notes that a commit went to the index alone.
    pub(super) fn note_commit_without_record(&self) {
        let members = self.disk.members();
        members
            .acknowledged()
            .note_commit_without_record(&members.membership().live());
    }

    /// Reads back the record that was the newest when a member was asked before, unless no other followed: idle disks are
    /// not woken. Returns the members that acknowledged it and do not hold it any more: someone else wrote to their
    /// files.
    pub(super) fn members_without_records(&self) -> Vec<MemberIndex> {
        let mut without = Vec::new();
        for (location, asked) in self.due_for_reading_back() {
            let reads = asked.into_iter().map(|member| (member, BLOCK_SIZE));
            let name = &self.names[location.file];
            let answers = self
                .disk
                .read_each(reads, name, location.offset, Wait::HedgeDelay);
            let mut answered = 0;
            for (member, answer) in answers {
                let Some(holds) = self.holds(&answer, location.lsn) else {
                    continue;
                };
                answered += 1;
                if self.note_answer(member, location.lsn) && !holds {
                    without.push(member);
                }
            }
            tracing::debug!(
                "journal record {} was read back from {answered} members",
                location.lsn.0
            );
        }
        without
    }

    /// Returns the records that are to be read back, with the live members that acknowledged each.
    fn due_for_reading_back(&self) -> Vec<(RecordLocation, Vec<MemberIndex>)> {
        let members = self.disk.members();
        let mut read_back = self.read_back.lock();
        let Some(newest) = read_back.newest else {
            return Vec::new();
        };
        let mut due: BTreeMap<Lsn, (RecordLocation, Vec<MemberIndex>)> = BTreeMap::new();
        for member in members.membership().live() {
            let location = read_back.earlier.entry(member).or_insert(newest);
            if !members.acknowledged().has(member, location.lsn) {
                // It returned meanwhile, with a new journal.
                *location = newest;
            }
            if newest.lsn > location.lsn {
                let (_, asked) = due.entry(location.lsn).or_insert((*location, Vec::new()));
                asked.push(member);
            }
        }
        due.into_values().collect()
    }

    /// Notes that a member answered what it has in the place of a record. Returns false if the answer says nothing: a
    /// newer record was written over it meanwhile, or the journal was created again.
    fn note_answer(&self, member: MemberIndex, lsn: Lsn) -> bool {
        let mut read_back = self.read_back.lock();
        let is_kept = read_back
            .earlier
            .get(&member)
            .is_some_and(|location| location.lsn == lsn);
        if !is_kept {
            return false;
        }
        match read_back.newest {
            Some(newest) => read_back.earlier.insert(member, newest),
            None => read_back.earlier.remove(&member),
        };
        self.disk.members().acknowledged().has(member, lsn)
    }

    /// Returns whether the front of a record was read, or `None` if nothing was.
    fn holds(&self, answer: &Result<Buffer, StoreError>, lsn: Lsn) -> Option<bool> {
        match answer {
            Ok(front) => {
                let found = Preview::decode(front).map(|preview| preview.header);
                Some(
                    found
                        .is_ok_and(|found| (found.generation, found.lsn) == (self.generation, lsn)),
                )
            }
            Err(error) if error.kind() == StoreErrorKind::ShortRead => Some(false),
            Err(_) => None,
        }
    }

    /// Lets the next record go to the other file, if the index has all of that one.
    pub(super) fn switch_file(&self) {
        let mut tail = self.tail.lock();
        let (current, other) = (tail.current, 1 - tail.current);
        if tail.files[current].used > 0 && tail.files[other].used == 0 {
            tail.current = other;
        }
    }

    /// Notes that the index has every record up to `lsn`, so that files may be used again.
    pub(super) fn note_covered(&self, lsn: Lsn) {
        let mut tail = self.tail.lock();
        for file in tail.files.iter_mut().filter(|file| file.last <= lsn) {
            file.used = 0;
        }
        self.note_fill(&tail);
        self.note_needed(&tail);
    }

    /// Notes which records a member must have to stand for all others: those of files that are in use. A member without
    /// the first record of a file has none of that file for a reader, because readers begin there.
    fn note_needed(&self, tail: &Tail) {
        let in_use = tail.files.iter().filter(|file| file.used > 0);
        let first = in_use.map(|file| file.first).min();
        self.disk.members().acknowledged().need_from(first);
    }
}

/// Makes sure that a member has a journal file of `size` bytes, or fails the member. Returns the range that is new.
fn prepare(disk: &Disk, member: MemberIndex, name: &Arc<str>, size: u64) -> Option<Range<u64>> {
    let new = |range: Range<u64>| move |()| Some(range);
    let prepared = match disk.len(member, name) {
        Ok(Some(len)) if len == size => Ok(None),
        Ok(Some(len)) if len > size => disk.truncate(member, name, size).map(|()| None),
        Ok(Some(len)) => disk.reserve(member, name, len..size).map(new(len..size)),
        Ok(None) => disk.create(member, name, size).map(new(0..size)),
        Err(error) => Err(error),
    };
    prepared.unwrap_or_else(|error| {
        if !error.is_member_failure() {
            disk.fail(member, &error);
        }
        None
    })
}
