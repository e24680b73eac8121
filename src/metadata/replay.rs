//! Reading the journal after a crash.
//!
//! All members that may be trusted hold the same records at the same places, except for damage and the newest record. A
//! crash may have left that one on some of them only. So the files are read as one: at each place, the record of any
//! member that is intact.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::disk::Disk;
use super::error::MetaError;
use super::index::{Index, Position};
use super::index_update::IndexUpdate;
use super::journal;
use super::layer::{Layer, NumberedChange, in_order};
use crate::format::journal::{JournalRecord, Preview, StripeData, decode_within};
use crate::format::key::Key;
use crate::format::record::Scrub;
use crate::format::{BLOCK_SIZE, Epoch, FormatError, Lsn, MemberIndex, Record, SegmentId, key};
use crate::membership::{Access, Members};
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
pub(super) fn commit_recovered(
    index: &dyn Index,
    changes: &Layer,
    position: Position,
    recovered: &Recovered,
    members: &Members,
) -> Result<(), MetaError> {
    if recovered.replayed_records > 0 {
        tracing::info!(
            "recovered {} journal records, up to {}",
            recovered.replayed_records,
            position.lsn
        );
    }
    let note = note_of_stale_copies(index, changes, position.lsn, members)?;
    let units = note.as_ref().map(|(key, change)| (key, change));
    let update = IndexUpdate {
        journaled: in_order([changes]),
        units: units.as_slice(),
        position,
        unflushed: &recovered.data,
    };
    update.commit_to(index)
}

