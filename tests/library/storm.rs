//! Many threads at work when the power goes: what was acknowledged is there afterwards, and all that is
//! there existed at one moment.
//!
//! Writers, threads that sync, and all background work share a volume until a random call to a disk cuts the power.
//! Unsynced writes are kept, dropped or reordered. As many members as there are parities fail before, or are lost
//! afterwards. Then the volume is opened again, for the next storm.
//!
//! `CAUCHYFS_SEED` is the first seed tried, `CAUCHYFS_STORMS` how many are. A seed fixes volume, faults
//! and work; the schedule of the threads it cannot fix.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use cauchyfs::codec::Geometry;
use cauchyfs::fs::{Fs, FsError, FsOptions, check};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::store::{
    CutPolicy, Effect, Executor, ExecutorKind, Fault, FaultPlan, FaultStore, MemDisk, Scope,
    StoreRef,
};
use cauchyfs::transaction::{CommitError, CreateOptions, OpenOptions, Transactions};
use cauchyfs_testkit::{disks, executor, number, power_cut_at, seed, stores};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use history::{Clock, History};
use writer::Writer;

mod history;
mod writer;

/// Volumes that are tried by default.
const STORMS: u64 = 24;

/// Storms that each of them goes through.
const GENERATIONS: usize = 3;

/// A member that hangs is given up after this time; the others must not be slower, however busy the
/// machine is.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a shard of a full stripe: small, so that many stripes are under way at once.
const UNIT: u32 = 8 << 10;

/// The shape of a volume, as a seed says.
struct Shape {
    data: usize,
    parity: usize,
    members: usize,
    capacity_bytes: u64,
    writers: usize,
    flushers: usize,
    executor: ExecutorKind,
}

impl Shape {
    fn random(rng: &mut StdRng) -> Self {
        let geometries = [(1, 1, 2), (2, 1, 3), (2, 1, 5), (2, 2, 4), (3, 2, 6)];
        let &(data, parity, members) = geometries.choose(rng).unwrap();
        Self {
            data,
            parity,
            members,
            capacity_bytes: *[24 << 20, 64 << 20].choose(rng).unwrap(),
            writers: rng.random_range(1..=4),
            flushers: rng.random_range(1..=3),
            executor: *[ExecutorKind::Inline, ExecutorKind::Threads]
                .choose(rng)
                .unwrap(),
        }
    }

    fn create(&self) -> Vec<MemDisk> {
        let disks = disks(self.members, self.capacity_bytes);
        let geometry = Geometry::new(self.data, self.parity).unwrap();
        let options = CreateOptions {
            unit_bytes: UNIT,
            segment_bytes: 8 * u64::from(UNIT),
            ..CreateOptions::new(geometry)
        };
        Transactions::create(&stores(&disks), &options, executor(TIMEOUT)).unwrap();
        // Making a volume ends with a process that exits: its locks go.
        disks.iter().map(MemDisk::fork).collect()
    }

    fn open(&self, stores: Vec<StoreRef>) -> Result<Arc<Fs>, FsError> {
        let options = OpenOptions {
            threads: self.flushers,
            cache_bytes: 1 << 20,
            index_cache_bytes: 1 << 20,
            ..OpenOptions::default()
        };
        let executor = Arc::new(Executor::new(self.executor, TIMEOUT));
        let maintenance = Maintenance::open(stores, &options, executor)?;
        Fs::open(maintenance, FsOptions::default())
    }
}

/// The faults of one storm.
#[derive(Debug)]
struct Weather {
    /// The call that changes a disk at which the power goes.
    cut_at: u64,
    policy: CutPolicy,
    /// Members that are not there to begin with.
    away: Vec<usize>,
    /// A member that fails on the way, at a call of its own.
    fault: Option<(usize, Fault)>,
    /// Members that are not there afterwards.
    lost: Vec<usize>,
}

