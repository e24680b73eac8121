//! The index in a redb database on mirrored copies.
//!
//! All copies are one database. If that cannot be read although every checksum is right, each copy is tried alone, and the
//! index continues with those that are sound: [`RedbIndex::fall_back`].

use std::collections::BTreeMap;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use parking_lot::{Mutex, MutexGuard, RwLock};
use redb::{TableDefinition, WriteTransaction};

use contained::{Contained, ContainedTable, DatabaseFailure, open_table};

use super::batch::Value;
use super::error::MetaError;
use super::index::{Commit, Index, KeyRange, Position, Snapshot, Visit};
use super::mirror::Mirror;
use crate::format::journal::{Life, StripeData};
use crate::format::wire::Reader;
use crate::format::{FormatError, Lsn, MemberIndex, StripeId};

mod contained;
mod fall_back;

pub use contained::is_panic_contained;

/// The table of records.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// The position, under [`POSITION_KEY`].
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const POSITION_KEY: &str = "position";

/// Stripe data that recovery took out of the journal, by its place in order; the value is stripe
/// `u64`, offset `u32` and the bytes.
const CARRIED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("carried");

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
    /// Set when the database panics or finds its content wrong, until the copies were tried one by one.
    suspect: Arc<AtomicBool>,
    /// The copies were tried one by one already.
    has_fallen_back: AtomicBool,
    /// Held for a few instructions. Lock order: `db` before it.
    latest: RwLock<Latest>,
    position: Mutex<Position>,
}

/// The snapshot of the last commit, if one was taken.
#[derive(Default)]
struct Latest {
    taken: Option<Arc<dyn Snapshot>>,
    /// Counts commits: what was begun before one of them ended may be older.
    commits: u64,
}

