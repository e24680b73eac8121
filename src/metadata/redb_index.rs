//! The index in a redb database on mirrored copies.
//!
//! All copies are one database. If that cannot be read although every checksum is right, each copy is tried by itself, and the
//! index continues with those that are sound: [`RedbIndex::fall_back`].
//!
//! Locks, in order: `committing`, `db`, then those of the [`Mirror`]; `latest` and `position` last, for a few instructions.
//! Readers hold `db` only while they take a snapshot.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};

use contained::{Contained, DatabaseFailure};
use snapshots::{LatestSnapshot, RecordsSnapshot};
use suspicion::Suspicion;
use tables::{IndexFailure, position_in, put_all, records_in, unflushed_in};
use trial::{Trial, open_db};

use super::error::MetaError;
use super::index::{Commit, Index, Position, Snapshot};
use super::mirror::Mirror;
use crate::format::MemberIndex;
use crate::format::journal::StripeData;

mod contained;
mod snapshots;
mod suspicion;
mod tables;
mod trial;

pub use contained::is_panic_contained;

/// The number of attempts at compaction while a reader is active, and the pause between them.
const COMPACTION_TRIES: usize = 50;
const READERS_PAUSE: Duration = Duration::from_millis(5);

/// An [`Index`] on the members.
pub(super) struct RedbIndex {
    /// Dropped before the copies, which it writes to on being closed.
    db: RwLock<Option<Contained>>,
    mirror: Arc<Mirror>,
    cache_bytes: usize,
    /// Held during a commit. A reader that meets an error takes it to wait for the database to be opened again.
    committing: Mutex<()>,
    /// Shared with the snapshots, which may find the content wrong as well.
    suspicion: Arc<Suspicion>,
    /// Lock order: `db` before it.
    latest: LatestSnapshot,
    position: Mutex<Position>,
    /// Counts how often the index went on with other copies.
    source: AtomicU64,
}

impl RedbIndex {
    /// Opens the database on copies that may be empty.
    pub(super) fn open(mirror: Arc<Mirror>, cache_bytes: usize) -> Result<Self, MetaError> {
        let index = Self {
            db: RwLock::default(),
            mirror,
            cache_bytes,
            committing: Mutex::default(),
            suspicion: Arc::default(),
            latest: LatestSnapshot::default(),
            position: Mutex::default(),
            source: AtomicU64::new(0),
        };
        match open_db(&index.mirror, cache_bytes) {
            // A database that was begun, in a volume that was never finished.
            Err(MetaError::Poisoned { .. }) if index.mirror.was_never_used() => {
                return Err(MetaError::Unfinished);
            }
            Err(MetaError::Poisoned { reason }) => {
                tracing::warn!("the index cannot be opened: {reason}");
                index.suspicion.raise();
                index.recover_if_suspect(&index.committing.lock())?;
            }
            opened => *index.db.write() = Some(opened?),
        }
        let position = index.read_again(Self::read_position)?;
        *index.position.lock() = position;
        Ok(index)
    }

    /// Returns the copies.
    pub(super) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Waits until no commit is being made, and continues with the sound copies if the content is suspect.
    pub(super) fn wait_for_commit(&self) {
        if let Err(error) = self.recover_if_suspect(&self.committing.lock()) {
            tracing::error!("{error}");
        }
    }

    fn read_position(&self) -> Result<Position, MetaError> {
        position_in(self.db.read().as_ref()).map_err(|failure| self.failed(failure))
    }

    /// Notes a failure of the database, and returns it as the index's.
    fn failed(&self, failure: IndexFailure) -> MetaError {
        let is_content = match &failure {
            IndexFailure::Content(_) => true,
            IndexFailure::Database(failure) => failure.is_content(),
            IndexFailure::Closed => false,
        };
        if is_content || self.mirror.is_malformed() {
            self.suspicion.raise();
        }
        failure.into()
    }

    fn try_commit(&self, commit: &mut Commit<'_>) -> Result<(), IndexFailure> {
        let db = self.db.read();
        let db = db.as_ref().ok_or(IndexFailure::Closed)?;
        Ok(db.commit(|transaction| put_all(transaction, commit))?)
    }

    /// Returns a snapshot of the last commit.
    fn snapshot_of(&self, db: Option<&Contained>) -> Result<Arc<dyn Snapshot>, IndexFailure> {
        let table = records_in(db)?;
        Ok(Arc::new(RecordsSnapshot::new(table, &self.suspicion)))
    }

    /// Does a piece of work on the copies, unless a commit is being made: between commits no page is half
    /// of one that there is no space for.
    pub(super) fn between_commits(
        &self,
        work: impl FnOnce(&Mirror) -> io::Result<bool>,
    ) -> Result<bool, MetaError> {
        match self.committing.try_lock() {
            Some(_committing) => self.work_on_copies(work),
            None => Ok(true),
        }
    }

