//! A volume over disks in memory, with a map of records that does on cue what another thread might.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use cauchyfs_testkit::pattern;
use parking_lot::Mutex;

use super::*;
use crate::codec::{self, Accelerator, CodingTask, Geometry, Targets};
use crate::coding::Dispatch;
use crate::cuda::Simulated;
use crate::format::record::Stripe;
use crate::format::{BLOCK_SIZE, Record, ShardIndex, StripeClass, StripeId, key};
use crate::membership::{Access, CreateOptions};
use crate::metadata::{Batch, Key, MemoryMap, MetaError, RecordMap, Value};
use crate::store::{CallKind, FaultPlan, FaultStore, MemDisk, Pinner, Store, Unpinner};
use crate::workers::Workers;

mod growth;
mod together;

/// The class of stripes with the code of the volume.
const VOLUME: StripeClass = StripeClass::VOLUME;
const UNNOTED: fn(StripeId) -> Result<(), StripeError> = |_| Ok(());

/// Bytes of a shard of a full stripe.
const UNIT: usize = 32 << 10;

type Interlude = Box<dyn Fn(&Stripes) + Send + Sync>;

/// The map of records in memory.
#[derive(Default)]
struct TestMap {
    values: MemoryMap,
    stripes: OnceLock<Weak<Stripes>>,
    /// Runs before the record of a stripe is taken.
    before_flushed: Mutex<Option<Interlude>>,
    /// Runs before the record of a stripe is returned.
    before_read: Mutex<Option<Interlude>>,
    /// Runs before checksums are returned.
    before_sums: Mutex<Option<Interlude>>,
}

impl TestMap {
    fn run(&self, interlude: &Mutex<Option<Interlude>>) {
        let interlude = interlude.lock().take();
        if let Some(interlude) = interlude {
            interlude(&self.stripes.get().unwrap().upgrade().unwrap());
        }
    }

    /// Returns the records of all stripes, in the order of their numbers.
    fn stripes(&self) -> Vec<(StripeId, Stripe)> {
        let (from, end) = key::stripes();
        let record = |(key, value): (Key, Value)| {
            let stripe = key::parse_stripe(&key).unwrap();
            (stripe, Stripe::decode(&value).unwrap())
        };
        let records = self.values.range(from, end).into_iter();
        records.map(record).collect()
    }
}

impl RecordMap for TestMap {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        if key::parse_stripe(key).is_ok() {
            self.run(&self.before_read);
        } else if key::parse_sums(key).is_ok() {
            self.run(&self.before_sums);
        }
        self.values.get(key)
    }

    fn apply_stripes(&self, batch: Batch) -> Result<(), MetaError> {
        if batch.iter().any(|(key, _)| key::parse_stripe(key).is_ok()) {
            self.run(&self.before_flushed);
        }
        self.values.apply_stripes(batch)
    }
}

struct Rig {
    disks: Vec<MemDisk>,
    plan: FaultPlan,
    members: Arc<Members>,
    map: Arc<TestMap>,
    records: Arc<StripeRecords>,
    stripes: Arc<Stripes>,
}

impl Rig {
    /// A volume in which everything is done by the caller, in the same order in every run.
    fn new(data: usize, parity: usize, count: usize) -> Self {
        Self::with_threads(data, parity, count, 0)
    }

    fn with_threads(data: usize, parity: usize, count: usize, threads: usize) -> Self {
        Self::with_dispatch(data, parity, count, threads, None)
    }

    fn with_dispatch(
        data: usize,
        parity: usize,
        count: usize,
        threads: usize,
        dispatch: Option<Arc<Dispatch>>,
    ) -> Self {
        let accelerator = dispatch.clone().map(|dispatch| dispatch as _);
        let pinner = dispatch.map(|dispatch| dispatch as _);
        Self::with(data, parity, count, threads, accelerator, pinner)
    }

