//! Every engine computes the sums that the matrix calls for, and the same elimination.

use cauchyfs_codec::{
    Engine, Stores, engines,
    rateless::{BitRows, Selection, SelectionJob},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{SEED, support::slices};

/// Bytes before and behind each target, which must stay as they are.
const MARGIN: usize = 80;

fn random_rows(rng: &mut StdRng, rows: usize, columns: usize) -> BitRows {
    let mut matrix = BitRows::new(rows, columns);
    for row in 0..rows {
        for column in 0..columns {
            matrix.row_mut(row)[column / 64] |= u64::from(rng.random::<bool>()) << (column % 64);
        }
    }
    matrix
}

/// Returns the sums that a matrix calls for, byte by byte.
fn sums(matrix: &BitRows, sources: &[Vec<u8>], bytes: usize) -> Vec<Vec<u8>> {
    let sum = |row: usize| {
        let selected = sources
            .iter()
            .enumerate()
            .filter(|(c, _)| matrix.at(row, *c));
        selected.fold(vec![0; bytes], |sum: Vec<u8>, (_, source)| {
            sum.iter().zip(source).map(|(a, b)| a ^ b).collect()
        })
    };
    (0..matrix.rows()).map(sum).collect()
}

/// Runs a selection on targets at odd or aligned addresses, and returns whole buffers, margins included.
fn run(
    engine: &dyn Engine,
    stores: Stores,
    (matrix, sources): (&BitRows, &[Vec<u8>]),
    (bytes, shift): (usize, usize),
) -> Vec<Vec<u8>> {
    let selection = Selection::new(matrix);
    let mut buffers = vec![vec![0xEE; bytes + MARGIN]; matrix.rows()];
    let mut starts = Vec::new();
    let mut targets: Vec<&mut [u8]> = Vec::new();
    for buffer in &mut buffers {
        let start = (buffer.as_ptr().align_offset(64) + shift) % 64;
        starts.push(start);
        targets.push(&mut buffer[start..start + bytes]);
    }
    let sources = slices(sources);
    let job = SelectionJob::new(&selection, &sources, &mut targets).expect("packets fit");
    engine.run_selection(&mut job.with_stores(stores));
    for (buffer, start) in buffers.iter_mut().zip(starts) {
        let (head, tail) = (&buffer[..start], &buffer[start + bytes..]);
        assert!(head.iter().chain(tail).all(|&byte| byte == 0xEE));
        buffer.copy_within(start..start + bytes, 0);
        buffer.truncate(bytes);
    }
    buffers
}

#[test]
fn every_engine_adds_up_what_the_matrix_selects_at_any_size_and_alignment() {
    let shapes = [
        (1, 1),
        (1, 70),
        (3, 5),
        (9, 64),
        (32, 32),
        (50, 130),
        (130, 50),
        (300, 257),
        (1, 400),
    ];
    for engine in engines() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for (rows, columns) in shapes {
            let matrix = random_rows(&mut rng, rows, columns);
            for bytes in [0, 1, 31, 64, 65, 127, 128, 200] {
                let sources = super::random_packets(&mut rng, columns, bytes);
                let expected = sums(&matrix, &sources, bytes);
                for (stores, shift) in [
                    (Stores::Cached, 0),
                    (Stores::Cached, 13),
                    (Stores::Streaming, 0),
                    (Stores::Streaming, 13),
                ] {
                    let found = run(engine, stores, (&matrix, &sources), (bytes, shift));
                    assert!(
                        found == expected,
                        "seed {SEED:#x}: {} with {rows}×{columns}, {bytes} bytes at {shift}, {stores:?}",
                        engine.name()
                    );
                }
            }
        }
    }
}

/// The product of the inverse and the rows that it names is the unit matrix.
#[test]
fn every_engine_finds_the_inverse_of_the_rows_it_names() {
    for engine in engines() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for columns in [1, 2, 8, 9, 32, 63, 64, 65, 72, 128, 200] {
            for extra in [0, 1, 10, 100] {
                let count = columns + extra;
                let rows = random_rows(&mut rng, count, columns);
                let mut inverse = rows.clone();
                let mut order: Vec<usize> = (0..count).collect();
                let rank = engine.eliminate(&mut inverse, &mut order);
                assert!(rank <= columns);
                if rank < columns {
                    assert!(extra < 100, "so many random rows have full rank");
                    continue;
                }
                for row in 0..columns {
                    let mut product = vec![0; rows.row(0).len()];
                    for column in (0..columns).filter(|&column| inverse.at(row, column)) {
                        let named = rows.row(order[column]);
                        product.iter_mut().zip(named).for_each(|(a, b)| *a ^= b);
                    }
                    let mut unit = vec![0; product.len()];
                    unit[row / 64] = 1 << (row % 64);
                    let name = engine.name();
                    assert_eq!(product, unit, "seed {SEED:#x}: {name}, {count}×{columns}");
                }
            }
        }
    }
}
