//! Stripes of one piece of work that are computed by one call.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::coding::{Devices, SMALL_BYTES};
use crate::store::Pool;
use crate::stripes::buffers::{Buffers, Sealed};

/// Notes how many stripes come with each call.
#[derive(Debug)]
struct Counting {
    prefers_many: bool,
    calls: Mutex<Vec<usize>>,
}

impl Counting {
    fn new(prefers_many: bool) -> Arc<Self> {
        let calls = Mutex::default();
        Arc::new(Self {
            prefers_many,
            calls,
        })
    }
}

impl Accelerator for Counting {
    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
        self.calls.lock().push(tasks.len());
        for task in tasks {
            task.compute_on_cpu();
        }
    }

    fn prefers_many(&self) -> bool {
        self.prefers_many
    }

    fn distrust(&self) {
        panic!("nothing is wrong");
    }
}

/// The possible faults of a device from some operation on, or in it.
const FAULTS: [fn(Simulated, u64) -> Simulated; 3] = [
    Simulated::failing_at,
    Simulated::lost_from,
    Simulated::lying_from,
];

/// Writes stripes of 2+1, of which several fit a segment, and a batch of a rebuild.
fn write(rig: &Rig) -> Vec<StripeId> {
    let stripe = |seed| write_one(rig, seed, 2 * 6 * BLOCK_SIZE - 1000);
    (0..24).map(stripe).collect()
}

fn write_one(rig: &Rig, seed: u64, len: usize) -> StripeId {
    let (placed, _hold) = rig
        .stripes
        .writer()
        .append(VOLUME, &pattern(seed, len))
        .unwrap();
    rig.stripes.writer().seal();
    rig.stripes.writer().wait_flushed().unwrap();
    placed.stripe
}

#[test]
fn a_rebuild_has_the_stripes_of_a_batch_computed_by_one_call_where_that_is_preferred() {
    for prefers_many in [true, false] {
        let counting = Counting::new(prefers_many);
        let rig = Rig::with(2, 1, 3, 0, Some(Arc::clone(&counting) as _), None);
        write(&rig);
        let lost = LostFile::of(&rig, 1);
        lost.make(&rig);
        counting.calls.lock().clear();
        let batches = lost.rebuild(&rig);
        let stripe_bytes = lost.lacking[0].bytes();
        let stripes = batches.iter().map(|bytes| bytes / stripe_bytes);
        let stripes: Vec<usize> = stripes
            .map(|count| usize::try_from(count).unwrap())
            .collect();
        assert!(stripes[0] > 2, "{stripes:?}");
        let calls = counting.calls.lock().clone();
        if prefers_many {
            assert_eq!(calls, stripes);
        } else {
            assert_eq!(calls, vec![1; lost.lacking.len()]);
        }
    }
}

#[test]
fn stripes_too_short_for_a_device_are_left_to_the_threads_that_rebuild() {
    let counting = Counting::new(true);
    let rig = Rig::with(2, 1, 3, 0, Some(Arc::clone(&counting) as _), None);
    let height = SMALL_BYTES / 3 / BLOCK_SIZE * BLOCK_SIZE;
    for seed in 0..24 {
        write_one(&rig, seed, 2 * height);
    }
    let lost = LostFile::of(&rig, 1);
    lost.make(&rig);
    counting.calls.lock().clear();
    let batches = lost.rebuild(&rig).len();
    assert!(batches < lost.lacking.len(), "{batches}");
    assert_eq!(*counting.calls.lock(), vec![1; lost.lacking.len()]);
}

/// Appends stripes of different heights, the first of which is held up until all of them wait; returns them with
/// their payloads.
fn write_while_held_up(rig: &Rig) -> Vec<(StripeId, Vec<u8>)> {
    let (open, opened) = std::sync::mpsc::channel();
    let opened = Mutex::new(opened);
    let wait = move |_: &Stripes| opened.lock().recv().unwrap();
    *rig.map.before_flushed.lock() = Some(Box::new(wait));
    let stripe = |seed: u64| {
        let blocks = [2, 16, 16, 9, 16, 1, 16][usize::try_from(seed).unwrap()];
        let payload = pattern(seed, blocks * BLOCK_SIZE - 7);
        let (placed, _hold) = rig.stripes.writer().append(VOLUME, &payload).unwrap();
        rig.stripes.writer().seal();
        while seed == 0 && rig.map.before_flushed.lock().is_some() {
            std::thread::yield_now();
        }
        (placed.stripe, payload)
    };
    let stripes = (0..7).map(stripe).collect();
    open.send(()).unwrap();
    stripes
}

