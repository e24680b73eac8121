//! GPUs of a program that was built without a driver: there are none.
//!
//! The types have the methods of those that the driver has, and no values. So callers need no second version.

#![expect(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "there is no value to call a method of"
)]

use std::convert::Infallible;
use std::time::Duration;

use cauchyfs_codec::{
    Matrix,
    rateless::{Bulk, RandomCode},
};

use crate::{Device, DeviceError, Lane, RandomError};

/// A GPU. There is none.
#[derive(Clone, Debug)]
pub struct Gpu(Infallible);

impl Gpu {
    /// Fails with [`DeviceError::NotBuilt`].
    pub fn all() -> Result<Vec<Self>, DeviceError> {
        Err(DeviceError::NotBuilt)
    }

    /// Is never called.
    pub fn prepare(&self, _: &Matrix, _: bool) -> Result<(), DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn bus(&self, _: usize) -> Result<Bus, DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn resident(
        &self,
        _: &Matrix,
        _: bool,
        _: usize,
        _: usize,
    ) -> Result<Resident, DeviceError> {
        match self.0 {}
    }
}

impl Gpu {
    /// Is never called.
    pub fn random_decoder(&self) -> Result<RandomDecoder, DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn resident_messages(
        &self,
        _: RandomCode,
        _: &Bulk<'_>,
    ) -> Result<ResidentMessages, RandomError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn pin_numbers(&self, _: &mut [u64]) -> Result<(), DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn unpin_numbers(&self, _: &mut [u64]) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

impl Device for Gpu {
    fn name(&self) -> &str {
        match self.0 {}
    }

    fn lane(&self) -> Result<Box<dyn Lane>, DeviceError> {
        match self.0 {}
    }

    fn pin(&self, _: &mut [u8]) -> Result<(), DeviceError> {
        match self.0 {}
    }

    fn unpin(&self, _: &mut [u8]) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

/// The bus to a GPU. There is none.
#[derive(Debug)]
pub struct Bus(Infallible);

impl Bus {
    /// Is never called.
    pub fn copy(&mut self, _: &[u8], _: &mut [u8]) -> Result<(), DeviceError> {
        match self.0 {}
    }
}

/// Stripes on a GPU. There are none.
#[derive(Debug)]
pub struct Resident(Infallible);

impl Resident {
    /// Is never called.
    pub fn source_bytes(&self) -> usize {
        match self.0 {}
    }

    /// Is never called.
    pub fn apply(&mut self, _: u32) -> Result<Duration, DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn sum(&mut self, _: u32) -> Result<Duration, DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn summed_bytes(&self) -> usize {
        match self.0 {}
    }

    /// Is never called.
    pub fn copy(&mut self, _: u32) -> Result<Duration, DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn copied_bytes(&self) -> usize {
        match self.0 {}
    }
}

/// A decoder of the random code on a GPU. There is none.
#[derive(Debug)]
pub struct RandomDecoder(Infallible);

impl RandomDecoder {
    /// Is never called.
    pub fn decode(
        &mut self,
        _: RandomCode,
        _: &Bulk<'_>,
        _: &mut [u8],
    ) -> Result<Vec<usize>, RandomError> {
        match self.0 {}
    }
}

/// Messages of the random code on a GPU. There are none.
#[derive(Debug)]
pub struct ResidentMessages(Infallible);

impl ResidentMessages {
    /// Is never called.
    pub fn is_solved_on_device(&self) -> bool {
        match self.0 {}
    }

    /// Is never called.
    pub fn solve(&mut self, _: u32) -> Result<Duration, DeviceError> {
        match self.0 {}
    }

    /// Is never called.
    pub fn decode(&mut self, _: u32) -> Result<Duration, DeviceError> {
        match self.0 {}
    }
}
