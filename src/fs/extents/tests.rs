use proptest::prelude::*;

use super::*;

const FILE: usize = 64;

/// For each byte of a file, its stripe and the byte's number there.
type Bytes = [Option<(u64, u64)>; FILE];

fn bytes_of(runs: &[Run]) -> Bytes {
    let mut bytes = [None; FILE];
    for run in runs {
        for index in 0..run.len {
            let at = usize::try_from(run.start + index).unwrap();
            assert_eq!(bytes[at], None, "runs overlap: {runs:?}");
            bytes[at] = Some((run.stripe.0, u64::from(run.stripe_offset) + index));
        }
    }
    bytes
}

fn run(start: u64, len: u64, stripe: u64, stripe_offset: u32) -> Run {
    Run {
        start,
        len,
        stripe: StripeId(stripe),
        stripe_offset,
    }
}

proptest! {
    #[test]
    fn splicing_replaces_exactly_the_bytes_of_the_range(
        changes in prop::collection::vec((0..60_u64, 1..20_u64, 0..3_u64, any::<bool>()), 1..20)
    ) {
        let mut runs = Vec::new();
        let mut model: Bytes = [None; FILE];
        let mut next_offset = [0_u32; 3];
        for (start, len, stripe, is_hole) in changes {
            let range = start..(start + len).min(FILE as u64);
            let len = range.end - range.start;
            let offset = &mut next_offset[usize::try_from(stripe).unwrap()];
            let new = if is_hole { vec![] } else { vec![run(start, len, stripe, *offset)] };
            for index in range.clone() {
                let byte = (stripe, u64::from(*offset) + index - start);
                model[usize::try_from(index).unwrap()] = (!is_hole).then_some(byte);
            }
            *offset += u32::try_from(len).unwrap();
            runs = splice(&runs, &range, &new);
            prop_assert_eq!(bytes_of(&runs), model);
            prop_assert!(runs.is_sorted());
            prop_assert!(runs.windows(2).all(|pair| !pair[0].continues_in(&pair[1])));
        }
    }
}

#[test]
fn writing_on_in_the_same_stripe_keeps_one_extent() {
    let mut runs = vec![run(0, 10, 1, 0)];
    for index in 1..6 {
        let start = index * 10;
        let offset = u32::try_from(start).unwrap();
        runs = splice(&runs, &(start..start + 10), &[run(start, 10, 1, offset)]);
    }
    assert_eq!(runs, [run(0, 60, 1, 0)]);
}

#[test]
fn only_stripes_that_lose_bytes_are_marked_as_perhaps_dead() {
    let old = [run(0, 10, 1, 0), run(10, 10, 2, 0)];
    let mut edit = Edit::default();
    let kept = splice(&old, &(15..30), &[run(15, 15, 3, 0)]);
    let growth = Growth {
        allocated: 10,
        unwritten: 0,
    };
    assert_eq!(replace(&mut edit, Ino(5), &old, &kept), growth);
    let batch = edit.into_batch();
    let is_marked = |stripe| {
        let expected = key::perhaps_dead(StripeId(stripe));
        batch.iter().any(|(key, _)| **key == *expected)
    };
    assert_eq!([1, 2, 3].map(is_marked), [false, true, false]);
}

/// A write takes a part of an unwritten run: what is allocated stays as much, and the mark stays while any is unwritten.
#[test]
fn a_change_of_unwritten_runs_counts_them_and_marks_their_file() {
    let unwritten = |start, len| Run {
        start,
        len,
        stripe: Extent::UNWRITTEN,
        stripe_offset: u32::try_from(start).unwrap(),
    };
    let old = [unwritten(0, 30)];
    let kept = splice(&old, &(10..20), &[run(10, 10, 1, 0)]);
    assert_eq!(
        kept,
        [unwritten(0, 10), run(10, 10, 1, 0), unwritten(20, 10)]
    );
    let mut edit = Edit::default();
    let growth = replace(&mut edit, Ino(5), &old, &kept);
    assert_eq!((growth.allocated, growth.unwritten), (0, -10));
    let batch = edit.into_batch();
    let changed = |wanted: &[u8]| batch.iter().any(|(key, _)| **key == *wanted);
    assert!(!changed(&key::perhaps_dead(Extent::UNWRITTEN)));
    assert!(!changed(&key::backref(Extent::UNWRITTEN, Ino(5), 10)));
}