/// Reads stripes with a disk less, and has them inspected with all.
fn check(rig: &Rig, stripes: &[(StripeId, Vec<u8>)], context: &str) {
    let ids: Vec<StripeId> = stripes.iter().map(|(stripe, _)| *stripe).collect();
    for verdict in rig
        .stripes
        .inspector()
        .inspect(&ids, Remedy::Report)
        .unwrap()
    {
        assert!(verdict.wrong.is_empty(), "{context}");
        assert!(verdict.inconsistent.is_none(), "{context}");
    }
    rig.disks[0].delete();
    for (stripe, payload) in stripes {
        let mut read = vec![0; payload.len()];
        rig.stripes.reader().read(*stripe, 0, &mut read).unwrap();
        assert!(read == *payload, "{context}: stripe {stripe}");
    }
}

#[test]
fn stripes_that_wait_to_be_flushed_are_encoded_by_one_call_where_that_is_preferred() {
    for (prefers_many, expected) in [(true, &[1, 5, 1][..]), (false, &[1; 7])] {
        let counting = Counting::new(prefers_many);
        let rig = Rig::with(2, 1, 3, 1, Some(Arc::clone(&counting) as _), None);
        let stripes = write_while_held_up(&rig);
        rig.stripes.writer().wait_flushed().unwrap();
        assert_eq!(*counting.calls.lock(), expected);
        check(&rig, &stripes, "healthy");
    }
}

#[test]
fn a_device_that_encodes_all_waiting_stripes_changes_no_byte() {
    for (kind, fault) in FAULTS.into_iter().enumerate() {
        for operation in 0..8 {
            let device = Simulated::default();
            let dispatch = to_simulated(&device);
            let rig = Rig::with_dispatch(2, 1, 3, 1, Some(dispatch));
            drop(fault(device.clone(), device.operations() + operation));
            let stripes = write_while_held_up(&rig);
            rig.stripes.writer().wait_flushed().unwrap();
            check(
                &rig,
                &stripes,
                &format!("operation {operation}, kind {kind}"),
            );
        }
    }
}

/// A device may never give back what it has.
#[test]
fn buffers_stay_free_while_several_callers_encode_ahead() {
    for (limit, most) in [(2, 0), (3, 0), (4, 1), (16, 7)] {
        let buffers = Buffers::new(Pool::pinned(0, None), limit);
        let rig = Rig::new(2, 1, 3);
        let code = rig.stripes.classes().volume();
        for stripe in 0..limit as u64 {
            buffers.restore(
                code.class(),
                (StripeId(stripe), Arc::clone(code)),
                &[1],
                None,
            );
        }
        let numbers = |stripes: &[Arc<Sealed>]| -> Vec<u64> {
            stripes.iter().map(|sealed| sealed.stripe.0).collect()
        };
        let expected: Vec<u64> = (0..most).collect();
        let taken = buffers.take_unencoded(code);
        assert_eq!(numbers(&taken), expected, "{limit}");
        assert!(
            buffers.take_unencoded(code).is_empty(),
            "{limit}: by another"
        );
        buffers.requeue(taken);
        let again = buffers.take_unencoded(code);
        assert_eq!(numbers(&again), expected, "{limit}");
    }
}

/// Panics when it gets several stripes.
#[derive(Debug)]
struct Panicking;

impl Accelerator for Panicking {
    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
        assert_eq!(tasks.len(), 1, "as a bug would");
        tasks[0].compute_on_cpu();
    }

    fn prefers_many(&self) -> bool {
        true
    }

    fn distrust(&self) {}
}

#[test]
fn every_caller_waiting_for_a_stripe_learns_that_its_encoding_panicked() {
    let rig = Rig::with(2, 1, 3, 1, Some(Arc::new(Panicking) as _), None);
    write_while_held_up(&rig);
    let told = rig.stripes.writer().wait_flushed();
    let is_told = matches!(told, Err(StripeError::Panicked { .. }));
    assert!(is_told, "{told:?}");
}

#[test]
fn inspection_has_all_stripes_that_are_whole_compared_by_one_call() {
    let counting = Counting::new(true);
    let rig = Rig::with(2, 1, 3, 0, Some(Arc::clone(&counting) as _), None);
    let stripes = write(&rig);
    counting.calls.lock().clear();
    let verdicts = rig
        .stripes
        .inspector()
        .inspect(&stripes, Remedy::Report)
        .unwrap();
    assert_eq!(verdicts.len(), stripes.len());
    assert!(verdicts.iter().all(|verdict| verdict.wrong.is_empty()));
    assert_eq!(*counting.calls.lock(), [stripes.len()]);
}

