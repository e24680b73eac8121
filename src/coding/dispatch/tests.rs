use super::*;
use crate::codec::{BLOCK_BYTES, CodeId, Codec, Geometry, Mismatch, select};
use crate::coding::pipeline::LANES;
use crate::cuda::Simulated;

mod together;

/// Operations of a device that make its lanes, before any other.
const FIRST: u64 = LANES as u64;

const BYTES: usize = 20_000;

/// Gives everything to the device once it has made its lanes, or failed to.
fn to_simulated(device: &Simulated) -> Dispatch {
    let dispatch = Dispatch::to_devices(vec![Arc::new(device.clone())]).expect("there is one");
    while device.operations() < FIRST {
        std::thread::yield_now();
    }
    dispatch
}

fn codec(engine: &str) -> Codec {
    let geometry = Geometry::new(4, 3).expect("valid");
    let engine = select(engine).expect("every machine has it");
    Codec::new(CodeId::RS_CAUCHY, geometry, engine).expect("a code")
}

/// Encodes, loses three shards, reconstructs and verifies; returns all that comes of it.
fn round(codec: &Codec, accelerator: Option<&dyn Accelerator>) -> (Vec<u8>, Vec<u32>, Vec<u8>) {
    let pass = || codec.pass().accelerator(accelerator);
    let byte = |at: usize| u8::try_from(at * at % 253).expect("below 253");
    let data: Vec<u8> = (0..4 * BYTES).map(byte).collect();
    let data: Vec<&[u8]> = data.chunks_exact(BYTES).collect();
    let mut parity = vec![0; 3 * BYTES];
    let mut rows: Vec<&mut [u8]> = parity.chunks_exact_mut(BYTES).collect();
    let blocks = BYTES.div_ceil(BLOCK_BYTES);
    let mut sums = vec![0; 7 * blocks];
    let mut lists: Vec<&mut [u32]> = sums.chunks_exact_mut(blocks).collect();
    let encoded = pass().encode_with_checksums(&data, &mut rows, &mut lists);
    encoded.expect("fits");
    let rows: Vec<&[u8]> = parity.chunks_exact(BYTES).collect();
    let mut lost = vec![0; 3 * BYTES];
    let (first, others) = lost.split_at_mut(BYTES);
    let (second, third) = others.split_at_mut(BYTES);
    let present = [(1, data[1]), (2, data[2]), (4, rows[0]), (6, rows[2])];
    let mut missing = [(0, first), (3, second), (5, third)];
    pass()
        .reconstruct(&present, &mut missing)
        .expect("enough are present");
    let mut shards: Vec<&[u8]> = data.iter().chain(&rows).copied().collect();
    assert!(pass().verify(&shards).expect("fits").is_empty());
    let everywhere: Vec<u8> = rows[1].iter().map(|byte| byte ^ 0x10).collect();
    let mut in_block_1 = rows[2].to_vec();
    in_block_1[BLOCK_BYTES] ^= 1;
    (shards[5], shards[6]) = (&everywhere, &in_block_1);
    let mut wrong: Vec<Mismatch> = (0..blocks)
        .map(|block| Mismatch { shard: 5, block })
        .collect();
    wrong.push(Mismatch { shard: 6, block: 1 });
    assert_eq!(pass().mismatches(&shards).expect("fits"), wrong);
    (parity, sums, lost)
}

#[test]
fn every_operation_that_fails_is_made_up_for_by_the_cpu_byte_for_byte() {
    let expected = round(&codec("scalar"), None);
    let auto = codec("auto");
    // Behind the lanes: encode, reconstruct, verify, verify what was damaged for a test, verify.
    for failing in 0..FIRST + 9 {
        let device = Simulated::default().failing_at(failing);
        let dispatch = to_simulated(&device);
        assert!(round(&auto, Some(&dispatch)) == expected, "{failing}");
        assert!(dispatch.is_on_devices(), "a failure is no lie");
        let coding = dispatch.coding();
        assert!(coding.redone <= 1, "{coding:?}");
        assert_eq!(coding.cpu.passes, coding.redone);
        assert_eq!(coding.cpu.passes + coding.cuda.passes, 4);
        let [(name, busy)] = &coding.device_times[..] else {
            panic!("one device: {coding:?}");
        };
        assert!(!name.is_empty() && !busy.is_zero(), "{coding:?}");
    }
}

