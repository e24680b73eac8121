//! The transforms behind matrices of `rs-fft`, for engines elsewhere that encode and decode by them.

use crate::{
    Geometry, Matrix,
    fft::factor,
    field,
    subspace::{Layout, point},
};

/// Points of the field.
const POINTS: usize = 256;

/// The additive Fourier transforms that encode by a generator of `rs-fft`, or compute a whole chunk of data shards that is
/// lost.
///
/// Data shards stand at the points from index `span` on, and parity shards at those from index 0 on. Each chunk of `span`
/// shards is turned into coefficients. The sum of all coefficients, with those of the parities, is zero. So the sum of those
/// of all other chunks is evaluated at the points of the chunk that is computed: that of the parities, or one of data. CODING.md
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
    data_shards: usize,
    /// The chunk that is computed: 0 for the parities, and then those of data.
    chunk: usize,
}

impl Transforms {
    /// Returns the transforms that apply a matrix. The matrix is a generator that transforms compute. Or it computes a whole
    /// chunk of data shards from all other shards of such a generator. Returns `None` for any other matrix.
    ///
    /// Sources and targets of a matrix that decodes are in ascending order, parities behind data.
    #[must_use]
    pub fn of(matrix: &Matrix) -> Option<Self> {
        let geometry = Geometry::new(matrix.columns(), matrix.rows()).ok()?;
        let layout = Layout::new(geometry);
        if !layout.has_transforms() {
            return None;
        }
        let (span, data_shards) = (layout.span(), layout.data_shards());
        let chunk = |chunk| Self {
            span,
            data_shards,
            chunk,
        };
        if layout.generator() == *matrix {
            return Some(chunk(0));
        }
        let whole = if matrix.rows() == span {
            data_shards / span
        } else {
            0
        };
        (1..=whole).map(chunk).find(|transforms| {
            let entry = |row, source| transforms.decoding_entry(row, source);
            Matrix::from_fn(span, data_shards, entry) == *matrix
        })
    }

    /// Returns the entry of the matrix that computes a chunk of data from all other shards: Lagrange's interpolation through
    /// the points of the source's chunk.
    fn decoding_entry(&self, row: usize, source: usize) -> u8 {
        let (from, to) = (self.source_point(source), self.target_point(row));
        field::div(point((from / self.span) ^ self.chunk), point(from ^ to))
    }

    /// Returns the number of points of a transform, a power of two: that of the parity shards, rounded up.
    #[must_use]
    pub fn span(&self) -> usize {
        self.span
    }

    /// Returns the index of the point of a source, counted in the order of the matrix's columns.
    ///
    /// # Panics
    ///
    /// If there are not so many sources.
    #[must_use]
    pub fn source_point(&self, source: usize) -> usize {
        assert!(source < self.data_shards, "source {source}");
        if self.chunk == 0 {
            return self.span + source;
        }
        let before = (self.chunk - 1) * self.span;
        let data = self.data_shards - self.span;
        match source {
            _ if source < before => self.span + source,
            _ if source < data => 2 * self.span + source,
            _ => source - data,
        }
    }

