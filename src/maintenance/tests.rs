//! The transactions over disks in memory: losses, crashes, failures, full disks.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "numbers in these tests are small"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cauchyfs_testkit::{pattern, subsets};

use super::{InodeLocks, Maintenance, MissingShards, Pace, RebuildProgress, RebuildScope};
use crate::codec::{CodeId, Geometry};
use crate::format::record::{Backref, Extent, Marker};
use crate::format::{BLOCK_SIZE, Ino, Record, SegmentId, ShardIndex, StripeId, files, key};
use crate::membership::{Access, JoinAs};
use crate::metadata::{Batch, Key, Value};
use crate::store::{
    Call, CallKind, CutPolicy, Effect, Executor, ExecutorKind, Fault, FaultPlan, FaultStore,
    MemDisk, Scope, Store, StoreErrorKind, StoreRef,
};
use crate::transaction::{
    CommitError, CountLimits, CreateOptions, OpenOptions, Transactions, Written,
};

mod checkpoints;
mod code_change;
mod copy_out;
mod counting;
mod crash;
mod creation;
mod degraded;
mod directory_codes;
mod draining;
mod faults;
mod full;
mod full_disks;
mod joining;
mod journaled;
mod leaks;
mod lost_files;
mod opening;
mod places;
mod poison;
mod protected;
mod random_code;
mod rebuild;
mod repair;
mod returns;
mod rollback;
mod room;
mod scrub;
mod shortage;
mod spread;
mod stale;
mod stale_copies;
mod superblock_recovery;
mod tiny;
mod unneeded;
mod unreserved;
mod usage;

/// Bytes of a shard of a full stripe.
const UNIT: usize = 8 << 10;

/// Limits of the count of redundancy that small volumes reach.
const LIMITS: CountLimits = CountLimits {
    stretch_stripes: 2,
    max_stretches: 1 << 10,
    max_listed: 100,
    notes_at_once: 8,
};

/// Room on each disk, unless a test says otherwise.
const DISK: u64 = 32 << 20;

static UNLIMITED: AtomicU64 = AtomicU64::new(0);

/// Work goes on as fast as it can, with `wait` for its rests.
fn unlimited(wait: &dyn Fn(Duration) -> bool) -> Pace<'_> {
    Pace {
        bytes_per_second: &UNLIMITED,
        wait,
    }
}

/// The same, without any rest.
pub(super) fn at_once() -> Pace<'static> {
    unlimited(&|_| true)
}

/// The power of all disks goes at a call that changes something, and stays away.
fn power_cut_at(call: u64) -> Fault {
    cauchyfs_testkit::power_cut_at(call).lasting()
}

/// The fates that a power cut may give to bytes that were not synced.
fn ways_to_cut(seed: u64) -> [CutPolicy; 3] {
    [CutPolicy::Drop, CutPolicy::Keep, CutPolicy::Reorder(seed)]
}

pub(super) struct NoLocks;

impl InodeLocks for NoLocks {
    fn with_locked(&self, _: Ino, work: &mut dyn FnMut()) {
        work();
    }
}

/// The disks of a volume.
#[derive(Clone)]
pub(super) struct Rig {
    pub(super) disks: Vec<MemDisk>,
}

impl Rig {
    /// Makes a volume of `data` + `parity` over as many disks as there are sizes.
    fn with_disks(data: usize, parity: usize, sizes: &[u64]) -> Self {
        Self::with_unit(data, parity, sizes, UNIT)
    }

    fn with_unit(data: usize, parity: usize, sizes: &[u64], unit: usize) -> Self {
        Self::of_code(CodeId::RS_CAUCHY, (data, parity), sizes, unit)
    }

    /// Makes a volume of 4+4 shards of `random-gf2`, which survives the loss of any three members.
    fn random(count: usize) -> Self {
        Self::of_code(CodeId::RANDOM_GF2, (4, 4), &vec![DISK; count], UNIT)
    }