impl Weather {
    /// Only members in `weak` come to harm: as many as there are parities.
    fn random(rng: &mut StdRng, weak: &[usize], executor: ExecutorKind) -> Self {
        let some = |rng: &mut StdRng| -> Vec<usize> {
            let picked = weak.iter().filter(|_| rng.random_ratio(1, 3));
            picked.copied().collect()
        };
        let policies = [
            CutPolicy::Keep,
            CutPolicy::Drop,
            CutPolicy::Reorder(rng.random()),
        ];
        let effects = [
            Effect::Eio,
            Effect::NoSpace,
            Effect::ShortWrite,
            Effect::WrongBytes,
            Effect::Hang,
        ];
        let away = some(rng);
        let strikes = rng.random_ratio(1, 2);
        let effect = *effects.choose(rng).unwrap();
        let lasting = rng.random();
        let nth = rng.random_range(1..400);
        let latest = *[300, 1500, 6000].choose(rng).unwrap();
        // Without threads of its own the executor waits for what hangs for ever.
        let waits = effect == Effect::Hang && executor == ExecutorKind::Inline;
        let struck = weak.choose(rng).copied();
        let struck = struck.filter(|member| strikes && !waits && !away.contains(member));
        Self {
            cut_at: rng.random_range(1..latest),
            policy: *policies.choose(rng).unwrap(),
            fault: struck.map(|member| {
                let fault = Fault {
                    lasting,
                    ..Fault::at(nth, effect).of(Scope::Member(member))
                };
                (member, fault)
            }),
            lost: some(rng),
            away,
        }
    }
}

/// Opens the stores that are there, with their numbers in the plan.
fn stores_under(plan: &FaultPlan, disks: &[MemDisk], away: &[usize]) -> Vec<StoreRef> {
    let here = stores(disks).into_iter().enumerate();
    here.filter(|(index, _)| !away.contains(index))
        .map(|(index, store)| Arc::new(FaultStore::new(store, index, plan)) as StoreRef)
        .collect()
}