#[test]
fn a_device_lost_in_any_operation_costs_no_byte() {
    let expected = round(&codec("scalar"), None);
    let auto = codec("auto");
    for lost in 0..FIRST + 11 {
        let dispatch = to_simulated(&Simulated::default().lost_from(lost));
        for _ in 0..2 {
            assert!(round(&auto, Some(&dispatch)) == expected, "{lost}");
        }
        // The fourth behind the lanes is a test.
        let others = FIRST + u64::from(lost > FIRST + 3);
        assert_eq!(
            dispatch.coding().cuda.passes,
            lost.saturating_sub(others).min(8)
        );
        assert_eq!(dispatch.is_on_devices(), lost > FIRST + 8);
    }
}

#[test]
fn short_passes_stay_on_the_cpu_and_long_ones_do_not() {
    let device = Simulated::default();
    let dispatch = to_simulated(&device);
    let codec = codec("auto");
    for (bytes, batches) in [(4096, 0), (SMALL_BYTES / 7 + 1, 1)] {
        let data = vec![1; bytes];
        let mut parity = vec![vec![0; bytes]; 3];
        let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|row| &mut row[..]).collect();
        codec
            .pass()
            .accelerator(Some(&dispatch))
            .encode(&[&data[..]; 4], &mut rows)
            .expect("fits");
        assert_eq!(device.batches().len(), batches);
    }
}

#[test]
fn a_device_that_computes_wrong_results_is_caught_in_the_first_pass_of_each_kind() {
    let expected = round(&codec("scalar"), None);
    let auto = codec("auto");
    // The fifth behind the lanes is of the same kind as the third, which the fourth was a test of.
    for lying in 0..FIRST + 4 {
        let device = Simulated::default().lying_from(lying);
        let dispatch = to_simulated(&device);
        assert!(round(&auto, Some(&dispatch)) == expected, "{lying}");
        assert!(!dispatch.is_on_devices(), "{lying}");
        assert_eq!(dispatch.coding().redone, 1, "{lying}");
    }
}

#[test]
fn a_kernel_that_takes_over_is_put_to_the_test_as_the_first_one_was() {
    let expected = round(&codec("scalar"), None);
    let auto = codec("auto");
    // The first round takes five.
    for taking_over in FIRST + 5..FIRST + 8 {
        let device = Simulated::default();
        let device = device.recompiled_from(taking_over).lying_from(taking_over);
        let dispatch = to_simulated(&device);
        assert!(round(&auto, Some(&dispatch)) == expected, "{taking_over}");
        assert!(dispatch.is_on_devices(), "{taking_over}");
        assert!(round(&auto, Some(&dispatch)) == expected, "{taking_over}");
        assert!(!dispatch.is_on_devices(), "{taking_over}");
    }
    let dispatch = to_simulated(&Simulated::default().recompiled_from(FIRST + 6));
    for _ in 0..3 {
        assert!(round(&auto, Some(&dispatch)) == expected);
    }
    assert!(dispatch.is_on_devices(), "a new kernel may be right");
}

#[test]
fn a_device_that_never_finds_anything_wrong_is_caught_on_sound_stripes() {
    let expected = round(&codec("scalar"), None);
    let dispatch = to_simulated(&Simulated::default().blind());
    assert!(round(&codec("auto"), Some(&dispatch)) == expected);
    assert!(!dispatch.is_on_devices());
}

/// Returns shards 0 and 1, reconstructed from others, of a stripe that is always the same.
fn reconstruct(codec: &Codec, accelerator: Option<&dyn Accelerator>, from: [usize; 4]) -> Vec<u8> {
    let present: Vec<Vec<u8>> = from
        .iter()
        .map(|&shard| vec![byte_of(shard); BYTES])
        .collect();
    let present: Vec<(usize, &[u8])> = from
        .into_iter()
        .zip(present.iter().map(|p| &p[..]))
        .collect();
    let mut lost = vec![0; 2 * BYTES];
    let mut outputs: Vec<(usize, &mut [u8])> = lost.chunks_exact_mut(BYTES).enumerate().collect();
    let pass = codec.pass().accelerator(accelerator);
    pass.reconstruct(&present, &mut outputs).expect("enough");
    lost
}

