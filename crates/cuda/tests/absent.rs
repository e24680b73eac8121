//! A program that was built without the driver of CUDA.

#![cfg(not(feature = "driver"))]

use cauchyfs_cuda::{DeviceError, Gpu};

#[test]
fn a_program_built_without_a_driver_says_so_and_counts_as_one_without_gpus() {
    let error = Gpu::all().expect_err("there is no driver");
    assert_eq!(error, DeviceError::NotBuilt);
    assert!(error.is_absence() && error.is_final());
}
