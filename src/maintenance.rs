//! An open volume: its transactions, and a part for each job that happens to it by itself or by order.
//!
//! Each part names the parts that it depends on, and [`Maintenance`] composes them. No part knows the whole.
//!
//! # Locks
//!
//! These locks are work locks: they are held through I/O, because their holder does the work that a waiting thread
//! wants. A thread takes them in this order:
//!
//! 1. `scrubbing` of [`Scrubber`],
//! 2. `working` of [`Rebuild`],
//! 3. `making` of [`Room`],
//! 4. `measuring` of [`Growth`](crate::transaction::Growth), then `checkpointing` of [`Commits`](crate::transaction::Commits),
//! 5. `queues` of [`Reaper`].
//!
//! `counting` of [`RedundancyCounter`] is taken alone, or by the holder of `scrubbing` alone. `waiting` of [`Recheck`]
//! is a work lock that is taken alone. The commit group is left while a commit runs. All other locks of the parts are
//! leaves.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use crate::membership::RecoveredMembers;
use crate::store::{Executor, StoreRef};
use crate::transaction::{CommitError, CountLimits, OpenOptions, Transactions};

mod candidates;
mod compaction;
mod draining;
mod joining;
mod pace;
mod reaper;
mod rebuild;
mod rebuild_status;
mod recheck;
mod redundancy;
mod room;
mod scheduler;
mod scrub;
mod stale_copies;
mod superblock_recovery;
mod usage;

use candidates::Candidates;
pub use compaction::{Compaction, InodeLocks};
pub use draining::Draining;
pub use joining::Joining;
pub use pace::Pace;
pub use reaper::Reaper;
pub use rebuild::{Rebuild, RebuildScope, RewriteStatus};
pub use rebuild_status::{RebuildKind, RebuildProgress, RebuildState, RebuildStatus};
pub use recheck::Recheck;
pub use redundancy::{
    LostStripe, MissingShards, Redundancy, RedundancyCounter, RedundancyRow, UnwrittenShards,
};
pub use room::Room;
pub use scheduler::{OrderNumber, PauseSwitch, RebuildOrders, Schedule, Scheduler};
pub use scrub::{Follower, ReadShards, ScrubState, ScrubStatus, Scrubber, WrongShards};
pub use stale_copies::StaleCopies;
pub use superblock_recovery::identify_members;
pub use usage::{FileStripes, FilesUsage, MemberUsage, UsageCounter, VolumeUsage};

/// An open volume: its transactions, and the parts that maintain it.
pub struct Maintenance {
    transactions: Arc<Transactions>,
    pub(super) reaper: Arc<Reaper>,
    pub(super) room: Arc<Room>,
    pub(super) redundancy: Arc<RedundancyCounter>,
    pub(super) stale_copies: Arc<StaleCopies>,
    pub(super) recheck: Arc<Recheck>,
    pub(super) joining: Arc<Joining>,
    pub(super) draining: Arc<Draining>,
    pub(super) rebuild: Arc<Rebuild>,
    pub(super) scrubber: Arc<Scrubber>,
    usage: UsageCounter,
}

impl Maintenance {
    /// Opens a volume, in any state. Read-only, nothing is written on any member.
    ///
    /// 1. Members: enough of them, of one volume and one history.
    /// 2. Index and journal: everything that was acknowledged is in the records from here on. Only after
    ///    both were read is anything written, and a change of members raises the epoch.
    /// 3. Segment files that no record names are removed, unfinished ones cut.
    /// 4. Bytes that were in the journal only go back into a stripe under its old number, and with it
    ///    to the members; a checkpoint then lets the journal forget them.
    /// 5. Copies of the index that are missing are made, and members that were away are taken back:
    ///    they are up to date by now. If the index is so large that this would take long,
    ///    [`Clock::tick`](crate::transaction::Clock::tick) goes on with it.
    ///
    /// A crash in any of these leaves all that the next open needs.
    ///
    /// # Errors
    ///
    /// The failure that keeps the volume from being opened, in the words of the layer that met it.
    pub fn open(
        stores: Vec<StoreRef>,
        options: &OpenOptions,
        executor: Arc<Executor>,
    ) -> Result<Arc<Self>, CommitError> {
        Self::open_recovering(stores, &RecoveredMembers::new(), options, executor)
    }