fn byte_of(shard: usize) -> u8 {
    u8::try_from(shard * 37 + 5).expect("small")
}

#[test]
fn another_matrix_of_the_same_shape_is_put_to_the_test() {
    let (scalar, auto) = (codec("scalar"), codec("auto"));
    let device = Simulated::default().lying_from(FIRST + 2);
    let dispatch = to_simulated(&device);
    for from in [[2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 6]] {
        assert!(dispatch.is_on_devices());
        let by_device = reconstruct(&auto, Some(&dispatch), from);
        assert!(by_device == reconstruct(&scalar, None, from), "{from:?}");
    }
    assert!(!dispatch.is_on_devices());
}

#[test]
fn a_second_device_is_not_trusted_for_the_results_of_the_first() {
    let (right, wrong) = (Simulated::default(), Simulated::default().lying_from(0));
    let devices: Devices = vec![Arc::new(right.clone()), Arc::new(wrong.clone())];
    let dispatch = Dispatch::to_devices(devices).expect("there are two");
    while right.operations() < FIRST || wrong.operations() < FIRST {
        std::thread::yield_now();
    }
    let (scalar, auto) = (codec("scalar"), codec("auto"));
    let from = [2, 3, 4, 5];
    let expected = reconstruct(&scalar, None, from);
    wrong.shut();
    std::thread::scope(|scope| {
        let check = || assert!(reconstruct(&auto, Some(&dispatch), from) == expected);
        // One at least is held up, and the others get done by the right one.
        let mut callers = Vec::new();
        while wrong.waiting() == 0 || right.batches().is_empty() {
            callers.push(scope.spawn(check));
            std::thread::yield_now();
        }
        wrong.open();
    });
    assert!(!dispatch.is_on_devices());
}

#[test]
fn items_that_travel_in_company_are_put_to_the_test_apart_from_those_that_travel_alone() {
    let device = Simulated::default().lying_from_item(1);
    let dispatch = to_simulated(&device);
    let (scalar, auto) = (codec("scalar"), codec("auto"));
    let from = [2, 3, 4, 5];
    let expected = reconstruct(&scalar, None, from);
    let check = || assert!(reconstruct(&auto, Some(&dispatch), from) == expected);
    check();
    assert!(dispatch.is_on_devices());
    device.shut();
    std::thread::scope(|scope| {
        let pipeline = dispatch.shared.pipeline.get().expect("there is a device");
        let alone = (1..=LANES).map(|busy| (busy, 0));
        for (busy, waiting) in alone.chain((1..=3).map(|waiting| (LANES, waiting))) {
            scope.spawn(check);
            while (device.waiting(), pipeline.waiting()) != (busy, waiting) {
                std::thread::yield_now();
            }
        }
        device.open();
    });
    let batches = device.batches();
    assert!(batches.iter().any(|&items| items > 1), "{batches:?}");
    assert!(!dispatch.is_on_devices());
}

#[test]
fn passes_go_to_the_cpu_once_a_device_does_not_answer_and_that_is_reported() {
    let device = Simulated::default();
    device.shut();
    let devices: Devices = vec![Arc::new(device.clone())];
    let patience = Duration::from_secs(1);
    let dispatch = Dispatch::to_cpu();
    let pipeline = Pipeline::start_with(devices, patience).expect("threads");
    assert!(dispatch.shared.pipeline.set(pipeline).is_ok());
    let (scalar, auto) = (codec("scalar"), codec("auto"));
    let expected = round(&scalar, None);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(round(&auto, Some(&dispatch)) == expected));
        while dispatch.coding().hanging.is_empty() {
            std::thread::yield_now();
        }
        assert!(round(&auto, Some(&dispatch)) == expected);
        let coding = dispatch.coding();
        assert_eq!((coding.cpu.passes, coding.cuda.passes), (4, 0));
        assert_eq!(
            (coding.hanging, coding.devices),
            (vec!["simulated".to_owned()], vec![])
        );
        device.open();
    });
    // Its items came back in the end, and were as right as all others.
    assert_eq!(dispatch.coding().cuda.passes, 1);
    assert!(!dispatch.is_on_devices());
}

