//! Programs compute what the matrix of their plan says.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::*;
use crate::{
    Geometry, Matrix, Mode, Plan,
    decode::decode_matrix,
    engine::vector::portable::Portable,
    fft::{decode_program, encode_program},
    subspace::Layout,
};

const SEED: u64 = 0xF17;

fn layout(k: usize, m: usize) -> Layout {
    Layout::new(Geometry::new(k, m).expect("valid"))
}

/// Runs a program on symbols of every kind, and compares what comes out with the matrix.
fn check(matrix: &Matrix, program: &Program, what: &str) {
    check_with::<Bytes>(matrix, program, what);
    check_with::<Planes<Portable>>(matrix, program, what);
    #[cfg(target_arch = "x86_64")]
    check_with::<Portable>(matrix, program, what);
}

/// Runs a program on shards of which each holds a single one, at its own index: what comes out is the matrix.
/// Shards end with zeros, and in the middle of symbols.
#[expect(unsafe_code, reason = "the loop demands instructions")]
fn check_with<S: Symbols>(matrix: &Matrix, program: &Program, what: &str) {
    let length = matrix.columns() + S::BYTES + 1;
    let source = |c: usize| (0..length).map(|i| u8::from(i == c)).collect();
    let sources: Vec<Vec<u8>> = (0..matrix.columns()).map(source).collect();
    let sources: Vec<&[u8]> = sources.iter().map(|source| &source[..]).collect();
    let mut targets = vec![vec![0xEE; length]; matrix.rows()];
    let mut targets: Vec<&mut [u8]> = targets.iter_mut().map(|target| &mut target[..]).collect();
    let plan = Plan::new(matrix.clone());
    let mut job = Job::new(&plan, &sources, &mut targets, Mode::Assign).expect("shards fit");
    // SAFETY: these symbols need no instructions that a CPU could lack.
    assert_eq!(unsafe { run::<S>(&mut job, program) }, length);
    for (row, target) in targets.iter().enumerate() {
        let (found, rest) = target.split_at(matrix.columns());
        assert_eq!(found, matrix.row(row), "{what}, row {row}");
        assert!(rest.iter().all(|&byte| byte == 0), "{what}, row {row}");
    }
}

fn check_encode(k: usize, m: usize) {
    let layout = layout(k, m);
    let program = encode_program(layout).expect("there are transforms");
    check(&layout.generator(), &program, &format!("{k}+{m}"));
}

fn check_decode(layout: Layout, used: &[usize], lost: &[usize]) {
    let matrix = decode_matrix(&layout.generator(), used, lost);
    let program = decode_program(layout, used, lost).expect("there are transforms");
    check(
        &matrix,
        &program,
        &format!("{layout:?} without {lost:?} from {used:?}"),
    );
}

#[test]
fn transforms_compute_the_parities_of_every_geometry_of_up_to_48_shards() {
    for k in 1..48 {
        for m in 2..=48 - k {
            check_encode(k, m);
        }
    }
}

#[test]
fn transforms_compute_the_parities_of_large_geometries() {
    let large = [
        (64, 16),
        (100, 40),
        (128, 64),
        (127, 128),
        (192, 33),
        (239, 16),
        (3, 128),
    ];
    for (k, m) in large {
        check_encode(k, m);
    }
}

#[test]
fn geometries_that_leave_no_room_for_the_subspace_have_no_transforms() {
    for (k, m) in [(193, 33), (200, 55), (130, 70)] {
        assert!(encode_program(layout(k, m)).is_none(), "{k}+{m}");
    }
}

#[test]
fn transforms_decode_every_pattern_of_small_geometries() {
    for (k, m) in [(1, 2), (2, 2), (5, 3), (4, 4), (7, 2), (3, 5)] {
        let layout = layout(k, m);
        for set in 0_u32..1 << (k + m) {
            let (used, others): (Vec<usize>, Vec<usize>) =
                (0..k + m).partition(|shard| set >> shard & 1 == 1);
            if used.len() == k {
                check_decode(layout, &used, &others);
                check_decode(layout, &used, &others[..1]);
                check_decode(layout, &used, &others[others.len() - 1..]);
            }
        }
    }
}

#[test]
fn transforms_decode_random_patterns_of_large_geometries() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for (k, m) in [
        (10, 4),
        (20, 10),
        (32, 16),
        (32, 32),
        (64, 16),
        (9, 40),
        (128, 64),
    ] {
        let layout = layout(k, m);
        for _ in 0..10 {
            let mut shards: Vec<usize> = (0..k + m).collect();
            shards.shuffle(&mut rng);
            let (used, others) = shards.split_at_mut(k);
            used.sort_unstable();
            let count = rng.random_range(1..=m);
            others[..count].sort_unstable();
            check_decode(layout, used, &others[..count]);
        }
        let (first, last): (Vec<usize>, Vec<usize>) = (0..k + m).partition(|shard| *shard < m);
        if k >= m {
            check_decode(layout, &last, &first);
        }
    }
}
