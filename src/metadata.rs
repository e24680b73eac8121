//! The metadata: one ordered key-value map that survives crashes and the loss of members.
//!
//! Keys and values are opaque bytes here; their meaning is up to the layers above. Changes are visible as soon as they
//! are applied, and durable once they are appended to the journal. After a crash they are quick to find once a
//! checkpoint has brought them into the index:
//!
//! 1. [`Meta::apply`] puts a batch into the overlay, where readers see it.
//! 2. [`Meta::rotate`] takes everything applied since the last time as one unit.
//! 3. [`Meta::append`] writes units as one journal record to every live member, and **syncs**.
//! 4. [`Meta::checkpoint`] commits everything appended so far to the index, with the LSN that it has
//!    reached, on `parity_shards + 1` members, **syncing** twice: the pages, then the head that
//!    makes them count. The journal file that held these records is then used again.
//!
//! Recovery, in [`Meta::open`]:
//!
//! 1. Of the members whose epoch is the newest, take the newest copy of the index, and every copy
//!    that its head vouches for.
//! 2. Read the journal after the index's position, from all these members as one: contiguous LSNs,
//!    good checksums, the generation that the index names. Up to here nothing has been written: what cannot be
//!    opened is as it was, and can be once other members are there.
//! 3. Begin an epoch if members are absent or back, **synced**. All other copies of the index are made
//!    useless; on those that count the head is written again, **synced**.
//! 4. Commit all of that to the index in one transaction, with a new journal generation, **synced**. From here on
//!    the records just read are void, on whatever member they lie. Stripe data that they held stays
//!    in the index until the next checkpoint.
//! 5. Make journal files where a member lacks them, and begin the new generation.
//!
//! A crash before the commit of step 4 leaves everything as it was; after it, nothing is left to do.
//!
//! # Invariants
//!
//! - A record is acknowledged only once it is durable on every live member; members that failed
//!   have been marked missing by a higher epoch before that, and are no source for recovery.
//! - The index never holds a part of a unit: a batch is recovered wholly or not. What it holds and
//!   the journal lacks is newer than everything in the journal, which starts again after it.
//! - After a failure that leaves journal or index in doubt nothing is written any more.
//!
//! Locks, in order: `checkpointing`, `appending`, then the journal's tail, those of the index, the overlay. The locks of
//! [`Backpressure`] and [`DirtyGroups`] are held for a few instructions, and no other under them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::format::journal::JournalGeneration;
use crate::format::{Lsn, MemberIndex};
use crate::membership::{Access, Members};
use backpressure::Backpressure;
use churn::Churn;
use dirty::DirtyGroups;
use disk::Disk;
use index::{Commit, Index, Position};
use index_update::IndexUpdate;
use journal::Journal;
use layer::{InOrder, NumberedChange, in_order};
use mirror::Mirror;
use overlay::{Frozen, Origin};
use redb_index::RedbIndex;
use shared_overlay::{Records, SharedOverlay};
use view::View;
use writability::Writability;

mod backpressure;
mod batch;
mod brief_lock;
mod churn;
mod dirty;
mod disk;
mod error;
mod fresh_cache;
mod index;
mod index_update;
mod journal;
mod journaled_partitions;
mod layer;
mod map;
mod mirror;
mod numbers;
mod open_partitions;
mod overlay;
mod partitions;
mod redb_index;
mod replay;
mod replicas;
mod shared_overlay;
mod view;
mod writability;

pub use crate::format::journal::StripeData;
pub use crate::format::key::Key;
pub use batch::{Batch, Value};
pub use dirty::Grouping;
pub use error::MetaError;
pub use fresh_cache::FreshCache;
pub use index::Visit;
#[cfg(test)]
pub(crate) use map::MemoryMap;
pub use map::{RecordError, RecordMap};
pub use mirror::VerifiedIndex;
pub use numbers::Numbers;
pub use overlay::Pending;
pub use redb_index::is_panic_contained;
pub use replay::Recovered;
pub use replicas::IndexReplicas;

