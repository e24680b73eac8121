//! What coding needs of hardware beside the CPU, without knowing any.

use std::fmt;

use crate::{
    Matrix, Pass, Plan,
    piece::{BLOCK_BYTES, Piece},
    plan::Mode,
};

/// Hardware that computes passes in the CPU's place, or chooses for each of them who does.
pub trait Accelerator: Send + Sync + fmt::Debug {
    /// Sees to it that all of the offer is computed when this returns: by the hardware, or with
    /// [`Offer::compute_on_cpu`], whatever the hardware may have left behind before it failed.
    fn compute(&self, offer: &mut Offer<'_, '_>);

    /// What was computed was proven wrong, and the CPU computes it rightly: the hardware is to get nothing
    /// any more.
    fn distrust(&self);
}

/// A pass that can be computed elsewhere. Its matrix applies to bytes; passes over packets are never
/// offered.
#[derive(Debug)]
pub struct Offer<'p, 't> {
    pass: Pass<'p>,
    plan: &'p Plan,
    item: Item<'t>,
}

impl<'p, 't> Offer<'p, 't> {
    /// Offers an item that fits the plan, for which the CPU is to go over it as `pass` says.
    pub(super) fn new(pass: Pass<'p>, plan: &'p Plan, item: Item<'t>) -> Self {
        Self { pass, plan, item }
    }

    /// Returns the matrix to apply.
    #[must_use]
    pub fn matrix(&self) -> &'p Matrix {
        self.plan.matrix()
    }

    /// Returns what to apply it to.
    #[must_use]
    pub fn item(&self) -> &Item<'t> {
        &self.item
    }

    /// Returns what to apply it to, so that it can be taken and put back.
    pub fn item_mut(&mut self) -> &mut Item<'t> {
        &mut self.item
    }

    /// Computes all of it with the engine and the crew that it would have gone to otherwise.
    ///
    /// # Panics
    ///
    /// If the item was taken and not put back.
    pub fn compute_on_cpu(&mut self) {
        let Item {
            sources,
            targets,
            sums,
        } = &mut self.item;
        match targets {
            Targets::Written(targets) => {
                let piece = Piece::new(self.plan, sources, targets, Mode::Assign);
                let piece = if sums.is_empty() {
                    piece
                } else {
                    piece.and_then(|piece| piece.with_checksums(sums))
                };
                let piece = piece.expect("checked before it was offered");
                self.pass.run_pieces(piece);
            }
            Targets::Compared { shards, wrong } => self.pass.compare(sources, shards, wrong),
        }
    }

    /// Returns whether each block of the targets that were compared is wrong; nothing if they were written.
    pub(super) fn into_wrong(self) -> Vec<bool> {
        match self.item.targets {
            Targets::Written(_) => Vec::new(),
            Targets::Compared { wrong, .. } => wrong,
        }
    }
}

/// One stripe, or columns of one, for a matrix to be applied to: one source per column, one target per
/// row, all of them equally long.
#[derive(Default)]
pub struct Item<'a> {
    /// What the matrix is applied to.
    pub sources: Vec<&'a [u8]>,
    /// What comes of it.
    pub targets: Targets<'a>,
    /// If asked for, one list per shard, sources first, then targets, of one CRC32C per block of
    /// [`BLOCK_BYTES`](crate::BLOCK_BYTES); else empty. A shard's last block may be short.
    pub sums: Vec<&'a mut [u32]>,
}

/// What is done with the result.
pub enum Targets<'a> {
    /// It replaces what these hold.
    Written(Vec<&'a mut [u8]>),
    /// It is compared with these.
    Compared {
        /// What should come of it.
        shards: Vec<&'a [u8]>,
        /// Whether each [block](Item::blocks) of each of them differs from what came of it, target after target;
        /// false at first.
        wrong: Vec<bool>,
    },
}

impl Default for Targets<'_> {
    fn default() -> Self {
        Self::Written(Vec::new())
    }
}

impl Targets<'_> {
    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Written(shards) => shards.len(),
            Self::Compared { shards, .. } => shards.len(),
        }
    }
}

impl Item<'_> {
    /// Returns the length of every shard, in bytes.
    #[must_use]
    pub fn shard_bytes(&self) -> usize {
        self.sources.first().map_or(0, |source| source.len())
    }

    /// Returns how many blocks of [`BLOCK_BYTES`] a shard has; the last one may be short.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.shard_bytes().div_ceil(BLOCK_BYTES)
    }

    /// Returns the length of all shards together, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        (self.sources.len() + self.targets.count()) * self.shard_bytes()
    }

    /// Returns whether targets are compared, and not written.
    #[must_use]
    pub fn is_compared(&self) -> bool {
        matches!(self.targets, Targets::Compared { .. })
    }
}

