//! Bringing changes into the index, also when there is hardly any space for that.
//!
//! A commit of the index needs space for every page that it changes, before it frees what these pages
//! were. If there is not enough for all changes at once, they go piece by piece, with what the index
//! keeps back. Only changes that are in the journal may: until the last piece is in, the index says
//! that it lacks all of them, and recovery brings them in again.

use super::batch::{Key, Value};
use super::error::MetaError;
use super::index::{Commit, Index, Position};
use super::overlay::{Entry, Layer};
use crate::format::journal::StripeData;

/// A piece takes at most this part of what is kept back: the one before it has not freed its pages
/// yet, and neither has the one before that.
const RESERVE_PART: u64 = 4;

/// Space for the page of a change, and what that costs in the pages above it.
const CHANGE_BYTES: u64 = 4096 + 512;

/// The changes that the index is to take in.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    /// Changes that are in the journal.
    pub(super) journaled: &'a Layer,
    /// Newer changes that are not: all of them at once or none.
    pub(super) units: &'a [(Key, Entry)],
    /// The position of the index after all of them.
    pub(super) position: Position,
    /// Unflushed stripe data that it is to keep from then on.
    pub(super) unflushed: &'a [StripeData],
}

impl<'a> Progress<'a> {
    /// Returns all changes, newer ones of a key after older ones.
    pub(super) fn changes(&self) -> impl Iterator<Item = (&'a Key, Option<&'a Value>)> + use<'a> {
        let journaled: &'a Layer = self.journaled;
        layer_changes(journaled).chain(self.units.iter().map(change))
    }
}

/// Brings all of it into the index, with one commit if there is space for it.
///
/// # Errors
///
/// [`MetaError::NoSpace`]: the index is where it was, although it may hold some of the journaled
/// changes.
pub(super) fn bring_in(index: &dyn Index, progress: &Progress<'_>) -> Result<(), MetaError> {
    let whole = commit(index, progress.changes(), progress);
    if !matches!(whole, Err(MetaError::NoSpace)) {
        return whole;
    }
    let reserve_bytes = index.release_reserve();
    let outset = index.position();
    for piece in pieces(progress.journaled, reserve_bytes / RESERVE_PART) {
        index.commit(&mut Commit {
            changes: Box::new(piece.into_iter()),
            position: outset,
            unflushed: None,
        })?;
    }
    commit(index, progress.units.iter().map(change), progress)
}

fn commit<'a>(
    index: &dyn Index,
    changes: impl Iterator<Item = (&'a Key, Option<&'a Value>)> + 'a,
    progress: &Progress<'a>,
) -> Result<(), MetaError> {
    index.commit(&mut Commit {
        changes: Box::new(changes),
        position: progress.position,
        unflushed: Some(progress.unflushed),
    })
}

fn change((key, entry): &(Key, Entry)) -> (&Key, Option<&Value>) {
    (key, entry.value.as_ref())
}

fn layer_changes(layer: &Layer) -> impl Iterator<Item = (&Key, Option<&Value>)> {
    layer.iter().map(|(key, entry)| (key, entry.value.as_ref()))
}

type Piece<'a> = Vec<(&'a Key, Option<&'a Value>)>;

/// Cuts a layer into runs that each take at most `limit` bytes of pages, or are a single change.
fn pieces(layer: &Layer, limit: u64) -> impl Iterator<Item = Piece<'_>> {
    let mut changes = layer_changes(layer).peekable();
    std::iter::from_fn(move || {
        let mut piece = vec![changes.next()?];
        let mut bytes = cost(piece[0].1);
        while let Some((_, value)) = changes.peek()
            && bytes + cost(*value) <= limit
        {
            bytes += cost(*value);
            piece.extend(changes.next());
        }
        Some(piece)
    })
}

/// Twice the value: pages have a power of two of bytes.
fn cost(value: Option<&Value>) -> u64 {
    CHANGE_BYTES + value.map_or(0, |value| 2 * value.len() as u64)
}
