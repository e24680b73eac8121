//! The points of the Cauchy matrices of `crs-w4` to `crs-w8`. They are part of the code, because
//! volumes hold parity computed with them. So no entry is ever changed, added or taken away: a
//! geometry without an entry has points, too.

use crate::{
    Geometry,
    schedule::{Effort, rounds},
    width::Width,
};

/// One geometry, as `bench schedule` found that parity takes fewest XORs.
struct Entry {
    width: u8,
    /// Points of parity shards, then of data shards: part of the code.
    parity: &'static [u8],
    data: &'static [u8],
    /// The recipe for the shortest schedule: no part of the code, and free to be improved.
    seed: u32,
    rounds: u32,
}

const ENTRIES: &[Entry] = &[
    Entry {
        width: 4,
        parity: &[0, 3],
        data: &[1, 14, 6],
        seed: 0,
        rounds: 625,
    },
    Entry {
        width: 4,
        parity: &[0, 1],
        data: &[2, 4, 6, 9],
        seed: 0,
        rounds: 468,
    },
    Entry {
        width: 4,
        parity: &[0, 1, 4],
        data: &[7, 5, 8, 3, 15],
        seed: 3,
        rounds: 250,
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
        parity: &[0, 5, 14],
        data: &[3, 4, 7, 10, 9, 11, 12, 13],
        seed: 0,
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
        width: 4,
        parity: &[0, 1, 14, 9],
        data: &[2, 6, 7, 8, 11, 5, 15, 12, 4, 10, 3, 13],
        seed: 4,
        rounds: 78,
    },
    Entry {
        width: 5,
        parity: &[0, 3],
        data: &[14, 15, 31],
        seed: 0,
        rounds: 400,
    },
    Entry {
        width: 5,
        parity: &[0, 16],
        data: &[9, 2, 20, 26],
        seed: 0,
        rounds: 300,
    },
    Entry {
        width: 5,
        parity: &[0, 7, 25],
        data: &[20, 31, 12, 15, 23],
        seed: 12,
        rounds: 160,
    },
    Entry {
        width: 5,
        parity: &[0, 17],
        data: &[1, 24, 6, 29, 25, 13],
        seed: 0,
        rounds: 200,
    },
    Entry {
        width: 5,
        parity: &[1, 7, 0],
        data: &[2, 12, 24, 6, 15, 21],
        seed: 12,
        rounds: 133,
    },
    Entry {
        width: 5,
        parity: &[2, 7, 13],
        data: &[21, 3, 10, 4, 24, 22, 18, 31],
        seed: 0,
        rounds: 100,
    },
    Entry {
        width: 5,
        parity: &[1, 2, 3, 10],
        data: &[13, 0, 21, 18, 6, 4, 24, 31],
        seed: 1,
        rounds: 75,
    },
    Entry {
        width: 5,
        parity: &[0, 1, 11, 29],
        data: &[14, 12, 4, 2, 15, 18, 24, 10, 20, 30],
        seed: 3,
        rounds: 60,
    },
    Entry {
        width: 5,
        parity: &[17, 5, 6, 7],
        data: &[15, 24, 19, 22, 14, 2, 26, 20, 23, 12, 1, 8],
        seed: 2,
        rounds: 50,
    },
    Entry {
        width: 5,
        parity: &[13, 5, 4, 22],
        data: &[7, 17, 15, 26, 28, 6, 11, 29, 20, 25, 12, 24, 9, 3, 23, 21],
        seed: 3,
        rounds: 37,
    },
    Entry {
        width: 6,
        parity: &[2, 29],
        data: &[32, 45, 53],
        seed: 0,
        rounds: 277,
    },
    Entry {
        width: 6,
        parity: &[0, 10],
        data: &[7, 60, 36, 38],
        seed: 0,
        rounds: 208,
    },
    Entry {
        width: 6,
        parity: &[9, 30, 59],
        data: &[55, 42, 3, 32, 40],
        seed: 13,
        rounds: 111,
    },
    Entry {
        width: 6,
        parity: &[0, 61],
        data: &[1, 8, 38, 9, 24, 45],
        seed: 0,
        rounds: 138,
    },
    Entry {
        width: 6,
        parity: &[40, 54, 29],
        data: &[23, 9, 20, 28, 46, 39],
        seed: 14,
        rounds: 92,
    },
    Entry {
        width: 6,
        parity: &[19, 48, 0],
        data: &[25, 11, 9, 37, 38, 42, 40, 20],
        seed: 0,
        rounds: 69,
    },
    Entry {
        width: 6,
        parity: &[37, 47, 44, 56],
        data: &[21, 26, 22, 17, 31, 28, 1, 35],
        seed: 10,
        rounds: 52,
    },
    Entry {
        width: 6,
        parity: &[47, 4, 39, 63],
        data: &[38, 22, 21, 30, 11, 12, 7, 58, 46, 48],
        seed: 14,
        rounds: 41,
    },
    Entry {
        width: 6,
        parity: &[22, 3, 41, 30],
        data: &[15, 34, 60, 16, 48, 24, 46, 13, 20, 23, 35, 42],
        seed: 1,
        rounds: 34,
    },
    Entry {
        width: 6,
        parity: &[22, 0, 47, 8],
        data: &[58, 42, 28, 38, 4, 41, 52, 60, 6, 9, 25, 56, 18, 50, 34, 15],
        seed: 11,
        rounds: 26,
    },
    Entry {
        width: 7,
        parity: &[5, 67],
        data: &[49, 24, 80],
        seed: 0,
        rounds: 204,
    },
    Entry {
        width: 7,
        parity: &[7, 73],
        data: &[77, 126, 107, 123],
        seed: 0,
        rounds: 153,
    },
    Entry {
        width: 7,
        parity: &[77, 33, 127],
        data: &[45, 119, 59, 61, 60],
        seed: 16,
        rounds: 81,
    },
    Entry {
        width: 7,
        parity: &[6, 45],
        data: &[40, 117, 51, 85, 37, 59],
        seed: 0,
        rounds: 102,
    },
    Entry {
        width: 7,
        parity: &[12, 124, 108],
        data: &[0, 110, 53, 106, 107, 58],
        seed: 6,
        rounds: 68,
    },
    Entry {
        width: 7,
        parity: &[77, 96, 53],
        data: &[119, 63, 91, 37, 8, 34, 115, 84],
        seed: 12,
        rounds: 51,
    },
    Entry {
        width: 7,
        parity: &[101, 77, 46, 34],
        data: &[9, 2, 38, 0, 95, 61, 27, 60],
        seed: 6,
        rounds: 38,
    },
    Entry {
        width: 7,
        parity: &[15, 65, 10, 119],
        data: &[12, 56, 45, 28, 91, 98, 42, 35, 105, 118],
        seed: 5,
        rounds: 30,
    },
    Entry {
        width: 7,
        parity: &[90, 66, 117, 92],
        data: &[1, 21, 76, 88, 22, 43, 126, 38, 3, 20, 44, 56],
        seed: 13,
        rounds: 25,
    },
    Entry {
        width: 7,
        parity: &[12, 49, 18, 114],
        data: &[
            1, 5, 21, 123, 77, 87, 113, 40, 41, 63, 96, 47, 84, 3, 91, 78,
        ],
        seed: 11,
        rounds: 19,
    },
    Entry {
        width: 8,
        parity: &[6, 142],
        data: &[81, 114, 216],
        seed: 0,
        rounds: 156,
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
        parity: &[188, 168, 6],
        data: &[124, 161, 242, 144, 96],
        seed: 0,
        rounds: 62,
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
        parity: &[34, 165, 236],
        data: &[103, 53, 61, 84, 24, 35, 90, 80],
        seed: 0,
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
    Entry {
        width: 8,
        parity: &[58, 132, 9, 41],
        data: &[133, 204, 189, 134, 24, 42, 51, 170, 137, 240, 54, 116],
        seed: 8,
        rounds: 19,
    },
    Entry {
        width: 8,
        parity: &[10, 118, 127, 109],
        data: &[
            75, 147, 239, 71, 27, 207, 248, 255, 74, 241, 202, 57, 82, 183, 11, 163,
        ],
        seed: 0,
        rounds: 14,
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
    let bits = geometry.data_shards() * geometry.parity_shards() * width.bits().pow(2);
    let searched = entry(width, geometry).map(|entry| (entry.seed, entry.rounds));
    let (seed, rounds) = searched.unwrap_or_else(|| (0, rounds(bits)));
    Effort::Thorough { seed, rounds }
}

/// Returns all that points were searched for.
#[cfg(test)]
pub(super) fn table() -> impl Iterator<Item = (Width, Geometry)> {
    ENTRIES.iter().map(|entry| {
        let geometry = Geometry::new(entry.data.len(), entry.parity.len());
        let width = Width::new(entry.width).expect("4 to 8");
        (width, geometry.expect("valid"))
    })
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
