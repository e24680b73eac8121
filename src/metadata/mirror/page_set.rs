//! A set of page numbers.

/// Pages of an index: one bit each, up to the last that is in the set.
///
/// A bit each is cheaper than a tree of ranges: the database writes pages all over its file, so that ranges of one
/// page are the rule. An index of 4 GiB takes 128 KiB, and a look-up takes no search.
#[derive(Debug, Default)]
pub(super) struct PageSet(Vec<u64>);

impl PageSet {
    /// Adds a page.
    pub(super) fn insert(&mut self, page: u64) {
        let word = usize::try_from(page / u64::from(u64::BITS)).expect("the words fit in memory");
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (page % u64::from(u64::BITS));
    }

    /// Returns whether a page is in the set.
    pub(super) fn contains(&self, page: u64) -> bool {
        let word = usize::try_from(page / u64::from(u64::BITS)).ok();
        let word = word.and_then(|word| self.0.get(word));
        word.is_some_and(|word| word & (1 << (page % u64::from(u64::BITS))) != 0)
    }

    /// Removes all pages.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns how many pages are in both sets.
    pub(super) fn count_common(&self, other: &Self) -> u64 {
        let words = self.0.iter().zip(&other.0);
        words.map(|(a, b)| u64::from((a & b).count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn random_pages_agree_with_an_ordered_set() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut fill = || {
                let (mut pages, mut model) = (PageSet::default(), BTreeSet::new());
                for _ in 0..random.random_range(0..300) {
                    let page = random.random_range(0..1000);
                    pages.insert(page);
                    model.insert(page);
                }
                (pages, model)
            };
            let ((mut left, left_model), (right, right_model)) = (fill(), fill());
            for page in 0..1100 {
                assert_eq!(
                    left.contains(page),
                    left_model.contains(&page),
                    "seed {seed}: {page}"
                );
            }
            let common = left_model.intersection(&right_model).count() as u64;
            assert_eq!(left.count_common(&right), common, "seed {seed}");
            left.clear();
            assert_eq!(left.count_common(&right), 0, "seed {seed}");
        }
    }
}