    fn with(
        data: usize,
        parity: usize,
        count: usize,
        threads: usize,
        accelerator: Option<Arc<dyn Accelerator>>,
        pinner: Option<Arc<dyn Pinner>>,
    ) -> Self {
        let disks = cauchyfs_testkit::disks(count, 1 << 30);
        let stores = || cauchyfs_testkit::stores(&disks);
        let options = CreateOptions {
            unit_bytes: u32::try_from(UNIT).unwrap(),
            segment_bytes: 8 * UNIT as u64,
            ..CreateOptions::new(Geometry::new(data, parity).unwrap())
        };
        Members::create(&stores(), &options).unwrap();
        let executor = cauchyfs_testkit::executor(Duration::from_secs(5));
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(stores(), &plan);
        let members = Members::open(stores, Access::ReadWrite, executor).unwrap();
        members.epochs().begin().unwrap();
        let map = Arc::new(TestMap::default());
        let records = Arc::new(StripeRecords::open(Arc::clone(&map) as _).unwrap());
        let options = StripeOptions {
            full_members: FullMembers::Stop,
            engine: codec::select("auto").unwrap(),
            buffer_bytes: 1 << 20,
            cache_bytes: 16 << 20,
            threads,
            workers: Arc::new(Workers::new(2).unwrap()),
            accelerator,
            pinner,
        };
        let stripes = Stripes::open(
            Arc::clone(&members),
            Arc::clone(&records),
            Vec::new(),
            &options,
        );
        let stripes = Arc::new(stripes.unwrap());
        map.stripes.set(Arc::downgrade(&stripes)).unwrap();
        Self {
            disks,
            plan,
            members,
            map,
            records,
            stripes,
        }
    }

    /// Writes a stripe of its own.
    fn write_stripe(&self, payload: &[u8]) -> StripeId {
        let writer = self.stripes.writer();
        let (stripe, _hold) = writer.append_stripe(VOLUME, payload, 0, UNNOTED).unwrap();
        self.stripes.writer().wait_flushed().unwrap();
        stripe
    }
}

#[test]
fn a_shard_that_a_sync_finds_lost_before_its_stripe_is_recorded_is_reported_after() {
    for lost in 0..3 {
        let rig = Rig::new(2, 1, 3);
        let disk = rig.disks[lost].clone();
        let interlude = move |stripes: &Stripes| {
            disk.delete();
            let lost = stripes.writer().sync().unwrap();
            assert_eq!(lost, [], "no caller could take it out of a record");
        };
        *rig.map.before_flushed.lock() = Some(Box::new(interlude));
        let stripe = rig.write_stripe(&pattern(1, 2 * UNIT));
        let record = rig.records.stripe(stripe).unwrap().unwrap();
        assert_eq!(record.written.len(), 3, "all were written");
        let lost = rig.stripes.writer().sync().unwrap();
        assert_eq!(lost.len(), 1, "one of them in vain");
        assert_eq!(lost[0].stripe, stripe);
        assert_eq!(
            rig.stripes.writer().sync().unwrap(),
            [],
            "it is reported once"
        );
    }
}

/// Operations of a device that make its lanes, before any other.
const LANES: u64 = 3;

fn to_simulated(device: &Simulated) -> Arc<Dispatch> {
    let devices = vec![Arc::new(device.clone()) as _];
    let dispatch = Arc::new(Dispatch::to_devices(devices).unwrap());
    while device.operations() < LANES {
        std::thread::yield_now();
    }
    dispatch
}

