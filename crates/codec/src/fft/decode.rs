//! The steps of decoding.
//!
//! Let D be the indices of missing data shards, and Q those of the parities used in their place, as many.
//! Write L for the polynomial whose zeros are the points of a set, and s for that of the parities' subspace.
//! The syndrome σ of parity q is what remains of it when all present data is taken out:
//!
//! ```text
//! σ(q) = Σ e(y)·s(y)/(q + y)     over all y in D, with e(y) the missing shard
//! ```
//!
//! The right side is a fraction of polynomials in q. Its denominator is `L_D`, and its numerator has degree
//! below |D|. So the numerator is found by interpolation through Q, and its residues give the shards. With
//! W the polynomial that has the values `w(q) = σ(q)·L_D(q)/L_Q'(q)` at the points of Q, and zeros at the
//! other points of the parities' subspace,
//!
//! ```text
//! e(y) = W(y)·L_Q(y)/(L_D'(y)·s(y)²)      for y in D
//! σ(r) = W'(r)·L_Q(r)/L_D(r)              for a lost parity r
//! ```
//!
//! All of W's values are had by transforms. In a Cantor basis, its derivative takes sums alone.

use super::{Draft, Place, Places, Product, Program, Step};
use crate::{
    field,
    subspace::{Layout, point},
};

/// Returns the steps that compute the `lost` shards from the `used` ones, both in ascending order, or
/// `None` if transforms cannot.
pub(crate) fn decode_program(layout: Layout, used: &[usize], lost: &[usize]) -> Option<Program> {
    if !layout.has_transforms() || layout.span() < 2 {
        return None;
    }
    let mut erasures = Erasures::new(layout, used, lost);
    erasures.draft_program();
    Some(erasures.draft.program)
}

/// Shards that are used or lost, and the steps so far.
struct Erasures<'a> {
    draft: Draft,
    layout: Layout,
    used: &'a [usize],
    lost: &'a [usize],
    /// Rows of the parities used.
    parities: Vec<usize>,
    /// Indices of the points of data shards that are not used.
    missing: Vec<usize>,
}

/// Returns the value at the point of `index` of a polynomial. Its zeros are the points of `zeros`, without the point
/// itself.
fn locator(zeros: &[usize], index: usize) -> u8 {
    let others = zeros.iter().filter(|&&zero| zero != index);
    others.fold(1, |product, &zero| field::mul(product, point(zero ^ index)))
}

impl<'a> Erasures<'a> {
    fn new(layout: Layout, used: &'a [usize], lost: &'a [usize]) -> Self {
        let k = layout.data_shards();
        let parities = used.iter().filter_map(|shard| shard.checked_sub(k));
        let missing = (0..k).filter(|shard| !used.contains(shard));
        Self {
            draft: Draft::new(used.len(), lost.len()),
            layout,
            used,
            lost,
            parities: parities.collect(),
            missing: missing.map(|shard| layout.data_index(shard)).collect(),
        }
    }

    /// Returns the source of a shard, if it is used.
    fn source(&self, shard: usize) -> Option<Place> {
        let index = self.used.iter().position(|&used| used == shard)?;
        Some(self.draft.source(index))
    }

    /// Returns the target of a shard, if it is lost.
    fn target(&self, shard: usize) -> Option<Place> {
        let index = self.lost.iter().position(|&lost| lost == shard)?;
        Some(self.draft.target(index))
    }

    fn is_parity_lost(&self, row: usize) -> bool {
        self.lost.contains(&(self.layout.data_shards() + row))
    }

    fn draft_program(&mut self) {
        let (k, span) = (self.layout.data_shards(), self.layout.span());
        let data = (0..k).map(|shard| self.source(shard).unwrap_or(Place::ZERO));
        let data: Places = data.collect();
        let sums = self.draft.sum_chunks(self.layout, &data);
        // The part of each parity that comes from the present data.
        let mut from_present = vec![Place::ZERO; span];
        if data.iter().any(|&place| place != Place::ZERO) {
            from_present = self.draft.new_slots(span);
            let is_wanted = |row| self.parities.contains(&row) || self.is_parity_lost(row);
            let mut wanted = from_present.clone();
            for row in (0..span).filter(|&row| !is_wanted(row)) {
                wanted[row] = Place::UNUSED;
            }
            self.draft.evaluate(0, &sums, &sums, &wanted);
        }
        self.interpolate(&from_present, &sums);
        self.evaluate_missing(&sums);
        self.evaluate_parities(&from_present, &sums);
    }

