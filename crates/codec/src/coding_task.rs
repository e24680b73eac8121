//! The interface of coding to hardware beside the CPU. This crate knows no such hardware itself.

use std::{fmt, ptr, slice, sync::Arc};

use crate::{
    BLOCK_BYTES, CodecError, Matrix, Mismatch, Mode, Plan,
    cpu_pass::CpuPass,
    job::{check_count, common_length},
    shard_columns::ShardColumns,
};

/// Hardware that computes passes in the CPU's place, or decides for each pass what computes it.
pub trait Accelerator: Send + Sync + fmt::Debug {
    /// Computes all of the tasks before it returns: on the hardware, or with
    /// [`CodingTask::compute_on_cpu`]. The CPU computes a task correctly even if failed hardware left
    /// wrong results in it. The tasks do not depend on each other, so the hardware may have all of
    /// them at once.
    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]);

    /// Returns whether several stripes are better submitted by one thread at once than by many threads one each:
    /// waiting for hardware costs about as much for many as for one.
    fn prefers_many(&self) -> bool;

    /// Excludes the hardware from all further work, because its result was proven wrong while the
    /// CPU computes it correctly.
    fn distrust(&self);
}

/// A pass over one stripe that is still to be computed, perhaps elsewhere, and perhaps together with others.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{self as codec, CodeId, Codec, CodecError, Geometry, CodingTask};
/// # let codec = Codec::new(CodeId::RS_CAUCHY, Geometry::new(1, 1)?, codec::select("auto")?)?;
/// let (mut lost_data, mut lost_parity) = ([0; 3], [0; 3]);
/// let (mut first, mut second) = ([(0, &mut lost_data[..])], [(1, &mut lost_parity[..])]);
/// let tasks = [
///     codec.pass().reconstruction(&[(1, b"abc")], &mut first)?,
///     codec.pass().reconstruction(&[(0, b"xyz")], &mut second)?,
/// ];
/// CodingTask::compute_all(&mut tasks.into_iter().flatten().collect::<Vec<CodingTask>>());
/// assert_eq!((&lost_data, &lost_parity), (b"abc", b"xyz"));
/// # Ok::<(), CodecError>(())
/// ```
#[derive(Debug)]
pub struct CodingTask<'p, 't> {
    cpu: CpuPass<'p>,
    /// Decides where the task is computed, if there is a choice.
    accelerator: Option<&'p dyn Accelerator>,
    plan: Arc<Plan>,
    item: Item<'t>,
}

impl<'p, 't> CodingTask<'p, 't> {
    /// Creates the task to apply a plan to an item; the accelerator decides where, if there is one.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardCount`] or [`CodecError::ShardLength`] if the item does not fit the plan.
    pub(super) fn new(
        (cpu, accelerator): (CpuPass<'p>, Option<&'p dyn Accelerator>),
        plan: &Arc<Plan>,
        item: Item<'t>,
    ) -> Result<Self, CodecError> {
        item.check(plan)?;
        let plan = Arc::clone(plan);
        Ok(Self {
            cpu,
            accelerator,
            plan,
            item,
        })
    }

    /// Returns the matrix to apply.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        self.plan.matrix()
    }

    /// Returns what to apply it to.
    #[must_use]
    pub fn item(&self) -> &Item<'t> {
        &self.item
    }

    /// Returns the item to apply the matrix to, so that it can be taken and restored.
    pub fn item_mut(&mut self) -> &mut Item<'t> {
        &mut self.item
    }

    /// Returns the matrix and the item to apply it to, so that the item can be taken and restored.
    pub fn parts(&mut self) -> (&Matrix, &mut Item<'t>) {
        (self.plan.matrix(), &mut self.item)
    }

    /// Computes all of them, wherever is best: an accelerator gets those that it may have by one call.
    pub fn compute_all(tasks: &mut [Self]) {
        let accelerator_of = |task: &Self| task.accelerator.map(ptr::from_ref);
        let is_same = |one: &Self, other: &Self| match (accelerator_of(one), accelerator_of(other))
        {
            (Some(one), Some(other)) => ptr::addr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        for tasks in tasks.chunk_by_mut(is_same) {
            match tasks[0].accelerator {
                Some(accelerator) => accelerator.compute(tasks),
                None => tasks.iter_mut().for_each(Self::compute_on_cpu),
            }
        }
    }

    /// Computes it, wherever is best.
    pub(super) fn compute(&mut self) {
        Self::compute_all(slice::from_mut(self));
    }

    /// Computes all of it with the engine and the threads that it would have without an accelerator.
    ///
    /// # Panics
    ///
    /// If the item was taken and not restored.
    pub fn compute_on_cpu(&mut self) {
        let Item {
            sources,
            targets,
            sums,
        } = &mut self.item;
        match targets {
            Targets::Written(targets) => {
                let piece = ShardColumns::new(&self.plan, sources, targets, Mode::Assign);
                let piece = if sums.is_empty() {
                    piece
                } else {
                    piece.and_then(|piece| piece.with_checksums(sums))
                };
                let piece = piece.expect("checked before it was submitted");
                self.cpu.run_pieces(piece);
            }
            Targets::Compared { shards, wrong } => self.cpu.compare(sources, shards, wrong),
        }
    }

    /// Returns which blocks of the parities were found to be other than the data calls for; none if they were
    /// written.
    #[must_use]
    pub fn into_mismatches(self) -> Vec<Mismatch> {
        let (first, blocks) = (self.item.sources.len(), self.item.blocks());
        match &self.item.targets {
            Targets::Written(_) => Vec::new(),
            Targets::Compared { wrong, .. } => Mismatch::all(wrong, first, blocks),
        }
    }
}