/// Returns the change that names the members with stale copies, if there are any. Once the journal is
/// rewritten, nothing else tells that they lack its newest records.
fn note_of_stale_copies(
    index: &dyn Index,
    changes: &Layer,
    lsn: Lsn,
    members: &Members,
) -> Result<Option<(Key, NumberedChange)>, MetaError> {
    let stale = members.stale_copies().unverified();
    if stale.is_empty() {
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
    let named = last.named().chain(stale.into_keys());
    // The scrub's progress does not cover these members.
    let restarted = Scrub {
        segment: SegmentId(0),
        offset: 0,
        ..last
    };
    let entry = NumberedChange {
        number: lsn.0,
        value: Some(restarted.naming(named).encode()),
    };
    Ok(Some((key, entry)))
}

/// Reads every record after `position`, from members that may be trusted.
///
/// # Errors
///
/// [`MetaError::OldIndex`], [`MetaError::RefusedRecord`], or [`MetaError::TooLarge`].
pub(super) fn replay(disk: &Arc<Disk>, position: Position) -> Result<Replayed, MetaError> {
    let live = disk.members().membership().live();
    let mut sources = disk.members().current_at_open();
    sources.retain(|member| live.contains(member));
    let mut runs = Vec::new();
    let mut refused_records = Vec::new();
    for name in journal::names() {
        let file = JournalFile::open(disk, name, &sources, position);
        if let Some(first) = file.first_record(&mut refused_records)? {
            runs.push((first, file));
        }
    }
    let check_refused = |last: Lsn| match refused_records
        .iter()
        .find(|refused_record| refused_record.lsn > last)
    {
        Some(refused_record) => Err(MetaError::from(*refused_record)),
        None => Ok(()),
    };
    runs.sort_by_key(|(first, _)| first.record.header.lsn);
    let mut replayed = Replayed {
        last: position.lsn,
        ..Replayed::default()
    };
    let (firsts, files): (Vec<FoundRecord>, Vec<JournalFile>) = runs.into_iter().unzip();
    let mut newest: Vec<RecordPlace<'_>> = Vec::new();
    for (first, file) in firsts.into_iter().zip(&files) {
        let (mut offset, mut next) = (0, Some(first));
        while let Some(found) = next {
            let lsn = found.record.header.lsn;
            if lsn.0 > replayed.last.0 + 1 {
                check_refused(replayed.last)?;
                replayed.lost = Some((Lsn(replayed.last.0 + 1), lsn));
                return Ok(replayed);
            }
            let epoch = found.record.header.epoch;
            newest.push(RecordPlace {
                file,
                offset,
                lsn,
                epoch,
            });
            let surplus = newest.len().saturating_sub(RECORDS_IN_FLIGHT + 1);
            newest.drain(..surplus);
            offset = found.offset + found.bytes;
            next = file.record(offset, Lsn(lsn.0 + 1))?;
            if lsn > replayed.last {
                replayed.take(found, &|| file.bytes_on_disk())?;
            }
        }
    }
    check_refused(replayed.last)?;
    if newest.len() > RECORDS_IN_FLIGHT {
        let is_behind = |member: &MemberIndex| is_behind(*member, &files, &newest);
        for member in sources.into_iter().filter(is_behind) {
            disk.members().stale_copies().note(member);
        }
    }
    Ok(replayed)
}

/// Returns whether a member has none of the newest records, although it should: it is a stale copy. One that came or
/// returned after them has no records at all, and is up to date only in an epoch after theirs.
fn is_behind(member: MemberIndex, files: &[JournalFile], newest: &[RecordPlace<'_>]) -> bool {
    let has_newest = |place: &RecordPlace<'_>| {
        let found = place.file.read_from(member, place.offset);
        found.is_some_and(|found| {
            let header = found.record.header;
            (header.generation, header.lsn) == (place.file.position.generation, place.lsn)
        })
    };
    let has_any = |file: &JournalFile| file.read_from(member, 0).is_some();
    let of_epoch = newest
        .iter()
        .filter(|place| place.epoch == place.file.epoch);
    // Files that are gone or damaged are that and no more.
    let is_from_before_all =
        || of_epoch.count() > RECORDS_IN_FLIGHT && files.iter().all(|file| file.is_blank(member));
    let has_older = || files.iter().any(has_any);
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
                tracing::error!("{error}; showing the state before it");
                Ok(())
            }
        }
    }

    /// Adds a record. Files with holes do not demand memory for more than they take on disk.
    fn take(
        &mut self,
        found: FoundRecord,
        bytes_on_disk: &dyn Fn() -> u64,
    ) -> Result<(), MetaError> {
        self.bytes = self.bytes.saturating_add(found.bytes);
        let bytes = self.bytes;
        if bytes > MAX_UNPROVEN_BYTES && bytes > bytes_on_disk() {
            return Err(MetaError::TooLarge { bytes });
        }
        let record = found.record;
        self.last = record.header.lsn;
        self.records += 1;
        for (key, value) in record.entries {
            self.changes.insert(
                Key::copy_from_slice(&key),
                NumberedChange {
                    number: record.header.lsn.0,
                    value: value.map(Into::into),
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

/// The place of a record in the journal.
struct RecordPlace<'a> {
    file: &'a JournalFile,
    offset: u64,
    lsn: Lsn,
    epoch: Epoch,
}

/// A record, where it begins, and how many bytes it takes there.
struct FoundRecord {
    record: JournalRecord,
    offset: u64,
    bytes: u64,
}

/// A record of this journal generation under a right checksum that does not decode.
#[derive(Clone, Copy, Debug)]
struct RefusedRecord {
    member: MemberIndex,
    lsn: Lsn,
    reason: FormatError,
}

impl From<RefusedRecord> for MetaError {
    fn from(refused_record: RefusedRecord) -> Self {
        Self::RefusedRecord {
            member: refused_record.member,
            lsn: refused_record.lsn,
            reason: refused_record.reason,
        }
    }
}

/// One journal file, on all members that may be trusted.
struct JournalFile {
    disk: Arc<Disk>,
    name: Arc<str>,
    copies: Vec<(MemberIndex, u64)>,
    position: Position,
    epoch: Epoch,
}

impl JournalFile {
    fn open(disk: &Arc<Disk>, name: Arc<str>, sources: &[MemberIndex], position: Position) -> Self {
        let with_len = |member: &MemberIndex| Some((*member, disk.len(*member, &name).ok()??));
        let copies = sources.iter().filter_map(with_len).collect();
        Self {
            disk: Arc::clone(disk),
            name,
            copies,
            position,
            epoch: disk.members().membership().epoch(),
        }
    }

    /// Returns the record at the file's start. Where members differ, the newest was being written
    /// when the crash came, over one that the index has. Adds what is newer and does not decode to `refused_records`.
    fn first_record(
        &self,
        refused_records: &mut Vec<RefusedRecord>,
    ) -> Result<Option<FoundRecord>, MetaError> {
        let mut newest: Option<FoundRecord> = None;
        let mut refused = Vec::new();
        for (member, len) in &self.copies {
            let found = match self.read(*member, *len, 0) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(refused_record) => {
                    refused.push(refused_record);
                    continue;
                }
            };
            let header = found.record.header;
            if header.generation.number > self.position.generation.number {
                let (index, journal) = (self.position.generation.number, header.generation.number);
                return Err(MetaError::OldIndex { index, journal });
            }
            let is_newer = |old: &FoundRecord| header.lsn > old.record.header.lsn;
            if header.generation == self.position.generation && newest.as_ref().is_none_or(is_newer)
            {
                newest = Some(found);
            }
        }
        let last = newest.as_ref().map(|found| found.record.header.lsn);
        for refused_record in refused {
            if Some(refused_record.lsn) > last {
                refused_records.push(refused_record);
            } else {
                self.note_damage(&refused_record);
            }
        }
        Ok(newest)
    }

    /// Returns the record at `offset` if it is number `lsn`, of the first member whose copy decodes.
    ///
    /// # Errors
    ///
    /// [`MetaError::RefusedRecord`] if members have it, and none has a copy that decodes.
    fn record(&self, offset: u64, lsn: Lsn) -> Result<Option<FoundRecord>, MetaError> {
        let is_next = |found: &FoundRecord| {
            let header = found.record.header;
            header.generation == self.position.generation && header.lsn == lsn
        };
        let mut refused = Vec::new();
        for (member, len) in &self.copies {
            match self.read(*member, *len, offset) {
                Ok(found) => {
                    if let Some(found) = found.filter(is_next) {
                        for refused_record in &refused {
                            self.note_damage(refused_record);
                        }
                        return Ok(Some(found));
                    }
                }
                Err(refused_record) if refused_record.lsn == lsn => refused.push(refused_record),
                // A left-over of what was there before.
                Err(_) => {}
            }
        }
        refused
            .first()
            .map_or(Ok(None), |refused_record| Err((*refused_record).into()))
    }

    /// Counts a copy that does not decode as damage of its member: another member serves.
    fn note_damage(&self, refused_record: &RefusedRecord) {
        let RefusedRecord {
            member,
            lsn,
            reason,
        } = refused_record;
        tracing::warn!(%member, file = %self.name, %lsn, "{reason}");
        self.disk.members().io().count_wrong(*member, 1);
    }

    /// Returns the bytes that the files beside this one take on the member where they take most.
    fn bytes_on_disk(&self) -> u64 {
        let members = self.copies.iter().map(|(member, _)| *member);
        let taken = members.filter_map(|member| self.disk.taken(member).ok());
        taken.max().unwrap_or(0)
    }

    /// Returns whether a member's file is as it was made.
    fn is_blank(&self, member: MemberIndex) -> bool {
        let has_file = self.copies.iter().any(|(holder, _)| *holder == member);
        let front = self.disk.read(member, &self.name, 0, BLOCK_SIZE);
        has_file && front.is_ok_and(|front| front.iter().all(|byte| *byte == 0))
    }

    /// Reads a record of this volume from a member, of whatever generation and number.
    fn read_from(&self, member: MemberIndex, offset: u64) -> Option<FoundRecord> {
        let (_, len) = self.copies.iter().find(|(holder, _)| *holder == member)?;
        self.read(member, *len, offset).ok().flatten()
    }

    /// Reads a record of this volume from one member, of whatever generation and number.
    ///
    /// # Errors
    ///
    /// [`RefusedRecord`] if one of this generation has a right checksum and does not decode: to leave it out would lose
    /// what it acknowledged.
    fn read(
        &self,
        member: MemberIndex,
        len: u64,
        offset: u64,
    ) -> Result<Option<FoundRecord>, RefusedRecord> {
        let Some(room) = len.checked_sub(offset) else {
            return Ok(None);
        };
        let Some((preview, front)) = self.preview(member, room, offset) else {
            return Ok(None);
        };
        let Some(whole) = self.whole(member, offset, &preview, front) else {
            return Ok(None);
        };
        match decode_within(&whole, self.disk.members().shape().most_stripe_bytes()) {
            Ok(record) => Ok(Some(FoundRecord {
                record,
                offset,
                bytes: preview.padded_bytes as u64,
            })),
            // As a crash leaves it.
            Err(FormatError::Checksum { .. }) => Ok(None),
            // The checksum is checked before all else.
            Err(reason) if preview.header.generation == self.position.generation => {
                Err(RefusedRecord {
                    member,
                    lsn: preview.header.lsn,
                    reason,
                })
            }
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
        let ours =
            header.volume == self.disk.members().shape().volume_id() && header.epoch <= self.epoch;
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
    use crate::format::journal::{JournalGeneration, RecordHeader};

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
                generation: JournalGeneration::default(),
            };
            let record = JournalRecord {
                header,
                entries: Vec::new(),
                data: Vec::new(),
            };
            let found = FoundRecord {
                record,
                offset: 0,
                bytes,
            };
            match Replayed::default().take(found, &|| on_disk) {
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
