//! The simulated device, which is the same with a driver of CUDA and without one.

use cauchyfs_codec::{Geometry, Item, Matrix, Targets};
use cauchyfs_cuda::{Device, DeviceError, MatrixBatch, Simulated};

fn noise(at: usize) -> u8 {
    u8::try_from(at * 7 % 251).expect("below 251")
}

fn with_item<R>(bytes: usize, run: impl FnOnce(&Matrix, &mut Item<'_>) -> R) -> (R, Vec<u8>) {
    let matrix = Matrix::cauchy(Geometry::new(3, 2).expect("valid"));
    let data: Vec<u8> = (0..3 * bytes).map(noise).collect();
    let mut parity = vec![0; 2 * bytes];
    let mut item = Item {
        sources: data.chunks_exact(bytes).collect(),
        targets: Targets::Written(parity.chunks_exact_mut(bytes).collect()),
        sums: Vec::new(),
    };
    let result = run(&matrix, &mut item);
    (result, parity)
}

fn run_once(device: &Simulated, matrix: &Matrix, item: &mut Item<'_>) -> Result<(), DeviceError> {
    let mut lane = device.lane()?;
    lane.run(&mut MatrixBatch {
        matrix,
        items: std::slice::from_mut(item),
    })
    .map(drop)
}

#[test]
fn row_0_of_the_normalised_matrix_is_the_plain_xor_of_all_sources() {
    let device = Simulated::default();
    let (result, parity) = with_item(100, |matrix, item| run_once(&device, matrix, item));
    assert_eq!(result, Ok(()));
    let expected: Vec<u8> = (0..100)
        .map(|at| noise(at) ^ noise(100 + at) ^ noise(200 + at))
        .collect();
    assert_eq!(&parity[..100], expected);
    assert_eq!(device.batches(), [1]);
}

#[test]
fn the_operation_that_was_named_fails_and_leaves_nothing_right_behind() {
    let device = Simulated::default().failing_at(1);
    let (result, parity) = with_item(10, |matrix, item| run_once(&device, matrix, item));
    assert!(!result.expect_err("operation 1 is the batch").is_final());
    assert!(parity.iter().all(|&byte| byte == 0xEE));
    let (result, _) = with_item(10, |matrix, item| run_once(&device, matrix, item));
    assert_eq!(result, Ok(()));
}

#[test]
fn a_lost_device_stays_lost() {
    let device = Simulated::default().lost_from(1);
    for _ in 0..3 {
        let (result, _) = with_item(10, |matrix, item| run_once(&device, matrix, item));
        assert!(result.expect_err("lost").is_final());
    }
}