/// Lets everything loose on an open volume until all writers have ended, and returns what they did.
fn storm(fs: &Arc<Fs>, plan: &FaultPlan, writers: Vec<Writer>, seed: u64) -> Vec<History> {
    let clock = Clock::default();
    let ended = AtomicBool::new(false);
    let histories: Vec<_> = writers.iter().map(Writer::history).collect();
    std::thread::scope(|scope| {
        let rng = |stream: u64| StdRng::seed_from_u64(seed ^ (stream << 32));
        let running: Vec<_> = (1..)
            .zip(writers)
            .map(|(stream, writer)| {
                let (clock, rng) = (&clock, rng(stream));
                scope.spawn(move || writer.work(fs, plan, clock, rng))
            })
            .collect();
        let (ended, histories) = (&ended, &histories);
        scope.spawn(move || {
            while !ended.load(Ordering::SeqCst) && !plan.is_power_off() {
                let reached: Vec<usize> = histories.iter().map(|history| history.len()).collect();
                if fs.syncfs().is_ok() {
                    let synced = histories.iter().zip(reached);
                    synced.for_each(|(history, reached)| history.acknowledge(reached));
                }
            }
        });
        let mut rng = rng(99);
        scope.spawn(move || {
            while !ended.load(Ordering::SeqCst) && !plan.is_power_off() {
                let done = maintain(fs, rng.random_range(0..8));
                assert!(
                    matches!(done, Ok(()) | Err(CommitError::NoSpace)) || plan.is_power_off(),
                    "background work: {done:?}"
                );
                std::thread::sleep(Duration::from_micros(rng.random_range(0..3000)));
            }
        });
        let outcomes: Vec<_> = running.into_iter().map(ScopedJoinHandle::join).collect();
        ended.store(true, Ordering::SeqCst);
        for outcome in outcomes {
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let finished = histories.into_iter().map(Arc::into_inner);
    finished.map(|history| history.unwrap().close()).collect()
}

/// A piece of what [`cauchyfs::maintenance`] does, at once.
fn maintain(fs: &Arc<Fs>, kind: u32) -> Result<(), CommitError> {
    let maintenance = fs.maintenance();
    match kind {
        0 => maintenance.transactions().checkpoint(),
        1 => maintenance.room().make_room_ahead(&*fs.inode_locks(), None),
        // More than there can be: everything that pays is compacted.
        2 => maintenance
            .room()
            .make_room(1 << 40, &*fs.inode_locks())
            .map(drop),
        3 => {
            maintenance.transactions().members().probe();
            Ok(())
        }
        4 | 5 => maintenance.reaper().reap(),
        _ => maintenance.transactions().clock().tick(),
    }
}

/// Takes a volume through some storms.
fn survive(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let shape = Shape::random(&mut rng);
    let disks = shape.create();
    let mut weak: Vec<usize> = (0..shape.members).collect();
    while weak.len() > shape.parity {
        weak.swap_remove(rng.random_range(0..weak.len()));
    }
    let mut expected: Option<Vec<History>> = None;
    let mut harmed = false;
    for generation in 0..=GENERATIONS {
        let weather = Weather::random(&mut rng, &weak, shape.executor);
        let what = format!(
            "CAUCHYFS_SEED={seed}, storm {generation}, {}+{} of {}: {weather:?}",
            shape.data, shape.parity, shape.members
        );
        println!("{what}");
        let plan = FaultPlan::new();
        let stores = stores_under(&plan, &disks, &weather.away);
        let fs = shape
            .open(stores)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let writers: Vec<Writer> = (0..shape.writers)
            .map(|number| Writer::load(&fs, number))
            .collect();
        if let Some(histories) = expected.take() {
            history::judge(&histories, &writers, &what);
        }
        fs.wait_for_removal();
        // A mount does that in the background.
        fs.transactions().commits().complete_index().unwrap();
        let report = check::check(fs.maintenance(), false).unwrap();
        assert_eq!(report.findings, [], "{what}");
        harmed |= !weather.away.is_empty();
        assert_redundant(fs.maintenance(), shape.parity, harmed, &what);
        if generation == GENERATIONS {
            fs.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            let closed = fs.maintenance().close();
            closed.unwrap_or_else(|error| panic!("{what}: {error}"));
            return;
        }
        plan.add(power_cut_at(weather.cut_at));
        if let Some((_, fault)) = weather.fault {
            plan.add(fault);
            harmed = true;
        }
        let histories = storm(&fs, &plan, writers, rng.random());
        plan.release();
        drop(fs);
        for (index, disk) in disks.iter().enumerate() {
            disk.cut(match weather.policy {
                CutPolicy::Reorder(seed) => CutPolicy::Reorder(seed ^ index as u64),
                other => other,
            });
        }
        verify(&shape, &disks, &weather, &histories, &what);
        expected = Some(histories);
    }
}

/// Looks at what is left without the members that are lost, on disks that nothing else uses.
fn verify(shape: &Shape, disks: &[MemDisk], weather: &Weather, histories: &[History], what: &str) {
    let forked: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let left = stores_under(&FaultPlan::new(), &forked, &weather.lost);
    let fs = shape
        .open(left)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let found: Vec<Writer> = (0..histories.len())
        .map(|number| Writer::load(&fs, number))
        .collect();
    history::judge(histories, &found, what);
    assert_redundant(fs.maintenance(), shape.parity, true, what);
}

/// No stripe is lost, and each has all its shards where nothing ever went wrong with a member.
fn assert_redundant(maintenance: &Maintenance, parity: usize, harmed: bool, what: &str) {
    let counted = maintenance.redundancy().redundancy().unwrap();
    let rows = &counted.rows;
    let least = if harmed { 0 } else { parity };
    let rows: BTreeMap<_, _> = rows
        .iter()
        .map(|row| (row.losses_tolerated, row.stripes))
        .collect();
    let enough =
        |(tolerated, _): (&i16, &u64)| usize::try_from(*tolerated).is_ok_and(|t| t >= least);
    assert!(rows.iter().all(enough), "{what}: {rows:?}");
}

#[test]
fn acknowledged_writes_survive_a_power_cut_at_any_point() {
    let first = seed();
    let count: u64 = number("CAUCHYFS_STORMS").unwrap_or(STORMS);
    for seed in first..first + count {
        survive(seed);
    }
}
