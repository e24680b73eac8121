//! Reading the journal after a crash.
//!
//! All members that may be trusted hold the same records at the same places, except for damage and the newest record. A
//! crash may have left that one on some of them only. So the files are read as one: at each place, the record of any
//! member that is intact.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::batch::Key;
use super::disk::Disk;
use super::error::MetaError;
use super::index::{Index, Position};
use super::journal;
use super::overlay::{Entry, Layer};
use super::pieces::{self, Progress};
use crate::format::journal::{JournalRecord, Preview, StripeData, decode_within};
use crate::format::record::Scrub;
use crate::format::{BLOCK_SIZE, Epoch, FormatError, Lsn, MemberIndex, Record, SegmentId, key};
use crate::members::{Access, Members};
use crate::store::Buffer;

/// The records found in the journal when the metadata was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Bytes of stripes that may never have been flushed, in the order in which they were
    /// journaled.
    pub data: Vec<StripeData>,
    /// Journal records that the index lacked.
    pub replayed_records: u64,
}

/// The changes that the journal holds beyond the index.
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
    index: &dyn Index,
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
        unflushed: &recovered.data,
    };
    pieces::bring_in(index, &progress)
}

/// Returns the change that names the members which were found to be stale, if there are any. Once the journal is
/// rewritten, nothing else tells that of those that lack its newest records.
fn doubts(
    index: &dyn Index,
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
        index.take_snapshot()?;
        let snapshot = index.snapshot();
        snapshot.map_or(Ok(None), |snapshot| snapshot.get(&key))?
    };
    let last = found.map(|value| Scrub::decode(&value)).transpose();
    let last = last.map_err(MetaError::poisoned)?.unwrap_or_default();
    let named = last.named().chain(put_back.into_keys());
    // The scrub's progress does not cover these members.
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
/// [`MetaError::OldIndex`], [`MetaError::RefusedRecord`], or [`MetaError::TooLarge`].
pub(super) fn replay(disk: &Arc<Disk>, position: Position) -> Result<Replayed, MetaError> {
    let live = disk.members().live();
    let mut sources = disk.members().current_at_open();
    sources.retain(|member| live.contains(member));
    let mut runs = Vec::new();
    let mut refusals = Vec::new();
    for name in journal::names() {
        let tape = Tape::open(disk, name, &sources, position);
        if let Some(first) = tape.first_record(&mut refusals)? {
            runs.push((first, tape));
        }
    }
    let check_refusals = |last: Lsn| match refusals.iter().find(|refusal| refusal.lsn > last) {
        Some(refusal) => Err(MetaError::from(*refusal)),
        None => Ok(()),
    };
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
                check_refusals(replayed.last)?;
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
                replayed.take(placed, &|| tape.bytes_on_disk())?;
            }
        }
    }
    check_refusals(replayed.last)?;
    if newest.len() > RECORDS_IN_FLIGHT {
        let is_behind = |member: &MemberIndex| is_behind(*member, &tapes, &newest);
        for member in sources.into_iter().filter(is_behind) {
            disk.members().note_put_back(member);
        }
    }
    Ok(replayed)
}

