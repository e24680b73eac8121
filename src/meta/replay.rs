//! Reading the journal after a crash.
//!
//! All members that may be trusted hold the same records at the same places, except for damage and
//! for the newest one, which a crash may have left on some of them only. So the files are read as
//! one: at each place, the record of any member that is intact.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::disk::Disk;
use super::index::{Index, Position};
use super::journal;
use super::overlay::{Entry, Layer};
use super::pieces::{self, Progress};
use super::redb_index::RedbIndex;
use super::{Key, MetaError, Recovered};
use crate::format::journal::{JournalRecord, MAX_RECORD_BYTES, Preview, StripeData, decode_within};
use crate::format::record::Scrub;
use crate::format::{BLOCK_SIZE, Epoch, FormatError, Lsn, MemberIndex, Record, SegmentId, key};
use crate::members::{Access, Members};
use crate::store::Buffer;

/// What the journal holds beyond the index.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) changes: Layer,
    pub(super) data: Vec<StripeData>,
    /// The last record.
    pub(super) last: Lsn,
    pub(super) records: u64,
    /// Bytes that the records take in the journal.
    bytes: u64,
    /// The first record that is missing, and a later one that was found.
    lost: Option<(Lsn, Lsn)>,
}

/// Makes what recovery found durable in the index, with the position that it has reached then.
pub(super) fn adopt(
    index: &RedbIndex,
    changes: &Layer,
    position: Position,
    recovered: &Recovered,
    members: &Members,
) -> Result<(), MetaError> {
    if recovered.replayed_records > 0 {
        log::info!(
            "recovered {} journal records, up to {}",
            recovered.replayed_records,
            position.lsn
        );
    }
    let doubts = doubts(index, changes, position.lsn, members)?;
    let progress = Progress {
        journaled: changes,
        units: doubts.as_slice(),
        position,
        carried: &recovered.data,
    };
    pieces::bring_in(index, &progress)
}

/// Returns the change that names the members which were found to be from an earlier time, if there are any.
/// Once the journal is written anew, nothing else tells that of those that lack its newest records.
fn doubts(
    index: &RedbIndex,
    changes: &Layer,
    lsn: Lsn,
    members: &Members,
) -> Result<Option<(Key, Entry)>, MetaError> {
    let put_back = members.put_back();
    if put_back.is_empty() {
        return Ok(None);
    }
    let key = key::scrub();
    let found = if let Some(entry) = changes.get(&key) {
        entry.value.clone()
    } else {
        index.make_view()?;
        let view = index.view();
        view.map_or(Ok(None), |view| view.get(&key))?
    };
    let last = found.map(|value| Scrub::decode(&value)).transpose();
    let last = last.map_err(MetaError::poisoned)?.unwrap_or_default();
    let named = last.named().chain(put_back.into_keys());
    // What it has verified it has not verified of these.
    let anew = Scrub {
        segment: SegmentId(0),
        offset: 0,
        ..last
    };
    let entry = Entry {
        number: lsn.0,
        value: Some(anew.naming(named).encode()),
    };
    Ok(Some((key, entry)))
}

/// Reads every record after `position`, from members that may be trusted.
///
/// # Errors
///
/// [`MetaError::OldIndex`], or [`MetaError::TooLarge`].
pub(super) fn replay(disk: &Arc<Disk>, position: Position) -> Result<Replayed, MetaError> {
    let live = disk.members().live();
    let mut sources = disk.members().current_at_open();
    sources.retain(|member| live.contains(member));
    let mut runs = Vec::new();
    for name in journal::names() {
        let tape = Tape::open(disk, name, &sources, position);
        if let Some(first) = tape.first_record()? {
            runs.push((first, tape));
        }
    }
    runs.sort_by_key(|(first, _)| first.record.header.lsn);
    let mut replayed = Replayed {
        last: position.lsn,
        ..Replayed::default()
    };
    let (firsts, tapes): (Vec<Placed>, Vec<Tape>) = runs.into_iter().unzip();
    let mut newest: Vec<Mark<'_>> = Vec::new();
    for (first, tape) in firsts.into_iter().zip(&tapes) {
        let (mut offset, mut next) = (0, Some(first));
        while let Some(placed) = next {
            let lsn = placed.record.header.lsn;
            if lsn.0 > replayed.last.0 + 1 {
                replayed.lost = Some((Lsn(replayed.last.0 + 1), lsn));
                return Ok(replayed);
            }
            let epoch = placed.record.header.epoch;
            newest.push(Mark {
                tape,
                offset,
                lsn,
                epoch,
            });
            let surplus = newest.len().saturating_sub(RECORDS_IN_FLIGHT + 1);
            newest.drain(..surplus);
            offset = placed.offset + placed.bytes;
            next = tape.record(offset, Lsn(lsn.0 + 1))?;
            if lsn > replayed.last {
                replayed.take(placed)?;
            }
        }
    }
    if newest.len() > RECORDS_IN_FLIGHT {
        let is_behind = |member: &MemberIndex| is_behind(*member, &tapes, &newest);
        for member in sources.into_iter().filter(is_behind) {
            disk.members().note_put_back(member);
        }
    }
    Ok(replayed)
}

