//! Extents in memory: the runs of files that were used lately, decoded.
//!
//! A file is cut into pages of equal length. The cache holds the runs of one page together. So a lookup costs the same
//! in a file of any length. A change of extents concerns the pages that the changed runs touch, and brings those in the
//! cache up to date: the next change of a neighbour reads no record.
//!
//! # Invariants
//!
//! - No thread reads the runs of a file while they change: the caller holds the lock of the inode.
//! - A page that was read from an earlier source than the present one is never returned.

use std::ops::Range;
use std::sync::Arc;

use super::run::Run;
use crate::format::Ino;
use crate::metadata::FreshCache;

/// The bytes of a file in one page. A page of a file of small extents holds few of them, and the pages of a long file
/// take little memory.
const PAGE_BYTES: u64 = 512 << 10;

/// The bytes of a usual entry.
const USUAL_BYTES: usize = 256;

/// The most runs of a page that a change reads into the cache. Reading more for one change is not worthwhile.
pub(crate) const MAX_FILLED_RUNS: usize = 32;

/// The most runs of a page that is brought up to date, because a change copies all of them.
const MAX_UPDATED_RUNS: usize = 512;

/// The most runs that one change copies to bring pages up to date.
const MAX_COPIED_RUNS: usize = 4 * MAX_UPDATED_RUNS;

/// The most bytes of a file that one change should look up here. More of them lie in too many pages.
pub(crate) const MAX_CHANGED_BYTES: u64 = 2 << 20;

/// The number of a page in a file.
type PageIndex = u64;

/// The runs that overlap one page of a file, whole and in order.
#[derive(Clone)]
struct ExtentPage {
    /// The source of the records that they were read from.
    source: u64,
    /// None if a change found too many of them.
    runs: Option<Arc<Vec<Run>>>,
}

/// Returns those of the runs of a page that overlap `range`.
fn within<'a>(runs: &'a [Run], range: &Range<u64>) -> &'a [Run] {
    let first = runs.partition_point(|run| run.end() <= range.start);
    let behind = runs.partition_point(|run| run.start < range.end);
    runs.get(first..behind).unwrap_or_default()
}

/// The changes of the runs of files that one edit makes, in order.
#[derive(Debug, Default)]
pub(crate) struct RunChanges(Vec<RunChange>);

#[derive(Debug)]
struct RunChange {
    ino: Ino,
    run: Run,
    is_added: bool,
}

impl RunChanges {
    /// Notes a run that a file gets.
    pub(crate) fn add(&mut self, ino: Ino, run: Run) {
        self.push(ino, run, true);
    }

    /// Notes a run that a file loses.
    pub(crate) fn remove(&mut self, ino: Ino, run: Run) {
        self.push(ino, run, false);
    }

    fn push(&mut self, ino: Ino, run: Run, is_added: bool) {
        self.0.push(RunChange { ino, run, is_added });
    }

