//! The index in a redb database on mirrored copies.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use parking_lot::{Mutex, RwLock};
use redb::{
    Builder, CompactionError, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable,
    TableDefinition, WriteTransaction,
};

use super::index::{Commit, Index, KeyRange, Position, Snapshot, Visit};
use super::mirror::Mirror;
use super::{MetaError, Value, VerifiedIndex};
use crate::format::journal::{Life, StripeData};
use crate::format::wire::Reader;
use crate::format::{FormatError, Lsn, MemberIndex, StripeId};

/// What the index is for.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// The position, under [`POSITION_KEY`].
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const POSITION_KEY: &str = "position";

/// Stripe data that recovery took out of the journal, by its place in order; the value is stripe
/// `u64`, offset `u32` and the bytes.
const CARRIED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("carried");

/// How often, and after which pause, compaction is tried while somebody reads.
const COMPACTION_TRIES: usize = 50;
const READERS_PAUSE: Duration = Duration::from_millis(5);

/// An [`Index`] on the members.
pub(super) struct RedbIndex {
    mirror: Arc<Mirror>,
    cache_bytes: usize,
    /// Held during a commit. Whoever meets an error while reading takes it to wait for the database
    /// to be opened anew.
    committing: Mutex<()>,
    db: RwLock<Option<Database>>,
    /// Held for a few instructions. Lock order: `db` before it.
    view: RwLock<View>,
    position: Mutex<Position>,
}

/// A view of the last commit, if one was made.
#[derive(Default)]
struct View {
    made: Option<Arc<dyn Snapshot>>,
    /// Counts commits: what was begun before one of them ended may be older.
    commits: u64,
}

impl RedbIndex {
    /// Opens the database on copies that may be empty.
    pub(super) fn open(mirror: Arc<Mirror>, cache_bytes: usize) -> Result<Self, MetaError> {
        let db = match open_db(&mirror, cache_bytes) {
            // A database that was begun, in a volume that was never finished.
            Err(MetaError::Poisoned { .. }) if mirror.was_never_used() => {
                return Err(MetaError::Unfinished);
            }
            db => db?,
        };
        let index = Self {
            db: RwLock::new(Some(db)),
            mirror,
            cache_bytes,
            committing: Mutex::default(),
            view: RwLock::default(),
            position: Mutex::default(),
        };
        *index.position.lock() = index.read_position()?;
        Ok(index)
    }

    /// Begins to write, after it was seen that what is there can be read.
    pub(super) fn begin(&self) -> Result<(), MetaError> {
        self.mirror.begin()
    }

    fn read_position(&self) -> Result<Position, MetaError> {
        let Some(state) = table(self.db.read().as_ref(), STATE)? else {
            return Ok(Position::default());
        };
        let Some(value) = state.get(POSITION_KEY).map_err(poisoned)? else {
            return Ok(Position::default());
        };
        decode_position(value.value()).map_err(MetaError::poisoned)
    }

    fn try_commit(&self, commit: &mut Commit<'_>) -> Result<(), redb::Error> {
        let db = self.db.read();
        let Some(db) = db.as_ref() else {
            return Err(redb::Error::DatabaseClosed);
        };
        let mut transaction = db.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        transaction.set_quick_repair(true);
        put_all(&transaction, commit)?;
        transaction.commit()?;
        Ok(())
    }

    /// Does a piece of work on the copies, unless a commit is being made: between commits no page is half
    /// of one that there is no space for.
    fn between_commits(
        &self,
        work: impl FnOnce(&Mirror) -> io::Result<bool>,
    ) -> Result<bool, MetaError> {
        match self.committing.try_lock() {
            Some(_committing) => self.work_on_copies(work),
            None => Ok(true),
        }
    }

    /// Does a piece of work on the copies, while no commit is made. It comes to nothing if one of them has
    /// no space.
    fn work_on_copies<T: Default>(
        &self,
        work: impl FnOnce(&Mirror) -> io::Result<T>,
    ) -> Result<T, MetaError> {
        match work(&self.mirror) {
            Ok(done) => Ok(done),
            Err(_) if self.mirror.ran_out_of_space() => {
                self.reopen()?;
                Ok(T::default())
            }
            Err(error) => Err(MetaError::poisoned(error)),
        }
    }

    /// Puts another view, or none, in the place of the one of the commit before.
    fn replace_view(&self, made: Option<Arc<dyn Snapshot>>) {
        let mut view = self.view.write();
        view.commits += 1;
        let old = std::mem::replace(&mut view.made, made);
        drop(view);
        // With the last reader of the old one, a transaction ends.
        drop(old);
    }