/// Memory for the index's first commit, in bytes.
const FORMAT_CACHE_BYTES: usize = 1 << 20;

/// The part of the cache that holds single records. The rest holds pages of the index.
const RECORDS_PART: usize = 4;

/// The bytes of a usual record with its key.
const USUAL_RECORD_BYTES: usize = 256;

/// The options for the memory that the metadata uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaOptions {
    /// Memory for pages and records of the index, in bytes.
    pub cache_bytes: usize,
    /// Memory for changes that are not in the index yet, in bytes. Beyond it, changes wait while a
    /// checkpoint is under way.
    pub overlay_bytes: usize,
}

impl Default for MetaOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            overlay_bytes: 96 << 20,
        }
    }
}

/// Metadata that was just opened.
#[derive(Debug)]
pub struct OpenedMeta {
    /// The metadata.
    pub meta: Meta,
    /// The copies of its index.
    pub replicas: Arc<IndexReplicas>,
    /// The records that the last mount left in the journal.
    pub recovered: Recovered,
}

/// The metadata of a mounted volume.
pub struct Meta {
    overlay: SharedOverlay,
    index: Arc<dyn Index>,
    /// The newest values of keys that were read lately, also of those that are absent.
    records: Records,
    /// `None` if the volume is open for reading only.
    journal: Option<Journal>,
    /// Held while a record is appended, and while the overlay is frozen between two of them.
    appending: Mutex<()>,
    /// Held during a checkpoint. Says whether the index holds unflushed stripe data.
    checkpointing: Mutex<bool>,
    backpressure: Backpressure,
    /// True if the journal, or the index, had no space when it was last written to.
    journal_full: AtomicBool,
    index_full: AtomicBool,
    churn: Arc<Churn>,
    dirty: DirtyGroups,
    writability: Arc<Writability>,
}

impl Meta {
    /// Makes the journal and the index of a new volume, whose content is `first`.
    ///
    /// # Errors
    ///
    /// Any failure of a member.
    pub fn format(members: &Arc<Members>, first: &Batch) -> Result<(), MetaError> {
        members.epochs().begin()?;
        let disk = Arc::new(Disk::new(Arc::clone(members)));
        journal::create(&disk)?;
        let index = RedbIndex::open(Mirror::create(&disk)?, FORMAT_CACHE_BYTES)?;
        put_first(&index, first)?;
        if disk.members().membership().live().len() == disk.members().membership().count() {
            return Ok(());
        }
        Err(MetaError::poisoned(
            "a member failed while the volume was made",
        ))
    }

    /// Opens the metadata and recovers what the last mount did not complete. With [`Access::ReadOnly`], nothing is
    /// written to any member.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoIndex`], [`MetaError::OldIndex`] or [`MetaError::LostRecords`] if more is lost than the volume
    /// was made to bear. [`MetaError::Poisoned`] if a page of the index is damaged on every copy. In these cases
    /// nothing was written, and with other members it may open. [`MetaError::NoSpace`]; failures of too many members.
    pub fn open(members: Arc<Members>, options: &MetaOptions) -> Result<OpenedMeta, MetaError> {
        let disk = Arc::new(Disk::new(members));
        let pages_bytes = options.cache_bytes - options.cache_bytes / RECORDS_PART;
        let index = RedbIndex::open(Mirror::open(&disk)?, pages_bytes)?;
        let index = Arc::new(index);
        let (meta, recovered) = Self::open_on(&disk, Arc::clone(&index) as _, options)?;
        let (writability, churn) = (Arc::clone(&meta.writability), Arc::clone(&meta.churn));
        let replicas = Arc::new(IndexReplicas::new(index, writability, churn));
        if !replicas.keep_reserve() {
            tracing::warn!("no space is left for the reserve of the index");
        }
        Ok(OpenedMeta {
            meta,
            replicas,
            recovered,
        })
    }

