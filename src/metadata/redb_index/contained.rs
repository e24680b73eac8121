//! The database behind the index, with its panics contained.
//!
//! The database asserts much about pages that it wrote itself. A volume from elsewhere can hold pages that
//! it never wrote, with right checksums: then it panics while it opens, reads, commits, compacts or closes. Such a
//! panic is damage of the index, reported as an error, and no bug of this program.
//!
//! # Invariants
//!
//! - Every call into the database, each drop of one of its values included, runs inside [`Containment::call`].
//!   No other module imports the database's types, beside the storage trait.
//! - After the first panic nothing calls the database again, and its values are leaked: its locks are poisoned,
//!   so a drop would panic as well, and a second panic while one unwinds aborts the process. The leak is bounded by the
//!   cache; the storage that it holds knows the copies weakly, so no directory lock leaks with it.

use std::any::Any;
use std::cell::Cell;
use std::mem;
use std::ops::{Bound, ControlFlow, Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;

use redb::{
    Builder, CompactionError, Database, Durability, Key, Range, ReadOnlyTable, ReadableDatabase,
    ReadableTable, StorageBackend, Table, TableDefinition, TableError, Value, WriteTransaction,
};

thread_local! {
    /// True if this thread is inside a contained call.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a panic of this thread would be contained just now: it is reported as damage of a volume
/// then, and no crash.
#[must_use]
pub fn is_panic_contained() -> bool {
    INSIDE.get()
}

/// A failure of the database.
#[derive(Debug, thiserror::Error)]
pub(super) enum DatabaseFailure {
    /// The database panicked, now or before, or was given up.
    #[error("its content makes the database panic: {0}")]
    Panicked(String),
    /// Compaction waits for readers.
    #[error("the database is being read")]
    Busy,
    /// The database reported an error.
    #[error(transparent)]
    Error(#[from] redb::Error),
}

impl DatabaseFailure {
    /// Returns whether the content of the database is at fault.
    pub(super) fn is_content(&self) -> bool {
        match self {
            Self::Panicked(_) => true,
            Self::Busy => false,
            Self::Error(error) => matches!(
                error,
                redb::Error::Corrupted(_)
                    | redb::Error::TableTypeMismatch { .. }
                    | redb::Error::TypeDefinitionChanged { .. }
                    | redb::Error::TableIsMultimap(_)
                    | redb::Error::TableIsNotMultimap(_)
            ),
        }
    }
}

fn failure(error: impl Into<redb::Error>) -> DatabaseFailure {
    DatabaseFailure::Error(error.into())
}

/// A boundary that no panic of one database crosses.
#[derive(Debug, Default)]
struct Containment {
    /// The first panic, or why nothing is called any more.
    panicked: OnceLock<String>,
}

impl Containment {
    /// Runs a piece of work that calls the database.
    ///
    /// # Errors
    ///
    /// [`DatabaseFailure::Panicked`] if the work panics, or any did before.
    fn call<T>(&self, work: impl FnOnce() -> T) -> Result<T, DatabaseFailure> {
        self.call_around(&Visitor::default(), work)
    }

    /// The same for work that shows entries to a visitor, whose panics pass through.
    fn call_around<T>(
        &self,
        visitor: &Visitor,
        work: impl FnOnce() -> T,
    ) -> Result<T, DatabaseFailure> {
        if let Some(reason) = self.panicked.get() {
            return Err(DatabaseFailure::Panicked(reason.clone()));
        }
        let outside = INSIDE.replace(true);
        let done = catch_unwind(AssertUnwindSafe(work));
        INSIDE.set(outside);
        done.map_err(|payload| {
            if visitor.is_running.get() {
                resume_unwind(payload);
            }
            self.note(&*payload)
        })
    }

    #[cold]
    fn note(&self, payload: &(dyn Any + Send)) -> DatabaseFailure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        // A text may quote what lies in a page.
        let line = text.unwrap_or("no message").lines().next();
        let reason: String = line.unwrap_or_default().escape_debug().take(200).collect();
        DatabaseFailure::Panicked(self.panicked.get_or_init(|| reason).clone())
    }

    fn is_intact(&self) -> bool {
        self.panicked.get().is_none()
    }
}

/// A value of the database: dropped inside the boundary, or leaked after a panic.
struct ContainedValue<T, C: Deref<Target = Containment>> {
    value: Option<T>,
    boundary: C,
}

impl<T, C: Deref<Target = Containment>> ContainedValue<T, C> {
    fn new(value: T, boundary: C) -> Self {
        Self {
            value: Some(value),
            boundary,
        }
    }

    fn call<R>(&self, work: impl FnOnce(&T) -> R) -> Result<R, DatabaseFailure> {
        let value = self.value.as_ref();
        let work = || work(value.expect("a value is held until it is taken"));
        self.boundary.call(work)
    }

    fn call_mut<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> Result<R, DatabaseFailure> {
        let value = self.value.as_mut();
        let work = || work(value.expect("a value is held until it is taken"));
        self.boundary.call(work)
    }

    /// Gives the value to a piece of work that consumes it.
    fn finish<R>(mut self, work: impl FnOnce(T) -> R) -> Result<R, DatabaseFailure> {
        let value = self.value.take();
        let work = || work(value.expect("a value is held until it is taken"));
        self.boundary.call(work)
    }
}

impl<T, C: Deref<Target = Containment>> Drop for ContainedValue<T, C> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.boundary.is_intact() {
            // A panic here is noted for every later call; closing has nothing to return it to.
            if let Err(failure) = self.boundary.call(|| drop(value)) {
                tracing::warn!("a copy of the index cannot be closed in order: {failure}");
            }
        } else {
            mem::forget(value);
        }
    }
}

