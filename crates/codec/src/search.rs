//! Looking for points of a Cauchy matrix whose parity takes few XORs, and for a way to schedule them.
//! The results for common geometries are checked in, in `points.rs`.

use std::fmt;

use crate::{
    CodeId, CodecError, Geometry, bitmatrix, points,
    random::Random,
    schedule::{Effort, Schedule, rounds},
    width::Width,
};

/// Steps without gain after which a climb is over.
const PATIENCE: usize = 400;

/// Points, of those that promise most, which all seeds are tried on.
const FINALISTS: usize = 8;

/// The parts that a search may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freedom {
    /// Points and schedule: for a geometry that no volume has yet.
    Everything,
    /// The schedule alone. The points, and so parity, stay as they are.
    Schedule,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchResult {
    /// Packets that a block has.
    pub packets: usize,
    /// A point per parity shard.
    pub parity_points: Vec<u8>,
    /// A point per data shard.
    pub data_points: Vec<u8>,
    /// Seed of the shortest schedule.
    pub seed: u32,
    /// Rounds of the shortest schedule.
    pub rounds: u32,
    /// XORs and copies of packets that encoding a block of every shard takes.
    pub operations: usize,
}

/// Shows the line to check in.
impl fmt::Display for SearchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            packets,
            parity_points,
            data_points,
            seed,
            rounds,
            operations,
        } = self;
        write!(
            f,
            "Entry {{ width: {packets}, parity: &{parity_points:?}, data: &{data_points:?}, \
             seed: {seed}, rounds: {rounds} }}, // {operations}"
        )
    }
}

/// Looks for points and a schedule: climbs from `tries` random points towards few bits, schedules as
/// many of the best, then tries as many seeds on the few very best.
///
/// # Errors
///
/// [`CodecError`] if the code is unknown, has nothing to choose (`rs-cauchy`: shown as unknown), or
/// cannot have this geometry.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{self as codec, CodeId, Freedom, Geometry};
/// let (code, geometry) = (CodeId::from_name("crs-w4")?, Geometry::new(2, 2)?);
/// let found = codec::search(code, geometry, Freedom::Everything, 3)?;
/// assert_eq!((found.parity_points.len(), found.data_points.len()), (2, 2));
/// # Ok::<(), cauchyfs_codec::CodecError>(())
/// ```
pub fn search(
    code: CodeId,
    geometry: Geometry,
    freedom: Freedom,
    tries: u32,
) -> Result<SearchResult, CodecError> {
    let width = code
        .packet_width()?
        .ok_or(CodecError::UnknownCodeNumber { number: code.0 })?;
    code.check(geometry)?;
    let m = geometry.parity_shards();
    let candidates = match freedom {
        Freedom::Everything => promising(width, geometry, tries),
        Freedom::Schedule => {
            let (parity, data) = points::of(width, geometry);
            vec![[parity, data].concat()]
        }
    };
    let mut best: Option<SearchResult> = None;
    for points in candidates {
        let bits = bitmatrix::from_points(width, &points[..m], &points[m..]);
        let rounds = rounds(bits.rows() * bits.columns());
        for seed in 0..=tries {
            let operations = Schedule::new(&bits, Effort::Thorough { seed, rounds }).operations();
            if best
                .as_ref()
                .is_none_or(|best| operations < best.operations)
            {
                best = Some(SearchResult {
                    packets: width.bits(),
                    parity_points: points[..m].to_vec(),
                    data_points: points[m..].to_vec(),
                    seed,
                    rounds,
                    operations,
                });
            }
        }
    }
    // There is a candidate, and seed 0 is always tried on it.
    best.ok_or(CodecError::UnknownCodeNumber { number: code.0 })
}

/// Returns a few lists of points, of parity shards first, that a quick look finds to take fewest XORs.
fn promising(width: Width, geometry: Geometry, tries: u32) -> Vec<Vec<u8>> {
    let (m, total) = (geometry.parity_shards(), geometry.total_shards());
    let mut climber = Climber {
        width,
        m,
        total,
        random: Random::new(0),
    };
    let climbs = (0..tries.max(1)).flat_map(|_| climber.climb());
    let mut candidates: Vec<(u32, Vec<u8>)> = climbs.collect();
    candidates.sort();
    candidates.dedup();
    candidates.truncate(usize::try_from(tries.max(1)).unwrap_or(usize::MAX));
    let operations = |points: &[u8]| {
        let bits = bitmatrix::from_points(width, &points[..m], &points[m..]);
        let effort = Effort::Thorough { seed: 0, rounds: 0 };
        Schedule::new(&bits, effort).operations()
    };
    let mut scheduled: Vec<(usize, Vec<u8>)> = candidates
        .into_iter()
        .map(|(_, points)| (operations(&points), points))
        .collect();
    scheduled.sort();
    let finalists = scheduled.into_iter().take(FINALISTS);
    finalists.map(|(_, points)| points).collect()
}

/// Exchanges points one by one as long as the matrix does not get more bits.
struct Climber {
    width: Width,
    m: usize,
    total: usize,
    random: Random,
}

impl Climber {
    /// Climbs once; returns what it came by, with the number of bits.
    fn climb(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut all: Vec<u8> = (0..=u8::MAX).take(self.width.elements()).collect();
        for i in 0..self.total {
            let j = i + self.random.below(all.len() - i);
            all.swap(i, j);
        }
        let mut ones = self.ones(&all);
        let mut found = vec![(ones, all[..self.total].to_vec())];
        let mut without_gain = 0;
        while without_gain < PATIENCE {
            let (i, j) = (self.random.below(self.total), self.random.below(all.len()));
            all.swap(i, j);
            let changed = self.ones(&all);
            without_gain = if changed < ones { 0 } else { without_gain + 1 };
            if changed > ones {
                all.swap(i, j);
            } else {
                ones = changed;
                found.push((ones, all[..self.total].to_vec()));
            }
        }
        found
    }

    fn ones(&self, points: &[u8]) -> u32 {
        let (parity, data) = points[..self.total].split_at(self.m);
        let bits = bitmatrix::from_points(self.width, parity, data);
        (0..bits.rows())
            .flat_map(|row| bits.row(row))
            .copied()
            .map(u32::from)
            .sum()
    }
}