    /// Opens the metadata whose index is already open, as [`Meta::open`] does.
    fn open_on(
        disk: &Arc<Disk>,
        index: Arc<dyn Index>,
        options: &MetaOptions,
    ) -> Result<(Self, Recovered), MetaError> {
        let members = disk.members();
        let access = members.access();
        let mut unflushed = index.unflushed(members.shape().most_stripe_bytes())?;
        let replayed = replay::replay(disk, index.position())?;
        replayed.refuse_lost(access)?;
        unflushed.extend(replayed.data);
        let recovered = Recovered {
            data: unflushed,
            replayed_records: replayed.records,
        };
        let (journal, overlay) = match access {
            Access::ReadOnly => (
                None,
                SharedOverlay::with_logged(replayed.changes, replayed.last.0),
            ),
            Access::ReadWrite => {
                members.epochs().note_absent();
                members.epochs().begin()?;
                index.begin()?;
                let generation = next_generation(index.position().generation);
                let position = Position {
                    lsn: replayed.last,
                    generation,
                };
                replay::commit_recovered(
                    &*index,
                    &replayed.changes,
                    position,
                    &recovered,
                    members,
                )?;
                let journal = Journal::start(disk, generation, replayed.last)?;
                // Of whatever generation it is.
                let current = members.current_at_open();
                members
                    .acknowledged()
                    .note(&current, JournalGeneration::default(), replayed.last);
                (Some(journal), SharedOverlay::default())
            }
        };
        let meta = Self {
            overlay,
            index,
            records: FreshCache::new(
                options.cache_bytes / RECORDS_PART,
                USUAL_RECORD_BYTES,
                |key, value| key.len() + value.as_deref().map_or(0, <[u8]>::len),
            ),
            journal,
            appending: Mutex::default(),
            checkpointing: Mutex::new(!recovered.data.is_empty()),
            backpressure: Backpressure::new(options.overlay_bytes),
            journal_full: AtomicBool::new(false),
            index_full: AtomicBool::new(false),
            churn: Arc::default(),
            dirty: DirtyGroups::default(),
            writability: Arc::new(Writability::new(access)),
        };
        Ok((meta, recovered))
    }