#[test]
fn the_fastest_is_found_by_trying_both() {
    let device = Simulated::default();
    let found = device.clone();
    let mut dispatch = Dispatch::to_fastest(move || Ok(vec![Arc::new(found) as _]));
    dispatch.settle();
    let auto = codec("auto");
    let expected = round(&codec("scalar"), None);
    for _ in 0..20 {
        assert!(round(&auto, Some(&dispatch)) == expected);
    }
    let coding = dispatch.coding();
    assert_eq!(coding.cpu.passes + coding.cuda.passes, 80);
    assert!(
        coding.cpu.passes >= 9 && coding.cuda.passes >= 9,
        "{coding:?}"
    );
    assert_eq!(coding.devices, ["simulated"]);
}

#[test]
fn no_caller_waits_for_devices_whose_search_fails() {
    let (answer, answers) = mpsc::channel::<()>();
    let find = move || {
        // Hangs as long as there is no answer.
        let _ = answers.recv();
        Err(DeviceError::NoDevice)
    };
    let dispatch = Dispatch::to_fastest_within(find, Duration::from_millis(100));
    let expected = round(&codec("scalar"), None);
    assert!(round(&codec("auto"), Some(&dispatch)) == expected);
    drop(dispatch);
    answer.send(()).expect("it hangs still");
}

#[test]
fn without_a_device_there_is_the_cpu() {
    let mut dispatch = Dispatch::to_fastest(|| Err(DeviceError::NoDevice));
    dispatch.settle();
    let expected = round(&codec("scalar"), None);
    assert!(round(&codec("auto"), Some(&dispatch)) == expected);
    assert_eq!(dispatch.coding().cpu.passes, 4);
    assert!(!dispatch.is_on_devices());
    assert!(Dispatch::to_devices(Vec::new()).is_err());
}

#[test]
fn memory_is_pinned_with_a_device_and_the_first_refusal_is_the_last_question() {
    let device = Simulated::default().failing_at(FIRST + 1);
    let dispatch = to_simulated(&device);
    let mut memory = vec![0; 1 << 16];
    let pinned = dispatch
        .pin(&mut memory[..4096])
        .expect("the first behind the lanes");
    assert_eq!(device.pinned_bytes(), 4096);
    assert!(dispatch.pin(&mut memory[4096..]).is_none(), "the second");
    assert!(dispatch.pin(&mut memory[8192..]).is_none());
    assert_eq!(device.operations(), FIRST + 2);
    assert!(pinned.unpin(&mut memory[..4096]));
    assert_eq!(device.pinned_bytes(), 0);
}

#[test]
fn memory_is_unpinned_by_the_device_that_pinned_it_even_after_that_was_given_up() {
    let mut first = Simulated::default();
    for operation in FIRST + 1..100 {
        first = first.failing_at(operation);
    }
    let second = Simulated::default();
    second.shut();
    let devices: Devices = vec![Arc::new(first.clone()), Arc::new(second.clone())];
    let dispatch = Dispatch::to_devices(devices).expect("there are two");
    while first.operations() < FIRST || second.operations() < FIRST {
        std::thread::yield_now();
    }
    let mut memory = vec![0; 4096];
    let pinned = dispatch.pin(&mut memory).expect("done by the first");
    assert_eq!((first.pinned_bytes(), second.pinned_bytes()), (4096, 0));
    let (scalar, auto) = (codec("scalar"), codec("auto"));
    let expected = reconstruct(&scalar, None, [2, 3, 4, 5]);
    std::thread::scope(|scope| {
        let check = || assert!(reconstruct(&auto, Some(&dispatch), [2, 3, 4, 5]) == expected);
        // The items that the second device takes wait until the first has failed once too often.
        while dispatch.coding().devices.len() == 2 {
            scope.spawn(check);
            std::thread::yield_now();
        }
        second.open();
    });
    let asked = second.operations();
    // It is lost to the device for good only if the device itself does not unpin it.
    assert!(!pinned.unpin(&mut memory), "this operation fails as well");
    assert_eq!(first.pinned_bytes(), 4096);
    assert!(
        dispatch.pin(&mut memory).is_none(),
        "no more is pinned then"
    );
    assert_eq!(second.operations(), asked);
    first.heal();
    assert!(pinned.unpin(&mut memory));
    assert_eq!(first.pinned_bytes(), 0);
}