/// An open database.
pub(super) struct Contained {
    database: ContainedValue<Database, Arc<Containment>>,
}

impl Contained {
    /// Opens the database that lies in `storage`, or makes one in an empty storage.
    pub(super) fn open(
        storage: impl StorageBackend,
        cache_bytes: usize,
    ) -> Result<Self, DatabaseFailure> {
        let boundary = Arc::new(Containment::default());
        let open = || {
            Builder::new()
                .set_cache_size(cache_bytes)
                .create_with_backend(storage)
        };
        let database = boundary.call(open)?.map_err(failure)?;
        Ok(Self {
            database: ContainedValue::new(database, boundary),
        })
    }

    /// Closes the database in order.
    pub(super) fn close(self) -> Result<(), DatabaseFailure> {
        self.database.finish(drop)
    }

    /// Gives the database up without closing it, which would write what it has read to all copies. Reads that are
    /// under way fail.
    pub(super) fn abandon(self) {
        let reason = "another copy is read instead".to_owned();
        let _ = self.database.boundary.panicked.set(reason);
    }

    /// Opens a table of the last commit, if it exists.
    pub(super) fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        definition: TableDefinition<'_, K, V>,
    ) -> Result<Option<ContainedTable<K, V>>, DatabaseFailure> {
        let open = |database: &Database| {
            let transaction = database.begin_read().map_err(failure)?;
            match transaction.open_table(definition) {
                Ok(table) => Ok(Some(table)),
                Err(TableError::TableDoesNotExist(_)) => Ok(None),
                Err(error) => Err(failure(error)),
            }
        };
        let table = self.database.call(open)??;
        let boundary = &self.database.boundary;
        Ok(table.map(|table| ContainedTable(ContainedValue::new(table, Arc::clone(boundary)))))
    }

    /// Makes everything that `work` changes durable in one commit.
    pub(super) fn commit(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), DatabaseFailure> {
        let begin = |database: &Database| {
            let mut transaction = database.begin_write().map_err(failure)?;
            transaction
                .set_durability(Durability::Immediate)
                .map_err(failure)?;
            transaction.set_quick_repair(true);
            Ok::<_, DatabaseFailure>(transaction)
        };
        // Outside the call below, so that a panic of the work leaks the transaction, where its drop would take
        // locks that are poisoned.
        let transaction =
            ContainedValue::new(self.database.call(begin)??, &*self.database.boundary);
        transaction.call(work)??;
        transaction
            .finish(WriteTransaction::commit)?
            .map_err(failure)
    }

    /// Moves pages together, unless a reader is in the way.
    pub(super) fn compact(&mut self) -> Result<bool, DatabaseFailure> {
        match self.database.call_mut(Database::compact)? {
            Err(CompactionError::TransactionInProgress) => Err(DatabaseFailure::Busy),
            done => done.map_err(failure),
        }
    }

    /// Reads every page and verifies the database's own checksums. Returns whether its free pages are counted
    /// right.
    pub(super) fn verify(&mut self) -> Result<bool, DatabaseFailure> {
        let verified = self.database.call_mut(Database::check_integrity)?;
        verified.map_err(failure)
    }
}

/// Opens a table of a transaction. A panic leaks it: its drop would take locks that are poisoned then.
pub(super) fn open_table<'t, K: Key + 'static, V: Value + 'static>(
    transaction: &'t WriteTransaction,
    definition: TableDefinition<'_, K, V>,
) -> Result<impl DerefMut<Target = Table<'t, K, V>>, redb::Error> {
    let table = transaction.open_table(definition)?;
    Ok(scopeguard::guard(table, |table| {
        if thread::panicking() {
            mem::forget(table);
        }
    }))
}

