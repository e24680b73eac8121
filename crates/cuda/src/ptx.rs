//! Kernels as text in PTX, the assembly language that every driver compiles for its device.
//!
//! A driver is all a user's machine has, so no toolkit is needed. The version of the language is that of
//! CUDA 11.0, which drivers since 2020 take, and the oldest devices are those with compute capability
//! 7.0.
//!
//! Without a device, tests run the text in an emulator.

mod checksum;
#[cfg(test)]
mod emulator;
mod fft;
mod generic;
mod kernel;
mod planes;
mod products;
mod program;
mod random;
mod writer;

use std::ops::Range;

use self::{kernel::Shape, program::Program, writer::PtxWriter};
use cauchyfs_codec::Matrix;

pub(super) use self::{
    checksum::start_of_length,
    generic::coefficients,
    kernel::{Kernel, Kind},
    random::{ProductShape, STRIP, SolveShape, mix, row_shift},
};

/// The text of a module, and the kernels to run one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    /// The text to give to the driver.
    pub(super) text: String,
    /// The kernels.
    pub(super) kernels: Vec<Kernel>,
}

const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// The compute capability of devices that copy to shared memory while they compute, and the header for them.
const COPYING_CAPABILITY: usize = 8;
const COPYING_HEADER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

/// Shared memory, as long as a launch says.
const SHARED: &str = ".extern .shared .align 16 .b8 room[];\n";

/// The most targets of a kernel for one matrix: the accumulators of so many fit the registers.
const MOST_ROWS: usize = 16;

impl Module {
    /// Returns kernels for one matrix, as fast as can be.
    pub(super) fn for_matrix(matrix: &Matrix, kind: Kind) -> Self {
        let parts = matrix.rows().div_ceil(MOST_ROWS);
        let first = |part| part * matrix.rows() / parts;
        let printed = (0..parts).map(|part| print(matrix, first(part)..first(part + 1), kind));
        Self::new(printed)
    }

    /// Returns a kernel that computes by transforms, for devices of this compute capability whose blocks can have so much
    /// shared memory; nothing where the matrix is none of a kind that such a kernel takes.
    pub(super) fn for_transforms(
        matrix: &Matrix,
        kind: Kind,
        (capability, most_shared_bytes): (usize, usize),
    ) -> Option<Self> {
        if capability < COPYING_CAPABILITY {
            return None;
        }
        let (text, kernel) = fft::print(matrix, kind)?;
        let fits = kernel.shared_bytes() <= most_shared_bytes;
        fits.then(|| Self {
            text: format!("{COPYING_HEADER}{SHARED}\n{text}"),
            kernels: vec![kernel],
        })
    }

    /// Returns a kernel for all matrices, of which blocks along z take [`Self::ANY_ROWS`] targets each. It
    /// wants the coefficients as [`coefficients`] gives them.
    pub(super) fn for_any(kind: Kind) -> Self {
        Self::new(std::iter::once(generic::print(kind)))
    }

    /// Returns the kernel that computes checksums.
    pub(super) fn for_checksums() -> Self {
        Self::new(std::iter::once(checksum::print()))
    }

    /// Returns the kernels of the random code, in the order of the indices that shapes have.
    pub(super) fn for_random_code() -> Self {
        let mut module = Self::new(random::print().into_iter());
        module.text.insert_str(HEADER.len(), SHARED);
        module
    }

    /// The number of targets that a block of the kernel for all matrices computes.
    pub(super) const ANY_ROWS: usize = generic::ROWS;

    fn new(printed: impl Iterator<Item = (String, Kernel)>) -> Self {
        let mut text = HEADER.to_owned();
        let mut kernels = Vec::new();
        for (kernel_text, kernel) in printed {
            text.push('\n');
            text.push_str(&kernel_text);
            kernels.push(kernel);
        }
        Self { text, kernels }
    }
}

/// Returns the kernel that computes some targets of a matrix.
fn print(matrix: &Matrix, rows: Range<usize>, kind: Kind) -> (String, Kernel) {
    let shape = Shape::new(rows.len());
    let name = format!("targets_{}_to_{}", rows.start, rows.end - 1);
    let program = Program::new(matrix, rows.clone(), shape.words);
    let mut writer = PtxWriter::new(kind, shape.words);
    writer.targets(rows.len());
    for step in &program.steps {
        writer.step(step);
    }
    let (registers, body) = writer.finish(program.registers);
    let first = format!("mov.u32 %first, {};", rows.start);
    let text = shape.frame(&name, &registers, rows.len(), &first, &body);
    (text, shape.kernel(&name))
}

#[cfg(test)]
mod tests;
