//! Reading the newest state: the overlay's layers over a view of the index.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;

use super::index::{Index, KeyRange, Snapshot};
use super::overlay::{Entry, Overlay};
use super::{Key, MetaError, Value};

/// Fewest and most changes of a layer that are looked at in one go.
const WINDOW: std::ops::RangeInclusive<usize> = 16..=4096;

/// Returns a key's newest value.
pub(super) fn get(
    overlay: &RwLock<Overlay>,
    index: &dyn Index,
    key: &[u8],
) -> Result<Option<Value>, MetaError> {
    let look = || loop {
        let view = {
            let overlay = overlay.read();
            if let Some(entry) = overlay.get(key) {
                return Ok(entry.value.clone());
            }
            // While the overlay is locked, no member is waited for: all who change anything wait for
            // that lock.
            index.view()
        };
        match view {
            Some(view) => return view.get(key),
            None => index.make_view()?,
        }
    };
    again(index, look)
}

/// Reads a second time if the first failed: the index may have been on its way back from a commit
/// for which there was no space.
fn again<T>(index: &dyn Index, read: impl Fn() -> Result<T, MetaError>) -> Result<T, MetaError> {
    read().or_else(|_| {
        index.settle();
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

/// Returns a window of the overlay and a view of the index. That is taken while the overlay cannot give
/// anything up to it, so no key falls between the two.
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
            if let Some(view) = index.view() {
                let (window, upto) = overlay.window(start, end, window_len);
                return Ok((window, upto, view));
            }
        }
        index.make_view()?;
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
