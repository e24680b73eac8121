//! Passes that are submitted together.

use super::*;

/// Lengths of the shards of stripes that are submitted by one call: those of one kind, others, and one so short
/// that it stays on the CPU.
const LENGTHS: [usize; 9] = [
    BYTES, BYTES, BYTES, 4096, BYTES, 65_536, BYTES, 65_537, 65_536,
];

/// Those of them that devices may get.
const LONG: usize = LENGTHS.len() - 1;

/// A stripe of 4+3, and the sums of its blocks.
#[derive(Clone, PartialEq)]
struct Stripe {
    data: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
    sums: Vec<Vec<u32>>,
}

impl Stripe {
    fn new(seed: usize, bytes: usize) -> Self {
        let byte = |at: usize| u8::try_from(at * (at + seed) % 251).expect("below 251");
        Self {
            data: (0..4)
                .map(|shard| (shard * bytes..(shard + 1) * bytes).map(byte).collect())
                .collect(),
            parity: vec![vec![0; bytes]; 3],
            sums: vec![vec![0; bytes.div_ceil(BLOCK_BYTES)]; 7],
        }
    }

    fn of(lengths: &[usize]) -> Vec<Self> {
        let stripes = lengths.iter().enumerate();
        stripes
            .map(|(seed, &bytes)| Self::new(seed, bytes))
            .collect()
    }
}

/// Encodes stripes of these lengths by one call.
fn encode(codec: &Codec, accelerator: Option<&dyn Accelerator>, lengths: &[usize]) -> Vec<Stripe> {
    let mut stripes = Stripe::of(lengths);
    let parts = stripes.iter_mut().map(|stripe| {
        let data: Vec<&[u8]> = stripe.data.iter().map(Vec::as_slice).collect();
        let parity: Vec<&mut [u8]> = stripe.parity.iter_mut().map(Vec::as_mut_slice).collect();
        let sums: Vec<&mut [u32]> = stripe.sums.iter_mut().map(Vec::as_mut_slice).collect();
        (data, parity, sums)
    });
    let mut parts: Vec<_> = parts.collect();
    let pass = codec.pass().accelerator(accelerator);
    let tasks = parts.iter_mut().map(|(data, parity, sums)| {
        let task = pass.encoding(data, parity, sums);
        task.expect("fits")
    });
    CodingTask::compute_all(&mut tasks.collect::<Vec<_>>());
    stripes
}

/// Compares all stripes, a byte of the last of which was changed, by one call; returns what was found of each.
fn compare(codec: &Codec, accelerator: &dyn Accelerator, stripes: &[Stripe]) -> Vec<Vec<Mismatch>> {
    let mut stripes = stripes.to_vec();
    stripes[LONG].parity[1][5000] ^= 1;
    let pass = codec.pass().accelerator(Some(accelerator));
    let tasks = stripes.iter().map(|stripe| {
        let shards = stripe.data.iter().chain(&stripe.parity);
        let shards: Vec<&[u8]> = shards.map(Vec::as_slice).collect();
        pass.comparison(&shards).expect("fits")
    });
    let mut tasks: Vec<CodingTask<'_, '_>> = tasks.collect();
    CodingTask::compute_all(&mut tasks);
    tasks.into_iter().map(CodingTask::into_mismatches).collect()
}

/// Encodes and compares all stripes, and holds what comes of it against what is right.
fn check(dispatch: &Dispatch, context: &dyn std::fmt::Debug) {
    let expected = encode(&codec("scalar"), None, &LENGTHS);
    let auto = codec("auto");
    assert!(
        encode(&auto, Some(dispatch), &LENGTHS) == expected,
        "{context:?}"
    );
    let found = compare(&auto, dispatch, &expected);
    let (last, others) = found.split_last().expect("there are some");
    assert_eq!(*last, [Mismatch { shard: 5, block: 1 }], "{context:?}");
    assert!(others.iter().all(Vec::is_empty), "{context:?}");
}

#[test]
fn one_call_gives_the_device_all_its_passes_at_once_and_gets_right_results() {
    let device = Simulated::default();
    let dispatch = to_simulated(&device);
    device.shut();
    std::thread::scope(|scope| {
        scope.spawn(|| encode(&codec("auto"), Some(&dispatch), &LENGTHS));
        let pipeline = dispatch.shared.pipeline.get().expect("there is a device");
        // The lanes took some of them, and the others wait.
        while device.waiting() < LANES {
            std::thread::yield_now();
        }
        assert!(pipeline.waiting() <= LONG - LANES);
        // Meanwhile the caller has done what is his.
        while dispatch.coding().cpu.passes == 0 {
            std::thread::yield_now();
        }
        device.open();
    });
    check(&dispatch, &"healthy");
    let coding = dispatch.coding();
    assert_eq!(
        (coding.cpu.passes, coding.cuda.passes),
        (3, 3 * LONG as u64)
    );
    assert_eq!(coding.redone, 0);
    assert!(dispatch.prefers_many());
}

