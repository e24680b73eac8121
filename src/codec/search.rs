//! Looking for points of a Cauchy matrix whose parity takes few XORs. What is found for common
//! geometries is checked in, in `points.rs`.

use std::fmt;

use crate::codec::{
    CodeId, CodecError, Geometry,
    bitmatrix::{self, Width},
    schedule::{Effort, Schedule},
};

/// Steps without gain after which a climb is over.
const PATIENCE: usize = 400;

/// What a search came up with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Packets that a block has.
    pub packets: usize,
    /// A point per parity shard.
    pub parity_points: Vec<u8>,
    /// A point per data shard.
    pub data_points: Vec<u8>,
    /// Seed of the shortest schedule.
    pub seed: u32,
    /// XORs and copies of packets that encoding a block of every shard takes.
    pub operations: usize,
}

/// Shows the line to check in.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            packets,
            parity_points,
            data_points,
            seed,
            operations,
        } = self;
        write!(
            f,
            "Entry {{ width: {packets}, parity: &{parity_points:?}, data: &{data_points:?}, \
             seed: {seed} }}, // {operations}"
        )
    }
}

/// Looks for points and a schedule: climbs from so many random points towards few bits, then
/// schedules as many of the best, then tries as many seeds on the very best.
///
/// # Errors
///
/// [`CodecError`] if the code is unknown, has nothing to choose (`rs-cauchy`: shown as unknown), or
/// cannot have this geometry.
///
/// # Examples
///
/// ```
/// # use cauchyfs::codec::{self, CodeId, Geometry};
/// let found = codec::search(CodeId::from_name("crs-w4")?, Geometry::new(2, 2)?, 3)?;
/// assert_eq!((found.parity_points.len(), found.data_points.len()), (2, 2));
/// # Ok::<(), cauchyfs::codec::CodecError>(())
/// ```
pub fn search(code: CodeId, geometry: Geometry, rounds: u32) -> Result<Found, CodecError> {
    let width = code
        .packet_width()?
        .ok_or(CodecError::UnknownCodeNumber { number: code.0 })?;
    width.check(code, geometry)?;
    let (m, total) = (geometry.parity_shards(), geometry.total_shards());
    let mut climber = Climber {
        width,
        m,
        total,
        random: Random(0x9E37_79B9_7F4A_7C15),
    };
    let mut candidates: Vec<(u32, Vec<u8>)> =
        (0..rounds.max(1)).flat_map(|_| climber.climb()).collect();
    candidates.sort();
    candidates.dedup();
    candidates.truncate(usize::try_from(rounds.max(1)).unwrap_or(usize::MAX));

    let operations = |points: &[u8], seed| {
        let bits = bitmatrix::from_points(width, &points[..m], &points[m..]);
        Schedule::new(&bits, Effort::Thorough { seed }).operations()
    };
    let scheduled = candidates
        .into_iter()
        .map(|(_, points)| (operations(&points, 0), points));
    let (first, points) = scheduled.min().unwrap_or_default();
    let seeded = (1..=rounds).map(|seed| (operations(&points, seed), seed));
    let (operations, seed) = seeded.chain([(first, 0)]).min().unwrap_or_default();
    Ok(Found {
        packets: width.bits(),
        parity_points: points[..m].to_vec(),
        data_points: points[m..].to_vec(),
        seed,
        operations,
    })
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

/// xorshift64, so that a search gives the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap_or(u64::MAX)).unwrap_or(0)
    }
}