    /// Does a piece of work on the copies, after the commit that is being made.
    pub(super) fn without_commits<T: Default>(
        &self,
        work: impl FnOnce(&Mirror) -> io::Result<T>,
    ) -> Result<T, MetaError> {
        let _committing = self.committing.lock();
        self.work_on_copies(work)
    }

    /// Does a piece of work on the copies, while no commit is made. If one of them has no space, the work is undone.
    fn work_on_copies<T: Default>(
        &self,
        work: impl FnOnce(&Mirror) -> io::Result<T>,
    ) -> Result<T, MetaError> {
        match work(&self.mirror) {
            Ok(done) => Ok(done),
            Err(_) if self.mirror.is_out_of_space() => {
                self.reopen()?;
                Ok(T::default())
            }
            Err(error) => Err(MetaError::poisoned(error)),
        }
    }

    /// Keeps readers out, and waits a moment for those that read already.
    fn try_compact(&self) -> Result<(), DatabaseFailure> {
        let mut db = self.db.write();
        self.latest.replace(None);
        let db = db.as_mut().ok_or(DatabaseFailure::Busy)?;
        for _ in 0..COMPACTION_TRIES {
            match db.compact() {
                Err(DatabaseFailure::Busy) => std::thread::sleep(READERS_PAUSE),
                done => return done.map(drop),
            }
        }
        Err(DatabaseFailure::Busy)
    }

    /// Has the database read all its pages from the copies, and verify them. No other reader is active meanwhile.
    fn read_everything(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        self.latest.replace(None);
        let db = db.as_mut().ok_or(MetaError::Closed)?;
        let verified = db.verify();
        if !verified.map_err(|failure| self.failed(failure.into()))? {
            tracing::warn!("the index does not count its free pages rightly");
        }
        Ok(())
    }

    /// Reads all copies and changes nothing. Returns how much is wrong of the copies that members have.
    pub(super) fn survey(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        let survey =
            |_committing: MutexGuard<'_, ()>| self.mirror.survey(|| self.read_everything());
        let surveyed = survey(self.committing.lock());
        if self.mirror.is_disputed() {
            self.suspicion.raise();
        }
        if !self.suspicion.is_raised() {
            return surveyed;
        }
        self.wait_for_commit();
        survey(self.committing.lock())
    }

    /// Moves the records together and gives the rest of the space back. Keeps others from reading and committing
    /// meanwhile. Returns whether the index has become shorter.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`] if there is none even for that, or a reader takes long.
    pub(super) fn compact(&self) -> Result<bool, MetaError> {
        let _committing = self.committing.lock();
        if self.mirror.is_out_of_space() {
            self.reopen()?;
            if self.mirror.is_out_of_space() {
                return Err(MetaError::NoSpace);
            }
        }
        let before = self.mirror.db_bytes();
        let compacted = self.try_compact();
        let after = self.mirror.db_bytes();
        tracing::info!("the index had {before} bytes and has {after}: {compacted:?}");
        match compacted {
            Ok(()) => Ok(after < before),
            Err(DatabaseFailure::Busy) => Err(MetaError::NoSpace),
            Err(_) if self.mirror.is_out_of_space() => {
                self.reopen()?;
                Err(MetaError::NoSpace)
            }
            Err(failure) => Err(self.failed(failure.into())),
        }
    }

    /// Goes back to the last commit, after one for which there was no space.
    fn reopen(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        // The old one is gone before anything is undone beneath it.
        self.latest.replace(None);
        *db = None;
        self.mirror.reset().map_err(MetaError::poisoned)?;
        *db = Some(self.open_again()?);
        Ok(())
    }

    /// Opens the database once more; only in memory if the members have no space for that.
    fn open_again(&self) -> Result<Contained, MetaError> {
        match open_db(&self.mirror, self.cache_bytes) {
            Err(MetaError::NoSpace) => {
                self.mirror.suspend();
                open_db(&self.mirror, self.cache_bytes)
            }
            opened => opened,
        }
    }

    /// Reads a second time if the copies turn out to be different.
    fn read_again<T>(&self, read: impl Fn(&Self) -> Result<T, MetaError>) -> Result<T, MetaError> {
        read(self).or_else(|error| {
            if !matches!(error, MetaError::Poisoned { .. }) {
                return Err(error);
            }
            self.suspicion.raise();
            self.recover_if_suspect(&self.committing.lock())?;
            read(self)
        })
    }

    /// Reads the unflushed stripe data.
    fn read_unflushed(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        self.read_again(|index| {
            unflushed_in(index.db.read().as_ref(), stripe_bytes)
                .map_err(|failure| index.failed(failure))
        })
    }

