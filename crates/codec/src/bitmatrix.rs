//! Generators of the codes `crs-w4` to `crs-w8`: Cauchy matrices over GF(2ʷ) as matrices of bits.
//!
//! An element e of GF(2ʷ) is a w×w matrix of bits, whose column j is e·xʲ. With every element of a
//! matrix expanded so, multiplying is nothing but XOR of packets.

use crate::{Geometry, Matrix, points, width::Width};

/// Returns the m×k matrix of elements of a code. It begins with 1 / (xᵣ + y꜀) over the points of
/// this geometry. Each column is divided by its entry in row 0. Then each further row is divided by
/// the one of its entries that leaves the fewest bits set, the first if there are several.
fn elements(width: Width, parity_points: &[u8], data_points: &[u8]) -> Vec<Vec<u8>> {
    let raw = |x: u8, y: u8| width.inv(x ^ y);
    let by_column = |x: u8| {
        let first = parity_points[0];
        data_points
            .iter()
            .map(move |&y| width.mul(raw(x, y), first ^ y))
            .collect::<Vec<u8>>()
    };
    let scaled = |row: &[u8], divisor: u8| {
        let factor = width.inv(divisor);
        row.iter()
            .map(|&e| width.mul(e, factor))
            .collect::<Vec<u8>>()
    };
    let ones = |row: &Vec<u8>| row.iter().map(|&e| width.ones(e)).sum::<u32>();
    let best = |row: Vec<u8>| {
        let choices = row.iter().map(|&divisor| scaled(&row, divisor));
        choices.min_by_key(ones).unwrap_or_default()
    };
    parity_points.iter().map(|&x| best(by_column(x))).collect()
}

/// Returns the generator of a code as bits: w rows per parity shard, w columns per data shard.
pub(super) fn generator(width: Width, geometry: Geometry) -> Matrix {
    let (parity_points, data_points) = points::of(width, geometry);
    from_points(width, &parity_points, &data_points)
}

/// Returns the generator over the given points, all of which differ.
pub(super) fn from_points(width: Width, parity_points: &[u8], data_points: &[u8]) -> Matrix {
    let elements = elements(width, parity_points, data_points);
    let w = width.bits();
    Matrix::from_fn(
        parity_points.len() * w,
        data_points.len() * w,
        |row, column| {
            let power =
                (0..column % w).fold(elements[row / w][column / w], |e, _| width.times_two(e));
            power >> (row % w) & 1
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths() -> impl Iterator<Item = Width> {
        (0..=u8::MAX).filter_map(Width::new)
    }

    /// Any k shards give back the others exactly if no square submatrix is singular. Each determinant is
    /// expanded along its first row into determinants already known.
    #[test]
    fn no_square_submatrix_is_singular_over_any_points_of_the_table() {
        for (width, geometry) in points::table() {
            let (x, y) = points::of(width, geometry);
            let matrix = elements(width, &x, &y);
            let k = y.len();
            let mut minors = vec![1; 1 << (k + x.len())];
            for rows in 1..1usize << x.len() {
                let row = &matrix[rows.trailing_zeros() as usize];
                let others = rows & (rows - 1);
                let columns = 1..1usize << k;
                for columns in columns.filter(|set| set.count_ones() == rows.count_ones()) {
                    let chosen = (0..k).filter(|c| columns >> c & 1 == 1);
                    let minor = chosen.fold(0, |sum, c| {
                        sum ^ width.mul(row[c], minors[others << k | columns & !(1 << c)])
                    });
                    assert_ne!(minor, 0, "{width:?} {geometry}: {rows:#b} {columns:#b}");
                    minors[rows << k | columns] = minor;
                }
            }
        }
    }

    #[test]
    fn bit_matrices_multiply_as_elements_do() {
        for width in widths() {
            let w = width.bits();
            // 1+1: the single element is 1; so use row 1 of 2+2.
            let geometry = Geometry::new(2, 2).expect("valid");
            let matrix = generator(width, geometry);
            let (x, y) = points::of(width, geometry);
            let element = elements(width, &x, &y)[1][1];
            for a in (0..=u8::MAX).take(width.elements()) {
                let product = (0..w).fold(0, |product, i| {
                    let row = (0..w).filter(|&j| matrix.at(w + i, w + j) == 1);
                    product | (row.fold(0, |sum, j| sum ^ (a >> j & 1)) << i)
                });
                assert_eq!(product, width.mul(element, a), "{width:?} {a}");
            }
        }
    }
}