    /// Opens a volume like [`Maintenance::open`], with directories that have lost their superblocks; see
    /// [`identify_members`](super::identify_members). Opened to be written to, it restores these on return, as far as
    /// the directories take them.
    ///
    /// # Errors
    ///
    /// As for [`Maintenance::open`].
    pub fn open_recovering(
        stores: Vec<StoreRef>,
        claims: &RecoveredMembers,
        options: &OpenOptions,
        executor: Arc<Executor>,
    ) -> Result<Arc<Self>, CommitError> {
        let transactions = Arc::new(Transactions::recover(stores, claims, options, executor)?);
        let maintenance = Arc::new(Self::compose(transactions, options.count_limits));
        // Before the checkpoint, after which an epoch may take in the stale copies.
        maintenance.stale_copies.restore()?;
        maintenance.transactions.finish_recovery()?;
        Ok(maintenance)
    }

    /// Composes the parts, each with those that it depends on.
    fn compose(transactions: Arc<Transactions>, count_limits: CountLimits) -> Self {
        let (reaper, compaction, room) = space(&transactions);
        let stale_copies = Arc::new(StaleCopies::new(
            Arc::clone(&transactions.members),
            Arc::clone(&transactions.meta),
            Arc::clone(&transactions.stripes),
            Arc::clone(&transactions.commits),
        ));
        let recheck = Arc::new(Recheck::new(Arc::clone(&transactions.stripes)));
        let joining = Arc::new(Joining {
            adding: AtomicUsize::new(0),
            members: Arc::clone(&transactions.members),
            meta: Arc::clone(&transactions.meta),
            replicas: Arc::clone(&transactions.replicas),
            stripes: Arc::clone(&transactions.stripes),
            catalog: Arc::clone(&transactions.catalog),
            commits: Arc::clone(&transactions.commits),
            reaper: Arc::clone(&reaper),
            stale_copies: Arc::clone(&stale_copies),
            recheck: Arc::clone(&recheck),
        });
        let draining = Arc::new(Draining::new(
            Arc::clone(&transactions.members),
            Arc::clone(&transactions.replicas),
            Arc::clone(&transactions.stripes),
            Arc::clone(&transactions.catalog),
            Arc::clone(&transactions.commits),
            Arc::clone(&reaper),
        ));
        let status = Arc::new(RebuildStatus::default());
        let redundancy = redundancy_counter(&transactions, &status, count_limits);
        let rebuild = Arc::new(Rebuild::new(rebuild::RebuildDependencies {
            members: Arc::clone(&transactions.members),
            stripes: Arc::clone(&transactions.stripes),
            records: Arc::clone(&transactions.records),
            catalog: Arc::clone(&transactions.catalog),
            commits: Arc::clone(&transactions.commits),
            foreground: Arc::clone(&transactions.foreground),
            reaper: Arc::clone(&reaper),
            compaction: Arc::clone(&compaction),
            room: Arc::clone(&room),
            stale_copies: Arc::clone(&stale_copies),
            redundancy: Arc::clone(&redundancy),
            draining: Arc::clone(&draining),
            status,
        }));
        rebuild.note_least_survived();
        let usage = UsageCounter::new(
            Arc::clone(&transactions.members),
            Arc::clone(&transactions.stripes),
            Arc::clone(&transactions.records),
            Arc::clone(&transactions.catalog),
        );
        Self {
            usage,
            scrubber: scrubber(
                &transactions,
                compaction,
                &stale_copies,
                &redundancy,
                &rebuild,
            ),
            transactions,
            reaper,
            room,
            redundancy,
            stale_copies,
            recheck,
            joining,
            draining,
            rebuild,
        }
    }

    /// Makes everything durable, moves it into the index, and gives back unused reservations. Nothing is accepted
    /// afterwards. A volume that is dropped without this is left as by a crash.
    ///
    /// # Errors
    ///
    /// As for [`Transactions::sync`].
    pub fn close(&self) -> Result<(), CommitError> {
        let commits = self.transactions.commits();
        if !commits.close() {
            return Ok(());
        }
        self.scrubber.stop();
        if !commits.is_read_only() {
            self.transactions.finish_stripes()?;
            match self.reaper.reap_now() {
                // The next mount finds and frees dead stripes.
                Ok(()) | Err(CommitError::NoSpace) => {}
                Err(error) => return Err(error),
            }
            self.transactions.finish_index()?;
        }
        self.transactions.close_index()
    }

    /// Ends all work on a volume that goes on no more, and accepts no more changes. Makes nothing durable.
    pub fn abandon(&self) {
        self.transactions.commits().close();
        self.scrubber.stop();
    }

