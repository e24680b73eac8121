//! The tables of the database, and the values in them.

use std::ops::{Bound, ControlFlow};

use bytes::{BufMut, Bytes};
use redb::{TableDefinition, WriteTransaction};

use super::contained::{Contained, ContainedTable, DatabaseFailure, open_table};
use crate::format::journal::{JournalGeneration, StripeData};
use crate::format::wire::Reader;
use crate::format::{FormatError, Lsn, StripeId};
use crate::metadata::error::MetaError;
use crate::metadata::index::{Commit, Position};

/// The table of records.
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");

/// The position, under [`POSITION_KEY`].
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const POSITION_KEY: &str = "position";

/// Unflushed stripe data that recovery took out of the journal, by its number; the value is stripe
/// `u64`, offset `u32` and the bytes.
const UNFLUSHED: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("carried");

/// The table of records, opened for reading; `None` if nothing was ever put into it.
pub(super) type RecordsTable = Option<ContainedTable<&'static [u8], &'static [u8]>>;

/// A failure to read what the database holds.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexFailure {
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

/// Opens the records of the last commit.
pub(super) fn records_in(db: Option<&Contained>) -> Result<RecordsTable, IndexFailure> {
    Ok(db.ok_or(IndexFailure::Closed)?.table(RECORDS)?)
}

/// Returns the position of the last commit.
pub(super) fn position_in(db: Option<&Contained>) -> Result<Position, IndexFailure> {
    let Some(state) = db.ok_or(IndexFailure::Closed)?.table(STATE)? else {
        return Ok(Position::default());
    };
    let position = state.get(POSITION_KEY, decode_position)?;
    Ok(position.transpose()?.unwrap_or_default())
}

/// Returns the unflushed stripe data of the last commit.
pub(super) fn unflushed_in(
    db: Option<&Contained>,
    stripe_bytes: u32,
) -> Result<Vec<StripeData>, IndexFailure> {
    let Some(table) = db.ok_or(IndexFailure::Closed)?.table(UNFLUSHED)? else {
        return Ok(Vec::new());
    };
    let mut unflushed = Vec::new();
    let mut decoded = Ok(());
    table.visit((Bound::Unbounded, Bound::Unbounded), |number, value| {
        // They are numbered from 0 on; a table that repeats itself is not.
        let data = if number == unflushed.len() as u64 {
            decode_unflushed(value, stripe_bytes)
        } else {
            Err(disordered("number of unflushed stripe data", number))
        };
        match data {
            Ok(data) => unflushed.push(data),
            Err(error) => decoded = Err(error),
        }
        if decoded.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    decoded?;
    Ok(unflushed)
}

fn disordered(field: &'static str, value: u64) -> FormatError {
    Reader::new("index", &[]).bad(field, value)
}

/// Puts everything of a commit into a transaction.
pub(super) fn put_all(
    transaction: &WriteTransaction,
    commit: &mut Commit<'_>,
) -> Result<(), redb::Error> {
    let mut records = open_table(transaction, RECORDS)?;
    for (key, value) in commit.changes.by_ref() {
        match value {
            Some(value) => records.insert(&**key, &**value)?,
            None => records.remove(&**key)?,
        };
    }
    if let Some(data) = commit.unflushed {
        let mut unflushed = open_table(transaction, UNFLUSHED)?;
        unflushed.retain(|_, _| false)?;
        for (number, data) in (0..).zip(data) {
            unflushed.insert(number, &*encode_unflushed(data))?;
        }
    }
    let position = encode_position(commit.position);
    open_table(transaction, STATE)?.insert(POSITION_KEY, &*position)?;
    Ok(())
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
    let generation = JournalGeneration {
        number: reader.count("journal generation")?,
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
    let mut reader = Reader::new("unflushed stripe data", bytes);
    let (stripe, offset) = (StripeId(reader.u64()?), reader.u32()?);
    let bytes = Bytes::copy_from_slice(reader.rest());
    StripeData::within(stripe_bytes, stripe, offset, bytes)
}