/// The members hold what the CPU alone would have written, and reads return what was written. That holds for every
/// operation of the device that fails, and whether or not the device is lost then.
#[test]
fn a_volume_on_a_failing_device_writes_and_reads_the_same_bytes_as_one_without() {
    let payloads: Vec<Vec<u8>> = (1..=3).map(|seed| pattern(seed, 4 * UNIT)).collect();
    let write_all = |rig: &Rig| -> Vec<StripeId> {
        payloads
            .iter()
            .map(|bytes| rig.write_stripe(bytes))
            .collect()
    };
    let members_of = |rig: &Rig| {
        let shards = |disk: &MemDisk| {
            let store = disk.open();
            let files = store.list("segments").unwrap().into_iter();
            let content = |(name, len): (String, u64)| {
                let mut bytes = vec![0; usize::try_from(len).unwrap()];
                store.read_at(&name, 0, &mut bytes).unwrap();
                (name, bytes)
            };
            files.map(content).collect::<Vec<_>>()
        };
        rig.disks.iter().map(shards).collect::<Vec<_>>()
    };
    let plain = Rig::new(4, 2, 6);
    write_all(&plain);
    let expected = members_of(&plain);
    assert!(
        expected
            .iter()
            .flatten()
            .any(|(_, bytes)| bytes.len() >= UNIT)
    );
    for failing in LANES..LANES + 14 {
        for lost in [false, true] {
            let device = if lost {
                Simulated::default().lost_from(failing)
            } else {
                Simulated::default().failing_at(failing)
            };
            let dispatch = to_simulated(&device);
            let rig = Rig::with_dispatch(4, 2, 6, 0, Some(Arc::clone(&dispatch)));
            let stripes = write_all(&rig);
            assert!(members_of(&rig) == expected, "operation {failing}, {lost}");
            rig.disks[0].delete();
            rig.disks[3].delete();
            for (stripe, payload) in stripes.iter().zip(&payloads) {
                let mut read = vec![0; payload.len()];
                rig.stripes.reader().read(*stripe, 0, &mut read).unwrap();
                assert!(read == *payload, "operation {failing}, {lost}");
            }
            assert!(rig.stripes.reader().decodes() >= 3);
            let coding = dispatch.coding();
            assert!(lost || coding.cuda.passes >= 5, "{failing}: {coding:?}");
            assert!(lost || coding.redone <= 1, "{failing}: {coding:?}");
        }
    }
}

/// A device that was right until now is no more; what it decodes is decoded again, and the device left alone.
#[test]
fn stripes_that_a_device_decodes_wrongly_are_decoded_again_on_the_cpu() {
    let device = Simulated::default();
    let dispatch = to_simulated(&device);
    let rig = Rig::with_dispatch(4, 2, 6, 0, Some(Arc::clone(&dispatch)));
    let payloads: Vec<Vec<u8>> = (1..=48).map(|seed| pattern(seed, 4 * UNIT)).collect();
    let stripes: Vec<StripeId> = payloads.iter().map(|p| rig.write_stripe(p)).collect();
    rig.disks[0].delete();
    rig.disks[3].delete();
    for (at, (stripe, payload)) in stripes.iter().zip(&payloads).enumerate() {
        if at == 36 {
            assert!(dispatch.is_on_devices());
            drop(device.clone().lying_from(device.operations()));
        }
        let mut read = vec![0; payload.len()];
        rig.stripes.reader().read(*stripe, 0, &mut read).unwrap();
        assert!(read == *payload, "stripe {at}");
    }
    assert!(!dispatch.is_on_devices());
    assert_eq!(dispatch.coding().redone, 0, "it was trusted, wrongly");
}

/// Computes wrong parity in block 3 of every stripe that is written, and a checksum that it matches.
#[derive(Debug)]
struct WrongInBlock3;

impl Accelerator for WrongInBlock3 {
    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
        for task in tasks {
            task.compute_on_cpu();
            let item = task.item_mut();
            let shards = item.sources.len();
            if let Targets::Written(parity) = &mut item.targets
                && let Some(sums) = item.sums.get_mut(shards + 1)
            {
                let block = &mut parity[1][3 * BLOCK_SIZE..4 * BLOCK_SIZE];
                block[5] ^= 1;
                sums[3] = crc32c::crc32c(block);
            }
        }
    }

    fn prefers_many(&self) -> bool {
        false
    }

    fn distrust(&self) {}
}

