//! The points of `rs-fft`, which lie in subspaces of the field, and its generator.

use crate::{Geometry, Matrix, field};

/// A Cantor basis: each element squared, plus itself, is the element before it. Leopard uses the same.
const BASIS: [u8; 8] = [1, 214, 152, 146, 86, 200, 88, 230];

/// All points in order. Bit i of the index says whether element i of the basis is part of the point.
static POINTS: [u8; 256] = {
    let mut points = [0; 256];
    let mut bit = 0;
    while bit < BASIS.len() {
        let count = 1 << bit;
        let mut index = 0;
        while index < count {
            points[count + index] = points[index] ^ BASIS[bit];
            index += 1;
        }
        bit += 1;
    }
    points
};

/// Returns the point of an index.
///
/// # Panics
///
/// If the index is 256 or more.
pub(super) fn point(index: usize) -> u8 {
    POINTS[index]
}

/// The indices of the points at which the shards of a stripe stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    data_shards: usize,
    parity_shards: usize,
}

impl Layout {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            data_shards: geometry.data_shards(),
            parity_shards: geometry.parity_shards(),
        }
    }

    /// Returns how many data shards there are.
    pub(super) fn data_shards(self) -> usize {
        self.data_shards
    }

    /// Returns how many parity shards there are.
    pub(super) fn parity_shards(self) -> usize {
        self.parity_shards
    }

    /// Returns the number of points in the subspace of the parity shards, a power of two: M.
    pub(super) fn span(self) -> usize {
        self.parity_shards.next_power_of_two()
    }

    /// Returns whether all data shards stand outside the subspace of the parity shards. Only then can
    /// transforms compute the code.
    pub(super) fn has_transforms(self) -> bool {
        self.span() + self.data_shards <= POINTS.len()
    }

    /// Returns the index of a data shard's point. Where the field ends, the points of the parities'
    /// subspace follow that no parity stands at.
    pub(super) fn data_index(self, shard: usize) -> usize {
        let index = self.span() + shard;
        match index.checked_sub(POINTS.len()) {
            None => index,
            Some(beyond) => self.parity_shards + beyond,
        }
    }

    /// Returns the value at a data shard's point of a polynomial. Its zeros are the parities' subspace. The result is 1
    /// if the point is one of these zeros.
    pub(super) fn scale(self, shard: usize) -> u8 {
        let index = self.data_index(shard);
        match index / self.span() {
            0 => 1,
            outside => point(outside),
        }
    }

    /// Returns the m×k matrix that turns data shards into parity shards: a Cauchy matrix over the points,
    /// with each column scaled.
    pub(super) fn generator(self) -> Matrix {
        Matrix::from_fn(self.parity_shards, self.data_shards, |row, shard| {
            field::div(self.scale(shard), point(self.data_index(shard) ^ row))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(k: usize, m: usize) -> Layout {
        Layout::new(Geometry::new(k, m).expect("valid"))
    }

    #[test]
    fn the_basis_is_one_of_cantors() {
        for pair in BASIS.windows(2) {
            assert_eq!(field::mul(pair[1], pair[1]) ^ pair[1], pair[0]);
        }
        let mut points = POINTS;
        points.sort_unstable();
        assert!((0..=255).eq(points), "the basis spans the field");
    }

    #[test]
    fn halving_an_index_evaluates_the_polynomial_of_the_subspace() {
        for log in 0..8 {
            for index in 0..256 {
                let zeros = (0..1 << log).map(point);
                let value = zeros.fold(1, |product, zero| field::mul(product, point(index) ^ zero));
                assert_eq!(value, point(index >> log), "{log} {index}");
            }
        }
    }

    #[test]
    fn all_shards_of_every_geometry_stand_at_points_of_their_own() {
        for k in 1..255 {
            for m in 1..=255 - k {
                let layout = layout(k, m);
                let mut seen = [false; 256];
                let indices = (0..m).chain((0..k).map(|shard| layout.data_index(shard)));
                for index in indices {
                    assert!(!std::mem::replace(&mut seen[index], true), "{k}+{m}");
                }
                assert!((0..k).all(|shard| layout.scale(shard) != 0), "{k}+{m}");
            }
        }
    }

    /// Lagrange's interpolation through the subspace of the parities: with no zero beyond it, the value at a
    /// data shard's point is what the parities' values make of it.
    #[test]
    fn parities_make_every_polynomial_of_low_degree_orthogonal_to_the_shards() {
        for (k, m) in [(1, 1), (4, 2), (20, 10), (32, 16), (64, 16), (100, 32)] {
            let layout = layout(k, m);
            let wide = Layout {
                parity_shards: layout.span(),
                ..layout
            };
            let generator = wide.generator();
            for shard in 0..k {
                for degree in 0..layout.span() {
                    let power = |at: u8| (0..degree).fold(1, |product, _| field::mul(product, at));
                    let at_parities = (0..layout.span()).fold(0, |sum, row| {
                        sum ^ field::mul(generator.at(row, shard), power(point(row)))
                    });
                    let own = power(point(layout.data_index(shard)));
                    assert_eq!(at_parities, own, "{k}+{m} shard {shard} degree {degree}");
                }
            }
        }
    }

    #[test]
    fn a_single_parity_is_plain_xor() {
        for k in 1..=254 {
            let generator = layout(k, 1).generator();
            assert!(generator.row(0).iter().all(|&entry| entry == 1), "{k}");
        }
    }
}
