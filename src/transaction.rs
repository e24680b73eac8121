//! The transactions of a volume.
//!
//! [`Transactions`] joins [`crate::metadata`] and [`crate::stripes`], which know nothing of each other. Bytes go to stripes
//! ([`Transactions::write`]), changes of records to the index ([`Transactions::apply`]). Both are visible at once, and durable
//! with the next [`Transactions::sync`]. [`crate::maintenance`] builds on that: it frees the space of dead stripes,
//! counts redundancy, rebuilds and scrubs.
//!
//! # Invariants
//!
//! - A journal record that names a stripe is appended after the shards of that stripe are durable, or together with the
//!   stripe's bytes (P1, P4).
//! - Bytes in the journal are forgotten only once their stripe is durable in the index.
//! - The space of a stripe comes free only after a commit that covers the removal of its records. These records are
//!   removed only after a commit that covers the loss of its last extent.
//! - After a commit failed, nothing more is accepted.
//!
//! # Locks
//!
//! `measuring` of [`Growth`], then `checkpointing` of [`Commits`] are work locks, taken in this order and held through
//! I/O: a thread that waits for one wants the work that its holder does. [`crate::maintenance`] states the order of all
//! work locks. The commit group is left while a commit runs. All others are leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use scopeguard::ScopeGuard;

use crate::coding::{Coding, Dispatch};
use crate::format::record::{Segment, Stripe};
use crate::format::{Ino, MemberIndex, SegmentId, StripeId};
use crate::membership::{Access, Members};
use crate::metadata::{Batch, IndexReplicas, Key, Meta, MetaError, Numbers, Value};
use crate::stripes::{CacheUse, Hold, Pin, Placed, Space, StripeRecords, Stripes};

pub(crate) mod allowance;
pub(crate) mod arrivals;
pub(crate) mod catalog;
pub(crate) mod clock;
mod code_change;
pub(crate) mod commits;
mod committer;
pub(crate) mod copies;
mod directory_codes;
pub(crate) mod error;
pub(crate) mod exhaustion;
pub(crate) mod extent_cache;
pub(crate) mod foreground;
pub(crate) mod group;
pub(crate) mod growth;
pub(crate) mod live;
mod placing;
pub(crate) mod recover;
pub(crate) mod run;
mod unreadable;
pub(crate) mod unwritten;

pub use crate::membership::CreateOptions;
pub use crate::stripes::{FullMembers, Served};
pub use clock::Clock;
pub use commits::Commits;
pub(crate) use commits::MAX_REFILLED_AT_CLOSE;
pub use copies::IndexCopies;
pub use directory_codes::{DirectoryCodeError, MAX_DIRECTORY_CODES};
pub use error::CommitError;
pub use group::CommitCounts;
pub use growth::Growth;
pub use run::Run;

use allowance::Allowance;
use catalog::Catalog;
use committer::Committer;
use exhaustion::Exhaustion;
use extent_cache::{ExtentCache, RunChanges};
use foreground::Foreground;
use unwritten::UnwrittenRoom;

/// Megabytes of the index to compare between copies before the volume is closed, if no comparison ran since it was
/// opened.
pub(crate) const MAX_COMPARED_AT_CLOSE: usize = 16;

/// Options for opening a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The access: read-only or read-write.
    pub access: Access,
    /// The coding engine, by name, as for [`crate::coding::open`].
    pub engine: String,
    /// Bytes of shards that are kept after being read ahead or decoded.
    pub cache_bytes: usize,
    /// Bytes of the index that are kept in memory.
    pub index_cache_bytes: usize,
    /// Threads that flush stripes, and as many that read ahead. With 0 there are none: the caller does everything, in
    /// the same order in every run.
    pub threads: usize,
    /// The course of writes while members are full.
    pub full_members: FullMembers,
    /// The limits of the count of redundancy.
    pub count_limits: CountLimits,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            engine: "cpu".to_owned(),
            cache_bytes: 128 << 20,
            index_cache_bytes: 64 << 20,
            threads: 2,
            full_members: FullMembers::default(),
            count_limits: CountLimits::default(),
        }
    }
}

