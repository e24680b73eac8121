//! Extents in memory: the runs of files that were read lately, decoded.
//!
//! A file is cut into pages of equal length. The cache holds the runs of one page together. So a lookup costs the same
//! in a file of any length. A change of a range concerns the pages of that range only.

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

/// The number of a page in a file.
type PageIndex = u64;

/// The runs of one page of a file, in order, cut at the ends of the page.
pub(crate) type ExtentPage = Arc<[Run]>;

/// Runs of files by page.
pub(crate) struct ExtentCache {
    pages: FreshCache<(Ino, PageIndex), ExtentPage>,
}

impl ExtentCache {
    /// Makes a cache of at most `limit_bytes`.
    pub(super) fn new(limit_bytes: usize) -> Self {
        let weigh = |key: &(Ino, PageIndex), page: &ExtentPage| {
            size_of_val(key) + size_of_val(page) + size_of_val(&**page)
        };
        Self {
            pages: FreshCache::new(limit_bytes, USUAL_BYTES, weigh),
        }
    }

    /// Calls `visit` with the runs of each page that has bytes of `range`, in order. `load` reads the runs of a file
    /// that overlap the range of a page. `source` is that of the records.
    pub(super) fn visit<E>(
        &self,
        source: u64,
        (ino, range): (Ino, &Range<u64>),
        load: impl Fn(&Range<u64>) -> Result<Vec<Run>, E>,
        mut visit: impl FnMut(&[Run]),
    ) -> Result<(), E> {
        self.pages.follow(source);
        for index in pages_of(range) {
            let read = || {
                let bounds = bounds_of(index);
                let runs = load(&bounds)?.into_iter();
                let page: ExtentPage = runs.filter_map(|run| run.clip(&bounds)).collect();
                Ok(page)
            };
            let page = self.pages.get_or_read(&(ino, index), read)?;
            let first = page.partition_point(|run| run.end() <= range.start);
            let behind = page.partition_point(|run| run.start < range.end);
            visit(page.get(first..behind).unwrap_or_default());
        }
        Ok(())
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
            let visited = cache.visit(0, (INO, range), load, |runs| {
                for run in runs.iter().filter_map(|run| run.clip(range)) {
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
        let visited = cache.visit(0, (INO, &range), load, |_| {});
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