#[test]
fn inspection_names_inconsistent_blocks_of_a_stripe_with_matching_checksums() {
    let wrong = Arc::new(WrongInBlock3);
    let rig = Rig::with(4, 2, 6, 0, Some(wrong as _), None);
    let stripe = rig.write_stripe(&pattern(1, 4 * UNIT));
    let verdicts = rig
        .stripes
        .inspector()
        .inspect(&[stripe], Remedy::Report)
        .unwrap();
    let block = u32::try_from(BLOCK_SIZE).unwrap();
    let inconsistent = verdicts[0].inconsistent.clone().expect("parity is wrong");
    assert_eq!(inconsistent.rows, vec![3 * block..4 * block]);
    assert_eq!(
        inconsistent.to_string(),
        format!(
            "stripe {stripe}: parity is not what the data calls for in 4096 bytes of each shard, \
             from byte 12288"
        )
    );
    assert!(verdicts[0].wrong.is_empty(), "{verdicts:?}");
}

/// Checks, whenever it pins memory, whether another thread could go on meanwhile.
#[derive(Debug, Default)]
struct Onlooker {
    stripes: OnceLock<Weak<Stripes>>,
    seen: Mutex<Vec<bool>>,
}

impl Pinner for Onlooker {
    fn pin(&self, _: &mut [u8]) -> Option<Arc<dyn Unpinner>> {
        let stripes = self.stripes.get().and_then(Weak::upgrade);
        let are_locked = stripes.map(|stripes| stripes.writer().are_buffers_locked());
        self.seen.lock().extend(are_locked);
        None
    }
}

#[test]
fn no_caller_waits_for_memory_that_is_pinned_for_another() {
    let onlooker = Arc::new(Onlooker::default());
    let rig = Rig::with(4, 2, 6, 0, None, Some(Arc::clone(&onlooker) as _));
    onlooker.stripes.set(Arc::downgrade(&rig.stripes)).unwrap();
    rig.write_stripe(&pattern(1, 4 * UNIT));
    let writer = rig.stripes.writer();
    drop(writer.append(VOLUME, &pattern(2, UNIT)).unwrap());
    let seen = onlooker.seen.lock();
    assert!(seen.len() >= 2, "{seen:?}");
    assert!(!seen.contains(&true), "{seen:?}");
}

#[test]
fn buffers_of_a_volume_are_pinned_for_as_long_as_it_lives() {
    let device = Simulated::default();
    let dispatch = to_simulated(&device);
    let rig = Rig::with_dispatch(4, 2, 6, 0, Some(Arc::clone(&dispatch)));
    rig.write_stripe(&pattern(1, 4 * UNIT));
    // The buffer of the data and the one of parity.
    assert!(device.pinned_bytes() >= 6 * UNIT);
    let most = device.pinned_bytes();
    for seed in 2..9 {
        rig.write_stripe(&pattern(seed, 4 * UNIT));
    }
    assert!(device.pinned_bytes() <= 2 * most, "they are lent again");
    drop(rig);
    assert_eq!(device.pinned_bytes(), 0);
}

#[test]
fn a_segment_is_finished_whether_or_not_its_last_stripe_fills_it() {
    for height in [UNIT, UNIT / 2] {
        let rig = Rig::new(1, 1, 2);
        let mut segments = Vec::new();
        for seed in 0..40 {
            let stripe = rig.write_stripe(&pattern(seed, height));
            segments.push(rig.records.stripe(stripe).unwrap().unwrap().segment);
        }
        rig.stripes.writer().finish().unwrap();
        segments.dedup();
        let mut finished = rig.records.take_finished();
        finished.sort_unstable();
        assert_eq!(finished, segments, "height {height}");
    }
}