/// Limits of the count of redundancy. Tests choose smaller ones, because their volumes are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountLimits {
    /// The numbers of stripes that are counted, and counted again, as one.
    pub stretch_stripes: u64,
    /// The most stretches that are remembered. If more of them hold something, nothing is remembered, and all are
    /// counted each time. The live bytes are remembered for as many stretches, dead ones among them.
    pub max_stretches: usize,
    /// The most stripes that are listed by number.
    pub max_listed: usize,
    /// Notes of the repair ledger that are read at once.
    pub notes_at_once: usize,
}

impl Default for CountLimits {
    fn default() -> Self {
        Self {
            stretch_stripes: 1 << 7,
            max_stretches: 1 << 17,
            max_listed: 100_000,
            notes_at_once: 1024,
        }
    }
}

/// The places to which the bytes of one write went.
///
/// To be kept until the extents that name `placed` have been applied: until then its stripes cannot
/// be taken for dead.
#[derive(Debug)]
#[must_use = "dropping it before its extents are applied may lose the bytes"]
pub struct Written {
    /// The places, in the order of the bytes.
    pub placed: Vec<Placed>,
    holds: Vec<Hold>,
}

/// The transactions of an open volume.
pub struct Transactions {
    pub(crate) members: Arc<Members>,
    pub(crate) meta: Arc<Meta>,
    pub(crate) replicas: Arc<IndexReplicas>,
    pub(crate) stripes: Arc<Stripes>,
    /// The dispatcher that chooses the engine for coding.
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) records: Arc<StripeRecords>,
    pub(crate) catalog: Arc<Catalog>,
    /// The source of the numbers of inodes.
    pub(crate) inodes: Numbers,
    pub(crate) commits: Arc<Commits>,
    committer: Committer,
    pub(crate) growth: Arc<Growth>,
    pub(crate) clock: Clock,
    pub(crate) foreground: Arc<Foreground>,
    pub(crate) exhaustion: Arc<Exhaustion>,
    /// The extents of files that are being read.
    pub(crate) extents: Arc<ExtentCache>,
    unwritten: UnwrittenRoom,
}

impl Transactions {
    fn new(
        members: Arc<Members>,
        (meta, replicas): (Arc<Meta>, Arc<IndexReplicas>),
        (stripes, dispatch): (Stripes, Arc<Dispatch>),
        (records, inodes): (Arc<StripeRecords>, Numbers),
        extents: ExtentCache,
    ) -> Self {
        let stripes = Arc::new(stripes);
        let catalog = Arc::new(Catalog::new(Arc::clone(&meta), Arc::clone(&records)));
        let allowance = Arc::new(Allowance::default());
        let commits = Arc::new(Commits::new(
            Arc::clone(&members),
            Arc::clone(&meta),
            Arc::clone(&replicas),
            Arc::clone(&stripes),
            Arc::clone(&records),
            Arc::clone(&catalog),
            Arc::clone(&allowance),
        ));
        let growth = Arc::new(Growth::new(
            Arc::clone(&members),
            Arc::clone(&meta),
            Arc::clone(&replicas),
            Arc::clone(&stripes),
            Arc::clone(&commits),
            allowance,
        ));
        let clock = Clock::new(
            Arc::clone(&members),
            Arc::clone(&meta),
            Arc::clone(&replicas),
            Arc::clone(&commits),
            Arc::clone(&growth),
        );
        let unwritten = UnwrittenRoom::new(&stripes);
        Self {
            members,
            meta,
            replicas,
            stripes,
            dispatch,
            records,
            catalog,
            inodes,
            committer: Committer::new(Arc::clone(&commits)),
            commits,
            growth,
            clock,
            foreground: Arc::default(),
            exhaustion: Arc::default(),
            extents: Arc::new(extents),
            unwritten,
        }
    }