    fn of_code(code: CodeId, (data, parity): (usize, usize), sizes: &[u64], unit: usize) -> Self {
        let disk = |(i, &size): (usize, &u64)| MemDisk::new(&format!("disk{i}"), size);
        let rig = Self {
            disks: sizes.iter().enumerate().map(disk).collect(),
        };
        let mut options = CreateOptions::new(Geometry::new(data, parity).unwrap());
        options.code = code;
        options.unit_bytes = unit as u32;
        options.segment_bytes = 8 * unit as u64;
        Transactions::create(&rig.stores(&[]), &options, executor()).unwrap();
        // Making a volume ends with a process that exits: its locks go.
        Self {
            disks: rig.disks.iter().map(MemDisk::fork).collect(),
        }
    }

    fn new(data: usize, parity: usize, count: usize) -> Self {
        Self::with_disks(data, parity, &vec![DISK; count])
    }

    /// Copies the disks as they are, synced and unsynced.
    pub(super) fn fork(&self) -> Self {
        Self {
            disks: self.disks.iter().map(MemDisk::fork).collect(),
        }
    }

    /// Cuts the power of all disks.
    fn cut(&self, policy: CutPolicy) {
        for (index, disk) in self.disks.iter().enumerate() {
            disk.cut(match policy {
                CutPolicy::Reorder(seed) => CutPolicy::Reorder(seed.wrapping_add(index as u64)),
                other => other,
            });
        }
    }

    fn stores(&self, lost: &[usize]) -> Vec<StoreRef> {
        let left = self
            .disks
            .iter()
            .enumerate()
            .filter(|(index, _)| !lost.contains(index));
        left.map(|(_, disk)| Arc::new(disk.open()) as StoreRef)
            .collect()
    }

    /// Returns the disks that have copies of the index.
    fn holders(&self) -> Vec<usize> {
        let holds = |disk: &usize| self.disks[*disk].open().open_len(files::INDEX).is_ok();
        (0..self.disks.len()).filter(holds).collect()
    }

    pub(super) fn open(&self, lost: &[usize]) -> TestFs {
        TestFs::open(self.stores(lost), Access::ReadWrite).unwrap()
    }

    /// The same, where what is tried says what came before.
    #[track_caller]
    fn open_in(&self, lost: &[usize], context: &str) -> TestFs {
        let opened = TestFs::open(self.stores(lost), Access::ReadWrite);
        opened.unwrap_or_else(|error| panic!("{context}: {error}"))
    }

    pub(super) fn bytes_of(&self, written: &WrittenShard) -> Vec<u8> {
        let mut bytes = vec![0; written.height];
        let disk = self.disks[written.disk].open();
        disk.read_at(&written.name, written.offset, &mut bytes)
            .unwrap();
        bytes
    }

    /// Returns whether the place of a shard is free: its file is gone, or has no bytes there.
    pub(super) fn is_freed(&self, written: &WrittenShard) -> bool {
        let mut bytes = vec![0; written.height];
        let disk = self.disks[written.disk].open();
        match disk.read_at(&written.name, written.offset, &mut bytes) {
            Ok(()) => bytes.iter().all(|byte| *byte == 0),
            Err(error) => error.kind().lacks_file() || error.kind() == StoreErrorKind::ShortRead,
        }
    }

    fn open_with_faults(&self, plan: &FaultPlan) -> Result<TestFs, CommitError> {
        TestFs::open(
            FaultStore::wrap_all(self.stores(&[]), plan),
            Access::ReadWrite,
        )
    }
}

fn executor() -> Arc<Executor> {
    cauchyfs_testkit::executor(Duration::from_secs(5))
}

/// A filesystem over a transactions, in its barest form: numbered files, written whole.
pub(super) struct TestFs {
    pub(super) transactions: Arc<Transactions>,
    pub(super) maintenance: Arc<Maintenance>,
}

impl TestFs {
    fn over(maintenance: Arc<Maintenance>) -> Self {
        Self {
            transactions: Arc::clone(maintenance.transactions()),
            maintenance,
        }
    }

