//! A volume over disks in memory, with a catalog that does on cue what another thread might.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use super::*;
use crate::codec::{self, Geometry};
use crate::members::{Access, CreateOptions};
use crate::store::{Executor, ExecutorKind, MemDisk, StoreRef};

/// Bytes of a shard of a full stripe.
const UNIT: usize = 8 << 10;

type Interlude = Box<dyn Fn(&Volume) + Send + Sync>;

/// Records in memory.
#[derive(Default)]
struct TestCatalog {
    stripes: Mutex<HashMap<StripeId, Stripe>>,
    sums: Mutex<HashMap<(StripeId, ShardIndex), ShardSums>>,
    finished: Mutex<Vec<SegmentId>>,
    numbers: AtomicU64,
    volume: OnceLock<Weak<Volume>>,
    /// Runs before the record of a stripe is taken.
    before_flushed: Mutex<Option<Interlude>>,
}

impl Catalog for TestCatalog {
    fn stripe(&self, stripe: StripeId) -> Result<Option<Stripe>, CatalogError> {
        Ok(self.stripes.lock().get(&stripe).copied())
    }

    fn sums(&self, stripe: StripeId, shard: ShardIndex) -> Result<Option<ShardSums>, CatalogError> {
        Ok(self.sums.lock().get(&(stripe, shard)).cloned())
    }

    fn next_stripe(&self) -> Result<StripeId, CatalogError> {
        Ok(StripeId(self.numbers.fetch_add(1, Ordering::SeqCst) + 1))
    }

    fn next_segment(&self) -> Result<SegmentId, CatalogError> {
        Ok(SegmentId(self.numbers.fetch_add(1, Ordering::SeqCst) + 1))
    }

    fn flushed(&self, flushed: FlushedStripe) -> Result<(), CatalogError> {
        if let Some(interlude) = self.before_flushed.lock().take() {
            interlude(&self.volume.get().unwrap().upgrade().unwrap());
        }
        let FlushedStripe {
            stripe,
            record,
            sums,
            ..
        } = flushed;
        let sums = sums
            .into_iter()
            .map(|(shard, sums)| ((stripe, shard), sums));
        self.sums.lock().extend(sums);
        self.stripes.lock().insert(stripe, record);
        Ok(())
    }

    fn finished(&self, segment: SegmentId, _: &Segment) -> Result<(), CatalogError> {
        self.finished.lock().push(segment);
        Ok(())
    }
}

struct Rig {
    disks: Vec<MemDisk>,
    catalog: Arc<TestCatalog>,
    volume: Arc<Volume>,
}

impl Rig {
    /// A volume in which everything is done by the caller, in the same order in every run.
    fn new(data: usize, parity: usize, count: usize) -> Self {
        let disk = |index| MemDisk::new(&format!("disk{index}"), 1 << 30);
        let disks: Vec<MemDisk> = (0..count).map(disk).collect();
        let stores = || -> Vec<StoreRef> {
            let open = |disk: &MemDisk| Arc::new(disk.open()) as StoreRef;
            disks.iter().map(open).collect()
        };
        let options = CreateOptions {
            unit_bytes: u32::try_from(UNIT).unwrap(),
            segment_bytes: 8 * UNIT as u64,
            ..CreateOptions::new(Geometry::new(data, parity).unwrap())
        };
        Members::create(&stores(), &options).unwrap();
        let executor = Arc::new(Executor::new(ExecutorKind::Inline, Duration::from_secs(5)));
        let members = Members::open(stores(), Access::ReadWrite, executor).unwrap();
        let catalog = Arc::new(TestCatalog::default());
        let options = VolumeOptions {
            engine: codec::select("auto").unwrap(),
            buffer_bytes: 16 << 20,
            cache_bytes: 16 << 20,
            threads: 0,
            workers: Arc::new(Workers::new(2).unwrap()),
        };
        let shared: Arc<dyn Catalog> = Arc::clone(&catalog) as _;
        let volume = Arc::new(Volume::open(members, shared, Vec::new(), &options).unwrap());
        catalog.volume.set(Arc::downgrade(&volume)).unwrap();
        Self {
            disks,
            catalog,
            volume,
        }
    }

    /// Writes a stripe of its own.
    fn write_stripe(&self, payload: &[u8]) -> StripeId {
        let (stripe, _hold) = self.volume.append_stripe(payload).unwrap();
        self.volume.wait_flushed().unwrap();
        stripe
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).wrapping_add(seed * 77);
    (0..len as u64)
        .map(|at| byte(at).to_le_bytes()[0])
        .collect()
}

#[test]
fn a_shard_that_a_sync_finds_lost_before_its_stripe_is_recorded_is_reported_after() {
    for lost in 0..3 {
        let rig = Rig::new(2, 1, 3);
        let disk = rig.disks[lost].clone();
        let interlude = move |volume: &Volume| {
            disk.delete();
            let lost = volume.sync().unwrap();
            assert_eq!(lost, [], "nobody could take it out of a record");
        };
        *rig.catalog.before_flushed.lock() = Some(Box::new(interlude));
        let stripe = rig.write_stripe(&pattern(1, 2 * UNIT));
        let record = rig.catalog.stripe(stripe).unwrap().unwrap();
        assert_eq!(record.written.len(), 3, "all were written");
        let lost = rig.volume.sync().unwrap();
        assert_eq!(lost.len(), 1, "one of them in vain");
        assert_eq!(lost[0].stripe, stripe);
        assert_eq!(rig.volume.sync().unwrap(), [], "it is reported once");
    }
}

#[test]
fn a_segment_is_finished_whether_or_not_its_last_stripe_fills_it() {
    for height in [UNIT, UNIT / 2] {
        let rig = Rig::new(1, 1, 2);
        let mut segments = Vec::new();
        for seed in 0..40 {
            let stripe = rig.write_stripe(&pattern(seed, height));
            segments.push(rig.catalog.stripe(stripe).unwrap().unwrap().segment);
        }
        rig.volume.finish().unwrap();
        segments.dedup();
        let mut finished = rig.catalog.finished.lock().clone();
        finished.sort_unstable();
        assert_eq!(finished, segments, "height {height}");
    }
}