/// Says whether a member has none of the newest records, although it should: it was put back from an earlier
/// time. One that came or returned after them has no records at all, and is up to date only in an epoch after
/// theirs.
fn is_behind(member: MemberIndex, tapes: &[Tape], newest: &[Mark<'_>]) -> bool {
    let has_newest = |mark: &Mark<'_>| {
        let placed = mark.tape.read_from(member, mark.offset);
        placed.is_some_and(|placed| {
            let header = placed.record.header;
            (header.life, header.lsn) == (mark.tape.position.life, mark.lsn)
        })
    };
    let has_any = |tape: &Tape| tape.read_from(member, 0).is_some();
    let of_epoch = newest.iter().filter(|mark| mark.epoch == mark.tape.epoch);
    // Files that are gone or damaged are that and no more.
    let is_from_before_all =
        || of_epoch.count() > RECORDS_IN_FLIGHT && tapes.iter().all(|tape| tape.is_blank(member));
    let has_older = || tapes.iter().any(has_any);
    !newest.iter().any(has_newest) && (has_older() || is_from_before_all())
}

/// Returns how many records continue a position without a gap, or `None` if the journal contradicts it.
pub(super) fn continues(disk: &Arc<Disk>, position: Position) -> Option<u64> {
    let replayed = replay(disk, position).ok()?;
    replayed.lost.is_none().then_some(replayed.records)
}

impl Replayed {
    /// Refuses to write to a volume that lost records; reading what was before them does no harm.
    ///
    /// # Errors
    ///
    /// [`MetaError::LostRecords`].
    pub(super) fn refuse_lost(&self, access: Access) -> Result<(), MetaError> {
        let Some((missing, found)) = self.lost else {
            return Ok(());
        };
        let error = MetaError::LostRecords { missing, found };
        match access {
            Access::ReadWrite => Err(error),
            Access::ReadOnly => {
                log::error!("{error}; showing the state before it");
                Ok(())
            }
        }
    }

    fn take(&mut self, placed: Placed) -> Result<(), MetaError> {
        self.bytes = self.bytes.saturating_add(placed.bytes);
        if self.bytes > MAX_REPLAYED_BYTES {
            let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
            return Err(MetaError::TooLarge { bytes });
        }
        let record = placed.record;
        self.last = record.header.lsn;
        self.records += 1;
        for (key, value) in record.entries {
            self.changes.insert(
                key,
                Entry {
                    number: record.header.lsn.0,
                    value,
                },
            );
        }
        self.data.extend(record.data);
        Ok(())
    }
}

/// Most bytes of records that are brought into the index at once. Journals take 64 MiB; those of earlier
/// builds took a few times that.
const MAX_REPLAYED_BYTES: u64 = 1 << 30;

/// Records that a crash may leave on some members only.
const RECORDS_IN_FLIGHT: usize = 1;

/// Where a record lies.
struct Mark<'a> {
    tape: &'a Tape,
    offset: u64,
    lsn: Lsn,
    epoch: Epoch,
}

/// A record, where it begins, and how many bytes it takes there.
struct Placed {
    record: JournalRecord,
    offset: u64,
    bytes: u64,
}

/// One journal file, on all members that may be trusted.
struct Tape {
    disk: Arc<Disk>,
    name: Arc<str>,
    copies: Vec<(MemberIndex, u64)>,
    position: Position,
    epoch: Epoch,
}

impl Tape {
    fn open(disk: &Arc<Disk>, name: Arc<str>, sources: &[MemberIndex], position: Position) -> Self {
        let with_len = |member: &MemberIndex| Some((*member, disk.len(*member, &name).ok()??));
        let copies = sources.iter().filter_map(with_len).collect();
        Self {
            disk: Arc::clone(disk),
            name,
            copies,
            position,
            epoch: disk.members().epoch(),
        }
    }