    fn open(stores: Vec<StoreRef>, access: Access) -> Result<Self, CommitError> {
        Self::open_on(stores, access, executor())
    }

    fn open_on(
        stores: Vec<StoreRef>,
        access: Access,
        executor: Arc<Executor>,
    ) -> Result<Self, CommitError> {
        let options = OpenOptions {
            access,
            cache_bytes: 1 << 20,
            index_cache_bytes: 1 << 20,
            threads: 0,
            count_limits: LIMITS,
            ..OpenOptions::default()
        };
        Maintenance::open(stores, &options, executor).map(TestFs::over)
    }

    /// Replaces a file's bytes.
    fn write(&self, file: u64, data: &[u8]) -> Result<(), CommitError> {
        let written = self.transactions.write(data)?;
        self.put_extents(file, &written)
    }

    /// Points a file at bytes that were placed for it, and at nothing else.
    fn put_extents(&self, file: u64, written: &Written) -> Result<(), CommitError> {
        let mut batch = self.removal(file)?;
        let mut end = 0;
        for placed in &written.placed {
            end += u64::from(placed.len);
            let len = u64::from(placed.len);
            let extent = Extent {
                len,
                stripe: placed.stripe,
                stripe_offset: placed.offset,
            };
            let backref = Backref {
                len,
                stripe_offset: placed.offset,
            };
            batch.put(key::extent(Ino(file), end), extent.encode());
            batch.put(
                key::backref(placed.stripe, Ino(file), end),
                backref.encode(),
            );
        }
        self.transactions.apply(batch)
    }

    pub(super) fn extents(&self, file: u64) -> Result<Vec<(u64, Extent)>, CommitError> {
        let (from, end) = key::extents_from(Ino(file), 0);
        let found = self.transactions.scan(&from, &end, usize::MAX)?;
        let parse = |(key, value): &(Key, Value)| {
            (
                key::parse_extent(key).unwrap().1,
                Extent::decode(value).unwrap(),
            )
        };
        Ok(found.iter().map(parse).collect())
    }

    fn removal(&self, file: u64) -> Result<Batch, CommitError> {
        let mut batch = Batch::default();
        for (end, extent) in self.extents(file)? {
            batch.delete(key::extent(Ino(file), end));
            batch.delete(key::backref(extent.stripe, Ino(file), end));
            batch.put(key::perhaps_dead(extent.stripe), Marker.encode());
        }
        Ok(batch)
    }

    fn remove(&self, file: u64) -> Result<(), CommitError> {
        self.transactions.apply(self.removal(file)?)
    }

    /// Reads a file; one that does not exist is empty.
    fn read(&self, file: u64) -> Result<Vec<u8>, CommitError> {
        let _pin = self.transactions.pin();
        let mut bytes = Vec::new();
        for (end, extent) in self.extents(file)? {
            assert_eq!(end, bytes.len() as u64 + extent.len);
            let start = bytes.len();
            bytes.resize(start + extent.len as usize, 0);
            self.transactions
                .read(extent.stripe, extent.stripe_offset, &mut bytes[start..])?;
        }
        Ok(bytes)
    }

    pub(super) fn sync(&self) -> Result<(), CommitError> {
        self.transactions.sync()
    }

    fn rebuild(&self) -> Result<RebuildProgress, CommitError> {
        self.maintenance
            .rebuild()
            .run(RebuildScope::Everything, &NoLocks, &at_once())
    }

    /// Rebuilds, with `wait` for its rests.
    fn rebuild_while(
        &self,
        wait: &dyn Fn(Duration) -> bool,
    ) -> Result<RebuildProgress, CommitError> {
        self.maintenance
            .rebuild()
            .run(RebuildScope::Everything, &NoLocks, &unlimited(wait))
    }

    pub(super) fn close(self) {
        self.maintenance.close().unwrap();
    }

    /// Returns (losses tolerated, stripes) of every row that `status` would show.
    fn redundancy(&self) -> Vec<(i16, u64)> {
        let counted = self.maintenance.redundancy.redundancy().unwrap();
        let rows = counted.rows.iter();
        rows.map(|row| (row.losses_tolerated, row.stripes))
            .collect()
    }

