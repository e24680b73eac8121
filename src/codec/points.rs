//! The points of the Cauchy matrices of `crs-w4` to `crs-w8`. They are part of the code: volumes hold
//! parity computed with them, so no entry is changed, and none is added or taken away either, since a
//! geometry without one has points, too.

use crate::codec::{Geometry, bitmatrix::Width, schedule::Effort};

/// One geometry, as `bench schedule` found that parity takes fewest XORs.
struct Entry {
    width: u8,
    /// Points of parity shards, then of data shards: part of the code.
    parity: &'static [u8],
    data: &'static [u8],
    /// How to find the shortest schedule: no part of the code, and free to be improved.
    seed: u32,
    rounds: u32,
}

const ENTRIES: &[Entry] = &[
    Entry {
        width: 4,
        parity: &[0, 1],
        data: &[2, 4, 6, 9],
        seed: 0,
        rounds: 468,
    },
    Entry {
        width: 4,
        parity: &[0, 1],
        data: &[2, 6, 4, 11, 9, 12],
        seed: 0,
        rounds: 312,
    },
    Entry {
        width: 4,
        parity: &[4, 5, 0],
        data: &[6, 13, 12, 8, 7, 1],
        seed: 87,
        rounds: 208,
    },
    Entry {
        width: 4,
        parity: &[6, 7, 3, 0],
        data: &[14, 4, 8, 1, 13, 5],
        seed: 16,
        rounds: 156,
    },
    Entry {
        width: 4,
        parity: &[1, 5, 7, 13],
        data: &[8, 3, 0, 2, 10, 6, 4, 11],
        seed: 11,
        rounds: 117,
    },
    Entry {
        width: 4,
        parity: &[6, 9, 10, 12],
        data: &[0, 14, 8, 3, 13, 7, 15, 1, 2, 11],
        seed: 42,
        rounds: 93,
    },
    Entry {
        width: 4,
        parity: &[0, 3, 6, 10, 5, 2],
        data: &[8, 1, 13, 9, 4, 7, 11, 14, 12, 15],
        seed: 134,
        rounds: 62,
    },
    Entry {
        width: 8,
        parity: &[1, 103],
        data: &[67, 176, 179, 46],
        seed: 2,
        rounds: 117,
    },
    Entry {
        width: 8,
        parity: &[24, 223],
        data: &[39, 118, 40, 151, 78, 127],
        seed: 4,
        rounds: 78,
    },
    Entry {
        width: 8,
        parity: &[38, 96, 227],
        data: &[153, 43, 224, 186, 58, 36],
        seed: 15,
        rounds: 52,
    },
    Entry {
        width: 8,
        parity: &[38, 114, 63, 101],
        data: &[249, 219, 127, 138, 30, 16],
        seed: 55,
        rounds: 39,
    },
    Entry {
        width: 8,
        parity: &[154, 118, 96, 216],
        data: &[98, 124, 172, 189, 157, 234, 36, 195],
        seed: 62,
        rounds: 29,
    },
    Entry {
        width: 8,
        parity: &[36, 251, 14, 82],
        data: &[136, 223, 208, 240, 41, 248, 118, 9, 234, 126],
        seed: 0,
        rounds: 23,
    },
    Entry {
        width: 8,
        parity: &[156, 241, 216, 243, 137, 65],
        data: &[113, 47, 218, 63, 72, 248, 107, 213, 100, 239],
        seed: 0,
        rounds: 15,
    },
];

fn entry(width: Width, geometry: Geometry) -> Option<&'static Entry> {
    let (k, m) = (geometry.data_shards(), geometry.parity_shards());
    ENTRIES.iter().find(|entry| {
        let width_fits = usize::from(entry.width) == width.bits();
        width_fits && entry.data.len() == k && entry.parity.len() == m
    })
}

/// Returns the points of parity shards and those of data shards: from the table, or else k+r for
/// parity shard r and c for data shard c.
pub(super) fn of(width: Width, geometry: Geometry) -> (Vec<u8>, Vec<u8>) {
    let (k, m) = (geometry.data_shards(), geometry.parity_shards());
    match entry(width, geometry) {
        Some(entry) => (entry.parity.to_vec(), entry.data.to_vec()),
        None => (
            (0..=u8::MAX).skip(k).take(m).collect(),
            (0..=u8::MAX).take(k).collect(),
        ),
    }
}

/// Returns how to look for a schedule.
pub(super) fn effort(width: Width, geometry: Geometry) -> Effort {
    let (seed, rounds) = entry(width, geometry).map_or((0, 0), |entry| (entry.seed, entry.rounds));
    Effort::Thorough { seed, rounds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_point_is_used_twice_or_lies_outside_the_field() {
        for width in (4..=8).filter_map(Width::new) {
            let most = width.elements().min(Geometry::MAX_TOTAL_SHARDS);
            for total in 2..=most.min(40) {
                for m in 1..total {
                    let geometry = Geometry::new(total - m, m).expect("valid");
                    let (mut points, data) = of(width, geometry);
                    assert_eq!((points.len(), data.len()), (m, total - m));
                    points.extend(data);
                    points.sort_unstable();
                    points.dedup();
                    assert_eq!(points.len(), total, "{width:?} {geometry}");
                    assert!(
                        points
                            .iter()
                            .all(|&point| usize::from(point) < width.elements())
                    );
                }
            }
        }
    }
}