    /// Adds the steps that replace `sums` by the coefficients of W.
    fn interpolate(&mut self, from_present: &[Place], sums: &[Place]) {
        let k = self.layout.data_shards();
        let mut values = vec![Place::ZERO; sums.len()];
        for &row in &self.parities.clone() {
            let by_missing = locator(&self.missing, row);
            values[row] = sums[row];
            let product = Product {
                input: from_present[row],
                other: self.source(k + row).unwrap_or(Place::ZERO),
                factor: field::div(by_missing, locator(&self.parities, row)),
                added: Place::ZERO,
                output: sums[row],
            };
            self.draft.product(product);
        }
        if !self.parities.is_empty() {
            self.draft.invert(0, values, sums, sums, false);
        }
    }

    /// Adds the steps that compute the lost data shards from the coefficients of W.
    fn evaluate_missing(&mut self, coefficients: &[Place]) {
        let (k, span) = (self.layout.data_shards(), self.layout.span());
        let work = self.draft.new_slots(span);
        for first in (0..k).step_by(span) {
            let target = |shard: usize| self.target(shard).filter(|_| shard < k);
            let targets: Vec<_> = (first..first + span).map(target).collect();
            if targets.iter().all(Option::is_none) {
                continue;
            }
            let values = targets
                .iter()
                .zip(&work)
                .map(|(target, &slot)| match target {
                    Some(_) => slot,
                    None => Place::UNUSED,
                });
            let values: Places = values.collect();
            self.draft
                .evaluate(first + span, coefficients, &work, &values);
            for (i, target) in targets.into_iter().enumerate() {
                let Some(output) = target else { continue };
                let index = self.layout.data_index(first + i);
                let scale = self.layout.scale(first + i);
                let divisor = field::mul(locator(&self.missing, index), field::mul(scale, scale));
                self.draft.product(Product {
                    input: values[i],
                    other: Place::ZERO,
                    factor: field::div(locator(&self.parities, index), divisor),
                    added: Place::ZERO,
                    output,
                });
            }
        }
    }

    /// Adds the steps that compute the lost parities from the coefficients of W.
    fn evaluate_parities(&mut self, from_present: &[Place], coefficients: &[Place]) {
        let (k, span) = (self.layout.data_shards(), self.layout.span());
        let lost = |row| {
            self.target(k + row)
                .filter(|_| row < self.layout.parity_shards())
        };
        let targets: Vec<_> = (0..span).map(lost).collect();
        if targets.iter().all(Option::is_none) {
            return;
        }
        let values: Places = if self.parities.is_empty() {
            vec![Place::ZERO; span]
        } else {
            self.differentiate(coefficients);
            let value = |(target, &slot): (&Option<Place>, &Place)| match target {
                Some(_) => slot,
                None => Place::UNUSED,
            };
            let values: Places = targets.iter().zip(coefficients).map(value).collect();
            self.draft.evaluate(0, coefficients, coefficients, &values);
            values
        };
        for (row, target) in targets.into_iter().enumerate() {
            let Some(output) = target else { continue };
            let (by_used, by_missing) = (locator(&self.parities, row), locator(&self.missing, row));
            self.draft.product(Product {
                input: values[row],
                other: Place::ZERO,
                factor: field::div(by_used, by_missing),
                added: from_present[row],
                output,
            });
        }
    }

    /// Adds the steps that replace the coefficients of a polynomial by those of its derivative: the
    /// derivatives of the factors of each element of the basis are 1.
    fn differentiate(&mut self, coefficients: &[Place]) {
        for (index, &output) in coefficients.iter().enumerate() {
            let bits = (0..coefficients.len().ilog2()).map(|bit| 1 << bit);
            let terms = bits.filter(|bit| index & bit == 0);
            let terms = terms.map(|bit| coefficients[index + bit]).collect();
            self.draft.program.steps.push(Step::Sum(terms, output));
        }
    }
}