    /// Keeps readers out, and waits a moment for those who read already.
    fn try_compact(&self) -> Result<(), CompactionError> {
        let mut db = self.db.write();
        self.replace_view(None);
        let db = db.as_mut().ok_or(CompactionError::TransactionInProgress)?;
        for _ in 0..COMPACTION_TRIES {
            match db.compact() {
                Err(CompactionError::TransactionInProgress) => std::thread::sleep(READERS_PAUSE),
                done => return done.map(drop),
            }
        }
        Err(CompactionError::TransactionInProgress)
    }

    /// Has the database read all that it is made of from the copies, and verify it. Nobody reads meanwhile.
    fn read_everything(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        self.replace_view(None);
        let db = db.as_mut().ok_or(MetaError::Closed)?;
        if !db.check_integrity().map_err(poisoned)? {
            log::warn!("the index does not count its free pages rightly");
        }
        Ok(())
    }

    /// Goes back to the last commit, after one for which there was no space.
    fn reopen(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        // The old one is gone before anything is undone beneath it.
        self.replace_view(None);
        *db = None;
        self.mirror.reset().map_err(MetaError::poisoned)?;
        *db = match open_db(&self.mirror, self.cache_bytes) {
            Err(MetaError::NoSpace) => {
                self.mirror.suspend();
                Some(open_db(&self.mirror, self.cache_bytes)?)
            }
            opened => Some(opened?),
        };
        Ok(())
    }
}