/// The file is as it was, and inspection finds what is wrong and nothing else, whatever happens to the device in
/// the midst of it.
#[test]
fn a_failing_device_changes_no_byte_of_a_rebuild_and_no_verdict_of_an_inspection() {
    for (kind, fault) in FAULTS.into_iter().enumerate() {
        for operation in 0..30 {
            let device = Simulated::default();
            let rig = Rig::with_dispatch(2, 1, 3, 0, Some(to_simulated(&device)));
            let stripes = write(&rig);
            let lost = LostFile::of(&rig, 1);
            lost.make(&rig);
            drop(fault(device.clone(), device.operations() + operation));
            lost.rebuild(&rig);
            let damaged = lost.lacking[3];
            let disk = rig.disks[1].open();
            disk.write_at(&lost.name, damaged.record.offset + 5000, &[1, 2, 3])
                .unwrap();
            let verdicts = rig
                .stripes
                .inspector()
                .inspect(&stripes, Remedy::Repair)
                .unwrap();
            for verdict in verdicts {
                let context = format!("operation {operation}, kind {kind}: {verdict:?}");
                let repaired = u64::from(verdict.stripe == damaged.stripe);
                assert_eq!(verdict.repaired, repaired, "{context}");
                assert!(verdict.wrong.is_empty(), "{context}");
                assert!(verdict.inconsistent.is_none(), "{context}");
            }
            assert!(segment_of(&rig.disks[1], &lost.name) == lost.before);
        }
    }
}

#[test]
fn an_inconsistency_that_only_a_trusted_device_finds_is_no_verdict_and_costs_it_the_trust() {
    let device = Simulated::default();
    let dispatch = to_simulated(&device);
    let rig = Rig::with_dispatch(2, 1, 3, 0, Some(Arc::clone(&dispatch)));
    let stripes = write(&rig);
    for is_lying in [false, true] {
        if is_lying {
            assert!(dispatch.is_on_devices());
            drop(device.clone().lying_from(device.operations()));
        }
        let verdicts = rig
            .stripes
            .inspector()
            .inspect(&stripes, Remedy::Repair)
            .unwrap();
        assert_eq!(verdicts.len(), stripes.len());
        let inconsistent = |verdict: &Verdict| verdict.inconsistent.is_some();
        assert!(!verdicts.iter().any(inconsistent), "{is_lying}");
    }
    assert!(!dispatch.is_on_devices());
    assert_eq!(dispatch.coding().redone, 0, "it was trusted, wrongly");
}

/// Computes wrong parity for the fourth stripe that is written, with a checksum that it matches; finds of those
/// that it compares the first inconsistent, and all others clean.
#[derive(Debug, Default)]
struct Slandering {
    written: AtomicU64,
    is_distrusted: AtomicBool,
}

impl Accelerator for Slandering {
    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
        assert!(!self.is_distrusted.load(Ordering::Relaxed));
        for (at, task) in tasks.iter_mut().enumerate() {
            task.compute_on_cpu();
            let item = task.item_mut();
            match &mut item.targets {
                Targets::Written(parity) => {
                    if self.written.fetch_add(1, Ordering::Relaxed) == 3 {
                        let block = &mut parity[0][..BLOCK_SIZE];
                        block[5] ^= 1;
                        item.sums[item.sources.len()][0] = crc32c::crc32c(block);
                    }
                }
                Targets::Compared { wrong, .. } => wrong.fill(at == 0),
            }
        }
    }

    fn prefers_many(&self) -> bool {
        true
    }

    fn distrust(&self) {
        self.is_distrusted.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_device_with_false_findings_is_not_believed_about_clean_stripes() {
    let slandering = Arc::new(Slandering::default());
    let rig = Rig::with(2, 1, 3, 0, Some(Arc::clone(&slandering) as _), None);
    let stripes = write(&rig);
    let verdicts = rig
        .stripes
        .inspector()
        .inspect(&stripes, Remedy::Report)
        .unwrap();
    assert!(slandering.is_distrusted.load(Ordering::Relaxed));
    for verdict in verdicts {
        let is_inconsistent = verdict.inconsistent.is_some();
        let expected = verdict.stripe == stripes[3];
        assert_eq!(is_inconsistent, expected, "{verdict:?}");
    }
}

/// Writers, a rebuild and an inspection at the same time, each with more stripes than one lane takes at once.
#[test]
fn work_of_all_kinds_gets_done_side_by_side_on_one_device() {
    let device = Simulated::default();
    let devices: Devices = vec![Arc::new(device.clone())];
    let dispatch = Arc::new(Dispatch::to_devices(devices).unwrap());
    let rig = Rig::with_dispatch(2, 1, 3, 2, Some(Arc::clone(&dispatch)));
    let stripes = write(&rig);
    let lost = LostFile::of(&rig, 1);
    let others: Vec<StripeId> = stripes
        .iter()
        .copied()
        .filter(|stripe| lost.lacking.iter().all(|lacking| lacking.stripe != *stripe))
        .collect();
    lost.make(&rig);
    std::thread::scope(|scope| {
        scope.spawn(|| lost.rebuild(&rig));
        scope.spawn(|| {
            rig.stripes
                .inspector()
                .inspect(&others, Remedy::Report)
                .unwrap()
        });
        scope.spawn(|| write(&rig));
    });
    let coding = dispatch.coding();
    assert_eq!((coding.redone, coding.cpu.passes), (0, 0), "{coding:?}");
    assert!(device.batches().iter().any(|&items| items > 1));
}