/// One stripe, or columns of one, for a matrix to be applied to: one source per column, one target per
/// row, all of them equally long.
#[derive(Default)]
pub struct Item<'a> {
    /// The shards that the matrix is applied to.
    pub sources: Vec<&'a [u8]>,
    /// The shards that receive the results, or are compared with them.
    pub targets: Targets<'a>,
    /// If asked for, one list per shard, sources first, then targets, of one CRC32C per block of
    /// [`BLOCK_BYTES`]; else empty. A shard's last block may be short.
    pub sums: Vec<&'a mut [u32]>,
}

/// The use of the results.
pub enum Targets<'a> {
    /// The results replace the content of these shards.
    Written(Vec<&'a mut [u8]>),
    /// The results are compared with these shards.
    Compared {
        /// The expected results.
        shards: Vec<&'a [u8]>,
        /// For each [block](Item::blocks) of each shard, target after target: true if the block
        /// differs from the result. False at first.
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

    /// Returns how long each of them is, in bytes.
    fn lengths(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Written(shards) => Box::new(shards.iter().map(|shard| shard.len())),
            Self::Compared { shards, .. } => Box::new(shards.iter().map(|shard| shard.len())),
        }
    }
}

impl<'a> Item<'a> {
    /// Returns an item whose targets are to be written, without checksums.
    pub(super) fn written(sources: &[&'a [u8]], targets: &'a mut [&mut [u8]]) -> Self {
        let targets = targets.iter_mut().map(|target| &mut **target).collect();
        Self {
            sources: sources.to_vec(),
            targets: Targets::Written(targets),
            sums: Vec::new(),
        }
    }

    /// Returns an item whose targets are to be compared.
    pub(super) fn compared(sources: &[&'a [u8]], shards: &[&'a [u8]]) -> Self {
        let mut item = Self {
            sources: sources.to_vec(),
            ..Self::default()
        };
        item.targets = Targets::Compared {
            shards: shards.to_vec(),
            wrong: vec![false; shards.len() * item.blocks()],
        };
        item
    }

    /// Refuses an item that does not fit a plan.
    fn check(&self, plan: &Plan) -> Result<(), CodecError> {
        check_count("source", self.sources.len(), plan.matrix().columns())?;
        check_count("target", self.targets.count(), plan.matrix().rows())?;
        let sources = self.sources.iter().map(|shard| shard.len());
        common_length(sources.chain(self.targets.lengths()))?;
        if !self.sums.is_empty() {
            let lists = self.sums.iter().map(|list| list.len());
            check_count(
                "total",
                lists.len(),
                self.sources.len() + self.targets.count(),
            )?;
            common_length(std::iter::once(self.blocks()).chain(lists))?;
        }
        Ok(())
    }

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
    use crate::{CodeId, Codec, Geometry, Pass, select};

    /// Leaves rubbish behind, as hardware may that fails, and has the CPU compute all of it.
    #[derive(Debug, Default)]
    struct Broken {
        /// The tasks of each call.
        calls: Mutex<Vec<Vec<String>>>,
    }

    impl Accelerator for Broken {
        fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
            let mut call = Vec::new();
            for task in tasks {
                let (matrix, item) = task.parts();
                assert_eq!(matrix.columns(), item.sources.len());
                assert_eq!(matrix.rows(), item.targets.count());
                call.push(format!("{item:?}"));
                match &mut item.targets {
                    Targets::Written(shards) => {
                        for shard in shards {
                            shard.fill(0xEE);
                        }
                    }
                    Targets::Compared { wrong, .. } => wrong.fill(true),
                }
                item.sums.iter_mut().for_each(|list| list.fill(7));
                task.compute_on_cpu();
            }
            self.calls.lock().push(call);
        }

        fn prefers_many(&self) -> bool {
            true
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
    fn the_cpu_repeats_all_work_of_a_failed_device() {
        let codec = codec(CodeId::RS_CAUCHY);
        let broken = Broken::default();
        let expected = everything(&codec, None);
        assert!(everything(&codec, Some(&broken)) == expected);
        let calls = broken.calls.into_inner();
        assert_eq!(calls.len(), 4, "encode twice, reconstruct, verify");
        assert!(calls[1][0].contains("has_sums: true"), "{calls:?}");
        assert!(calls[3][0].contains("is_compared: true"), "{calls:?}");
    }

    #[test]
    fn codes_that_work_on_packets_and_shards_without_bytes_are_never_submitted() {
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
        assert!(broken.calls.into_inner().is_empty());
    }

    /// A stripe of 3+2 and its checksums.
    #[derive(Clone, PartialEq)]
    struct Stripe {
        shards: Vec<Vec<u8>>,
        sums: Vec<Vec<u32>>,
    }

    type Encoding<'s> = (Vec<&'s [u8]>, Vec<&'s mut [u8]>, Vec<&'s mut [u32]>);
    type Erasure<'s> = (Vec<(usize, &'s [u8])>, Vec<(usize, &'s mut [u8])>);

    impl Stripe {
        fn of(bytes: usize) -> Self {
            let byte = |at: usize| u8::try_from(at * at % 241).expect("below 241");
            let shard = |index: usize| match index {
                ..3 => (0..bytes).map(|at| byte(at + index * bytes)).collect(),
                _ => vec![0; bytes],
            };
            Self {
                shards: (0..5).map(shard).collect(),
                sums: vec![vec![0; bytes.div_ceil(BLOCK_BYTES)]; 5],
            }
        }

        fn encoding(&mut self) -> Encoding<'_> {
            let (data, parity) = self.shards.split_at_mut(3);
            (
                data.iter().map(|shard| &shard[..]).collect(),
                parity.iter_mut().map(|shard| &mut shard[..]).collect(),
                self.sums.iter_mut().map(|list| &mut list[..]).collect(),
            )
        }

        fn erasure(&mut self, lost: [usize; 2]) -> Erasure<'_> {
            let shards = self.shards.iter_mut().map(|shard| &mut shard[..]);
            let (gone, left): (Vec<_>, Vec<_>) = shards
                .enumerate()
                .partition(|(index, _)| lost.contains(index));
            let left = left.into_iter().map(|(index, shard)| (index, &*shard));
            (left.collect(), gone)
        }
    }

    /// Encodes, loses two shards of each stripe, other ones each time, reconstructs them, and finds a byte that was
    /// changed: each with one call for all stripes.
    fn all_at_once(pass: Pass<'_>, stripes: &mut [Stripe]) -> Vec<Vec<Mismatch>> {
        let mut parts: Vec<Encoding<'_>> = stripes.iter_mut().map(Stripe::encoding).collect();
        let tasks = parts.iter_mut().map(|(data, parity, sums)| {
            let task = pass.encoding(data, parity, sums);
            task.expect("fits")
        });
        CodingTask::compute_all(&mut tasks.collect::<Vec<CodingTask>>());

        let parts = stripes.iter_mut().enumerate().map(|(index, stripe)| {
            let gone = [index % 5, (index + 2) % 5];
            for shard in gone {
                stripe.shards[shard].fill(0);
            }
            stripe.erasure(gone)
        });
        let mut parts: Vec<Erasure<'_>> = parts.collect();
        let tasks = parts.iter_mut().filter_map(|(present, lost)| {
            let task = pass.reconstruction(present, lost);
            task.expect("enough")
        });
        CodingTask::compute_all(&mut tasks.collect::<Vec<CodingTask>>());

        let mut changed = stripes.to_vec();
        let last = changed.iter_mut().filter_map(|s| s.shards[4].last_mut());
        last.for_each(|byte| *byte ^= 1);
        let tasks = changed.iter().map(|stripe| {
            let shards: Vec<&[u8]> = stripe.shards.iter().map(|shard| &shard[..]).collect();
            pass.comparison(&shards).expect("fits")
        });
        let mut tasks: Vec<CodingTask<'_, '_>> = tasks.collect();
        CodingTask::compute_all(&mut tasks);
        tasks.into_iter().map(CodingTask::into_mismatches).collect()
    }

    #[test]
    fn stripes_of_one_call_are_submitted_together_and_come_out_as_one_by_one() {
        let lengths = [5000, 4096, 5000, 0, 1, 12_289, 5000];
        for code in [CodeId::RS_CAUCHY, CodeId(8)] {
            let codec = codec(code);
            let broken = Broken::default();
            let mut expected: Vec<Stripe> = lengths.into_iter().map(Stripe::of).collect();
            let mut stripes = expected.clone();
            for stripe in &mut expected {
                let (data, parity, sums) = &mut stripe.encoding();
                let encoded = codec.pass().encode_with_checksums(data, parity, sums);
                encoded.expect("fits");
            }
            let wrong = all_at_once(codec.pass().accelerator(Some(&broken)), &mut stripes);
            assert!(stripes == expected, "{code}");
            for (bytes, wrong) in lengths.into_iter().zip(wrong) {
                let last = bytes.checked_sub(1).map(|last| last / BLOCK_BYTES);
                let mismatch = last.map(|block| Mismatch { shard: 4, block });
                assert_eq!(wrong, Vec::from_iter(mismatch), "{code} {bytes}");
            }
            let calls = broken.calls.into_inner();
            let sizes: Vec<usize> = calls.iter().map(Vec::len).collect();
            // Codes that work on packets task nothing. The empty stripe separates two calls.
            let expected: &[usize] = match code {
                CodeId::RS_CAUCHY => &[3; 6],
                _ => &[],
            };
            assert_eq!(sizes, expected, "{code}");
        }
    }
}