/// Reads whole stripes in pieces of `piece` bytes, each stripe from its start to its end; returns how
/// many bytes were read from members.
fn read_through(rig: &Rig, stripes: &[(StripeId, Vec<u8>)], piece: usize) -> u64 {
    rig.plan.record();
    for (stripe, payload) in stripes {
        for start in (0..payload.len()).step_by(piece) {
            let end = payload.len().min(start + piece);
            let mut out = vec![0; end - start];
            let offset = u32::try_from(start).unwrap();
            rig.stripes
                .reader()
                .read(*stripe, offset, &mut out)
                .unwrap();
            assert!(out == payload[start..end], "{stripe}, {start}..{end}");
        }
    }
    let log = rig.plan.take_log();
    let reads = log.iter().filter(|call| call.kind == CallKind::Read);
    reads.map(|call| call.len).sum()
}

/// Counts the stripes of which a data shard is on one of these members.
fn stripes_to_decode(rig: &Rig, stripes: &[(StripeId, Vec<u8>)], lost: [u16; 2]) -> u64 {
    let has_lost_data = |stripe: StripeId| {
        let record = rig.records.stripe(stripe).unwrap().unwrap();
        let segment = rig.stripes.segments().record(record.segment).unwrap();
        let mut data = layout::shards(&segment).take(usize::from(segment.data_shards));
        data.any(|shard| {
            let member = layout::member_of(&segment, &record, shard).unwrap();
            lost.contains(&member.0)
        })
    };
    let lost = stripes.iter().filter(|(stripe, _)| has_lost_data(*stripe));
    lost.count() as u64
}

/// Readers and threads that read ahead of them do not do the same work twice.
#[test]
fn reading_ahead_of_many_readers_decodes_each_stripe_once() {
    let rig = Rig::with_threads(4, 2, 6, 2);
    let write = |seed| {
        let payload = pattern(seed, 4 * UNIT);
        (rig.write_stripe(&payload), payload)
    };
    let stripes: Vec<_> = (0..24).map(write).collect();
    let _ = rig.stripes.writer().sync().unwrap();
    rig.disks[0].delete();
    rig.disks[3].delete();
    rig.members.probe();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for (at, (stripe, payload)) in stripes.iter().enumerate() {
                    for (ahead, _) in stripes[at + 1..].iter().take(2) {
                        rig.stripes.reader().prefetch(*ahead);
                    }
                    let mut out = vec![0; payload.len()];
                    rig.stripes.reader().read(*stripe, 0, &mut out).unwrap();
                    assert!(out == *payload, "{stripe}");
                }
            });
        }
    });
    let expected = stripes_to_decode(&rig, &stripes, [0, 3]);
    assert_eq!(
        rig.stripes.reader().decodes(),
        expected,
        "of {} stripes",
        stripes.len()
    );
}

#[test]
fn reading_through_a_volume_that_lost_members_decodes_each_stripe_once() {
    for piece in [BLOCK_SIZE, UNIT, 3 * UNIT, 400_000] {
        let rig = Rig::new(4, 2, 6);
        let write = |seed| {
            let payload = pattern(seed, 4 * UNIT);
            (rig.write_stripe(&payload), payload)
        };
        let stripes: Vec<_> = (0..12).map(write).collect();
        let _ = rig.stripes.writer().sync().unwrap();
        let data = 12 * 4 * UNIT as u64;
        assert_eq!(read_through(&rig, &stripes, piece), data, "healthy");
        assert_eq!(rig.stripes.reader().decodes(), 0);
        rig.disks[1].delete();
        rig.disks[4].delete();
        rig.members.probe();
        let read = read_through(&rig, &stripes, piece);
        let decodes = rig.stripes.reader().decodes();
        assert_eq!(decodes, stripes_to_decode(&rig, &stripes, [1, 4]));
        // Each needs four shards; those read before the first lost one was met are read again.
        assert!(
            read * 2 <= data * 3,
            "{read} bytes read of {data}, by {piece}"
        );
        // All that was decoded is in the cache.
        read_through(&rig, &stripes, piece);
        assert_eq!(rig.stripes.reader().decodes(), decodes);
    }
}