    /// Returns the record at the file's start. Where members differ, the newest was being written
    /// when the crash came, over one that the index has.
    fn first_record(&self) -> Result<Option<Placed>, MetaError> {
        let mut newest: Option<Placed> = None;
        for (member, len) in &self.copies {
            let Some(placed) = self.read(*member, *len, 0)? else {
                continue;
            };
            let header = placed.record.header;
            if header.life.number > self.position.life.number {
                let (index, journal) = (self.position.life.number, header.life.number);
                return Err(MetaError::OldIndex { index, journal });
            }
            let is_newer = |old: &Placed| header.lsn > old.record.header.lsn;
            if header.life == self.position.life && newest.as_ref().is_none_or(is_newer) {
                newest = Some(placed);
            }
        }
        Ok(newest)
    }

    /// Returns the record at `offset` if it is number `lsn`.
    fn record(&self, offset: u64, lsn: Lsn) -> Result<Option<Placed>, MetaError> {
        for (member, len) in &self.copies {
            let found = self.read(*member, *len, offset)?;
            let is_next = |placed: &Placed| {
                let header = placed.record.header;
                header.life == self.position.life && header.lsn == lsn
            };
            if let Some(placed) = found.filter(is_next) {
                return Ok(Some(placed));
            }
        }
        Ok(None)
    }

    /// Says whether a member's file is as it was made.
    fn is_blank(&self, member: MemberIndex) -> bool {
        let has_file = self.copies.iter().any(|(holder, _)| *holder == member);
        let front = self.disk.read(member, &self.name, 0, BLOCK_SIZE);
        has_file && front.is_ok_and(|front| front.iter().all(|byte| *byte == 0))
    }

    /// Reads a record of this volume from a member, of whatever life and number.
    fn read_from(&self, member: MemberIndex, offset: u64) -> Option<Placed> {
        let (_, len) = self.copies.iter().find(|(holder, _)| *holder == member)?;
        self.read(member, *len, offset).ok().flatten()
    }

    /// Reads a record of this volume from one member, of whatever life and number.
    ///
    /// # Errors
    ///
    /// [`MetaError::TooLarge`] for one of this life that is longer than any that is written: to leave it
    /// out would lose what it acknowledged.
    fn read(
        &self,
        member: MemberIndex,
        len: u64,
        offset: u64,
    ) -> Result<Option<Placed>, MetaError> {
        let Some(room) = len.checked_sub(offset) else {
            return Ok(None);
        };
        let Some((preview, front)) = self.preview(member, room, offset) else {
            return Ok(None);
        };
        if preview.padded_bytes > MAX_RECORD_BYTES {
            if preview.header.life == self.position.life {
                let bytes = preview.padded_bytes;
                return Err(MetaError::TooLarge { bytes });
            }
            return Ok(None);
        }
        let Some(whole) = self.whole(member, offset, &preview, front) else {
            return Ok(None);
        };
        let decoded = decode_within(&whole, self.disk.members().stripe_bytes());
        match decoded {
            Ok(record) => Ok(Some(Placed {
                record,
                offset,
                bytes: preview.padded_bytes as u64,
            })),
            // As a crash leaves it.
            Err(FormatError::Checksum { .. }) => Ok(None),
            Err(error) => {
                log::warn!("member {member}: {} at {offset}: {error}", self.name);
                Ok(None)
            }
        }
    }

    /// Reads the first block of a record of this volume that ends within `room` bytes.
    fn preview(&self, member: MemberIndex, room: u64, offset: u64) -> Option<(Preview, Buffer)> {
        if room < BLOCK_SIZE as u64 {
            return None;
        }
        let front = self.disk.read(member, &self.name, offset, BLOCK_SIZE);
        let front = front.ok()?;
        let preview = Preview::decode(&front).ok()?;
        let header = preview.header;
        let ours = header.volume == self.disk.members().volume_id() && header.epoch <= self.epoch;
        let fits = preview.padded_bytes as u64 <= room;
        (ours && fits).then_some((preview, front))
    }

    /// Reads the rest of a record whose first block was read.
    fn whole(
        &self,
        member: MemberIndex,
        offset: u64,
        preview: &Preview,
        front: Buffer,
    ) -> Option<Bytes> {
        if preview.padded_bytes == BLOCK_SIZE {
            return Some(front.freeze());
        }
        let rest = preview.padded_bytes - BLOCK_SIZE;
        let offset = offset + BLOCK_SIZE as u64;
        let body = self.disk.read(member, &self.name, offset, rest).ok()?;
        let mut whole = BytesMut::with_capacity(preview.padded_bytes);
        whole.extend_from_slice(&front);
        whole.extend_from_slice(&body);
        Some(whole.freeze())
    }
}
