//! Holes that are filled with unwritten runs.

use super::*;
use crate::format::StripeId;

const BLOCK: u64 = BLOCK_SIZE as u64;

fn run(start: u64, len: u64, stripe: StripeId, stripe_offset: u32) -> Run {
    Run {
        start,
        len,
        stripe,
        stripe_offset,
    }
}

fn unwritten(start: u64, len: u64) -> Run {
    let offset = u32::try_from(start % UNWRITTEN_BYTES).unwrap();
    run(start, len, Extent::UNWRITTEN, offset)
}

#[test]
fn the_holes_between_runs_are_filled_and_the_runs_stay() {
    let data = run(2 * BLOCK, BLOCK, StripeId(3), 77);
    let lost = run(5 * BLOCK, 10, Extent::FAILED_WRITEBACK, 0);
    let found = filled(&[data, lost], &(BLOCK..8 * BLOCK));
    let expected = [
        unwritten(BLOCK, BLOCK),
        data,
        unwritten(3 * BLOCK, 2 * BLOCK),
        lost,
        unwritten(5 * BLOCK + 10, 3 * BLOCK - 10),
    ];
    assert_eq!(found, expected);
    assert_eq!(filled(&found, &(BLOCK..8 * BLOCK)), expected);
}

#[test]
fn unwritten_runs_merge_and_cross_no_boundary() {
    let whole = filled(&[], &(BLOCK..2 * UNWRITTEN_BYTES + BLOCK));
    let expected = [
        unwritten(BLOCK, UNWRITTEN_BYTES - BLOCK),
        unwritten(UNWRITTEN_BYTES, UNWRITTEN_BYTES),
        unwritten(2 * UNWRITTEN_BYTES, BLOCK),
    ];
    assert_eq!(whole, expected);
    let parts = [unwritten(BLOCK, BLOCK), unwritten(3 * BLOCK, BLOCK)];
    let merged = filled(&parts, &(BLOCK..5 * BLOCK));
    assert_eq!(merged, [unwritten(BLOCK, 4 * BLOCK)]);
    // A part of one merges with the rest again.
    let punched = extents::splice(&merged, &(2 * BLOCK..3 * BLOCK), &[]);
    assert_eq!(punched.len(), 2);
    assert_eq!(filled(&punched, &(BLOCK..5 * BLOCK)), merged);
}

#[test]
fn a_part_ends_where_a_page_of_runs_does_and_is_bounded() {
    let many: Vec<Run> = (0..PAGE as u64)
        .map(|index| run(index * BLOCK, 1, StripeId(1), 0))
        .collect();
    let range = 0..100 * MOST_AT_ONCE;
    assert_eq!(first_part(&many, &range), 0..(PAGE as u64 - 1) * BLOCK + 1);
    assert_eq!(first_part(&many[1..], &range), 0..MOST_AT_ONCE);
    assert_eq!(first_part(&many[1..], &(5..6)), 5..6);
}