/// Opens a table of the last commit, if it exists.
fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
    db: Option<&Database>,
    table: TableDefinition<'_, K, V>,
) -> Result<Option<ReadOnlyTable<K, V>>, MetaError> {
    let transaction = db
        .ok_or(MetaError::Closed)?
        .begin_read()
        .map_err(poisoned)?;
    match transaction.open_table(table) {
        Ok(table) => Ok(Some(table)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(poisoned(error)),
    }
}

fn open_db(mirror: &Arc<Mirror>, cache_bytes: usize) -> Result<Database, MetaError> {
    let opened = Builder::new()
        .set_cache_size(cache_bytes)
        .create_with_backend(mirror.backend());
    opened.map_err(|error| {
        if mirror.ran_out_of_space() {
            MetaError::NoSpace
        } else {
            poisoned(error)
        }
    })
}

fn put_all(transaction: &WriteTransaction, commit: &mut Commit<'_>) -> Result<(), redb::Error> {
    let mut records = transaction.open_table(RECORDS)?;
    for (key, value) in commit.changes.by_ref() {
        match value {
            Some(value) => records.insert(&**key, &**value)?,
            None => records.remove(&**key)?,
        };
    }
    if let Some(data) = commit.carried {
        let mut carried = transaction.open_table(CARRIED)?;
        carried.retain(|_, _| false)?;
        for (number, data) in (0..).zip(data) {
            carried.insert(number, &*encode_carried(data))?;
        }
    }
    let position = encode_position(commit.position);
    transaction
        .open_table(STATE)?
        .insert(POSITION_KEY, &*position)?;
    Ok(())
}

impl Index for RedbIndex {
    fn view(&self) -> Option<Arc<dyn Snapshot>> {
        self.view.read().made.clone()
    }

    fn make_view(&self) -> Result<(), MetaError> {
        let db = self.db.read();
        let commits = self.view.read().commits;
        let made: Arc<dyn Snapshot> = Arc::new(table(db.as_ref(), RECORDS)?);
        let mut view = self.view.write();
        if view.commits == commits && view.made.is_none() {
            view.made = Some(made);
        }
        Ok(())
    }

    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError> {
        let _committing = self.committing.lock();
        if self.mirror.ran_out_of_space() {
            self.reopen()?;
            if self.mirror.ran_out_of_space() {
                // The database would take the commit, and only the database.
                return Err(MetaError::NoSpace);
            }
        }
        match self.try_commit(commit) {
            Ok(()) => {
                *self.position.lock() = commit.position;
                let made = table(self.db.read().as_ref(), RECORDS);
                // Until here the view of the commit before was as good: its changes are still in
                // the overlay. What keeps the next from being made, those meet who read.
                self.replace_view(made.ok().map(|table| Arc::new(table) as Arc<dyn Snapshot>));
                Ok(())
            }
            Err(_) if self.mirror.ran_out_of_space() => {
                self.reopen()?;
                Err(MetaError::NoSpace)
            }
            Err(error) => Err(poisoned(error)),
        }
    }

    fn settle(&self) {
        drop(self.committing.lock());
    }

    fn position(&self) -> Position {
        *self.position.lock()
    }

    fn carried(&self) -> Result<Vec<StripeData>, MetaError> {
        let Some(table) = table(self.db.read().as_ref(), CARRIED)? else {
            return Ok(Vec::new());
        };
        let mut carried = Vec::new();
        for entry in table.iter().map_err(poisoned)? {
            let (_, value) = entry.map_err(poisoned)?;
            carried.push(decode_carried(value.value()).map_err(MetaError::poisoned)?);
        }
        Ok(carried)
    }

    fn refill(&self) -> Result<bool, MetaError> {
        self.between_commits(Mirror::refill)
    }

    fn compare(&self) -> Result<bool, MetaError> {
        self.between_commits(Mirror::compare)
    }

    fn verify(&self, first: u64) -> Result<Option<VerifiedIndex>, MetaError> {
        let _committing = self.committing.lock();
        self.work_on_copies(|mirror| mirror.verify(first))
    }

    fn survey(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        let _committing = self.committing.lock();
        self.mirror.survey(|| self.read_everything())
    }

    fn mended_pages(&self) -> u64 {
        self.mirror.mended_pages()
    }

    fn copies(&self) -> Vec<MemberIndex> {
        self.mirror.found_copies()
    }

    fn holders(&self) -> Vec<MemberIndex> {
        self.mirror.members()
    }

    fn bytes(&self) -> u64 {
        self.mirror.db_bytes()
    }

    fn reserve_bytes(&self) -> u64 {
        self.mirror.ballast_bytes()
    }

    fn leave(&self, members: &[MemberIndex]) {
        self.mirror.leave(members);
    }

    fn give_reserve(&self) {
        self.mirror.drop_ballast();
    }

    fn keep_reserve(&self) -> bool {
        self.mirror.keep_ballast()
    }

    fn compact(&self) -> Result<bool, MetaError> {
        let _committing = self.committing.lock();
        if self.mirror.ran_out_of_space() {
            self.reopen()?;
            if self.mirror.ran_out_of_space() {
                return Err(MetaError::NoSpace);
            }
        }
        let before = self.mirror.db_bytes();
        let compacted = self.try_compact();
        let after = self.mirror.db_bytes();
        log::info!("the index had {before} bytes and has {after}: {compacted:?}");
        match compacted {
            Ok(()) => Ok(after < before),
            Err(CompactionError::TransactionInProgress) => Err(MetaError::NoSpace),
            Err(_) if self.mirror.ran_out_of_space() => {
                self.reopen()?;
                Err(MetaError::NoSpace)
            }
            Err(error) => Err(poisoned(error)),
        }
    }

    fn close(&self) {
        let _committing = self.committing.lock();
        let mut db = self.db.write();
        self.replace_view(None);
        *db = None;
    }
}

impl Snapshot for Option<ReadOnlyTable<&'static [u8], &'static [u8]>> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        let Some(table) = self else { return Ok(None) };
        let value = table.get(key).map_err(poisoned)?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    fn visit(&self, range: KeyRange<'_>, visit: &mut Visit<'_>) -> Result<(), MetaError> {
        let Some(table) = self else { return Ok(()) };
        if range.is_empty() {
            return Ok(());
        }
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (range.from, range.end);
        for entry in table.range::<&[u8]>(bounds).map_err(poisoned)? {
            let (key, value) = entry.map_err(poisoned)?;
            if visit(key.value(), value.value()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn poisoned(error: impl Into<redb::Error>) -> MetaError {
    MetaError::poisoned(error.into())
}

fn encode_position(position: Position) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    out.put_u64_le(position.lsn.0);
    out.put_u64_le(position.life.number);
    out.put_u64_le(position.life.nonce);
    out
}

fn decode_position(bytes: &[u8]) -> Result<Position, FormatError> {
    let mut reader = Reader::new("index position", bytes);
    let lsn = Lsn(reader.u64()?);
    let life = Life {
        number: reader.u64()?,
        nonce: reader.u64()?,
    };
    reader.finish()?;
    Ok(Position { lsn, life })
}

fn encode_carried(data: &StripeData) -> Vec<u8> {
    let mut out = Vec::with_capacity(12 + data.bytes.len());
    out.put_u64_le(data.stripe.0);
    out.put_u32_le(data.offset);
    out.put_slice(&data.bytes);
    out
}

fn decode_carried(bytes: &[u8]) -> Result<StripeData, FormatError> {
    let mut reader = Reader::new("carried stripe data", bytes);
    let (stripe, offset) = (StripeId(reader.u64()?), reader.u32()?);
    Ok(StripeData {
        stripe,
        offset,
        bytes: Bytes::copy_from_slice(reader.rest()),
    })
}
