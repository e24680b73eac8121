//! The results of the literature, for comparison.

use crate::{CodeId, Geometry};

/// One geometry of table 3 of the FAST '19 study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Studied {
    /// The code: which width the symbols have.
    pub code: CodeId,
    /// The geometry.
    pub geometry: Geometry,
    /// XORs and copies of packets per block of every shard, with the best strategy of the study.
    pub operations: usize,
}

/// Width, k, m, and the study's count.
const TABLE: [(u16, usize, usize, usize); 10] = [
    (4, 6, 2, 57),
    (4, 6, 3, 87),
    (4, 6, 4, 118),
    (4, 8, 4, 164),
    (4, 10, 6, 316),
    (8, 6, 2, 130),
    (8, 6, 3, 225),
    (8, 6, 4, 335),
    (8, 8, 4, 462),
    (8, 10, 6, 922),
];

/// Returns the geometries that T. Zhou and C. Tian, "Fast erasure coding for data storage", FAST 2019,
/// give counts for in table 3.
pub fn study() -> impl Iterator<Item = Studied> {
    TABLE.into_iter().filter_map(|(width, k, m, operations)| {
        Some(Studied {
            code: CodeId(width.into()),
            geometry: Geometry::new(k, m).ok()?,
            operations,
        })
    })
}