    /// Returns the pages that the runs touch, each once.
    fn pages(&self) -> Vec<(Ino, PageIndex)> {
        let touched = |change: &RunChange| {
            let ino = change.ino;
            pages_of(&change.run.range()).map(move |index| (ino, index))
        };
        let mut pages: Vec<_> = self.0.iter().flat_map(touched).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Returns whether a page loses more runs than it gets.
    fn shortens(&self, page: (Ino, PageIndex)) -> bool {
        let (added, removed): (Vec<&RunChange>, Vec<&RunChange>) =
            self.of_page(page).partition(|change| change.is_added);
        removed.len() > added.len()
    }

    fn of_page(&self, (ino, index): (Ino, PageIndex)) -> impl Iterator<Item = &RunChange> {
        let bounds = bounds_of(index);
        let changes = self.0.iter();
        changes.filter(move |change| change.ino == ino && change.run.overlaps(&bounds))
    }

    /// Returns the runs of a page after the changes, or `None` if they do not fit to those that it had.
    fn applied_to(&self, page: (Ino, PageIndex), old: &[Run]) -> Option<Vec<Run>> {
        let added = self.of_page(page).filter(|change| change.is_added);
        let mut runs = Vec::with_capacity(old.len() + added.count());
        runs.extend_from_slice(old);
        for change in self.of_page(page) {
            match (runs.binary_search(&change.run), change.is_added) {
                (Ok(place), false) => drop(runs.remove(place)),
                (Err(place), true) => runs.insert(place, change.run),
                (Ok(_), true) | (Err(_), false) => return None,
            }
        }
        let is_sound = runs.windows(2).all(|pair| pair[0].end() <= pair[1].start);
        is_sound.then_some(runs)
    }
}

/// Runs of files by page.
pub(crate) struct ExtentCache {
    pages: FreshCache<(Ino, PageIndex), ExtentPage>,
}

impl ExtentCache {
    /// Makes a cache of at most `limit_bytes`.
    pub(super) fn new(limit_bytes: usize) -> Self {
        let weigh = |key: &(Ino, PageIndex), page: &ExtentPage| {
            let runs = page.runs.as_deref().map_or(0, Vec::capacity);
            size_of_val(key) + size_of_val(page) + runs * size_of::<Run>()
        };
        Self {
            pages: FreshCache::new(limit_bytes, USUAL_BYTES, weigh),
        }
    }

    /// Calls `visit` for each page that has bytes of `range`, in order: with the part of `range` in it, and the whole
    /// runs that overlap this part. `load` reads the whole runs of a file that overlap the range of a page. `source` is
    /// that of the records.
    pub(super) fn visit<E>(
        &self,
        source: u64,
        (ino, range): (Ino, &Range<u64>),
        load: impl Fn(&Range<u64>) -> Result<Vec<Run>, E>,
        mut visit: impl FnMut(&Range<u64>, &[Run]),
    ) -> Result<(), E> {
        for index in pages_of(range) {
            let (key, bounds) = ((ino, index), bounds_of(index));
            let load = || load(&bounds).map(Some);
            let mut runs = self.page(source, key, load)?;
            if runs.is_none() {
                self.pages.forget(&key);
                runs = self.page(source, key, load)?;
            }
            let part = range.start.max(bounds.start)..range.end.min(bounds.end);
            visit(&part, within(&runs.unwrap_or_default(), &part));
        }
        Ok(())
    }

    /// Returns the whole runs that overlap `range`, for a change of them. Returns `None` if they are too many to be kept.
    /// `load` reads the runs of a page, or returns `None` if they are too many.
    pub(super) fn for_change<E>(
        &self,
        source: u64,
        (ino, range): (Ino, &Range<u64>),
        load: impl Fn(&Range<u64>) -> Result<Option<Vec<Run>>, E>,
    ) -> Result<Option<Vec<Run>>, E> {
        let mut found: Vec<Run> = Vec::new();
        for index in pages_of(range) {
            let runs = self.page(source, (ino, index), || load(&bounds_of(index)))?;
            let Some(runs) = runs else { return Ok(None) };
            let runs = within(&runs, range);
            // One that lies in two pages comes twice.
            let is_repeated = !runs.is_empty() && runs.first() == found.last();
            found.extend(runs.iter().skip(usize::from(is_repeated)));
        }
        Ok(Some(found))
    }

    fn page<E>(
        &self,
        source: u64,
        key: (Ino, PageIndex),
        load: impl Fn() -> Result<Option<Vec<Run>>, E>,
    ) -> Result<Option<Arc<Vec<Run>>>, E> {
        let read = || {
            let runs = load()?.map(|mut runs| {
                // It may be kept for long.
                runs.shrink_to_fit();
                Arc::new(runs)
            });
            Ok(ExtentPage { source, runs })
        };
        let mut page = self.pages.get_or_read(&key, read)?;
        if page.source < source {
            self.pages.forget(&key);
            page = self.pages.get_or_read(&key, read)?;
        }
        Ok(page.runs)
    }