    /// Returns the transactions of the volume.
    #[must_use]
    pub fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    /// Returns the counter of redundancy.
    #[must_use]
    pub fn redundancy(&self) -> &Arc<RedundancyCounter> {
        &self.redundancy
    }

    /// Returns the draining of members.
    #[must_use]
    pub fn draining(&self) -> &Arc<Draining> {
        &self.draining
    }

    /// Returns the joining of directories.
    #[must_use]
    pub fn joining(&self) -> &Arc<Joining> {
        &self.joining
    }

    /// Returns the rebuild of missing shards.
    #[must_use]
    pub fn rebuild(&self) -> &Arc<Rebuild> {
        &self.rebuild
    }

    /// Returns the search for unrecoverable ranges that can be read again.
    #[must_use]
    pub fn recheck(&self) -> &Arc<Recheck> {
        &self.recheck
    }

    /// Returns the reaper, which frees dead stripes.
    #[must_use]
    pub fn reaper(&self) -> &Arc<Reaper> {
        &self.reaper
    }

    /// Returns the part that makes room.
    #[must_use]
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Returns the stale copies among the members.
    #[must_use]
    pub fn stale_copies(&self) -> &Arc<StaleCopies> {
        &self.stale_copies
    }

    /// Returns the counter of the space that data and metadata take on the members.
    #[must_use]
    pub fn usage(&self) -> &UsageCounter {
        &self.usage
    }

    /// Returns the scrubber.
    #[must_use]
    pub fn scrubber(&self) -> &Arc<Scrubber> {
        &self.scrubber
    }
}

/// Composes the parts that free space.
fn space(transactions: &Transactions) -> (Arc<Reaper>, Arc<Compaction>, Arc<Room>) {
    let candidates = Arc::new(Mutex::new(Candidates::new()));
    let reaper = Arc::new(Reaper::new(
        Arc::clone(&transactions.meta),
        Arc::clone(&transactions.stripes),
        Arc::clone(&transactions.records),
        Arc::clone(&transactions.catalog),
        Arc::clone(&transactions.commits),
        Arc::clone(&candidates),
    ));
    let compaction = Arc::new(Compaction::new(
        Arc::clone(&transactions.members),
        Arc::clone(&transactions.meta),
        Arc::clone(&transactions.stripes),
        Arc::clone(&transactions.records),
        Arc::clone(&transactions.catalog),
        candidates,
        Arc::clone(&transactions.extents),
    ));
    let room = Arc::new(Room::new(
        Arc::clone(&transactions.stripes),
        Arc::clone(&transactions.commits),
        Arc::clone(&transactions.growth),
        Arc::clone(&reaper),
        Arc::clone(&compaction),
        Arc::clone(&transactions.exhaustion),
    ));
    (reaper, compaction, room)
}

fn redundancy_counter(
    transactions: &Transactions,
    status: &Arc<RebuildStatus>,
    limits: CountLimits,
) -> Arc<RedundancyCounter> {
    let dependencies = redundancy::RedundancyDependencies {
        members: Arc::clone(&transactions.members),
        meta: Arc::clone(&transactions.meta),
        stripes: Arc::clone(&transactions.stripes),
        records: Arc::clone(&transactions.records),
        catalog: Arc::clone(&transactions.catalog),
        commits: Arc::clone(&transactions.commits),
        rebuild_status: Arc::clone(status),
    };
    Arc::new(RedundancyCounter::new(dependencies, limits))
}

fn scrubber(
    transactions: &Transactions,
    compaction: Arc<Compaction>,
    stale_copies: &Arc<StaleCopies>,
    redundancy: &Arc<RedundancyCounter>,
    rebuild: &Arc<Rebuild>,
) -> Arc<Scrubber> {
    Arc::new(Scrubber::new(scrub::ScrubDependencies {
        members: Arc::clone(&transactions.members),
        meta: Arc::clone(&transactions.meta),
        replicas: Arc::clone(&transactions.replicas),
        stripes: Arc::clone(&transactions.stripes),
        records: Arc::clone(&transactions.records),
        catalog: Arc::clone(&transactions.catalog),
        commits: Arc::clone(&transactions.commits),
        foreground: Arc::clone(&transactions.foreground),
        compaction,
        stale_copies: Arc::clone(stale_copies),
        redundancy: Arc::clone(redundancy),
        rebuild: Arc::clone(rebuild),
    }))
}

#[cfg(test)]
mod tests;