/// Says whether a member has none of the newest records, although it should: it is a stale copy. One that came or
/// returned after them has no records at all, and is up to date only in an epoch after theirs.
fn is_behind(member: MemberIndex, tapes: &[Tape], newest: &[Mark<'_>]) -> bool {
    let has_newest = |mark: &Mark<'_>| {
        let placed = mark.tape.read_from(member, mark.offset);
        placed.is_some_and(|placed| {
            let header = placed.record.header;
            (header.life, header.lsn) == (mark.tape.position.generation, mark.lsn)
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
pub(super) fn count_continuing_records(disk: &Arc<Disk>, position: Position) -> Option<u64> {
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

    /// Adds a record. Files with holes do not demand memory for more than they take on disk.
    fn take(&mut self, placed: Placed, bytes_on_disk: &dyn Fn() -> u64) -> Result<(), MetaError> {
        self.bytes = self.bytes.saturating_add(placed.bytes);
        let bytes = self.bytes;
        if bytes > MAX_UNPROVEN_BYTES && bytes > bytes_on_disk() {
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

/// Most bytes of records that are read whatever their files take on disk, where a filesystem may compress them.
/// Journals take 64 MiB; earlier builds set no bound.
const MAX_UNPROVEN_BYTES: u64 = 1 << 30;

/// Records that a crash may leave on some members only.
const RECORDS_IN_FLIGHT: usize = 1;

/// The place of a record.
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

/// A record of this life under a right checksum that does not decode.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    member: MemberIndex,
    lsn: Lsn,
    reason: FormatError,
}

impl From<Refusal> for MetaError {
    fn from(refusal: Refusal) -> Self {
        Self::RefusedRecord {
            member: refusal.member,
            lsn: refusal.lsn,
            reason: refusal.reason,
        }
    }
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
    /// when the crash came, over one that the index has. Adds what is newer and does not decode to `refusals`.
    fn first_record(&self, refusals: &mut Vec<Refusal>) -> Result<Option<Placed>, MetaError> {
        let mut newest: Option<Placed> = None;
        let mut refused = Vec::new();
        for (member, len) in &self.copies {
            let placed = match self.read(*member, *len, 0) {
                Ok(Some(placed)) => placed,
                Ok(None) => continue,
                Err(refusal) => {
                    refused.push(refusal);
                    continue;
                }
            };
            let header = placed.record.header;
            if header.life.number > self.position.generation.number {
                let (index, journal) = (self.position.generation.number, header.life.number);
                return Err(MetaError::OldIndex { index, journal });
            }
            let is_newer = |old: &Placed| header.lsn > old.record.header.lsn;
            if header.life == self.position.generation && newest.as_ref().is_none_or(is_newer) {
                newest = Some(placed);
            }
        }
        let last = newest.as_ref().map(|placed| placed.record.header.lsn);
        for refusal in refused {
            if Some(refusal.lsn) > last {
                refusals.push(refusal);
            } else {
                self.note_damage(&refusal);
            }
        }
        Ok(newest)
    }

    /// Returns the record at `offset` if it is number `lsn`, of the first member whose copy decodes.
    ///
    /// # Errors
    ///
    /// [`MetaError::RefusedRecord`] if members have it, and none has a copy that decodes.
    fn record(&self, offset: u64, lsn: Lsn) -> Result<Option<Placed>, MetaError> {
        let is_next = |placed: &Placed| {
            let header = placed.record.header;
            header.life == self.position.generation && header.lsn == lsn
        };
        let mut refused = Vec::new();
        for (member, len) in &self.copies {
            match self.read(*member, *len, offset) {
                Ok(found) => {
                    if let Some(placed) = found.filter(is_next) {
                        for refusal in &refused {
                            self.note_damage(refusal);
                        }
                        return Ok(Some(placed));
                    }
                }
                Err(refusal) if refusal.lsn == lsn => refused.push(refusal),
                // A left-over of what was there before.
                Err(_) => {}
            }
        }
        refused
            .first()
            .map_or(Ok(None), |refusal| Err((*refusal).into()))
    }

    /// Counts a copy that does not decode as damage of its member: another member serves.
    fn note_damage(&self, refusal: &Refusal) {
        let Refusal {
            member,
            lsn,
            reason,
        } = refusal;
        log::warn!("member {member}: record {lsn} in {}: {reason}", self.name);
        self.disk.members().count_wrong(*member, 1);
    }

    /// Returns the bytes that the files beside this one take on the member where they take most.
    fn bytes_on_disk(&self) -> u64 {
        let members = self.copies.iter().map(|(member, _)| *member);
        let taken = members.filter_map(|member| self.disk.taken(member).ok());
        taken.max().unwrap_or(0)
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
    /// [`Refusal`] if one of this life has a right checksum and does not decode: to leave it out would lose
    /// what it acknowledged.
    fn read(&self, member: MemberIndex, len: u64, offset: u64) -> Result<Option<Placed>, Refusal> {
        let Some(room) = len.checked_sub(offset) else {
            return Ok(None);
        };
        let Some((preview, front)) = self.preview(member, room, offset) else {
            return Ok(None);
        };
        let Some(whole) = self.whole(member, offset, &preview, front) else {
            return Ok(None);
        };
        match decode_within(&whole, self.disk.members().stripe_bytes()) {
            Ok(record) => Ok(Some(Placed {
                record,
                offset,
                bytes: preview.padded_bytes as u64,
            })),
            // As a crash leaves it.
            Err(FormatError::Checksum { .. }) => Ok(None),
            // The checksum is checked before all else.
            Err(reason) if preview.header.life == self.position.generation => Err(Refusal {
                member,
                lsn: preview.header.lsn,
                reason,
            }),
            Err(_) => Ok(None),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::VolumeId;
    use crate::format::journal::{Life, RecordHeader};

    /// Earlier builds let journals grow without bound: what lies on disk is read, however much it is.
    #[test]
    fn only_records_of_files_with_holes_are_too_large() {
        let most = MAX_UNPROVEN_BYTES;
        for (bytes, on_disk, is_taken) in [
            (most, 0, true),
            (most + 1, most, false),
            (most + 1, most + 1, true),
            (100 * most, 100 * most, true),
        ] {
            let header = RecordHeader {
                volume: VolumeId(uuid::Uuid::nil()),
                epoch: Epoch(1),
                lsn: Lsn(1),
                life: Life::default(),
            };
            let record = JournalRecord {
                header,
                entries: Vec::new(),
                data: Vec::new(),
            };
            let placed = Placed {
                record,
                offset: 0,
                bytes,
            };
            match Replayed::default().take(placed, &|| on_disk) {
                Ok(()) => assert!(is_taken, "{bytes} bytes, {on_disk} on disk"),
                Err(error @ MetaError::TooLarge { .. }) => {
                    assert!(!is_taken, "{bytes} bytes, {on_disk} on disk");
                    assert!(error.remedy().is_some());
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
