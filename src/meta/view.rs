//! Reading the newest state: the overlay's layers over a snapshot of the index.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use parking_lot::RwLock;

use super::batch::{Key, Value};
use super::error::MetaError;
use super::index::{Index, KeyRange, Snapshot, Visit};
use super::overlay::{Entry, Overlay};

/// Fewest and most changes of a layer that are looked at in one go.
const WINDOW: std::ops::RangeInclusive<usize> = 16..=4096;

/// Records of the index that are visited through one snapshot of it: an index is compacted only while
/// no snapshot is held.
const STRETCH: usize = 4096;

/// Returns a key's newest value.
pub(super) fn get(
    overlay: &RwLock<Overlay>,
    index: &dyn Index,
    key: &[u8],
) -> Result<Option<Value>, MetaError> {
    let look = || loop {
        let snapshot = {
            let overlay = overlay.read();
            if let Some(entry) = overlay.get(key) {
                return Ok(entry.value.clone());
            }
            // While the overlay is locked, no member is waited for, because all changes wait for that
            // lock.
            index.snapshot()
        };
        match snapshot {
            Some(snapshot) => return snapshot.get(key),
            None => index.take_snapshot()?,
        }
    };
    again(index, look)
}

/// Reads a second time if the first failed: the index may have been on its way back from a commit
/// for which there was no space.
fn again<T>(index: &dyn Index, read: impl Fn() -> Result<T, MetaError>) -> Result<T, MetaError> {
    read().or_else(|_| {
        index.prepare_retry();
        read()
    })
}

/// Returns the first `limit` keys from `from` to before `end` with their newest values.
///
/// The range is gone through in windows that are bounded in memory; each is a consistent view of
/// its part of the range.
pub(super) fn scan(
    overlay: &RwLock<Overlay>,
    index: &dyn Index,
    from: &[u8],
    end: &[u8],
    limit: usize,
) -> Result<Vec<(Key, Value)>, MetaError> {
    let mut found = Vec::new();
    let mut from = Bound::Included(Key::copy_from_slice(from));
    let mut window_len = limit.clamp(*WINDOW.start(), *WINDOW.end());
    loop {
        let start = from.as_ref().map(|key| &**key);
        if found.len() == limit
            || (KeyRange {
                from: start,
                end: Bound::Excluded(end),
            })
            .is_empty()
        {
            return Ok(found);
        }
        let wanted = limit - found.len();
        let look = || {
            let (window, upto, snapshot) = overlaid(overlay, index, start, end, window_len)?;
            let bound = upto
                .as_deref()
                .map_or(Bound::Excluded(end), Bound::Included);
            let range = KeyRange {
                from: start,
                end: bound,
            };
            Ok((merge(window, &*snapshot, range, wanted)?, upto))
        };
        let (entries, upto) = again(index, look)?;
        found.extend(entries);
        match upto {
            Some(upto) => from = Bound::Excluded(upto),
            None => return Ok(found),
        }
        // Many deleted keys in a row would otherwise take many rounds.
        window_len = (window_len * 4).min(*WINDOW.end());
    }
}

type Window = (BTreeMap<Key, Entry>, Option<Key>, Arc<dyn Snapshot>);

/// Returns a window of the overlay and a snapshot of the index. The snapshot is taken while the overlay cannot give anything
/// up to the index, so no key falls between the two.
fn overlaid(
    overlay: &RwLock<Overlay>,
    index: &dyn Index,
    start: Bound<&[u8]>,
    end: &[u8],
    window_len: usize,
) -> Result<Window, MetaError> {
    loop {
        {
            let overlay = overlay.read();
            if let Some(snapshot) = index.snapshot() {
                let (window, upto) = overlay.window(start, end, window_len);
                return Ok((window, upto, snapshot));
            }
        }
        index.take_snapshot()?;
    }
}