    /// Brings the pages up to date that the changes touch. To be called after the changes were applied, before the locks
    /// of the inodes are released.
    pub(super) fn update(&self, changes: &RunChanges) {
        let mut copied = 0;
        for key in changes.pages() {
            let Some(page) = self.pages.get(&key) else {
                // One that is being read just now is not kept.
                self.pages.forget(&key);
                continue;
            };
            let source = page.source;
            let Some(old) = page.runs else {
                if changes.shortens(key) {
                    self.pages.forget(&key);
                }
                continue;
            };
            copied += old.len();
            if old.len() > MAX_UPDATED_RUNS {
                self.pages.replace(key, ExtentPage { source, runs: None });
                continue;
            }
            let updated = Some(&old).filter(|_| copied <= MAX_COPIED_RUNS);
            match updated.and_then(|old| changes.applied_to(key, old)) {
                Some(runs) => {
                    let runs = Some(Arc::new(runs));
                    self.pages.replace(key, ExtentPage { source, runs });
                }
                None => self.pages.forget(&key),
            }
        }
    }

    /// Forgets the pages that the changes touch.
    pub(super) fn forget_changed(&self, changes: &RunChanges) {
        for key in changes.pages() {
            self.pages.forget(&key);
        }
    }

    /// Forgets the pages of a range of a file. To be called after each change of extents there, before the lock of the
    /// inode is released.
    pub(crate) fn forget(&self, ino: Ino, range: &Range<u64>) {
        for index in pages_of(range) {
            self.pages.forget(&(ino, index));
        }
    }
}

/// Returns the pages that have bytes of `range`.
fn pages_of(range: &Range<u64>) -> Range<PageIndex> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

/// Returns the range of a page.
fn bounds_of(index: PageIndex) -> Range<u64> {
    let start = index.saturating_mul(PAGE_BYTES);
    start..start.saturating_add(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::format::StripeId;

    const INO: Ino = Ino(7);

    /// A file of runs of `len` bytes, one behind the other, each in a stripe of its own.
    struct File {
        len: u64,
        first_stripe: u64,
        loads: Cell<usize>,
    }

    impl File {
        fn load(&self, bounds: &Range<u64>) -> Vec<Run> {
            self.loads.set(self.loads.get() + 1);
            let first = bounds.start / self.len..bounds.end.div_ceil(self.len);
            first
                .map(|index| Run {
                    start: index * self.len,
                    len: self.len,
                    stripe: StripeId(self.first_stripe + index),
                    stripe_offset: 0,
                })
                .collect()
        }

        /// Returns the runs of a range, cut to it and joined.
        fn runs(&self, cache: &ExtentCache, range: &Range<u64>) -> Vec<Run> {
            let mut found: Vec<Run> = Vec::new();
            let load = |bounds: &Range<u64>| Ok::<_, Infallible>(self.load(bounds));
            let visited = cache.visit(0, (INO, range), load, |part, runs| {
                for run in runs.iter().filter_map(|run| run.clip(part)) {
                    match found.last_mut() {
                        Some(last) if last.continues_in(&run) => last.len += run.len,
                        _ => found.push(run),
                    }
                }
            });
            visited.expect("it cannot fail");
            found
        }
    }

    fn file(len: u64, first_stripe: u64) -> File {
        File {
            len,
            first_stripe,
            loads: Cell::new(0),
        }
    }

    #[test]
    fn every_range_has_the_runs_that_were_loaded_whatever_their_length() {
        for len in [4096, 100_000, PAGE_BYTES, 3 * PAGE_BYTES + 4096] {
            let (cache, file) = (ExtentCache::new(8 << 20), file(len, 1));
            for start in (0..4 * PAGE_BYTES).step_by(77_777) {
                for size in [1, 4096, PAGE_BYTES, 2 * PAGE_BYTES + 1] {
                    let range = start..start + size;
                    let whole = file.load(&range);
                    let wanted: Vec<Run> = whole.iter().filter_map(|it| it.clip(&range)).collect();
                    assert_eq!(file.runs(&cache, &range), wanted, "{len}: {range:?}");
                }
            }
        }
    }

    #[test]
    fn a_page_is_loaded_once_and_again_after_a_change_in_it() {
        let cache = ExtentCache::new(1 << 20);
        let (old, new) = (file(4096, 1), file(4096, 1_000_000));
        let both = PAGE_BYTES - 4096..PAGE_BYTES + 4096;
        for _ in 0..3 {
            old.runs(&cache, &both);
        }
        assert_eq!(old.loads.get(), 2);
        cache.forget(INO, &(PAGE_BYTES..PAGE_BYTES + 1));
        let runs = new.runs(&cache, &both);
        assert_eq!(new.loads.get(), 1);
        let stripes: Vec<u64> = runs.iter().map(|run| run.stripe.0).collect();
        assert_eq!(stripes, [128, 1_000_128]);
        cache.forget(INO, &(0..PAGE_BYTES));
        let runs = new.runs(&cache, &both);
        assert!(runs.iter().all(|run| run.stripe.0 > 1_000_000), "{runs:?}");
    }

    /// Returns what is left of `old` outside of `range`.
    fn cut(old: &Run, range: &Range<u64>) -> Vec<Run> {
        let outside = [0..range.start, range.end..u64::MAX];
        let kept = outside.iter().filter_map(|part| old.clip(part));
        kept.collect()
    }

    #[test]
    fn a_page_in_the_cache_follows_every_change_without_being_loaded_again() {
        let mut random = StdRng::seed_from_u64(cauchyfs_testkit::seed());
        for _ in 0..20 {
            let cache = ExtentCache::new(16 << 20);
            let (mut file, loads) = (Vec::<Run>::new(), Cell::new(0));
            let whole = 0..7 * PAGE_BYTES;
            let read = |file: &[Run], range: &Range<u64>| {
                let mut found: Vec<Run> = Vec::new();
                let load = |bounds: &Range<u64>| {
                    loads.set(loads.get() + 1);
                    let runs = file.iter().filter(|run| run.overlaps(bounds));
                    Ok::<_, Infallible>(runs.copied().collect())
                };
                let visited = cache.visit(0, (INO, range), load, |_, runs| {
                    found.extend(runs);
                    found.dedup();
                });
                visited.expect("it cannot fail");
                found
            };
            read(&file, &whole);
            for stripe in 0..300 {
                let start = random.random_range(0..4 * PAGE_BYTES);
                let len = [1, 5000, PAGE_BYTES + 3][random.random_range(0..3)];
                let range = start..start + len;
                let new = Run {
                    start,
                    len,
                    stripe: StripeId(stripe),
                    stripe_offset: 0,
                };
                let mut changes = RunChanges::default();
                let (old, mut after): (Vec<Run>, Vec<Run>) =
                    file.iter().partition(|run| run.overlaps(&range));
                for run in &old {
                    changes.remove(INO, *run);
                }
                let pieces = old.iter().flat_map(|run| cut(run, &range));
                for run in pieces.chain([new]) {
                    changes.add(INO, run);
                    after.push(run);
                }
                after.sort_unstable();
                cache.update(&changes);
                file = after;
                let range = start.saturating_sub(len)..start + 2 * len;
                let wanted = file.iter().filter(|run| run.overlaps(&range));
                assert_eq!(read(&file, &range), wanted.copied().collect::<Vec<_>>());
            }
            assert_eq!(read(&file, &whole), file);
            assert_eq!(loads.get(), 7);
        }
    }

    #[test]
    fn a_page_is_forgotten_if_changes_do_not_fit_to_it() {
        let run = |start| Run {
            start,
            len: 4096,
            stripe: StripeId(1),
            stripe_offset: 0,
        };
        let mut unknown = RunChanges::default();
        unknown.remove(INO, run(PAGE_BYTES - 4096));
        let mut overlapping = RunChanges::default();
        overlapping.add(INO, run(2048));
        for changes in [unknown, overlapping] {
            let (cache, file) = (ExtentCache::new(1 << 20), file(8192, 1));
            file.runs(&cache, &(0..1));
            cache.update(&changes);
            file.runs(&cache, &(0..1));
            assert_eq!(file.loads.get(), 2, "{changes:?}");
        }
    }

    #[test]
    fn a_page_of_too_many_runs_is_known_to_changes_until_it_loses_some() {
        let (cache, loads) = (ExtentCache::new(1 << 20), Cell::new(0));
        let find = || {
            let load = |_: &Range<u64>| {
                loads.set(loads.get() + 1);
                Ok::<_, Infallible>(None)
            };
            let found = cache.for_change(0, (INO, &(0..1)), load);
            assert_eq!(found.expect("it cannot fail"), None);
            loads.get()
        };
        let run = |start| Run {
            start,
            len: 1,
            stripe: StripeId(1),
            stripe_offset: 0,
        };
        assert_eq!((find(), find()), (1, 1));
        let mut more = RunChanges::default();
        more.add(INO, run(5));
        cache.update(&more);
        assert_eq!(find(), 1);
        let mut fewer = RunChanges::default();
        fewer.remove(INO, run(5));
        cache.update(&fewer);
        assert_eq!(find(), 2);
        // A reader takes them in nevertheless.
        let file = file(4096, 1);
        assert_eq!(file.runs(&cache, &(0..1)).len(), 1);
        file.runs(&cache, &(0..1));
        assert_eq!(file.loads.get(), 1);
    }

    #[test]
    fn a_change_does_not_copy_a_page_of_very_many_runs() {
        let (cache, file) = (ExtentCache::new(8 << 20), file(512, 1));
        file.runs(&cache, &(0..1));
        let mut changes = RunChanges::default();
        let old = file.load(&(0..512))[0];
        changes.remove(INO, old);
        changes.add(
            INO,
            Run {
                stripe: StripeId(1 << 30),
                ..old
            },
        );
        cache.update(&changes);
        let load = |_: &Range<u64>| Err("it is known that there are many");
        assert_eq!(cache.for_change(0, (INO, &(0..1)), load), Ok(None));
    }

    #[test]
    fn a_page_from_an_earlier_source_is_loaded_again() {
        let (cache, file) = (ExtentCache::new(1 << 20), file(4096, 1));
        for (source, loads) in [(3, 1), (3, 1), (4, 2), (4, 2), (3, 2)] {
            let load = |bounds: &Range<u64>| Ok::<_, Infallible>(file.load(bounds));
            let visited = cache.visit(source, (INO, &(0..1)), load, |_, _| {});
            visited.expect("it cannot fail");
            assert_eq!(file.loads.get(), loads, "source {source}");
        }
    }

    #[test]
    fn a_change_during_a_load_leaves_nothing_of_it() {
        let cache = ExtentCache::new(1 << 20);
        let (old, new) = (file(4096, 1), file(4096, 1_000_000));
        let range = 0..4096;
        let load = |bounds: &Range<u64>| {
            let runs = old.load(bounds);
            cache.forget(INO, &range);
            Ok::<_, Infallible>(runs)
        };
        let visited = cache.visit(0, (INO, &range), load, |_, _| {});
        visited.expect("it cannot fail");
        assert_eq!(new.runs(&cache, &range)[0].stripe, StripeId(1_000_000));
    }

    #[test]
    fn a_range_at_the_end_of_the_longest_file_has_its_page() {
        let end = i64::MAX.cast_unsigned();
        assert_eq!(pages_of(&(end - 1..end)).count(), 1);
        assert_eq!(pages_of(&(5..5)).count(), 0);
        assert!(bounds_of(u64::MAX / PAGE_BYTES).contains(&(u64::MAX - 1)));
    }
}