#[test]
fn a_block_read_here_and_there_is_decoded_without_the_rest_of_its_stripe() {
    let rig = Rig::new(4, 2, 6);
    let payload = pattern(5, 4 * UNIT);
    let stripe = rig.write_stripe(&payload);
    let record = rig.records.stripe(stripe).unwrap().unwrap();
    let segment = rig.stripes.segments().record(record.segment).unwrap();
    let lost = layout::member_of(&segment, &record, ShardIndex(2)).unwrap();
    rig.disks[usize::from(lost.0)].delete();
    rig.members.probe();
    rig.plan.record();
    let read = |at: usize| {
        let mut out = [0; 100];
        let offset = u32::try_from(at).unwrap();
        rig.stripes.reader().read(stripe, offset, &mut out).unwrap();
        assert!(out == payload[at..at + 100]);
        let log = rig.plan.take_log();
        rig.plan.record();
        log.iter().map(|call| call.len).collect::<Vec<u64>>()
    };
    // Again and again, but never on from where he was.
    for block in [7, 5, 3, 1] {
        let reads = read(2 * UNIT + block * BLOCK_SIZE + 7);
        assert_eq!(reads, [BLOCK_SIZE as u64; 4], "block {block}");
    }
    // A reader that goes on is given all of it.
    let whole = read(2 * UNIT + 2 * BLOCK_SIZE);
    assert_eq!(whole.iter().sum::<u64>(), 4 * UNIT as u64);
    assert_eq!(read(2 * UNIT + 4 * BLOCK_SIZE), [0; 0]);
}

/// A waiter does not wait for something that will never be.
#[test]
fn a_panic_during_the_write_of_a_stripe_reaches_every_waiting_caller() {
    for threads in [0, 2] {
        let rig = Rig::with_threads(1, 1, 2, threads);
        let interlude = |_: &Stripes| panic!("as a bug would");
        *rig.map.before_flushed.lock() = Some(Box::new(interlude));
        let payload = pattern(1, UNIT);
        let wait = || {
            let writer = rig.stripes.writer();
            let (stripe, _hold) = writer.append_stripe(VOLUME, &payload, 0, UNNOTED).unwrap();
            (stripe, rig.stripes.writer().wait_flushed())
        };
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
        // Without threads it is the caller who panics.
        assert_eq!(waited.is_err(), threads == 0);
        let told = rig.stripes.writer().wait_flushed();
        assert!(
            matches!(told, Err(StripeError::Panicked { .. })),
            "{told:?}"
        );
        assert!(rig.stripes.writer().append(VOLUME, &payload).is_err());
        if let Ok((stripe, _)) = waited {
            let mut out = vec![0; UNIT];
            rig.stripes.reader().read(stripe, 0, &mut out).unwrap();
            assert!(out == payload, "it can still be read");
        }
    }
}

#[test]
fn a_panic_while_reading_ahead_costs_neither_readers_nor_the_thread() {
    let rig = Rig::with_threads(1, 1, 2, 1);
    let payload = pattern(1, UNIT);
    let stripes: Vec<StripeId> = (0..3).map(|_| rig.write_stripe(&payload)).collect();
    for &stripe in &stripes {
        *rig.map.before_read.lock() = Some(Box::new(|_| panic!("as a bug would")));
        rig.stripes.reader().prefetch(stripe);
        while rig.map.before_read.lock().is_some() {
            std::thread::yield_now();
        }
    }
    for stripe in stripes {
        let mut out = vec![0; UNIT];
        rig.stripes.reader().read(stripe, 0, &mut out).unwrap();
        assert!(out == payload);
    }
}

/// Reads the segment file of a disk.
fn segment_of(disk: &MemDisk, name: &str) -> Vec<u8> {
    let store = disk.open();
    let len = usize::try_from(store.open_len(name).unwrap()).unwrap();
    let mut bytes = vec![0; len];
    store.read_at(name, 0, &mut bytes).unwrap();
    bytes
}

