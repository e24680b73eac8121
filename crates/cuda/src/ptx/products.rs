//! Products by constants, for bytes whose bits lie in eight words: each bit of a product is a sum of bits.

use cauchyfs_codec::field;

/// Bits of a byte.
pub(super) const BITS: usize = 8;

/// Terms that a three-input instruction adds at most.
const MOST_TERMS: usize = 3;

/// The number of searches for one factor, of which the best is taken. They differ in the choice among sums that save
/// as much.
const SEARCHES: u32 = 24;

/// The sums that multiply by a constant. Terms below [`BITS`] are the bits of the byte. The others are partial sums, in
/// the order of [`partial`](Self::partial).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProductSums {
    /// The terms of each partial sum, two or three.
    pub(super) partial: Vec<Vec<usize>>,
    /// The terms of each bit of the product.
    pub(super) bits: [Vec<usize>; BITS],
}

impl ProductSums {
    /// Returns the sums of few instructions that multiply by `factor`.
    pub(super) fn new(factor: u8) -> Self {
        let searches = (0..SEARCHES).map(|seed| Self::search(factor, seed));
        let best = searches.min_by_key(Self::instructions);
        best.expect("there is more than one search")
    }

    /// Returns how many three-input instructions it takes to add the product to something.
    fn instructions(&self) -> usize {
        let added = self.bits.iter().map(|terms| adding(terms.len()));
        self.partial.len() + added.sum::<usize>()
    }

    /// Makes partial sums as long as one saves instructions.
    fn search(factor: u8, seed: u32) -> Self {
        let of_bit = |bit: usize| {
            let has_term = |&term: &usize| field::mul(factor, 1 << term) >> bit & 1 == 1;
            (0..BITS).filter(has_term).collect()
        };
        let mut sums = Self {
            partial: Vec::new(),
            bits: std::array::from_fn(of_bit),
        };
        let mut state = seed;
        loop {
            let count = BITS + sums.partial.len();
            let candidates = combinations(count).map(|terms| (sums.saved_by(&terms), terms));
            let useful: Vec<_> = candidates.filter(|(saved, _)| *saved > 0).collect();
            let Some(most) = useful.iter().map(|(saved, _)| *saved).max() else {
                return sums;
            };
            let mut best: Vec<Vec<usize>> = useful
                .into_iter()
                .filter_map(|(saved, terms)| (saved == most).then_some(terms))
                .collect();
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let choice = (state >> 16) as usize % best.len();
            sums.share(best.swap_remove(choice));
        }
    }

    /// Returns how many instructions a partial sum of these terms saves.
    fn saved_by(&self, terms: &[usize]) -> usize {
        let saved = self.bits.iter().filter(|bit| holds(bit, terms)).map(|bit| {
            let left = bit.len() - terms.len() + 1;
            adding(bit.len()) - adding(left)
        });
        saved.sum::<usize>().saturating_sub(1)
    }

    /// Puts a partial sum in the place of its terms.
    fn share(&mut self, terms: Vec<usize>) {
        let sum = BITS + self.partial.len();
        for bit in self.bits.iter_mut().filter(|bit| holds(bit, &terms)) {
            bit.retain(|term| !terms.contains(term));
            bit.push(sum);
        }
        self.partial.push(terms);
    }
}

/// Returns how many three-input instructions add so many terms to something.
fn adding(terms: usize) -> usize {
    terms.div_ceil(MOST_TERMS - 1)
}

fn holds(bit: &[usize], terms: &[usize]) -> bool {
    terms.iter().all(|term| bit.contains(term))
}

/// Returns all sets of two and of three terms.
fn combinations(count: usize) -> impl Iterator<Item = Vec<usize>> {
    let pairs = (0..count).flat_map(move |b| (0..b).map(move |a| vec![a, b]));
    let longer = move |pair: Vec<usize>| {
        let above = pair[1] + 1;
        std::iter::once(pair.clone()).chain((above..count).map(move |c| vec![pair[0], pair[1], c]))
    };
    pairs.flat_map(longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_every_factor_multiply_every_byte() {
        for factor in 0..=u8::MAX {
            let sums = ProductSums::new(factor);
            for byte in 0..=u8::MAX {
                let mut terms: Vec<u8> = (0..BITS).map(|bit| byte >> bit & 1).collect();
                let add = |terms: &[u8], sum: &[usize]| sum.iter().fold(0, |x, &t| x ^ terms[t]);
                for sum in &sums.partial {
                    assert!((2..=MOST_TERMS).contains(&sum.len()), "{factor}: {sum:?}");
                    terms.push(add(&terms, sum));
                }
                let bits = sums.bits.iter().enumerate();
                let product = bits.fold(0, |product, (bit, sum)| product | add(&terms, sum) << bit);
                assert_eq!(product, field::mul(factor, byte), "{factor} times {byte}");
            }
        }
    }

    #[test]
    fn products_take_few_instructions() {
        let counts = (2..=u8::MAX).map(|factor| ProductSums::new(factor).instructions());
        let total: usize = counts.sum();
        assert!(total <= 254 * 15, "{total} for 254 factors");
    }
}