/// Returns the first `limit` of the newest entries of `range`.
fn merge(
    window: BTreeMap<Key, Entry>,
    snapshot: &dyn Snapshot,
    range: KeyRange<'_>,
    limit: usize,
) -> Result<Vec<(Key, Value)>, MetaError> {
    // Each change in the window hides at most one entry of the index.
    let mut indexed = snapshot
        .range(range, limit.saturating_add(window.len()))?
        .into_iter()
        .peekable();
    let mut found = Vec::new();
    let mut changed = window.into_iter().peekable();
    while found.len() < limit {
        let from_index = match (indexed.peek(), changed.peek()) {
            (None, None) => break,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((old, _)), Some((new, _))) => {
                let hidden = old == new;
                let first = old < new;
                if hidden {
                    indexed.next();
                }
                first
            }
        };
        if from_index {
            found.extend(indexed.next());
        } else if let Some((
            key,
            Entry {
                value: Some(value), ..
            },
        )) = changed.next()
        {
            found.push((key, value));
        }
    }
    Ok(found)
}

/// Calls `visit` with each key from `from` to before `end` and its newest value, in order, until it
/// breaks. Nothing is copied on the way.
///
/// The range is gone through in stretches that are bounded; each is a consistent view of its part of
/// the range.
pub(super) fn visit(
    overlay: &RwLock<Overlay>,
    index: &dyn Index,
    from: &[u8],
    end: &[u8],
    visit: &mut Visit<'_>,
) -> Result<(), MetaError> {
    let mut from = Bound::Included(Key::copy_from_slice(from));
    let mut failed = false;
    loop {
        let mut stretch = Stretch {
            last: Vec::new(),
            visited: 0,
            visit: &mut *visit,
        };
        let start = from.as_ref().map(|key| &**key);
        let next = stretch.walk(overlay, index, start, end);
        match next {
            Ok(Next::From(key)) => {
                from = Bound::Excluded(key);
                failed = false;
            }
            Ok(Next::Nothing) => return Ok(()),
            // As with `again`, after what was visited already.
            Err(_) if !failed => {
                failed = true;
                if stretch.visited > 0 {
                    from = Bound::Excluded(stretch.last.into());
                }
                index.prepare_retry();
            }
            Err(error) => return Err(error),
        }
    }
}

/// The point at which to go on after a stretch.
enum Next {
    /// Behind this key.
    From(Key),
    /// Nowhere: that was all, or all that was asked for.
    Nothing,
}

/// A part of a range that is visited through one snapshot.
struct Stretch<'a, 'v> {
    /// The last key that was visited, or passed over since it is deleted.
    last: Vec<u8>,
    visited: usize,
    visit: &'a mut Visit<'v>,
}

impl Stretch<'_, '_> {
    fn walk(
        &mut self,
        overlay: &RwLock<Overlay>,
        index: &dyn Index,
        start: Bound<&[u8]>,
        end: &[u8],
    ) -> Result<Next, MetaError> {
        let whole = KeyRange {
            from: start,
            end: Bound::Excluded(end),
        };
        if whole.is_empty() {
            return Ok(Next::Nothing);
        }
        let (window, upto, snapshot) = overlaid(overlay, index, start, end, *WINDOW.end())?;
        let bound = upto.as_deref().map_or(whole.end, Bound::Included);
        let range = KeyRange {
            from: start,
            end: bound,
        };
        let mut changed = window.into_iter().peekable();
        let mut left = STRETCH;
        let mut flow = ControlFlow::Continue(());
        snapshot.visit(range, &mut |key, value| {
            while let Some((new, entry)) = changed.next_if(|(new, _)| **new < *key) {
                flow = self.note(&new, entry.value.as_deref());
                if flow.is_break() {
                    return flow;
                }
            }
            let newer = changed.next_if(|(new, _)| **new == *key);
            flow = match &newer {
                Some((_, entry)) => self.note(key, entry.value.as_deref()),
                None => self.note(key, Some(value)),
            };
            left -= 1;
            if left == 0 {
                ControlFlow::Break(())
            } else {
                flow
            }
        })?;
        if flow.is_break() {
            return Ok(Next::Nothing);
        }
        if left == 0 {
            return Ok(Next::From(Key::copy_from_slice(&self.last)));
        }
        for (key, entry) in changed {
            if self.note(&key, entry.value.as_deref()).is_break() {
                return Ok(Next::Nothing);
            }
        }
        Ok(upto.map_or(Next::Nothing, Next::From))
    }

    fn note(&mut self, key: &[u8], value: Option<&[u8]>) -> ControlFlow<()> {
        self.visited += 1;
        self.last.clear();
        self.last.extend_from_slice(key);
        value.map_or(ControlFlow::Continue(()), |value| (self.visit)(key, value))
    }
}