/// A table of one commit.
pub(super) struct ContainedTable<K: Key + 'static, V: Value + 'static>(
    ContainedValue<ReadOnlyTable<K, V>, Arc<Containment>>,
);

impl<K: Key + 'static, V: Value + 'static> ContainedTable<K, V> {
    /// Returns what `take` makes of a key's value.
    pub(super) fn get<T>(
        &self,
        key: K::SelfType<'_>,
        take: impl FnOnce(V::SelfType<'_>) -> T,
    ) -> Result<Option<T>, DatabaseFailure> {
        let get = |table: &ReadOnlyTable<K, V>| {
            let value = ReadableTable::get(table, key)?;
            Ok(value.map(|value| take(value.value())))
        };
        self.0
            .call(get)?
            .map_err(|error: redb::StorageError| failure(error))
    }

    /// Calls `visit` with every key within the bounds and its value, until it breaks. A panic of `visit` is
    /// not contained.
    pub(super) fn visit<'k>(
        &self,
        bounds: (Bound<K::SelfType<'k>>, Bound<K::SelfType<'k>>),
        mut visit: impl FnMut(K::SelfType<'_>, V::SelfType<'_>) -> ControlFlow<()>,
    ) -> Result<(), DatabaseFailure> {
        let open = |table: &ReadOnlyTable<K, V>| table.range::<K::SelfType<'k>>(bounds);
        // Outside the call below, so that a panic leaks it.
        let mut range =
            ContainedValue::new(self.0.call(open)?.map_err(failure)?, &*self.0.boundary);
        let visitor = Visitor::default();
        // One boundary around all entries: one around each would cost more than the entry.
        let mut walk = |range: &mut Range<'_, K, V>| {
            for entry in range {
                let (key, value) = entry?;
                let (key, value) = (key.value(), value.value());
                if visitor.enter(|| visit(key, value)).is_break() {
                    break;
                }
            }
            Ok(())
        };
        let walked = range
            .value
            .as_mut()
            .map(|range| self.0.boundary.call_around(&visitor, move || walk(range)));
        walked
            .unwrap_or(Ok(Ok(())))?
            .map_err(|error: redb::StorageError| failure(error))
    }
}

/// A visitor that the database's entries are shown to. Its own panics are not the database's.
#[derive(Default)]
struct Visitor {
    is_running: Cell<bool>,
}

impl Visitor {
    fn enter<T>(&self, visit: impl FnOnce() -> T) -> T {
        self.is_running.set(true);
        INSIDE.set(false);
        let done = visit();
        INSIDE.set(true);
        self.is_running.set(false);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use redb::TypeName;
    use redb::backends::InMemoryBackend;

    use super::*;

    const SOUND: TableDefinition<'_, u64, u64> = TableDefinition::new("sound");
    const BOMB: TableDefinition<'_, Bomb, u64> = TableDefinition::new("bomb");

    /// A key that makes the database panic while it opens a table, with its lock of tables taken.
    #[derive(Debug)]
    struct Bomb;

    impl Value for Bomb {
        type SelfType<'a> = Bomb;
        type AsBytes<'a> = [u8; 0];

        fn fixed_width() -> Option<usize> {
            Some(0)
        }

        fn from_bytes<'a>(_: &'a [u8]) -> Bomb
        where
            Self: 'a,
        {
            Bomb
        }

        fn as_bytes<'a, 'b: 'a>(_: &'a Bomb) -> [u8; 0]
        where
            Self: 'b,
        {
            []
        }

        fn type_name() -> TypeName {
            panic!("the bomb explodes")
        }
    }

    impl Key for Bomb {
        fn compare(_: &[u8], _: &[u8]) -> Ordering {
            Ordering::Equal
        }
    }

    #[test]
    fn a_panic_while_a_table_is_opened_leaks_the_tables_that_are_open() {
        let database = Contained::open(InMemoryBackend::new(), 1 << 20).expect("it is empty");
        let committed = database.commit(|transaction| {
            let mut sound = open_table(transaction, SOUND)?;
            sound.insert(1, 1)?;
            let _bomb = open_table(transaction, BOMB)?;
            Ok(())
        });
        let failure = committed.expect_err("it panics");
        assert!(
            failure.to_string().contains("the bomb explodes"),
            "{failure}"
        );
        let again = database.commit(|_| Ok(())).expect_err("nothing is called");
        assert!(again.is_content(), "{again}");
    }
}
