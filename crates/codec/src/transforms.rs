//! The transforms behind a generator of `rs-fft`, for engines elsewhere that encode by them.

use crate::{Geometry, Matrix, fft::factor, subspace::Layout};

/// Points of the field.
const POINTS: usize = 256;

/// The additive Fourier transforms that encode by a generator of `rs-fft`.
///
/// Data shards stand at the points from index `span` on, and parity shards at those from index 0 on. Each chunk of `span`
/// data shards is turned into coefficients. The sum of all coefficients is evaluated at the points of the parities. CODING.md
/// has the code, and Lin, Chung and Han (FOCS 2014) the transforms.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{CodeId, Codec, Geometry, Matrix, Transforms, select};
/// let geometry = Geometry::new(32, 16)?;
/// let codec = Codec::new(CodeId::RS_FFT, geometry, select("scalar")?)?;
/// let transforms = Transforms::of(codec.generator()).expect("the generator of rs-fft");
/// assert_eq!(transforms.span(), 16);
/// assert_eq!(transforms.factor(0, 3), 0);
/// assert!(Transforms::of(&Matrix::cauchy(geometry)).is_none());
/// # Ok::<(), cauchyfs_codec::CodecError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transforms {
    span: usize,
}

impl Transforms {
    /// Returns the transforms that encode by a matrix, or `None` if it is no generator that transforms compute.
    #[must_use]
    pub fn of(matrix: &Matrix) -> Option<Self> {
        let geometry = Geometry::new(matrix.columns(), matrix.rows()).ok()?;
        let layout = Layout::new(geometry);
        let is_computed = layout.has_transforms() && layout.generator() == *matrix;
        is_computed.then(|| Self {
            span: layout.span(),
        })
    }

    /// Returns the number of points of a transform, a power of two: that of the parity shards, rounded up.
    #[must_use]
    pub fn span(&self) -> usize {
        self.span
    }

    /// Returns the factor of the butterflies of a block. The block has 2^(`layer` + 1) points, from index `first` on. Its
    /// butterflies are between points of a distance of 2^`layer`.
    ///
    /// Let a be in the first half of the block, and b in the second. The inverse sets b to a + b, and then a to
    /// a + factor · b. The forward transform sets a first, and then b.
    ///
    /// # Panics
    ///
    /// If the block reaches beyond 256 points.
    #[must_use]
    pub fn factor(&self, first: usize, layer: u32) -> u8 {
        let is_within = layer < POINTS.ilog2() && first < POINTS;
        assert!(is_within, "layer {layer} of a block from {first} on");
        factor(first >> (layer + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field;

    /// Encodes one byte of each shard by the butterflies as documented.
    fn encode(transforms: Transforms, data: &[u8], parities: usize) -> Vec<u8> {
        let span = transforms.span();
        let layers = span.ilog2();
        let mut sums = vec![0; span];
        for (chunk, values) in data.chunks(span).enumerate() {
            let mut values = values.to_vec();
            values.resize(span, 0);
            for layer in 0..layers {
                for (block, points) in values.chunks_exact_mut(2 << layer).enumerate() {
                    let first = (chunk + 1) * span + (block << (layer + 1));
                    let (low, high) = points.split_at_mut(1 << layer);
                    for (a, b) in low.iter_mut().zip(high) {
                        *b ^= *a;
                        *a ^= field::mul(transforms.factor(first, layer), *b);
                    }
                }
            }
            sums.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum ^= value);
        }
        for layer in (0..layers).rev() {
            for (block, points) in sums.chunks_exact_mut(2 << layer).enumerate() {
                let (low, high) = points.split_at_mut(1 << layer);
                for (a, b) in low.iter_mut().zip(high) {
                    *a ^= field::mul(transforms.factor(block << (layer + 1), layer), *b);
                    *b ^= *a;
                }
            }
        }
        sums.truncate(parities);
        sums
    }

    #[test]
    fn butterflies_with_these_factors_multiply_by_the_generator() {
        for (k, m) in [
            (1, 2),
            (5, 3),
            (10, 4),
            (17, 9),
            (32, 16),
            (64, 16),
            (100, 64),
        ] {
            let geometry = Geometry::new(k, m).expect("valid");
            let generator = Layout::new(geometry).generator();
            let transforms = Transforms::of(&generator).expect("a generator");
            for source in 0..k {
                let mut data = vec![0; k];
                data[source] = 0x53;
                let column: Vec<u8> = (0..m)
                    .map(|row| field::mul(generator.at(row, source), 0x53))
                    .collect();
                assert_eq!(
                    encode(transforms, &data, m),
                    column,
                    "{k}+{m}, source {source}"
                );
            }
        }
    }

    #[test]
    fn blocks_beyond_the_points_of_the_field_have_no_factor() {
        let geometry = Geometry::new(32, 16).expect("valid");
        let transforms = Transforms::of(&Layout::new(geometry).generator()).expect("a generator");
        let factor = |first, layer| std::panic::catch_unwind(|| transforms.factor(first, layer));
        for layer in 0..8 {
            let block = 2 << layer;
            for first in (0..256).step_by(block) {
                assert!(factor(first, layer).is_ok(), "{first}, {layer}");
            }
            for first in [256, 256 + block, 512] {
                assert!(factor(first, layer).is_err(), "{first}, {layer}");
            }
        }
        assert!(factor(0, 8).is_err());
        assert!(factor(0, usize::BITS).is_err());
    }

    #[test]
    fn other_matrices_have_none() {
        let geometry = Geometry::new(32, 16).expect("valid");
        let generator = Layout::new(geometry).generator();
        let changed = Matrix::from_fn(16, 32, |row, column| {
            generator.at(row, column) ^ u8::from((row, column) == (15, 31))
        });
        assert_eq!(Transforms::of(&changed), None);
        assert_eq!(Transforms::of(&Matrix::from_fn(0, 4, |_, _| 0)), None);
        let beyond_the_field = Layout::new(Geometry::new(200, 33).expect("valid")).generator();
        assert_eq!(Transforms::of(&beyond_the_field), None);
    }
}