/// A call is sent in several batches. Whichever of them fails, its stripes are computed again on the CPU, and all
/// others are taken from the device.
#[test]
fn a_failure_in_the_midst_of_a_call_costs_no_byte_and_no_more_passes_than_its_batch() {
    for failing in FIRST..FIRST + 12 {
        let device = Simulated::default().failing_at(failing);
        let dispatch = to_simulated(&device);
        check(&dispatch, &failing);
        let coding = dispatch.coding();
        assert!(dispatch.is_on_devices(), "a failure is no lie");
        assert_eq!(coding.cpu.passes, 2 + coding.redone, "{failing}");
        assert_eq!(coding.cuda.passes + coding.redone, 2 * LONG as u64);
        assert!(coding.redone < LONG as u64, "{failing}: {coding:?}");
    }
}

#[test]
fn a_device_lost_in_the_midst_of_a_call_costs_no_byte() {
    for lost in 0..FIRST + 12 {
        let device = Simulated::default().lost_from(lost);
        let dispatch = to_simulated(&device);
        for round in 0..2 {
            check(&dispatch, &(lost, round));
        }
        let coding = dispatch.coding();
        assert_eq!(
            coding.cpu.passes + coding.cuda.passes,
            4 * LENGTHS.len() as u64
        );
        assert!(
            coding.redone <= 2 * LONG as u64,
            "nothing is sent there again"
        );
        assert!(lost > FIRST || !dispatch.prefers_many());
    }
}

#[test]
fn a_device_that_lies_is_caught_in_the_call_in_which_it_begins_to_and_nothing_untested_is_taken_from_it()
 {
    for lying in 0..=FIRST {
        let device = Simulated::default().lying_from(lying);
        let dispatch = to_simulated(&device);
        check(&dispatch, &lying);
        assert!(!dispatch.is_on_devices(), "{lying}");
        assert!(!dispatch.prefers_many());
        let coding = dispatch.coding();
        assert_eq!(
            coding.redone, LONG as u64,
            "all of the first call: {coding:?}"
        );
    }
    let dispatch = to_simulated(&Simulated::default().lying_from_item(1));
    check(&dispatch, &"in company");
}

#[test]
fn a_device_that_computes_only_the_last_items_of_a_batch_wrongly_is_caught() {
    let lengths = [BYTES; 6];
    let device = Simulated::default().lying_from_item(5);
    let dispatch = to_simulated(&device);
    let expected = encode(&codec("scalar"), None, &lengths);
    assert!(encode(&codec("auto"), Some(&dispatch), &lengths) == expected);
    assert_eq!(device.batches(), [6]);
    assert!(!dispatch.is_on_devices());
}

#[test]
fn once_a_device_is_caught_none_of_its_results_of_that_call_are_used() {
    let auto = codec("auto");
    // One is of a kind that is new; the other one travels as the one before did.
    for lengths in [[65_537, BYTES], [BYTES, 65_537]] {
        let device = Simulated::default();
        let dispatch = to_simulated(&device);
        encode(&auto, Some(&dispatch), &[BYTES]);
        assert!(dispatch.is_on_devices());
        drop(device.clone().lying_from(device.operations()));
        let expected = encode(&codec("scalar"), None, &lengths);
        assert!(encode(&auto, Some(&dispatch), &lengths) == expected);
        assert!(!dispatch.is_on_devices());
        assert_eq!(dispatch.coding().redone, 2);
    }
}

#[test]
fn the_cpu_and_devices_share_the_passes_of_one_call() {
    let device = Simulated::default();
    let found = device.clone();
    let mut dispatch = Dispatch::to_fastest(move || Ok(vec![Arc::new(found) as _]));
    dispatch.settle();
    for round in 0..12 {
        check(&dispatch, &round);
    }
    let coding = dispatch.coding();
    let all = 24 * LENGTHS.len() as u64;
    assert_eq!(coding.cpu.passes + coding.cuda.passes, all);
    assert!(
        coding.cpu.passes > 0 && coding.cuda.passes > 0,
        "{coding:?}"
    );
}

#[test]
fn without_a_device_no_caller_asks_for_many() {
    assert!(!Dispatch::to_cpu().prefers_many());
    check(&Dispatch::to_cpu(), &"cpu");
}