    /// Makes everything that was applied and written before the call durable (P1).
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`].
    pub fn sync(&self) -> Result<(), CommitError> {
        self.commits.sync()
    }

    /// Makes everything that was applied and written before the call durable (P1), for a caller that asks for a file.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`], and if bytes of the file were lost before they were durable.
    pub fn sync_file(&self, ino: Ino) -> Result<(), CommitError> {
        self.commits.sync()?;
        self.commits.check_bytes_of(ino)
    }

    /// Makes everything that was applied and written before the call durable (P1), for a caller that asks for all files.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`], and once if bytes of any file were lost before they were durable.
    pub fn sync_all(&self) -> Result<(), CommitError> {
        self.commits.sync()?;
        self.commits.check_bytes_of_all()
    }

    /// Makes everything that was applied and written before the call durable (P1), as [`Self::sync_file`], and then calls
    /// `answer`, on this thread or another. It is not to wait. A caller that is alone commits by itself if it `may_commit`.
    pub fn sync_for(
        &self,
        ino: Ino,
        may_commit: bool,
        answer: impl FnOnce(Result<(), CommitError>) + Send + 'static,
    ) {
        let commits = Arc::clone(&self.commits);
        self.committer.sync_for(may_commit, move |synced| {
            answer(synced.and_then(|()| commits.check_bytes_of(ino)));
        });
    }

    /// Moves the durable changes of the journal into the index.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::sync`].
    pub fn checkpoint(&self) -> Result<(), CommitError> {
        self.commits.checkpoint()
    }

    /// Notes the limit of ordered rebuilds, in bytes per second, or that there is none; durable on return unless there is no
    /// space.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::sync`].
    pub fn note_rebuild_limit(&self, limit: Option<u64>) -> Result<(), CommitError> {
        if self.catalog.note_rebuild_limit(limit)? {
            self.commits.sync_if_there_is_space()?;
        }
        Ok(())
    }

    /// Returns the commits of the volume.
    #[must_use]
    pub fn commits(&self) -> &Arc<Commits> {
        &self.commits
    }

    /// Returns the room of the index for additions.
    #[must_use]
    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    /// Returns the clock, which makes commits and checkpoints when they are due.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the newest value of a key.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, CommitError> {
        Ok(self.meta.get(key)?)
    }

    /// Returns the newest records from `from` on and before `end`, in order, at most `limit`.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn scan(
        &self,
        from: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, CommitError> {
        Ok(self.meta.scan(from, end, limit)?)
    }

    /// Calls `visit` with the newest records from `from` on and before `end`, in order, until it breaks
    /// or fails. Nothing is copied.
    ///
    /// # Errors
    ///
    /// If the index cannot be read; those of `visit`.
    pub fn visit<E: From<CommitError>>(
        &self,
        from: &[u8],
        end: &[u8],
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        self.catalog.visit(from, end, visit)
    }

    /// Changes records, all at once: visible to everyone when this returns, durable with the next
    /// [`Transactions::sync`]. May wait while too many changes are not in the index yet.
    ///
    /// # Errors
    ///
    /// [`CommitError::ReadOnly`], [`CommitError::Poisoned`] or [`CommitError::Closed`];
    /// [`CommitError::NoSpace`] if too much waits for space already.
    pub fn apply(&self, batch: Batch) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        let kills = exhaustion::kills(&batch);
        self.meta.apply(batch)?;
        self.exhaustion.note_applied(kills);
        Ok(())
    }

    /// Changes records like [`Transactions::apply`]. Those of extents make `changes`. The caller has the inodes for itself
    /// until this returns.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::apply`].
    pub(crate) fn apply_with_extents(
        &self,
        batch: Batch,
        changes: &RunChanges,
    ) -> Result<(), CommitError> {
        let forgetting = scopeguard::guard((), |()| self.extents.forget_changed(changes));
        self.apply(batch)?;
        self.extents.update(changes);
        ScopeGuard::into_inner(forgetting);
        Ok(())
    }

    /// Calls `visit` with the runs of a file that overlap `range`, in order and in parts: with each part of the range, and
    /// the whole runs that overlap it. `load` reads all runs that overlap a range from their records. The caller keeps
    /// others from changing the file meanwhile.
    ///
    /// # Errors
    ///
    /// Those of `load`.
    pub fn visit_runs<E>(
        &self,
        ino: Ino,
        range: &Range<u64>,
        load: impl Fn(&Range<u64>) -> Result<Vec<Run>, E>,
        visit: impl FnMut(&Range<u64>, &[Run]),
    ) -> Result<(), E> {
        let source = self.meta.source();
        self.extents.visit(source, (ino, range), load, visit)
    }

    /// Returns the whole runs of a file that overlap `range`, for a change of them. Returns `None` if too many lie there to
    /// be kept in memory. `load` reads all runs that overlap a range from their records, or finds them too many. The
    /// caller has the inode for itself until the change is applied.
    ///
    /// # Errors
    ///
    /// Those of `load`.
    pub(crate) fn runs_for_change<E>(
        &self,
        ino: Ino,
        range: &Range<u64>,
        load: impl Fn(&Range<u64>) -> Result<Option<Vec<Run>>, E>,
    ) -> Result<Option<Vec<Run>>, E> {
        let source = self.meta.source();
        self.extents.for_change(source, (ino, range), load)
    }

    /// Returns the room that is kept for unwritten extents.
    pub(crate) fn unwritten_room(&self) -> &UnwrittenRoom {
        &self.unwritten
    }

    /// Fills `out` with the bytes at `offset` of a stripe. Returns where they were.
    ///
    /// The caller holds a [`Pin`] from before it looked up the extent that names the stripe.
    ///
    /// # Errors
    ///
    /// [`CommitError::Stripes`] if the bytes are unrecoverable for now; `out` is unspecified then.
    pub fn read(
        &self,
        stripe: StripeId,
        offset: u32,
        out: &mut [u8],
    ) -> Result<Served, CommitError> {
        self.foreground.note();
        Ok(self.stripes.reader().read(stripe, offset, out)?)
    }

    /// Asks for a stripe to be read ahead. Never blocks, and may do nothing.
    pub fn prefetch(&self, stripe: StripeId) {
        self.stripes.reader().prefetch(stripe);
    }

    /// Returns a pin: stripes that are looked up in the index while it is held stay readable.
    pub fn pin(&self) -> Pin<'_> {
        self.stripes.pins().pin()
    }

    /// Returns a number that no inode had before.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::apply`].
    pub fn next_ino(&self) -> Result<Ino, CommitError> {
        self.commits.check_writable()?;
        Ok(Ino(self.inodes.next(|batch| self.meta.apply(batch))?))
    }

    /// Returns a number above those of all inodes so far.
    #[must_use]
    pub fn upcoming_ino(&self) -> u64 {
        self.inodes.upcoming()
    }

    /// Gives no inode a number below `least` from now on.
    pub fn skip_inos(&self, least: u64) {
        self.inodes.skip_to(least);
    }

    /// Returns the keys whose last change is in neither the journal nor the index.
    #[must_use]
    pub fn unsynced_keys(&self) -> Vec<Key> {
        self.meta.unsynced_keys()
    }

    /// Returns whether the volume goes on no more: too many members failed, or a commit did.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.lacks_members() || self.commits.is_poisoned()
    }

    /// Returns whether the volume goes on no more because too few members are left. It can be opened again once they are
    /// back.
    #[must_use]
    pub fn lacks_members(&self) -> bool {
        self.members.membership().is_failed()
    }

    /// Returns the record of a stripe that is on members.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn stripe(&self, stripe: StripeId) -> Result<Option<Stripe>, CommitError> {
        Ok(self.records.stripe(stripe)?)
    }

    /// Returns the payload bytes of a full stripe.
    #[must_use]
    pub fn stripe_capacity(&self) -> u32 {
        u32::try_from(self.stripes.writer().stripe_capacity()).unwrap_or(u32::MAX)
    }

    /// Returns whether anything may be written.
    #[must_use]
    pub fn access(&self) -> Access {
        self.members.access()
    }

    /// Returns the members.
    #[must_use]
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Measures how much the online members can hold; asks each of them.
    #[must_use]
    pub fn space(&self) -> Space {
        self.stripes.space().measure()
    }

    /// Returns the members on which no further segment finds room; asks each of them. Those that are drained do not count,
    /// and neither does any of a volume that cannot be written to.
    #[must_use]
    pub fn full_members(&self) -> BTreeSet<MemberIndex> {
        match self.members().access() {
            Access::ReadWrite => self.stripes.space().full(),
            Access::ReadOnly => BTreeSet::new(),
        }
    }

    /// Returns the records of all segments.
    #[must_use]
    pub fn segments(&self) -> Vec<(SegmentId, Segment)> {
        self.stripes.segments().records().into_iter().collect()
    }

    /// Returns the stripe unit of a segment if it is noted, because that of the volume changed since.
    #[must_use]
    pub fn past_unit_of(&self, segment: SegmentId) -> Option<u32> {
        self.catalog.past_unit_of(segment)
    }

    /// Returns the course of writes while members are full.
    #[must_use]
    pub fn on_full_members(&self) -> FullMembers {
        self.stripes.segments().on_full_members()
    }

    /// Returns the members that the newest segment leaves out because they have no room.
    pub(crate) fn left_out(&self) -> Vec<MemberIndex> {
        self.stripes.segments().left_out()
    }

    /// Measures how much more of segments each online member could take; asks each of them.
    #[must_use]
    pub fn room_by_member(&self) -> BTreeMap<MemberIndex, u64> {
        let loads = self.stripes.space().loads().into_iter();
        loads
            .map(|(member, load)| (member, load.available))
            .collect()
    }

    /// Returns how many wrong ranges of blocks were repaired since the volume was opened.
    #[must_use]
    pub fn repaired_ranges(&self) -> u64 {
        self.stripes.damage().repaired_ranges()
    }

    /// Returns the name of the coding engine: `cuda` while GPUs code, else that of the CPU.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        if self.dispatch.is_on_devices() {
            "cuda"
        } else {
            self.stripes.coder().engine_name()
        }
    }

    /// Returns the counts of commits, and of the calls that wanted one.
    #[must_use]
    pub fn commit_counts(&self) -> CommitCounts {
        self.commits.group.counts()
    }

    /// Returns how the cache of shards is used.
    #[must_use]
    pub fn cache_use(&self) -> CacheUse {
        self.stripes.reader().cache_use()
    }

    /// Returns how much was coded since the volume was opened, by which engine, and how fast.
    #[must_use]
    pub fn coding(&self) -> Coding {
        self.dispatch.coding()
    }

    /// Makes everything durable, and gives back unused reservations.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::sync`].
    pub(super) fn finish_stripes(&self) -> Result<(), CommitError> {
        self.sync()?;
        Ok(self.stripes.writer().finish()?)
    }

    /// Moves everything into the index, and makes its copies complete.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::sync`].
    pub(super) fn finish_index(&self) -> Result<(), CommitError> {
        match self.checkpoint() {
            // All of it is in the journal, where the next mount finds it.
            Err(CommitError::NoSpace) => self.sync()?,
            done => done?,
        }
        self.growth.restore_reserve()?;
        // A copy that a returned or new member lacks would be missed if another member is lost
        // before the next mount.
        self.commits.refill_index(MAX_REFILLED_AT_CLOSE)?;
        // A half-written page of the index, left by an interrupted commit, would look like damage to a later check.
        for _ in 0..MAX_COMPARED_AT_CLOSE {
            match self.replicas.compare() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!("the copies of the index are not compared: {error}");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Closes the index and the journal.
    ///
    /// # Errors
    ///
    /// If the last changes could not be written.
    pub(super) fn close_index(&self) -> Result<(), CommitError> {
        match self.meta.close() {
            Err(MetaError::NoSpace) => {
                tracing::warn!("the volume is full: its journal is taken in by the next mount");
                Ok(())
            }
            closed => Ok(closed?),
        }
    }
}
