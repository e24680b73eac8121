//! The share of messages that so many packets complete.

use super::{report::CompletenessRow, site::SEED};
use crate::bench::{BenchError, row::to_f64};
use crate::codec::rateless::{Echelon, Form, RandomCode};

/// The most source packets that are tried: with more, the shares are the same, and take long.
pub(super) const MOST_PACKETS: usize = 256;

/// The most packets beyond the number of source packets.
const MOST_EXTRA: usize = 13;

/// Lets packets of so many messages arrive one by one, and counts how many messages each number of packets completes.
///
/// # Errors
///
/// [`BenchError`] if no code has so many source packets.
pub(super) fn count(packets: usize, messages: usize) -> Result<Vec<CompletenessRow>, BenchError> {
    let code = RandomCode::new(Form::Plain, packets, SEED)?;
    let most = packets + MOST_EXTRA;
    // How many messages each number of extra packets completes, and no smaller one.
    let mut completed = [0; MOST_EXTRA + 1];
    for message in 0..messages as u64 {
        let mut rows = Echelon::new(code);
        let first = message * most as u64;
        let needed = (1..=most as u64).find(|count| {
            rows.add(first + count - 1);
            rows.is_complete()
        });
        let extra = needed.and_then(|count| usize::try_from(count).ok()?.checked_sub(packets));
        if let Some(extra) = extra {
            completed[extra] += 1;
        }
    }
    let rows = (0..=MOST_EXTRA).map(|extra| CompletenessRow {
        packets,
        received: packets + extra,
        messages,
        complete: to_f64(completed[..=extra].iter().sum()) / to_f64(messages),
        exact: exact(packets, packets + extra),
    });
    Ok(rows.collect())
}

/// Returns the probability that so many random rows have full rank.
fn exact(packets: usize, received: usize) -> f64 {
    let missing = (received - packets + 1..=received).map(|i| 0.5f64.powf(to_f64(i)));
    missing.map(|share| 1.0 - share).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_share_is_that_of_counting_all_matrices() {
        // Of the 16 matrices of 2×2 bits, 6 have full rank; of the 64 of 3×2 bits, 42.
        assert!((exact(2, 2) - 6.0 / 16.0).abs() < 1e-12);
        assert!((exact(2, 3) - 42.0 / 64.0).abs() < 1e-12);
    }

    #[test]
    fn the_share_counted_is_near_the_exact_one_and_never_falls() {
        let rows = count(32, 10_000).expect("such a code exists");
        assert_eq!(rows.len(), 14);
        assert!(rows.is_sorted_by(|a, b| a.complete <= b.complete));
        for row in rows {
            // Five standard deviations of so many trials, at least that of one message.
            let deviation = (row.exact * (1.0 - row.exact) / 10_000.0).sqrt();
            let allowed = 5.0 * deviation.max(1e-4);
            assert!((row.complete - row.exact).abs() < allowed, "{row:?}");
        }
    }
}
