//! One kernel of a module: its kind, its shape, and the text that all kernels share.

const TRANSFORM: &str = include_str!("../../../../kernels/transform.ptx");

/// Bytes of a register.
pub(super) const WORD_BYTES: usize = 4;

/// The treatment of targets that were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// They are written.
    Write,
    /// They are compared with those that are there.
    Compare,
}

/// The way in which blocks of threads go over stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// There is a block for each part of each stripe.
    Columns,
    /// Blocks are persistent: there are as many as can run at once, each with so many bytes of shared
    /// memory. They share the stripes out.
    Persistent { shared_bytes: usize },
}

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Its name in its module.
    pub(crate) name: String,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Bytes of each shard that a thread takes.
    pub(crate) bytes: usize,
    /// The way in which blocks go over stripes.
    pub(crate) spread: Spread,
}

impl Kernel {
    /// Returns how many blocks go over so many bytes of each shard.
    pub(crate) fn blocks(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.threads * self.bytes)
    }

    /// Returns how many bytes of shared memory a block takes.
    pub(crate) fn shared_bytes(&self) -> usize {
        match self.spread {
            Spread::Columns => 0,
            Spread::Persistent { shared_bytes } => shared_bytes,
        }
    }

    /// Returns the blocks along x, y and z for so many stripes with shards of so many bytes. `layers` are those along z of
    /// a kernel that computes some targets of a block only; `most` run at once.
    pub(crate) fn grid(
        &self,
        bytes: usize,
        (stripes, layers): (usize, usize),
        most: usize,
    ) -> [usize; 3] {
        match self.spread {
            Spread::Columns => [self.blocks(bytes), stripes, layers],
            Spread::Persistent { .. } => [most.min(self.blocks(bytes) * stripes), 1, 1],
        }
    }
}

/// The division of a kernel's work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Words of each shard that a thread takes.
    pub(super) words: usize,
    /// Blocks that fit on a multiprocessor at least.
    pub(super) blocks: usize,
}

impl Shape {
    /// Threads of a block.
    pub(super) const THREADS: usize = 128;

    /// Returns what was found fastest for so many targets.
    ///
    /// An accumulator takes a register per word, and a thread has 255 of them; but the fewer it takes,
    /// the more threads wait for memory at once.
    pub(super) fn new(rows: usize) -> Self {
        let (words, blocks) = match rows {
            0..=3 => (4, 1),
            4..=8 => (2, 3),
            _ => (1, 1),
        };
        Self { words, blocks }
    }

    /// Fills in what all kernels of [`TRANSFORM`] have in common.
    pub(super) fn frame(
        self,
        name: &str,
        registers: &str,
        targets: usize,
        first: &str,
        body: &str,
    ) -> String {
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

    pub(super) fn kernel(self, name: &str) -> Kernel {
        Kernel {
            name: name.to_owned(),
            threads: Self::THREADS,
            bytes: self.words * WORD_BYTES,
            spread: Spread::Columns,
        }
    }
}