impl RedbIndex {
    /// Opens the database on copies that may be empty.
    pub(super) fn open(mirror: Arc<Mirror>, cache_bytes: usize) -> Result<Self, MetaError> {
        let index = Self {
            db: RwLock::default(),
            mirror,
            cache_bytes,
            committing: Mutex::default(),
            suspect: Arc::default(),
            has_fallen_back: AtomicBool::new(false),
            latest: RwLock::default(),
            position: Mutex::default(),
        };
        match open_db(&index.mirror, cache_bytes) {
            // A database that was begun, in a volume that was never finished.
            Err(MetaError::Poisoned { .. }) if index.mirror.was_never_used() => {
                return Err(MetaError::Unfinished);
            }
            Err(MetaError::Poisoned { reason }) => {
                log::warn!("the index cannot be opened: {reason}");
                index.suspect.store(true, Ordering::Release);
                index.recover_if_suspect(index.committing.lock())?;
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
        if let Err(error) = self.recover_if_suspect(self.committing.lock()) {
            log::error!("{error}");
        }
    }

    fn read_position(&self) -> Result<Position, MetaError> {
        position_in(self.db.read().as_ref()).map_err(|failure| self.failed(failure))
    }

    /// Takes note of a failure of the database, and returns it as the index's.
    fn failed(&self, failure: IndexFailure) -> MetaError {
        let is_content = match &failure {
            IndexFailure::Content(_) => true,
            IndexFailure::Database(failure) => failure.is_content(),
            IndexFailure::Closed => false,
        };
        if is_content || self.mirror.is_malformed() {
            self.suspect.store(true, Ordering::Release);
        }
        failure.into()
    }

    fn try_commit(&self, commit: &mut Commit<'_>) -> Result<(), IndexFailure> {
        let db = self.db.read();
        let db = db.as_ref().ok_or(IndexFailure::Closed)?;
        Ok(db.commit(|transaction| put_all(transaction, commit))?)
    }

    /// Returns a view of the last commit.
    fn snapshot_of(&self, db: Option<&Contained>) -> Result<Arc<dyn Snapshot>, IndexFailure> {
        let table = db.ok_or(IndexFailure::Closed)?.table(RECORDS)?;
        Ok(Arc::new(Records {
            table,
            suspect: Arc::clone(&self.suspect),
        }))
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

    /// Does a piece of work on the copies, while no commit is made. It comes to nothing if one of them has
    /// no space.
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

    /// Puts another view, or none, in the place of the one of the commit before.
    fn replace_snapshot(&self, taken: Option<Arc<dyn Snapshot>>) {
        let mut latest = self.latest.write();
        latest.commits += 1;
        let old = std::mem::replace(&mut latest.taken, taken);
        drop(latest);
        // With the last reader of the old one, a transaction ends.
        drop(old);
    }

    /// Keeps readers out, and waits a moment for those that read already.
    fn try_compact(&self) -> Result<(), DatabaseFailure> {
        let mut db = self.db.write();
        self.replace_snapshot(None);
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
        self.replace_snapshot(None);
        let db = db.as_mut().ok_or(MetaError::Closed)?;
        let verified = db.verify();
        if !verified.map_err(|failure| self.failed(failure.into()))? {
            log::warn!("the index does not count its free pages rightly");
        }
        Ok(())
    }

    /// Reads all copies and changes nothing. Returns how much is wrong of the copies that members have.
    pub(super) fn survey(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        let survey =
            |_committing: MutexGuard<'_, ()>| self.mirror.survey(|| self.read_everything());
        let surveyed = survey(self.committing.lock());
        if self.mirror.is_disputed() {
            self.suspect.store(true, Ordering::Release);
        }
        if !self.suspect.load(Ordering::Acquire) {
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
        log::info!("the index had {before} bytes and has {after}: {compacted:?}");
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
        self.replace_snapshot(None);
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
}

/// A failure to read what the database holds.
#[derive(Debug, thiserror::Error)]
enum IndexFailure {
    #[error(transparent)]
    Database(#[from] DatabaseFailure),
    /// The database gave out what is never put into it.
    #[error(transparent)]
    Content(#[from] FormatError),
    #[error("the index is closed")]
    Closed,
}

impl From<IndexFailure> for MetaError {
    fn from(failure: IndexFailure) -> Self {
        match failure {
            IndexFailure::Closed => Self::Closed,
            failure => Self::poisoned(failure),
        }
    }
}

fn open_db(mirror: &Arc<Mirror>, cache_bytes: usize) -> Result<Contained, MetaError> {
    mirror.check_structure().map_err(MetaError::poisoned)?;
    Contained::open(mirror.backend(), cache_bytes).map_err(|failure| {
        if mirror.is_out_of_space() {
            MetaError::NoSpace
        } else {
            MetaError::poisoned(failure)
        }
    })
}

fn position_in(db: Option<&Contained>) -> Result<Position, IndexFailure> {
    let Some(state) = db.ok_or(IndexFailure::Closed)?.table(STATE)? else {
        return Ok(Position::default());
    };
    let position = state.get(POSITION_KEY, decode_position)?;
    Ok(position.transpose()?.unwrap_or_default())
}

fn unflushed_in(
    db: Option<&Contained>,
    stripe_bytes: u32,
) -> Result<Vec<StripeData>, IndexFailure> {
    let Some(table) = db.ok_or(IndexFailure::Closed)?.table(CARRIED)? else {
        return Ok(Vec::new());
    };
    let mut carried = Vec::new();
    let mut decoded = Ok(());
    table.visit((Bound::Unbounded, Bound::Unbounded), |number, value| {
        // They are numbered from 0 on; a table that repeats itself is not.
        let data = if number == carried.len() as u64 {
            decode_unflushed(value, stripe_bytes)
        } else {
            Err(disordered("number of carried stripe data", number))
        };
        match data {
            Ok(data) => carried.push(data),
            Err(error) => decoded = Err(error),
        }
        if decoded.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    decoded?;
    Ok(carried)
}

fn disordered(field: &'static str, value: u64) -> FormatError {
    Reader::new("index", &[]).bad(field, value)
}

fn put_all(transaction: &WriteTransaction, commit: &mut Commit<'_>) -> Result<(), redb::Error> {
    let mut records = open_table(transaction, RECORDS)?;
    for (key, value) in commit.changes.by_ref() {
        match value {
            Some(value) => records.insert(&**key, &**value)?,
            None => records.remove(&**key)?,
        };
    }
    if let Some(data) = commit.unflushed {
        let mut carried = open_table(transaction, CARRIED)?;
        carried.retain(|_, _| false)?;
        for (number, data) in (0..).zip(data) {
            carried.insert(number, &*encode_unflushed(data))?;
        }
    }
    let position = encode_position(commit.position);
    open_table(transaction, STATE)?.insert(POSITION_KEY, &*position)?;
    Ok(())
}

impl Index for RedbIndex {
    fn begin(&self) -> Result<(), MetaError> {
        self.mirror.begin()
    }

    fn snapshot(&self) -> Option<Arc<dyn Snapshot>> {
        self.latest.read().taken.clone()
    }

    fn take_snapshot(&self) -> Result<(), MetaError> {
        let db = self.db.read();
        let commits = self.latest.read().commits;
        let taken = self.snapshot_of(db.as_ref());
        let taken = taken.map_err(|failure| self.failed(failure))?;
        let mut latest = self.latest.write();
        if latest.commits == commits && latest.taken.is_none() {
            latest.taken = Some(taken);
        }
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
                // Until here the view of the commit before was as good: its changes are still in
                // the overlay. If the next view cannot be made, readers meet the error.
                self.replace_snapshot(taken.ok());
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
        self.replace_snapshot(None);
        if self.mirror.is_disputed() {
            self.suspect.store(true, Ordering::Release);
        }
        let closed = match db.take() {
            Some(db) if self.suspect.load(Ordering::Acquire) => {
                db.abandon();
                Ok(())
            }
            Some(db) => db.close(),
            None => Ok(()),
        };
        drop(db);
        let closed = closed.map_err(|failure| self.failed(failure.into()));
        // To name the copy that is at fault.
        let named = self.recover_if_suspect(committing);
        *self.db.write() = None;
        named.and(closed)
    }
}

/// The records of one commit.
struct Records {
    /// `None` if nothing was ever put into it.
    table: Option<ContainedTable<&'static [u8], &'static [u8]>>,
    suspect: Arc<AtomicBool>,
}

impl Records {
    fn failed(&self, failure: DatabaseFailure) -> MetaError {
        if failure.is_content() {
            self.suspect.store(true, Ordering::Release);
        }
        MetaError::poisoned(failure)
    }
}

impl Snapshot for Records {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        let Some(table) = &self.table else {
            return Ok(None);
        };
        let value = table.get(key, Bytes::copy_from_slice);
        value.map_err(|failure| self.failed(failure))
    }

    fn visit(&self, range: KeyRange<'_>, visit: &mut Visit<'_>) -> Result<(), MetaError> {
        let Some(table) = &self.table else {
            return Ok(());
        };
        if range.is_empty() {
            return Ok(());
        }
        let mut last: Option<Vec<u8>> = None;
        let mut is_disordered = false;
        let visited = table.visit((range.from, range.end), |key, value| {
            // Keys that rise come to an end, whatever tree they are in.
            is_disordered = last.as_deref().is_some_and(|last| key <= last);
            if is_disordered {
                return ControlFlow::Break(());
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            visit(key, value)
        });
        visited.map_err(|failure| self.failed(failure))?;
        if is_disordered {
            self.suspect.store(true, Ordering::Release);
            return Err(MetaError::poisoned("keys of the index are out of order"));
        }
        Ok(())
    }
}

fn encode_position(position: Position) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    out.put_u64_le(position.lsn.0);
    out.put_u64_le(position.generation.number);
    out.put_u64_le(position.generation.nonce);
    out
}

fn decode_position(bytes: &[u8]) -> Result<Position, FormatError> {
    let mut reader = Reader::new("index position", bytes);
    let lsn = Lsn(reader.count("record number")?);
    let generation = Life {
        number: reader.count("life")?,
        nonce: reader.u64()?,
    };
    reader.finish()?;
    Ok(Position { lsn, generation })
}

fn encode_unflushed(data: &StripeData) -> Vec<u8> {
    let mut out = Vec::with_capacity(12 + data.bytes.len());
    out.put_u64_le(data.stripe.0);
    out.put_u32_le(data.offset);
    out.put_slice(&data.bytes);
    out
}

fn decode_unflushed(bytes: &[u8], stripe_bytes: u32) -> Result<StripeData, FormatError> {
    let mut reader = Reader::new("carried stripe data", bytes);
    let (stripe, offset) = (StripeId(reader.u64()?), reader.u32()?);
    let bytes = Bytes::copy_from_slice(reader.rest());
    StripeData::within(stripe_bytes, stripe, offset, bytes)
}

/// Reads every record.
fn walk_records(db: &Contained) -> Result<(), MetaError> {
    let records = Records {
        table: db.table(RECORDS).map_err(IndexFailure::from)?,
        suspect: Arc::default(),
    };
    let whole = KeyRange {
        from: Bound::Unbounded,
        end: Bound::Unbounded,
    };
    records.visit(whole, &mut |_, _| ControlFlow::Continue(()))
}
