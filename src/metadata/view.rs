//! Reading the newest state: the overlay's layers over a snapshot of the index.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::batch::Value;
use super::error::MetaError;
use super::index::{Index, KeyRange, Snapshot, Visit};
use super::layer::NumberedChange;
use super::shared_overlay::SharedOverlay;
use crate::format::key::Key;

/// Fewest and most changes of a layer that are looked at in one go.
const WINDOW: std::ops::RangeInclusive<usize> = 16..=4096;

/// Records of the index that are visited through one snapshot of it: an index is compacted only while
/// no snapshot is held.
const VISITED_AT_ONCE: usize = 4096;

/// The newest state: what the overlay holds, and what the index holds where the overlay has nothing newer.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) overlay: &'a SharedOverlay,
    pub(super) index: &'a dyn Index,
}

impl View<'_> {
    /// Returns a key's newest value.
    pub(super) fn get(self, key: &Key) -> Result<Option<Value>, MetaError> {
        self.read_again(|| {
            loop {
                // While the overlay is locked, no member is waited for.
                match self.overlay.get_or(key, || self.index.snapshot()) {
                    Ok(change) => return Ok(change.value),
                    Err(Some(snapshot)) => return snapshot.get(key),
                    Err(None) => self.index.take_snapshot()?,
                }
            }
        })
    }

    /// Reads a second time if the first failed: the index may have been on its way back from a commit
    /// for which there was no space.
    fn read_again<T>(self, read: impl Fn() -> Result<T, MetaError>) -> Result<T, MetaError> {
        read().or_else(|_| {
            self.index.prepare_retry();
            read()
        })
    }

    /// Returns the first `limit` keys from `from` to before `end` with their newest values.
    ///
    /// The range is gone through in windows that are bounded in memory; each is a consistent view of
    /// its part of the range.
    pub(super) fn scan(
        self,
        from: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, MetaError> {
        let mut found = Vec::new();
        let mut from = Bound::Included(Key::copy_from_slice(from));
        let mut window_len = limit.clamp(*WINDOW.start(), *WINDOW.end());
        loop {
            let whole = KeyRange {
                from: from.as_ref().map(|key| &**key),
                end: Bound::Excluded(end),
            };
            if found.len() == limit || whole.is_empty() {
                return Ok(found);
            }
            let wanted = limit - found.len();
            let (entries, upto) = self.read_again(|| {
                let (window, upto, snapshot) = self.window(whole.from, end, window_len)?;
                let range = KeyRange {
                    end: upto.as_deref().map_or(whole.end, Bound::Included),
                    ..whole
                };
                Ok((merge(window, &*snapshot, range, wanted)?, upto))
            })?;
            found.extend(entries);
            match upto {
                Some(upto) => from = Bound::Excluded(upto),
                None => return Ok(found),
            }
            // Many deleted keys in a row would otherwise take many rounds.
            window_len = (window_len * 4).min(*WINDOW.end());
        }
    }

    /// Returns whether any key from `from` to before `end` has a value. Unlike a scan for one key, this is one consistent
    /// view: no key can move from the rest of the range to a part that was read already. If no newest change in the overlay
    /// is a value, it takes memory for all changes of the range that the index does not have.
    pub(super) fn has_any(self, from: &[u8], end: &[u8]) -> Result<bool, MetaError> {
        let range = KeyRange {
            from: Bound::Included(from),
            end: Bound::Excluded(end),
        };
        if range.is_empty() {
            return Ok(false);
        }
        // This is a view of its own, and most ranges need no other: a stripe in use often has a change that says so.
        if self.overlay.read(range.from, end).has_value() {
            return Ok(true);
        }
        self.read_again(|| {
            let (window, _, snapshot) = self.window(range.from, end, usize::MAX)?;
            Ok(!merge(window, &*snapshot, range, 1)?.is_empty())
        })
    }

    /// Returns a window of the overlay and a snapshot of the index. The snapshot is taken while the overlay cannot give
    /// anything up to the index, so no key falls between the two.
    fn window(
        self,
        start: Bound<&[u8]>,
        end: &[u8],
        window_len: usize,
    ) -> Result<Window, MetaError> {
        loop {
            {
                let overlay = self.overlay.read(start, end);
                if let Some(snapshot) = self.index.snapshot() {
                    let (window, upto) = overlay.window(window_len);
                    return Ok((window, upto, snapshot));
                }
            }
            self.index.take_snapshot()?;
        }
    }

    /// Calls `visit` with each key from `from` to before `end` and its newest value, in order, until it
    /// breaks. Nothing is copied on the way.
    ///
    /// The range is gone through in parts that are bounded; each is a consistent view of its part of
    /// the range.
    pub(super) fn visit(
        self,
        from: &[u8],
        end: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<(), MetaError> {
        let mut from = Bound::Included(Key::copy_from_slice(from));
        let mut failed = false;
        loop {
            let mut part = PartialVisit {
                last: Vec::new(),
                visited: 0,
                visit: &mut *visit,
            };
            let start = from.as_ref().map(|key| &**key);
            match part.run(self, start, end) {
                Ok(Resume::After(key)) => {
                    from = Bound::Excluded(key);
                    failed = false;
                }
                Ok(Resume::Never) => return Ok(()),
                // As with `read_again`, after what was visited already.
                Err(_) if !failed => {
                    failed = true;
                    if part.visited > 0 {
                        from = Bound::Excluded(part.last.into());
                    }
                    self.index.prepare_retry();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

type Window = (
    BTreeMap<Key, NumberedChange>,
    Option<Key>,
    Arc<dyn Snapshot>,
);

/// Returns the first `limit` of the newest entries of `range`.
fn merge(
    window: BTreeMap<Key, NumberedChange>,
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
            NumberedChange {
                value: Some(value), ..
            },
        )) = changed.next()
        {
            found.push((key, value));
        }
    }
    Ok(found)
}

/// The point at which a visit resumes after a part of it.
enum Resume {
    /// After this key.
    After(Key),
    /// Nowhere: that was all, or all that was asked for.
    Never,
}

/// A part of a range that is visited through one snapshot.
struct PartialVisit<'a, 'v> {
    /// The last key that was visited, or passed over since it is deleted.
    last: Vec<u8>,
    visited: usize,
    visit: &'a mut Visit<'v>,
}

impl PartialVisit<'_, '_> {
    fn run(
        &mut self,
        view: View<'_>,
        start: Bound<&[u8]>,
        end: &[u8],
    ) -> Result<Resume, MetaError> {
        let whole = KeyRange {
            from: start,
            end: Bound::Excluded(end),
        };
        if whole.is_empty() {
            return Ok(Resume::Never);
        }
        let (window, upto, snapshot) = view.window(start, end, *WINDOW.end())?;
        let bound = upto.as_deref().map_or(whole.end, Bound::Included);
        let range = KeyRange {
            from: start,
            end: bound,
        };
        let mut changed = window.into_iter().peekable();
        let mut left = VISITED_AT_ONCE;
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
            return Ok(Resume::Never);
        }
        if left == 0 {
            return Ok(Resume::After(Key::copy_from_slice(&self.last)));
        }
        for (key, entry) in changed {
            if self.note(&key, entry.value.as_deref()).is_break() {
                return Ok(Resume::Never);
            }
        }
        Ok(upto.map_or(Resume::Never, Resume::After))
    }

    fn note(&mut self, key: &[u8], value: Option<&[u8]>) -> ControlFlow<()> {
        self.visited += 1;
        self.last.clear();
        self.last.extend_from_slice(key);
        value.map_or(ControlFlow::Continue(()), |value| (self.visit)(key, value))
    }
}