    /// Returns the index of the point of a target, counted in the order of the matrix's rows.
    #[must_use]
    pub fn target_point(&self, target: usize) -> usize {
        self.chunk * self.span + target
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
    use crate::{CodeId, Codec, field, select};

    /// Computes one byte of each target by the butterflies as documented.
    fn apply(transforms: Transforms, sources: &[u8], targets: usize) -> Vec<u8> {
        let span = transforms.span();
        let layers = span.ilog2();
        let mut sums = vec![0; span];
        let mut chunks = vec![0; 256];
        for (source, &value) in sources.iter().enumerate() {
            chunks[transforms.source_point(source)] = value;
        }
        for (chunk, values) in chunks.chunks_exact_mut(span).enumerate() {
            for layer in 0..layers {
                for (block, points) in values.chunks_exact_mut(2 << layer).enumerate() {
                    let first = chunk * span + (block << (layer + 1));
                    let (low, high) = points.split_at_mut(1 << layer);
                    for (a, b) in low.iter_mut().zip(high) {
                        *b ^= *a;
                        *a ^= field::mul(transforms.factor(first, layer), *b);
                    }
                }
            }
            sums.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum ^= *value);
        }
        for layer in (0..layers).rev() {
            for (block, points) in sums.chunks_exact_mut(2 << layer).enumerate() {
                let (low, high) = points.split_at_mut(1 << layer);
                let first = transforms.target_point(block << (layer + 1));
                for (a, b) in low.iter_mut().zip(high) {
                    *a ^= field::mul(transforms.factor(first, layer), *b);
                    *b ^= *a;
                }
            }
        }
        sums.truncate(targets);
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
                    apply(transforms, &data, m),
                    column,
                    "{k}+{m}, source {source}"
                );
            }
        }
    }

    /// Returns the matrix that computes data shards from all others.
    fn decoding(k: usize, m: usize, lost: std::ops::Range<usize>) -> Matrix {
        let generator = Layout::new(Geometry::new(k, m).expect("valid")).generator();
        let rows = Matrix::from_fn(k + m, k, |row, column| match row.checked_sub(k) {
            None => u8::from(row == column),
            Some(parity) => generator.at(parity, column),
        });
        let all: Vec<usize> = (0..k).collect();
        let used: Vec<usize> = (0..k + m).filter(|shard| !lost.contains(shard)).collect();
        let solved = rows.select(&used[..k], &all).inverse();
        let lost: Vec<usize> = lost.collect();
        solved.expect("MDS").select(&lost, &all)
    }

    #[test]
    fn butterflies_with_these_factors_compute_a_whole_chunk_that_is_lost() {
        for (k, m) in [
            (1, 1),
            (4, 4),
            (10, 4),
            (16, 16),
            (17, 16),
            (40, 16),
            (64, 16),
            (100, 64),
        ] {
            for first in (0..=k - m).step_by(m) {
                let matrix = decoding(k, m, first..first + m);
                let transforms = Transforms::of(&matrix).expect("a whole chunk");
                // A matrix between two chunks is its own inverse, and counts as the generator.
                let chunk = if k == m { 0 } else { first + m };
                assert_eq!(transforms.target_point(0), chunk, "{k}+{m}");
                for source in 0..k {
                    let mut values = vec![0; k];
                    values[source] = 0x53;
                    let column: Vec<u8> = (0..m)
                        .map(|row| field::mul(matrix.at(row, source), 0x53))
                        .collect();
                    assert_eq!(
                        apply(transforms, &values, m),
                        column,
                        "{k}+{m} without {first} on, source {source}"
                    );
                }
            }
        }
    }

    /// The order of sources and targets is that of the matrices with which a volume decodes.
    #[test]
    fn matrices_of_a_codec_that_compute_a_whole_chunk_have_transforms_and_those_of_other_losses_have_none()
     {
        for (k, m) in [(17, 16), (40, 16), (64, 16), (100, 64)] {
            let geometry = Geometry::new(k, m).expect("valid");
            let engine = select("scalar").expect("always there");
            let codec = Codec::new(CodeId::RS_FFT, geometry, engine).expect("valid");
            for first in 0..=k - m {
                let lost: Vec<usize> = (first..first + m).collect();
                // Members answer in any order.
                let used = (0..k + m).rev().filter(|shard| !lost.contains(shard));
                let used: Vec<usize> = used.collect();
                let matrix = codec.decode_matrix(&used, &lost).expect("enough are left");
                let transforms = Transforms::of(&matrix);
                let context = format!("{k}+{m} without {first} on");
                assert_eq!(transforms.is_some(), first.is_multiple_of(m), "{context}");
                let Some(transforms) = transforms else {
                    continue;
                };
                assert_eq!(transforms.target_point(0), first + m, "{context}");
                let values: Vec<u8> = (1..)
                    .map(|value: u8| value.wrapping_mul(37))
                    .take(k)
                    .collect();
                let sums = (0..m).map(|row| {
                    let terms = values.iter().enumerate();
                    terms.fold(0, |sum, (source, value)| {
                        sum ^ field::mul(matrix.at(row, source), *value)
                    })
                });
                assert_eq!(
                    apply(transforms, &values, m),
                    sums.collect::<Vec<u8>>(),
                    "{context}"
                );
            }
        }
    }

    #[test]
    fn other_losses_have_none() {
        for lost in [0..15, 1..17, 8..24, 17..33] {
            assert_eq!(
                Transforms::of(&decoding(40, 16, lost.clone())),
                None,
                "{lost:?}"
            );
        }
        assert_eq!(Transforms::of(&decoding(32, 12, 0..12)), None);
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