/// The file of a full segment that a disk has lost, and all that is needed to rebuild it.
struct LostFile {
    segment: SegmentId,
    name: String,
    before: Vec<u8>,
    lacking: Vec<IncompleteStripe>,
    target: RebuildTarget,
}

impl LostFile {
    /// Retires the segments of a 2+1 volume, and removes the file of the one with most stripes from a disk.
    fn of(rig: &Rig, lost: usize) -> Self {
        rig.stripes.writer().retire_segments().unwrap();
        let mut stripes = rig.map.stripes();
        stripes.sort_by_key(|(_, record)| (record.segment, record.offset));
        let full = stripes.chunk_by(|a, b| a.1.segment == b.1.segment);
        let full = full.max_by_key(|stripes| stripes.len()).unwrap();
        let segment = full[0].1.segment;
        assert!(full.len() > 4, "{}", full.len());
        let slots = rig.stripes.segments().record(segment).unwrap().slots;
        let member = MemberIndex(u16::try_from(lost).unwrap());
        let slot = slots.iter().position(|&s| s == Some(member)).unwrap();
        let name = crate::format::files::segment(segment);
        let before = segment_of(&rig.disks[lost], &name);
        rig.disks[lost].open().remove(&name).unwrap();
        let lacking = full.iter().map(|&(stripe, mut record)| {
            let shard = (slot + 3 - usize::from(record.rotation) % 3) % 3;
            let shard = ShardIndex(u8::try_from(shard).unwrap());
            record.written.remove(shard);
            let shards = [shard].into_iter().collect();
            IncompleteStripe {
                stripe,
                record,
                shards,
            }
        });
        Self {
            segment,
            name,
            before,
            lacking: lacking.collect(),
            target: RebuildTarget { slot, member },
        }
    }

    fn make(&self, rig: &Rig) {
        let made =
            rig.stripes
                .rebuilder()
                .make_file(self.segment, self.target.member, &self.lacking);
        made.unwrap();
    }

    /// Rebuilds it, and holds it against what it was; returns the bytes of each batch.
    fn rebuild(&self, rig: &Rig) -> Vec<u64> {
        let mut batches = Vec::new();
        let mut heed = |rebuilt: RebuiltStripes| {
            assert!(rebuilt.failed.is_empty(), "{:?}", rebuilt.failed);
            batches.push(rebuilt.bytes);
            std::ops::ControlFlow::Continue(())
        };
        let (targets, most) = ([self.target], &|| u64::MAX);
        let record = rig.stripes.segments().record(self.segment).unwrap();
        let rebuilt = rig.stripes.rebuilder().rebuild(
            (self.segment, &record),
            &self.lacking,
            &targets,
            most,
            &mut heed,
        );
        assert!(rebuilt.unwrap().is_continue());
        let disk = &rig.disks[usize::from(self.target.member.0)];
        assert!(segment_of(disk, &self.name) == self.before);
        batches
    }
}

#[test]
fn a_lost_file_is_rebuilt_batch_by_batch_with_the_next_being_read_while_one_is_computed() {
    let rig = Rig::with_threads(2, 1, 3, 1);
    for seed in 0..24 {
        rig.write_stripe(&pattern(seed, 2 * UNIT));
    }
    let lost = LostFile::of(&rig, 2);
    lost.make(&rig);
    let (plan, called) = (rig.plan.clone(), rig.plan.calls());
    // Each batch is read with two calls, and nothing is written before it was computed.
    let both_were_read = move |_: &Stripes| {
        let began = std::time::Instant::now();
        while plan.calls() < called + 4 {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not read");
            std::thread::yield_now();
        }
    };
    *rig.map.before_sums.lock() = Some(Box::new(both_were_read));
    let batches = lost.rebuild(&rig);
    assert!(batches.len() > 2, "{batches:?}");
    let rebuilt = batches.iter().sum::<u64>();
    assert_eq!(rebuilt, lost.lacking.len() as u64 * UNIT as u64);
}
