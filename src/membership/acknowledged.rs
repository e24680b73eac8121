//! The last journal record that each member acknowledged, and directories whose journals end before it.
//!
//! Superblocks are written when an epoch begins, and about every hour while the volume is changed. A copy of a member's
//! directory that was made since then has the superblock of the original. The journal tells them apart: a member holds
//! every record that it acknowledged, and the shards that were synced before. A directory whose journal ends earlier is
//! a stale copy.
//!
//! The same record tells which members have all that the index may lack: only those may stand for all others.
//!
//! # Invariants
//!
//! - A record is noted for every member that acknowledged it, before the commit that wrote it returns.
//! - A record counts as needed before the members are chosen that take it, and until the index has it. So a member that
//!   joins meanwhile is known to lack it.
//! - The superblocks of an epoch name the last record of each absent member. So a copy is known also after a restart.
//! - A member that returns has an empty journal. Its earlier acknowledgements stay noted until an epoch with it is
//!   durable. From then on its superblock is new and tells older copies by itself.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use super::journal_end::newest_record;
use super::snapshot::Membership;
use crate::format::journal::{JournalGeneration, MAX_FILE_BYTES, RecordHeader};
use crate::format::superblock::{LastRecord, Superblock};
use crate::format::{Epoch, Lsn, MemberIndex};
use crate::store::{Executor, StoreError, StoreErrorKind, StoreRef};

/// The records that the journal of each member must hold.
#[derive(Debug, Default)]
pub struct Acknowledged(Mutex<Journals>);

/// The journals of all members.
#[derive(Debug, Default)]
struct Journals {
    members: BTreeMap<MemberIndex, AcknowledgedRecords>,
    /// The first record that the index may lack, if it may lack any. All later ones are needed as well.
    needed: Option<Lsn>,
    /// The members whose journals were created again since the newest record was begun.
    renewed: BTreeSet<MemberIndex>,
}

/// The records that one member acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct AcknowledgedRecords {
    /// The first one that must be in its journal until the journal's files are used again.
    first: Lsn,
    /// The last one.
    last: Lsn,
    /// The number of the journal generation that the last one belongs to.
    generation: u64,
    /// The epoch of the last one; 0 if that is not known.
    epoch: Epoch,
    /// Set if a commit came after it that no record tells of.
    is_surpassed: bool,
    /// Set if the journal was created again after it.
    is_removed: bool,
}

impl Acknowledged {
    /// Begins a record, which is needed from here on, and returns the members that are to take it. One record is begun
    /// at a time.
    pub fn begin(&self, record: Lsn, membership: &Membership) -> Vec<MemberIndex> {
        let mut journals = self.0.lock();
        journals.needed.get_or_insert(record);
        journals.renewed.clear();
        membership.live()
    }

    /// Notes the first record that the index may lack, if it may lack any.
    pub fn need_from(&self, first: Option<Lsn>) {
        self.0.lock().needed = first;
    }

    /// Returns whether the journal of a member has every record that the index may lack. One that is being written
    /// counts as such a record.
    pub(super) fn has_needed(&self, member: MemberIndex) -> bool {
        let needed = self.0.lock().needed;
        needed.is_none_or(|first| self.has(member, first))
    }

    /// Notes a record that these members acknowledged. Those whose journals were created again meanwhile lack it.
    pub fn note(&self, members: &[MemberIndex], generation: JournalGeneration, last: Lsn) {
        let mut journals = self.0.lock();
        let Journals {
            members: all,
            renewed,
            ..
        } = &mut *journals;
        for member in members.iter().filter(|member| !renewed.contains(member)) {
            let records = all.entry(*member).or_default();
            if records.first == Lsn(0) || records.is_removed {
                records.first = last;
            }
            *records = AcknowledgedRecords {
                first: records.first,
                last,
                generation: generation.number,
                epoch: Epoch(0),
                is_surpassed: false,
                is_removed: false,
            };
        }
    }

    /// Notes the last record of members that are absent since the volume was opened.
    pub(super) fn restore(&self, records: BTreeMap<MemberIndex, LastRecord>) {
        let known = |record: LastRecord| AcknowledgedRecords {
            first: record.lsn,
            last: record.lsn,
            generation: record.generation,
            epoch: record.epoch,
            is_surpassed: record.is_surpassed,
            // Nothing is known of the journal that it has now.
            is_removed: true,
        };
        let mut journals = self.0.lock();
        let restored = records.into_iter().map(|(member, it)| (member, known(it)));
        journals.members.extend(restored);
    }