/// Shows the numbers of an item, not its bytes.
impl fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("sources", &self.sources.len())
            .field("targets", &self.targets.count())
            .field("shard_bytes", &self.shard_bytes())
            .field("is_compared", &self.is_compared())
            .field("has_sums", &!self.sums.is_empty())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::{CodeId, Codec, Geometry, Mismatch, select};

    /// Leaves rubbish behind, as hardware may that fails, and has the CPU compute all of it.
    #[derive(Debug, Default)]
    struct Broken {
        offered: Mutex<Vec<String>>,
    }

    impl Accelerator for Broken {
        fn compute(&self, offer: &mut Offer<'_, '_>) {
            assert_eq!(offer.matrix().columns(), offer.item().sources.len());
            assert_eq!(offer.matrix().rows(), offer.item().targets.count());
            self.offered.lock().push(format!("{:?}", offer.item()));
            let item = offer.item_mut();
            match &mut item.targets {
                Targets::Written(shards) => shards.iter_mut().for_each(|shard| shard.fill(0xEE)),
                Targets::Compared { wrong, .. } => wrong.fill(true),
            }
            item.sums.iter_mut().for_each(|list| list.fill(7));
            offer.compute_on_cpu();
        }

        fn distrust(&self) {
            unreachable!("nothing is checked here");
        }
    }

    fn codec(code: CodeId) -> Codec {
        let geometry = Geometry::new(3, 2).expect("valid");
        Codec::new(code, geometry, select("auto").expect("there is one")).expect("a code")
    }

    /// Does everything that a pass can do, and returns all that comes of it.
    fn everything(codec: &Codec, accelerator: Option<&dyn Accelerator>) -> Vec<Vec<u8>> {
        const BYTES: usize = 5000;
        let pass = || codec.pass().accelerator(accelerator);
        let byte = |at: usize| u8::try_from(at * at % 251).expect("below 251");
        let data: Vec<u8> = (0..3 * BYTES).map(byte).collect();
        let data: Vec<&[u8]> = data.chunks_exact(BYTES).collect();
        let mut plain = vec![0; 2 * BYTES];
        let mut rows: Vec<&mut [u8]> = plain.chunks_exact_mut(BYTES).collect();
        pass().encode(&data, &mut rows).expect("fits");

        let mut parity = vec![0; 2 * BYTES];
        let mut rows: Vec<&mut [u8]> = parity.chunks_exact_mut(BYTES).collect();
        let mut sums = [0; 5 * 2];
        let mut lists: Vec<&mut [u32]> = sums.chunks_exact_mut(2).collect();
        let encoded = pass().encode_with_checksums(&data, &mut rows, &mut lists);
        encoded.expect("fits");

        let (p, q) = parity.split_at_mut(BYTES);
        let (mut shard_0, mut shard_2) = (vec![0; BYTES], vec![0; BYTES]);
        let present = [(4, &*q), (1, data[1]), (3, &*p)];
        let mut lost = [(2, &mut shard_2[..]), (0, &mut shard_0[..])];
        pass().reconstruct(&present, &mut lost).expect("enough");

        q[BYTES - 1] ^= 1;
        let shards = [data[0], data[1], data[2], &*p, &*q];
        let wrong = pass().mismatches(&shards).expect("fits");
        assert_eq!(wrong, [Mismatch { shard: 4, block: 1 }]);
        let sums = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        vec![plain, sums, shard_0, shard_2, parity]
    }

    #[test]
    fn whatever_hardware_leaves_behind_the_cpu_computes_all_of_it_again() {
        let codec = codec(CodeId::RS_CAUCHY);
        let broken = Broken::default();
        let expected = everything(&codec, None);
        assert!(everything(&codec, Some(&broken)) == expected);
        let offered = broken.offered.into_inner();
        assert_eq!(offered.len(), 4, "encode twice, reconstruct, verify");
        assert!(offered[1].contains("has_sums: true"), "{offered:?}");
        assert!(offered[3].contains("is_compared: true"), "{offered:?}");
    }

    #[test]
    fn codes_that_work_on_packets_and_shards_without_bytes_are_never_offered() {
        let broken = Broken::default();
        let packets = codec(CodeId(8));
        let expected = everything(&packets, None);
        assert!(everything(&packets, Some(&broken)) == expected);
        let pass = |codec: &Codec| {
            let encoded = codec
                .pass()
                .accelerator(Some(&broken))
                .encode(&[&[], &[], &[]], &mut [&mut [], &mut []]);
            encoded.expect("fits");
        };
        pass(&codec(CodeId::RS_CAUCHY));
        assert!(broken.offered.into_inner().is_empty());
    }
}