    /// Returns a key's newest value.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if a page of the index is damaged on every copy.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        self.records.follow(self.source());
        if let Some(known) = self.records.get(key) {
            return Ok(known);
        }
        let key = Key::copy_from_slice(key);
        self.records.get_or_read(&key, || self.view().get(&key))
    }

    /// Returns a number that rises when the index goes on with other copies. What was read before may differ from what
    /// they hold.
    #[must_use]
    pub fn source(&self) -> u64 {
        self.index.source()
    }

    /// Returns the first `limit` keys from `from` to before `end`, in order, with their newest
    /// values. Each stretch of some thousand keys is a consistent view.
    ///
    /// # Errors
    ///
    /// As [`Meta::get`].
    pub fn scan(
        &self,
        from: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, MetaError> {
        self.view().scan(from, end, limit)
    }

    /// Returns whether any key from `from` to before `end` has a value, in one consistent view. The range is to be small:
    /// its changes since the last checkpoint are looked at in one go. They are held in memory if no newest one is a value.
    ///
    /// # Errors
    ///
    /// As [`Meta::get`].
    pub fn has_any(&self, from: &[u8], end: &[u8]) -> Result<bool, MetaError> {
        self.view().has_any(from, end)
    }

    /// Calls `visit` with each key from `from` to before `end` and its newest value, in order, until it
    /// breaks. Nothing is copied. Each stretch of some thousand keys is a consistent view.
    ///
    /// # Errors
    ///
    /// As [`Meta::get`].
    pub fn visit(&self, from: &[u8], end: &[u8], visit: &mut Visit<'_>) -> Result<(), MetaError> {
        self.view().visit(from, end, visit)
    }

    fn view(&self) -> View<'_> {
        View {
            overlay: &self.overlay,
            index: &*self.index,
        }
    }

    /// Applies a batch: visible at once and as a whole, durable with the record that [`Meta::rotate`] takes it for. While
    /// a checkpoint runs and memory is short this waits, at most some seconds.
    ///
    /// # Errors
    ///
    /// [`MetaError::ReadOnly`], [`MetaError::Poisoned`], [`MetaError::Closed`]; and [`MetaError::NoSpace`] once changes for
    /// which the members have no space fill twice the memory that they are meant to take.
    pub fn apply(&self, batch: Batch) -> Result<(), MetaError> {
        let limit = self.backpressure.limit_bytes();
        if !self.overlay.is_below(limit.saturating_add(1)) {
            self.backpressure.wait(self.overlay_bytes());
            if self.is_full() && self.overlay_bytes() > 2 * limit {
                return Err(MetaError::NoSpace);
            }
        }
        self.put(batch, Origin::Applied)
    }

    /// Like [`Meta::apply`], for records made by flushing stripes, which [`Meta::take_stripes`]
    /// takes. Never waits: a checkpoint may be waiting for that very flush.
    ///
    /// # Errors
    ///
    /// As [`Meta::apply`].
    pub fn apply_stripes(&self, batch: Batch) -> Result<(), MetaError> {
        self.put(batch, Origin::Stripes)
    }

    fn put(&self, batch: Batch, origin: Origin) -> Result<(), MetaError> {
        self.journal()?;
        let groups = self.dirty.groups_in(&batch);
        self.overlay.apply_to(batch, origin, &self.records);
        self.dirty.note(groups.as_deref());
        Ok(())
    }

    /// Remembers from now on which groups of keys are changed.
    pub fn track_dirty_groups(&self, grouping: Box<dyn Grouping>) {
        self.dirty.track(grouping);
    }

    /// Returns the groups that were changed since this was called before, or more; `None` if it may be any.
    /// Changes of any [`Meta::apply`] that has returned are among them, and can be read by then.
    #[must_use]
    pub fn take_dirty_groups(&self) -> Option<BTreeSet<u64>> {
        self.dirty.take()
    }

    /// Returns the journal, if something may be written.
    fn journal(&self) -> Result<&Journal, MetaError> {
        self.writability.check()?;
        self.journal.as_ref().ok_or(MetaError::ReadOnly)
    }

    /// Takes all changes applied since the last time, in their final values, as one unit.
    pub fn rotate(&self) -> Pending {
        self.overlay.take(Origin::Applied)
    }

    /// Takes all changes given to [`Meta::apply_stripes`] since the last time, as one unit.
    pub fn take_stripes(&self) -> Pending {
        self.overlay.take(Origin::Stripes)
    }

    /// Makes units and stripe data durable as one journal record, all of it or nothing. Units that
    /// were taken are appended before others are taken.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`] or [`MetaError::JournalFull`]: nothing is durable, the units are back
    /// where they were taken from, for [`Meta::append_to_index`]. [`MetaError::Poisoned`]: whether it is durable is unknown, and
    /// nothing can be written any more.
    pub fn append(&self, parts: Vec<Pending>, data: &[StripeData]) -> Result<Lsn, MetaError> {
        let _appending = self.appending.lock();
        let journal = self.journal()?;
        let changes = self.overlay.newest(&parts);
        let entries: Vec<(&Key, Option<&Value>)> = changes
            .iter()
            .map(|(key, entry)| (*key, entry.value.as_ref()))
            .collect();
        let appended = match journal.append(&entries, data) {
            Ok(lsn) => {
                self.overlay.log(&changes);
                Ok(lsn)
            }
            Err(error @ (MetaError::NoSpace | MetaError::JournalFull)) => {
                self.overlay.restore(&parts);
                Err(error)
            }
            Err(error) => return Err(self.writability.poison(error)),
        };
        match &appended {
            Ok(_) => self.journal_full.store(false, Ordering::Release),
            Err(MetaError::NoSpace) => self.journal_full.store(true, Ordering::Release),
            // This failure does not tell whether the members have space.
            Err(_) => {}
        }
        self.overlay.forget(parts);
        appended
    }

    /// Makes units durable in the index at once, with everything that was appended before, for when
    /// the journal has no space for them. It is empty afterwards.
    ///
    /// The caller guarantees the same as for [`Meta::checkpoint`], except that records of stripes
    /// may be among the units.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`]: nothing is durable, the units are back where they were taken from.
    /// [`MetaError::Poisoned`], as [`Meta::append`].
    pub fn append_to_index(&self, parts: Vec<Pending>) -> Result<(), MetaError> {
        let mut holds_unflushed = self.checkpointing.lock();
        let _appending = self.appending.lock();
        let journal = self.journal()?;
        let changes = self.overlay.newest(&parts);
        let position = journal.position();
        let journaled = self.overlay.in_journal();
        let committed = self.commit_index(in_order([&journaled]), &changes, position);
        match &committed {
            Ok(()) => {
                // Readers find the changes there until all of the journal is forgotten at once.
                self.overlay.log(&changes);
                self.overlay.forget_journal();
                journal.note_covered(position.lsn);
                journal.note_commit_without_record();
                self.journal_full.store(false, Ordering::Release);
                *holds_unflushed = false;
            }
            Err(MetaError::NoSpace) => self.overlay.restore(&parts),
            Err(_) => return committed,
        }
        self.overlay.forget(parts);
        committed
    }

    /// Returns units to where they were taken from, for a later record. Nothing was taken since.
    pub fn restore(&self, parts: Vec<Pending>) {
        self.overlay.restore(&parts);
        self.overlay.forget(parts);
    }

    /// Returns about how many bytes of changes have been applied and not taken.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.overlay.pending_bytes()
    }

    /// Returns how long each journal file is to be on a member.
    ///
    /// # Errors
    ///
    /// If nothing may be written.
    pub fn journal_file_bytes(&self) -> Result<u64, MetaError> {
        Ok(self.journal()?.file_bytes())
    }

    /// Looks whether members still hold the records that they acknowledged some time ago, if others followed. Returns
    /// those that do not.
    #[must_use]
    pub fn members_without_records(&self) -> Vec<MemberIndex> {
        let journal = self.journal.as_ref();
        journal.map_or(Vec::new(), Journal::members_without_records)
    }

    /// Returns how full the journal is; at 1.0 it takes no more until a checkpoint.
    #[must_use]
    pub fn journal_fill(&self) -> f32 {
        self.journal.as_ref().map_or(0.0, Journal::fill)
    }

    /// Brings everything appended before the call into the index, and lets the journal be used
    /// again. Others read, apply and append meanwhile.
    ///
    /// The caller guarantees that no stripe data appended so far, nor any that recovery returned,
    /// is needed any more: its stripes are flushed, and their records are appended.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`]: nothing is lost, and a later checkpoint may succeed.
    /// [`MetaError::Poisoned`]: nothing can be written any more; what was appended is safe.
    pub fn checkpoint(&self) -> Result<(), MetaError> {
        self.checkpoint_beyond(|| {})
    }

    /// Brings everything appended before the call into the index, like [`Meta::checkpoint`], and calls `is_chosen` once
    /// it is chosen. Stripe data that is appended after that stays in the journal: the records that the index will have
    /// are those before, and only files of the journal without any later record are used again.
    ///
    /// # Errors
    ///
    /// As [`Meta::checkpoint`].
    pub fn checkpoint_beyond(&self, is_chosen: impl FnOnce()) -> Result<(), MetaError> {
        let mut holds_unflushed = self.checkpointing.lock();
        let journal = self.journal()?;
        // One for which there was no space has its turn first.
        let unfinished = self.overlay.frozen();
        if let Some(frozen) = unfinished {
            self.commit(journal, &frozen)?;
        }
        let frozen = {
            let _appending = self.appending.lock();
            let position = journal.position();
            if position == self.index.position() && !*holds_unflushed {
                return Ok(());
            }
            journal.switch_file();
            self.overlay.freeze(position)
        };
        is_chosen();
        self.commit(journal, &frozen)?;
        *holds_unflushed = false;
        Ok(())
    }

    fn commit(&self, journal: &Journal, frozen: &Frozen) -> Result<(), MetaError> {
        self.backpressure.while_making_room(|| {
            let committed = self.commit_index(frozen.in_order(), &[], frozen.position);
            if committed.is_ok() {
                self.overlay.thaw();
                journal.note_covered(frozen.position.lsn);
            }
            committed
        })
    }

    fn commit_index(
        &self,
        journaled: InOrder<'_>,
        units: &[(&Key, &NumberedChange)],
        position: Position,
    ) -> Result<(), MetaError> {
        let update = IndexUpdate {
            journaled,
            units,
            position,
            unflushed: &[],
        };
        let committed = update.commit_to(&*self.index);
        self.churn.add(update.changes());
        let full = matches!(committed, Err(MetaError::NoSpace));
        self.index_full.store(full, Ordering::Release);
        match committed {
            Ok(()) | Err(MetaError::NoSpace) => committed,
            Err(error) => Err(self.writability.poison(error)),
        }
    }

    /// Returns the keys with a change that neither the journal nor the index has.
    #[must_use]
    pub fn unsynced_keys(&self) -> Vec<Key> {
        self.overlay.unsynced_keys()
    }

    /// Returns about how much memory the changes take that the index does not have yet.
    #[must_use]
    pub fn overlay_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// Returns whether [`Meta::overlay_bytes`] are below `limit`. Costs less than the number.
    #[must_use]
    pub fn waits_below(&self, limit: u64) -> bool {
        (usize::try_from(limit)).map_or(true, |limit| self.overlay.is_below(limit))
    }

    /// Returns whether the members had no space for what last went to the journal, or to the index. Changes that are
    /// applied now may have to stay in memory.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.journal_full.load(Ordering::Acquire) || self.index_full.load(Ordering::Acquire)
    }

    /// Returns whether the members had no space for what last went to the journal. Unlike for the index, nothing helps.
    #[must_use]
    pub fn is_journal_full(&self) -> bool {
        self.journal_full.load(Ordering::Acquire)
    }

    /// Returns how many bytes of changes are meant to wait in memory at most.
    #[must_use]
    pub fn most_waiting(&self) -> u64 {
        self.backpressure.limit_bytes() as u64
    }

    /// Returns whether members hold different journals, or damaged ones: of what the index may lack.
    ///
    /// # Errors
    ///
    /// [`MetaError::ReadOnly`], [`MetaError::Poisoned`] or [`MetaError::Closed`].
    pub fn journals_differ(&self) -> Result<bool, MetaError> {
        let _appending = self.appending.lock();
        Ok(self.journal()?.differs())
    }

    /// Makes a last checkpoint, under the same guarantee as [`Meta::checkpoint`], and releases the
    /// members. Everything else fails afterwards. Changes that were never appended are lost.
    ///
    /// # Errors
    ///
    /// As [`Meta::checkpoint`]; it is closed nevertheless.
    pub fn close(&self) -> Result<(), MetaError> {
        if self.writability.is_closed() {
            return Ok(());
        }
        let last = match self.checkpoint() {
            Err(MetaError::ReadOnly) => Ok(()),
            other => other,
        };
        self.writability.close();
        last.and(self.index.close())
    }
}

impl RecordMap for Meta {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        Self::get(self, key)
    }

    fn apply_stripes(&self, batch: Batch) -> Result<(), MetaError> {
        Self::apply_stripes(self, batch)
    }
}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meta")
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}

/// Commits the content of a new volume to its index, and closes that.
fn put_first(index: &dyn Index, first: &Batch) -> Result<(), MetaError> {
    let position = Position {
        lsn: Lsn(0),
        generation: next_generation(JournalGeneration::default()),
    };
    index.commit(&mut Commit {
        changes: Box::new(first.iter()),
        position,
        unflushed: None,
    })?;
    index.close()
}

fn next_generation(generation: JournalGeneration) -> JournalGeneration {
    let (nonce, _) = uuid::Uuid::new_v4().as_u64_pair();
    JournalGeneration {
        number: generation.number + 1,
        nonce,
    }
}

#[cfg(test)]
mod tests;
