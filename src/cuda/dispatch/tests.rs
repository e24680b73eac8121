use super::*;
use crate::codec::{CodeId, Codec, Geometry, select};
use crate::cuda::Simulated;

const BYTES: usize = 20_000;

/// Gives everything to the device, whose operations 0 to 2 were to make lanes.
fn to_simulated(device: &Simulated) -> Dispatch {
    let dispatch = Dispatch::to_devices(vec![Arc::new(device.clone())]).expect("there is one");
    while device.operations() < 3 {
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
    let mut sums = vec![0; 7 * BYTES.div_ceil(4096)];
    let mut lists: Vec<&mut [u32]> = sums.chunks_exact_mut(BYTES.div_ceil(4096)).collect();
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
    let damaged: Vec<u8> = rows[1].iter().map(|byte| byte ^ 0x10).collect();
    shards[5] = &damaged;
    assert_eq!(pass().verify(&shards).expect("fits"), [5]);
    (parity, sums, lost)
}

#[test]
fn every_operation_that_fails_is_made_up_for_by_the_cpu_byte_for_byte() {
    let expected = round(&codec("scalar"), None);
    let auto = codec("auto");
    for failing in 0..12 {
        let device = Simulated::default().failing_at(failing);
        let dispatch = to_simulated(&device);
        assert!(round(&auto, Some(&dispatch)) == expected, "{failing}");
        let coding = dispatch.coding();
        assert!(coding.redone <= 1, "{coding:?}");
        assert_eq!(coding.cpu.passes, coding.redone);
        assert_eq!(coding.cpu.passes + coding.cuda.passes, 4);
    }
}

#[test]
fn a_device_lost_in_any_operation_costs_no_byte() {
    let expected = round(&codec("scalar"), None);
    let auto = codec("auto");
    for lost in 0..12 {
        let dispatch = to_simulated(&Simulated::default().lost_from(lost));
        for _ in 0..2 {
            assert!(round(&auto, Some(&dispatch)) == expected, "{lost}");
        }
        assert_eq!(dispatch.coding().cuda.passes, lost.saturating_sub(3).min(8));
        assert_eq!(dispatch.is_on_devices(), lost > 10);
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
    // The fourth pass is of the same kind as the third.
    for lying in 0..6 {
        let device = Simulated::default().lying_from(lying);
        let dispatch = to_simulated(&device);
        assert!(round(&auto, Some(&dispatch)) == expected, "{lying}");
        assert!(!dispatch.is_on_devices(), "{lying}");
    }
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
    let device = Simulated::default().failing_at(4);
    let dispatch = to_simulated(&device);
    let mut memory = vec![0; 1 << 16];
    assert!(dispatch.pin(&mut memory[..4096]));
    assert_eq!(device.pinned_bytes(), 4096);
    assert!(!dispatch.pin(&mut memory[4096..]), "operation 4");
    assert!(!dispatch.pin(&mut memory[8192..]));
    assert_eq!(device.operations(), 5);
    dispatch.unpin(&mut memory[..4096]);
    assert_eq!(device.pinned_bytes(), 0);
}
