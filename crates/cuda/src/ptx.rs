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
mod generic;
mod program;
mod writer;

use std::ops::Range;

use self::{program::Program, writer::Writer};
use cauchyfs_codec::Matrix;

pub(super) use self::{checksum::start_of_length, generic::coefficients};

/// The treatment of targets that were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// They are written.
    Write,
    /// They are compared with those that are there.
    Compare,
}

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kernel {
    /// Its name in its module.
    pub(super) name: String,
    /// Threads of a block.
    pub(super) threads: usize,
    /// Bytes of each shard that a thread takes.
    pub(super) bytes: usize,
}

impl Kernel {
    /// Returns how many blocks go over so many bytes of each shard.
    pub(super) fn blocks(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.threads * self.bytes)
    }
}

/// The text of a module, and the kernels to run one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    /// The text to give to the driver.
    pub(super) text: String,
    /// The kernels.
    pub(super) kernels: Vec<Kernel>,
}

const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
const TRANSFORM: &str = include_str!("../../../kernels/transform.ptx");

/// The most targets of a kernel for one matrix: the accumulators of so many fit the registers.
const MOST_ROWS: usize = 16;

/// Bytes of a register.
const WORD_BYTES: usize = 4;

impl Module {
    /// Returns kernels for one matrix, as fast as can be.
    pub(super) fn for_matrix(matrix: &Matrix, kind: Kind) -> Self {
        let parts = matrix.rows().div_ceil(MOST_ROWS);
        let first = |part| part * matrix.rows() / parts;
        let printed = (0..parts).map(|part| print(matrix, first(part)..first(part + 1), kind));
        Self::new(printed)
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

/// The division of a kernel's work.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Words of each shard that a thread takes.
    words: usize,
    /// Blocks that fit on a multiprocessor at least.
    blocks: usize,
}

impl Shape {
    /// Threads of a block.
    const THREADS: usize = 128;

    /// Returns what was found fastest for so many targets.
    ///
    /// An accumulator takes a register per word, and a thread has 255 of them; but the fewer it takes,
    /// the more threads wait for memory at once.
    fn new(rows: usize) -> Self {
        let (words, blocks) = match rows {
            0..=3 => (4, 1),
            4..=8 => (2, 3),
            _ => (1, 1),
        };
        Self { words, blocks }
    }

    /// Fills in what all kernels of [`TRANSFORM`] have in common.
    fn frame(self, name: &str, registers: &str, targets: usize, first: &str, body: &str) -> String {
        TRANSFORM
            .replace("{name}", name)
            .replace("{words}", &self.words.to_string())
            .replace("{threads}", &Self::THREADS.to_string())
            .replace("{blocks}", &self.blocks.to_string())
            .replace("{shift}", &(self.words * WORD_BYTES).ilog2().to_string())
            .replace("{targets}", &targets.to_string())
            .replace("{registers}", registers)
            .replace("{first_row}", first)
            .replace("{body}", body)
    }

    fn kernel(self, name: &str) -> Kernel {
        Kernel {
            name: name.to_owned(),
            threads: Self::THREADS,
            bytes: self.words * WORD_BYTES,
        }
    }
}

/// Returns the kernel that computes some targets of a matrix.
fn print(matrix: &Matrix, rows: Range<usize>, kind: Kind) -> (String, Kernel) {
    let shape = Shape::new(rows.len());
    let name = format!("targets_{}_to_{}", rows.start, rows.end - 1);
    let program = Program::new(matrix, rows.clone(), shape.words);
    let mut writer = Writer::new(kind, shape.words);
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