    /// Notes the newest record of the volume for members that are absent although the newest epoch has them. They
    /// acknowledged it, or joined after it.
    pub(super) fn note_absent(&self, members: BTreeSet<MemberIndex>, newest: &RecordHeader) {
        let record = LastRecord {
            epoch: newest.epoch,
            generation: newest.generation.number,
            lsn: newest.lsn,
            is_surpassed: false,
        };
        self.restore(members.into_iter().map(|it| (it, record)).collect());
    }

    /// Returns the last record that each of these members acknowledged, as far as that is known.
    pub(super) fn last_records(
        &self,
        members: impl IntoIterator<Item = MemberIndex>,
    ) -> BTreeMap<MemberIndex, LastRecord> {
        let journals = self.0.lock();
        let record = |member| {
            let records = journals.members.get(&member)?;
            let record = LastRecord {
                epoch: records.epoch,
                generation: records.generation,
                lsn: records.last,
                is_surpassed: records.is_surpassed,
            };
            Some((member, record))
        };
        members.into_iter().filter_map(record).collect()
    }

    /// Notes that a commit went to the index alone. The journals of these members tell of it only once they
    /// acknowledge another record.
    pub fn note_commit_without_record(&self, members: &[MemberIndex]) {
        let mut journals = self.0.lock();
        for member in members {
            journals.members.entry(*member).or_default().is_surpassed = true;
        }
    }

    /// Returns whether a member acknowledged a record into the journal that it has now.
    #[must_use]
    pub fn has(&self, member: MemberIndex, lsn: Lsn) -> bool {
        let records = self.of(member);
        !records.is_removed && (records.first..=records.last).contains(&lsn)
    }

    /// Returns whether a directory with this superblock, which comes in its member's place, is not known to hold all that
    /// the member acknowledged.
    ///
    /// # Errors
    ///
    /// If the directory does not answer. A journal that cannot be read, or is longer than any of the volume can be,
    /// proves nothing, and is no error.
    pub(super) fn ends_early(
        &self,
        block: &Superblock,
        store: &StoreRef,
        executor: &Executor,
    ) -> Result<bool, StoreError> {
        let (volume, member) = (block.volume, block.index);
        let records = self.of(member);
        if records.last == Lsn(0) || records.is_surpassed {
            return Ok(records.is_surpassed);
        }
        if records.epoch > Epoch(0) && block.head().epoch > records.epoch {
            // It joined after the record, or was up to date when a later epoch began.
            return Ok(false);
        }
        let newest = match newest_record(store, executor, MAX_FILE_BYTES) {
            Ok(newest) => newest.filter(|newest| newest.volume == volume),
            Err(error) if is_silent(&error) => return Err(error),
            Err(error) => {
                tracing::debug!(%member, "its journal: {error}");
                None
            }
        };
        let holds_last = newest.is_some_and(|newest| {
            newest.generation.number >= records.generation && newest.lsn >= records.last
        });
        Ok(!holds_last)
    }

    fn of(&self, member: MemberIndex) -> AcknowledgedRecords {
        let journals = self.0.lock();
        journals.members.get(&member).copied().unwrap_or_default()
    }

    /// Notes that the journal of a member was created again.
    pub(super) fn note_new_journal(&self, member: MemberIndex) {
        let mut journals = self.0.lock();
        journals.renewed.insert(member);
        if let Some(records) = journals.members.get_mut(&member) {
            records.is_removed = true;
        }
    }

    /// Forgets what members acknowledged before they returned, once an epoch with them is durable.
    pub(super) fn note_admitted(&self, members: &BTreeSet<MemberIndex>) {
        let is_older = |member: &MemberIndex, records: &AcknowledgedRecords| {
            records.is_removed && members.contains(member)
        };
        let mut journals = self.0.lock();
        journals
            .members
            .retain(|member, records| !is_older(member, records));
    }

    /// Forgets a member when another takes its place.
    pub(super) fn forget(&self, member: MemberIndex) {
        self.0.lock().members.remove(&member);
    }
}

/// Returns whether a directory gave no answer, so that a later attempt may get one.
fn is_silent(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Gone
            | StoreErrorKind::Hung
            | StoreErrorKind::PowerCut
            | StoreErrorKind::Exhausted
    )
}