    fn stripes(&self) -> Vec<StripeId> {
        let (from, end) = key::stripes();
        let found = self.transactions.scan(&from, &end, usize::MAX).unwrap();
        found
            .iter()
            .map(|(key, _)| key::parse_stripe(key).unwrap())
            .collect()
    }
}

/// The place of a shard that a record calls written.
pub(super) struct WrittenShard {
    pub(super) stripe: StripeId,
    pub(super) shard: ShardIndex,
    pub(super) disk: usize,
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) height: usize,
}

impl TestFs {
    pub(super) fn written_shards(&self) -> Vec<WrittenShard> {
        let mut found = Vec::new();
        for stripe in self.stripes() {
            let record = self.transactions.stripe(stripe).unwrap().unwrap();
            let segment = self
                .transactions
                .stripes
                .segments()
                .record(record.segment)
                .unwrap();
            for shard in record.written.iter() {
                let slot = segment.slot_of(shard, record.rotation);
                let member = segment.slots[slot].unwrap();
                found.push(WrittenShard {
                    stripe,
                    shard,
                    disk: usize::from(member.0),
                    name: files::segment(record.segment),
                    offset: record.offset,
                    height: record.height as usize,
                });
            }
        }
        found
    }

    /// Takes a disk away, as far as the volume can tell, and has it notice.
    fn lose(&self, rig: &Rig, disk: usize) {
        rig.disks[disk].fail(Some(StoreErrorKind::Gone));
        self.transactions.members().probe();
    }

    /// Gives a disk back that was taken away.
    fn take_back(&self, rig: &Rig, disk: usize) {
        rig.disks[disk].fail(None);
        let store: StoreRef = Arc::new(rig.disks[disk].open());
        self.maintenance
            .joining()
            .join(JoinAs::Returning, &store)
            .unwrap();
    }

    /// Looks on the disks whether every shard that a record calls written is there and right.
    pub(super) fn assert_shards_lie_on(&self, rig: &Rig, lost: &[usize], context: &str) {
        for written in self
            .written_shards()
            .iter()
            .filter(|w| !lost.contains(&w.disk))
        {
            let WrittenShard {
                stripe,
                shard,
                disk,
                ..
            } = *written;
            let bytes = rig.bytes_of(written);
            let sums = self
                .transactions
                .records
                .sums(stripe, shard)
                .unwrap()
                .unwrap();
            let right = bytes
                .chunks(BLOCK_SIZE)
                .map(crc32c::crc32c)
                .eq(sums.0.iter().copied());
            assert!(
                right,
                "{context}: shard {shard} of stripe {stripe} is not on disk {disk}"
            );
        }
    }
}

/// Files and their bytes.
pub(super) type Model = BTreeMap<u64, Vec<u8>>;

pub(super) fn assert_holds(fs: &TestFs, model: &Model, context: &str) {
    for (&file, expected) in model {
        let read = fs.read(file);
        let read = read.unwrap_or_else(|error| panic!("{context}: file {file}: {error}"));
        assert!(read == *expected, "{context}: file {file} has other bytes");
    }
}

/// The stripes of [`packed`].
const PACKED: usize = 7;

/// Returns a volume of 2+1 with stripes of two files each, all in one segment.
pub(super) fn packed() -> (Rig, Model, SegmentId) {
    let rig = Rig::new(2, 1, 6);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..2 * PACKED as u64 {
        let bytes = pattern(file, 4000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        if file % 2 == 1 {
            fs.transactions.stripes.writer().seal();
            fs.sync().unwrap();
        }
    }
    let segments = fs.transactions.stripes.segments().all();
    let [segment] = &segments[..] else {
        panic!("there are other segments: {segments:?}");
    };
    let segment = segment.id;
    assert_eq!(fs.stripes().len(), PACKED);
    fs.close();
    (rig, model, segment)
}