    /// Continues with the sound copies if intact frames differ that were written together.
    pub(super) fn resolve_dispute(&self) {
        if self.mirror.is_disputed() {
            self.suspicion.raise();
            self.wait_for_commit();
        }
    }

    /// Continues with the sound copies if the content of the database is suspect. Tries this once.
    fn recover_if_suspect(&self, _committing: &MutexGuard<'_, ()>) -> Result<(), MetaError> {
        if self.suspicion.take() {
            self.fall_back()
        } else {
            Ok(())
        }
    }

    /// Tries each copy by itself, and continues with those that are sound.
    fn fall_back(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        self.latest.replace(None);
        if let Some(db) = db.take() {
            db.abandon();
        }
        self.mirror.go_back().map_err(MetaError::poisoned)?;
        // Readers are kept out until `db` is free again.
        self.source.fetch_add(1, Ordering::AcqRel);
        let trial = Trial::of_all(&self.mirror);
        for (path, error) in &trial.damaged {
            tracing::warn!(%path, "this copy of the index is damaged: {error}");
        }
        let mut sound = trial.sound();
        if sound.is_empty() {
            // Operations that do not need it can still read.
            *db = self.open_again().ok();
            let reason = trial.reasons();
            return Err(MetaError::DamagedIndex { reason });
        }
        if trial.damaged.is_empty() {
            // Each is sound by itself, and they are not the same. The first has the newest head.
            for member in sound.split_off(1) {
                let path = self.mirror.path(member);
                tracing::warn!(
                    %path,
                    "this copy of the index is not used: it differs from another"
                );
            }
        }
        self.mirror.keep_only(&sound).map_err(MetaError::poisoned)?;
        let opened = self.open_again()?;
        let position = position_in(Some(&opened))?;
        *self.position.lock() = position;
        *db = Some(opened);
        Ok(())
    }
}

impl Index for RedbIndex {
    fn begin(&self) -> Result<(), MetaError> {
        self.mirror.begin()
    }

    fn snapshot(&self) -> Option<Arc<dyn Snapshot>> {
        self.latest.get()
    }

    fn take_snapshot(&self) -> Result<(), MetaError> {
        let db = self.db.read();
        let commits = self.latest.commits();
        let taken = self.snapshot_of(db.as_ref());
        let taken = taken.map_err(|failure| self.failed(failure))?;
        self.latest.offer(commits, taken);
        Ok(())
    }

    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError> {
        // Before what was read from a damaged copy is written to all.
        self.resolve_dispute();
        let _committing = self.committing.lock();
        if self.mirror.is_out_of_space() {
            self.reopen()?;
            if self.mirror.is_out_of_space() {
                // The database would take the commit, and only the database.
                return Err(MetaError::NoSpace);
            }
        }
        match self.try_commit(commit) {
            Ok(()) => {
                *self.position.lock() = commit.position;
                let taken = self.snapshot_of(self.db.read().as_ref());
                // Until here the snapshot of the commit before was as good: its changes are still in
                // the overlay. If the next one cannot be taken, readers meet the error.
                self.latest.replace(taken.ok());
                Ok(())
            }
            Err(_) if self.mirror.is_out_of_space() => {
                self.reopen()?;
                Err(MetaError::NoSpace)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    fn prepare_retry(&self) {
        self.wait_for_commit();
    }

    fn source(&self) -> u64 {
        self.source.load(Ordering::Acquire)
    }

    fn position(&self) -> Position {
        *self.position.lock()
    }

    fn unflushed(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        let unflushed = self.read_unflushed(stripe_bytes)?;
        if !self.mirror.is_disputed() {
            return Ok(unflushed);
        }
        self.resolve_dispute();
        self.read_unflushed(stripe_bytes)
    }

    fn release_reserve(&self) -> u64 {
        self.mirror.release_reserve();
        self.mirror.reserve_bytes()
    }

    fn close(&self) -> Result<(), MetaError> {
        let committing = self.committing.lock();
        let mut db = self.db.write();
        self.latest.replace(None);
        if self.mirror.is_disputed() {
            self.suspicion.raise();
        }
        let closed = match db.take() {
            Some(db) if self.suspicion.is_raised() => {
                db.abandon();
                Ok(())
            }
            Some(db) => db.close(),
            None => Ok(()),
        };
        drop(db);
        let closed = closed.map_err(|failure| self.failed(failure.into()));
        // To name the copy that is at fault.
        let named = self.recover_if_suspect(&committing);
        *self.db.write() = None;
        // While no reader that goes on can try the copies once more.
        self.mirror.close();
        drop(committing);
        named.and(closed)
    }
}
