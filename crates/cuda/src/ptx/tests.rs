//! Kernels run in the emulator, and their results.

use super::{
    Kind, Module, coefficients,
    emulator::{self, Launch, Memory},
    start_of_length,
};
use cauchyfs_codec::{BLOCK_BYTES, Geometry, Job, Matrix, Mode, Plan, select};

mod random;
mod transforms;

/// Bytes that never belong to a shard.
const GAP: u8 = 0xA5;

/// Blocks that run at once on a device with few multiprocessors.
const CONCURRENT_BLOCKS: usize = 2;

/// Stripes as they lie on a device.
struct Layout {
    matrix: Matrix,
    bytes: usize,
    stripes: usize,
    pitch: usize,
    stride: usize,
    /// The place of the first stripe.
    start: usize,
    verdicts_at: usize,
}

impl Layout {
    /// Returns stripes whose pitches are padded, with something between and behind them.
    fn new(matrix: Matrix, bytes: usize, stripes: usize) -> Self {
        let pitch = bytes.next_multiple_of(16) + 32;
        let stride = pitch * (matrix.rows() + matrix.columns()) + 64;
        Self {
            matrix,
            bytes,
            stripes,
            pitch,
            stride,
            start: 0,
            verdicts_at: stripes * stride,
        }
    }

    /// Returns stripes without any room between or behind them: memory ends with the last target.
    fn tight(matrix: Matrix, bytes: usize, stripes: usize) -> Self {
        let mut layout = Self::new(matrix, bytes, stripes);
        layout.pitch = bytes.next_multiple_of(16);
        layout.stride = layout.pitch * (layout.matrix.rows() + layout.matrix.columns());
        layout.verdicts_at = 0;
        let coefficients = 4 * coefficients(&layout.matrix).len();
        layout.start = (layout.coefficients_at() + coefficients).next_multiple_of(16);
        layout
    }

    /// Returns both layouts.
    fn both(matrix: &Matrix, bytes: usize, stripes: usize) -> [Self; 2] {
        [Self::new, Self::tight].map(|new| new(matrix.clone(), bytes, stripes))
    }

    fn shard(&self, stripe: usize, shard: usize) -> std::ops::Range<usize> {
        let start = self.start + stripe * self.stride + shard * self.pitch;
        start..start + self.bytes
    }

    fn coefficients_at(&self) -> usize {
        self.verdicts_at + 4 * self.stripes * self.matrix.rows() * self.blocks()
    }

    fn blocks(&self) -> usize {
        self.bytes.div_ceil(BLOCK_BYTES)
    }

    /// Returns noise in all sources, nothing in verdicts, and the coefficients behind these.
    fn memory(&self) -> Vec<u8> {
        let mut memory = vec![GAP; self.verdicts_at];
        memory.resize(self.coefficients_at(), 0);
        let words = coefficients(&self.matrix);
        memory.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let end = self.start + self.stripes * self.stride;
        memory.resize(memory.len().max(end), GAP);
        let mut state = 0x2545_F491u32;
        for stripe in 0..self.stripes {
            for source in 0..self.matrix.columns() {
                for byte in &mut memory[self.shard(stripe, source)] {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *byte = state.to_be_bytes()[0];
                }
            }
        }
        memory
    }

    /// Returns the memory with the targets that the scalar engine computes.
    fn expected(&self, mut memory: Vec<u8>) -> Vec<u8> {
        let plan = Plan::new(self.matrix.clone());
        let engine = select("scalar").expect("everywhere");
        for stripe in 0..self.stripes {
            let columns = self.matrix.columns();
            let sources: Vec<Vec<u8>> = (0..columns)
                .map(|source| memory[self.shard(stripe, source)].to_vec())
                .collect();
            let sources: Vec<&[u8]> = sources.iter().map(|s| &**s).collect();
            let mut rows = vec![vec![0; self.bytes]; self.matrix.rows()];
            let mut targets: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut **row).collect();
            Job::new(&plan, &sources, &mut targets, Mode::Assign)
                .expect("fits")
                .run(engine);
            for (row, bytes) in rows.iter().enumerate() {
                memory[self.shard(stripe, columns + row)].copy_from_slice(bytes);
            }
        }
        memory
    }

    /// Runs all kernels of a module.
    fn run(&self, module: &Module, layers: usize, memory: Vec<u8>) -> Vec<u8> {
        let mut memory = Memory::new(memory);
        for kernel in &module.kernels {
            let at = |offset: usize| Memory::START + offset as u64;
            let parameters = [
                ("stripes", at(self.start)),
                ("pitch", self.pitch as u64),
                ("stride", self.stride as u64),
                ("coefficients", at(self.coefficients_at())),
                ("wrong", at(self.verdicts_at)),
                ("bytes", self.bytes as u64),
                ("sources", self.matrix.columns() as u64),
                ("rows", self.matrix.rows() as u64),
                ("blocks", self.blocks() as u64),
                ("count", self.stripes as u64),
            ];
            let grid = kernel.grid(self.bytes, (self.stripes, layers), CONCURRENT_BLOCKS);
            let launch = Launch {
                kernel: &kernel.name,
                grid: grid.map(|n| u32::try_from(n).expect("few")),
                threads: u32::try_from(kernel.threads).expect("few"),
                shared_bytes: kernel.shared_bytes(),
                is_backwards: false,
                parameters: &parameters,
            };
            emulator::run(&module.text, &launch, &mut memory);
        }
        memory.bytes
    }

    /// Returns the memory with what lies between shards as it was: words are written as a whole, so
    /// that up to 15 bytes behind a shard may change.
    fn without_padding(&self, mut memory: Vec<u8>) -> Vec<u8> {
        for stripe in 0..self.stripes {
            for shard in 0..self.matrix.columns() + self.matrix.rows() {
                let end = self.shard(stripe, shard).end;
                memory[end..end.next_multiple_of(16)].fill(GAP);
            }
        }
        memory
    }

    fn check(&self, module: &Module, layers: usize, what: &str) {
        let memory = self.memory();
        let expected = self.expected(memory.clone());
        let found = self.without_padding(self.run(module, layers, memory));
        assert!(
            found == expected,
            "{what}: {:?}, {} bytes",
            self.matrix,
            self.bytes
        );
    }
}

fn cauchy(k: usize, m: usize) -> Matrix {
    Matrix::cauchy(Geometry::new(k, m).expect("valid"))
}

/// The matrix that computes the first m data shards from all others.
fn lost_data(k: usize, m: usize) -> Matrix {
    let parity_0: Vec<usize> = (0..k).collect();
    let generator = cauchy(k, m);
    let known: Vec<usize> = (m..k).collect();
    let rows: Vec<usize> = (0..m).collect();
    let solved = generator.select(&rows, &parity_0[..m]);
    let solved = solved.inverse().expect("Cauchy matrices invert");
    let from_known = solved.times(&generator.select(&rows, &known));
    Matrix::from_fn(m, k, |row, column| match column.checked_sub(known.len()) {
        None => from_known.at(row, column),
        Some(parity) => solved.at(row, parity),
    })
}

fn matrices() -> Vec<Matrix> {
    let mut matrices: Vec<Matrix> = [
        (1, 1),
        (2, 2),
        (4, 2),
        (6, 3),
        (9, 4),
        (10, 4),
        (5, 9),
        (20, 8),
        (32, 16),
        (7, 33),
    ]
    .map(|(k, m)| cauchy(k, m))
    .into();
    matrices.extend([(4, 2), (10, 4), (17, 16)].map(|(k, m)| lost_data(k, m)));
    matrices.push(Matrix::from_fn(3, 4, |_, _| 0));
    // As of codes that XOR shards.
    matrices.push(Matrix::from_fn(5, 19, |row, column| {
        u8::from((7 * row + 3 * column + row * column) % 5 < 2)
    }));
    matrices.push(Matrix::from_fn(2, 3, |row, column| {
        [0, 0x80, 1][(row + column) % 3]
    }));
    matrices
}

#[test]
fn kernels_for_one_matrix_agree_with_the_scalar_engine() {
    for matrix in matrices() {
        let module = Module::for_matrix(&matrix, Kind::Write);
        Layout::tight(matrix, 601, 2).check(&module, 1, "for one");
    }
}

#[test]
fn the_kernel_for_all_matrices_agrees_with_the_scalar_engine() {
    let module = Module::for_any(Kind::Write);
    for matrix in matrices() {
        let layers = matrix.rows().div_ceil(Module::ANY_ROWS);
        Layout::tight(matrix, 601, 2).check(&module, layers, "for all");
    }
}

#[test]
fn every_length_is_computed_to_its_last_byte_and_no_further() {
    for matrix in [cauchy(3, 2), cauchy(3, 5), cauchy(3, 10)] {
        let one = Module::for_matrix(&matrix, Kind::Write);
        let any = Module::for_any(Kind::Write);
        // A thread takes 16 bytes at most.
        for bytes in (1..18).chain([511, 512, 513, 2049]) {
            for layout in Layout::both(&matrix, bytes, 1) {
                layout.check(&one, 1, "for one");
                layout.check(&any, matrix.rows().div_ceil(Module::ANY_ROWS), "for all");
            }
        }
    }
}

#[test]
fn comparing_finds_every_wrong_block_and_no_other() {
    for (k, m, bytes) in [
        (4, 2, 37),
        (5, 6, 601),
        (3, 18, 130),
        (2, 1, 4096),
        (2, 5, 2 * 4096 + 1),
        (1, 17, 4096 + 16),
    ] {
        let layout = Layout::new(cauchy(k, m), bytes, 2);
        let one = Module::for_matrix(&layout.matrix, Kind::Compare);
        let any = Module::for_any(Kind::Compare);
        let sound = layout.expected(layout.memory());
        assert_eq!(layout.run(&one, 1, sound.clone()), sound, "{k}+{m}");
        for (stripe, target, byte) in [
            (0, 0, 0),
            (1, m - 1, bytes - 1),
            (0, m / 2, bytes / 2),
            (1, m / 2, 4095.min(bytes - 1)),
            (1, 0, 4096.min(bytes - 1)),
        ] {
            let mut damaged = sound.clone();
            damaged[layout.shard(stripe, k + target)][byte] ^= 0x10;
            for (module, layers) in [(&one, 1), (&any, m.div_ceil(Module::ANY_ROWS))] {
                let mut expected = damaged.clone();
                let block = (stripe * m + target) * layout.blocks() + byte / BLOCK_BYTES;
                expected[layout.verdicts_at + 4 * block] = 1;
                assert!(
                    layout.run(module, layers, damaged.clone()) == expected,
                    "{k}+{m}, {bytes} bytes, byte {byte} of target {target} of stripe {stripe}"
                );
            }
        }
    }
}

#[test]
fn checksums_are_those_of_the_cpu_for_every_sort_of_last_block() {
    let module = Module::for_checksums();
    let kernel = &module.kernels[0];
    for bytes in [1, 3, 4, 5, 127, 128, 129, 4095, 4096, 4097, 8192, 70_000] {
        let layout = Layout::new(cauchy(2, 1), bytes, 2);
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let shards = 3;
        let sums_at = layout.coefficients_at().next_multiple_of(4);
        let mut memory = layout.expected(layout.memory());
        memory.resize(sums_at + 4 * 2 * shards * blocks, 0);
        let mut memory = Memory::new(memory);
        let rest = bytes - (blocks - 1) * BLOCK_BYTES;
        let parameters = [
            ("stripes", Memory::START),
            ("pitch", layout.pitch as u64),
            ("stride", layout.stride as u64),
            ("sums", Memory::START + sums_at as u64),
            ("bytes", bytes as u64),
            ("blocks", blocks as u64),
            ("whole", u64::from(start_of_length(BLOCK_BYTES))),
            ("rest", u64::from(start_of_length(rest))),
        ];
        let launch = Launch {
            kernel: &kernel.name,
            grid: [kernel.blocks(bytes), shards, 2].map(|n| u32::try_from(n).expect("few")),
            threads: u32::try_from(kernel.threads).expect("few"),
            shared_bytes: 0,
            is_backwards: false,
            parameters: &parameters,
        };
        emulator::run(&module.text, &launch, &mut memory);
        for stripe in 0..2 {
            for shard in 0..shards {
                let shard_bytes = &memory.bytes[layout.shard(stripe, shard)];
                for (block, content) in shard_bytes.chunks(BLOCK_BYTES).enumerate() {
                    let at = sums_at + 4 * ((stripe * shards + shard) * blocks + block);
                    let found = u32::from_le_bytes(memory.bytes[at..at + 4].try_into().expect("4"));
                    assert_eq!(
                        found,
                        crc32c::crc32c(content),
                        "{bytes} bytes, block {block}"
                    );
                }
            }
        }
    }
}

#[test]
fn decoding_with_parity_0_takes_fewer_instructions() {
    let lines = |matrix: &Matrix| {
        let module = Module::for_matrix(matrix, Kind::Write);
        module.text.lines().count()
    };
    let decode = lost_data(10, 4);
    let other = Matrix::from_fn(4, 10, |row, column| {
        decode.at(row, column) ^ if (row, column) == (0, 0) { 2 } else { 0 }
    });
    assert!(lines(&decode) < lines(&other) * 9 / 10);
}

#[test]
fn generators_take_few_instructions() {
    let found = [(4, 2), (10, 4), (20, 8), (32, 16)].map(|(k, m)| {
        let text = Module::for_matrix(&cauchy(k, m), Kind::Write).text;
        text.lines().filter(|line| line.ends_with(';')).count()
    });
    let most = [186, 348, 914, 1102];
    assert!(
        found.iter().zip(most).all(|(&found, most)| found <= most),
        "{found:?}"
    );
}

#[test]
fn the_text_for_2_plus_1_is_as_it_was_reviewed() {
    let text = Module::for_matrix(&cauchy(2, 1), Kind::Write).text;
    let (_, body) = text
        .split_once("    add.u64 %w, %wrong, %w;\n\n")
        .expect("the frame");
    assert_eq!(
        body,
        "    ld.global.nc.v4.u32 {%r0, %r1, %r2, %r3}, [%s];
    add.u64 %s, %s, %pitch;
    ld.global.nc.v4.u32 {%r4, %r5, %r6, %r7}, [%s];
    add.u64 %s, %s, %pitch;
    xor.b32 %r8, %r4, %r0;
    xor.b32 %r9, %r5, %r1;
    xor.b32 %r10, %r6, %r2;
    xor.b32 %r11, %r7, %r3;
    st.global.cs.v4.u32 [%t0], {%r8, %r9, %r10, %r11};
    ret;
}
"
    );
}

#[test]
fn the_emulator_tells_a_register_that_was_never_written() {
    let text = Module::for_matrix(&cauchy(2, 1), Kind::Write).text;
    let broken = text.replace("ld.global.nc.v4.u32 {%r4, %r5, %r6, %r7}, [%s];\n", "");
    let layout = Layout::new(cauchy(2, 1), 16, 1);
    let module = Module {
        text: broken,
        ..Module::for_matrix(&layout.matrix, Kind::Write)
    };
    let run = || layout.run(&module, 1, layout.memory());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("%r4 is not loaded");
}

#[test]
fn the_emulator_tells_warps_that_wait_at_different_barriers() {
    let text = |second: &str| {
        format!(
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry barriers(\n    .param .u64 unused\n)\n.maxntid 64, 1, 1\n{{
    .reg .pred %first;\n    .reg .b32 %thread;\n
    mov.u32 %thread, %tid.x;
    setp.lt.u32 %first, %thread, 32;
    @%first bra $barrier;
    {second}
$barrier:
    bar.sync 0;
    ret;\n}}\n"
        )
    };
    let run = |text: String| {
        let launch = Launch {
            kernel: "barriers",
            grid: [1; 3],
            threads: 64,
            shared_bytes: 0,
            is_backwards: false,
            parameters: &[("unused", 0)],
        };
        let run = || emulator::run(&text, &launch, &mut Memory::new(Vec::new()));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok()
    };
    assert!(run(text("")), "both wait at one");
    assert!(run(text("ret;")), "a warp that is done waits at none");
    assert!(!run(text("bar.sync 0;")), "the second has one of its own");
}

/// Returns the message of the panic that something ends with.
fn panic_of<T>(run: impl FnOnce() -> T) -> Option<String> {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).err()?;
    let message = panic.downcast_ref::<String>().cloned();
    Some(message.unwrap_or_else(|| panic.downcast_ref::<&str>().expect("text").to_string()))
}

#[test]
fn the_emulator_tells_accesses_to_bytes_in_flight() {
    let run = |target: &str, early: &str, late: &str| {
        let text = format!(
            ".version 7.0\n.target {target}\n.address_size 64\n.extern .shared .align 16 .b8 room[];\n.visible .entry copying(\n    .param .u64 from\n)\n.maxntid 32, 1, 1\n{{
    .reg .b32 %word, %place;\n    .reg .b64 %wide, %from;\n
    ld.param.u64 %from, [from];
    mov.u32 %word, %tid.x;
    shl.b32 %word, %word, 4;
    cvt.u64.u32 %wide, %word;
    add.u64 %from, %from, %wide;
    mov.u32 %place, room;
    add.u32 %place, %place, %word;
    cp.async.cg.shared.global [%place], [%from], 16;
    cp.async.commit_group;
    {early}
    cp.async.wait_group 0;
    {late}
    ret;\n}}\n"
        );
        let launch = Launch {
            kernel: "copying",
            grid: [1; 3],
            threads: 32,
            shared_bytes: 512,
            is_backwards: false,
            parameters: &[("from", Memory::START)],
        };
        panic_of(|| emulator::run(&text, &launch, &mut Memory::new(vec![7; 512])))
    };
    for access in [
        "ld.shared.u32 %word, [%place];",
        "st.shared.u32 [%place], %word;",
        "cp.async.cg.shared.global [%place], [%from], 16;",
    ] {
        assert_eq!(run("sm_80", "", access), None, "{access}");
        let panic = run("sm_80", access, "").expect(access);
        assert!(panic.contains("in flight"), "{access}: {panic}");
    }
    let panic = run("sm_70", "", "").expect("such devices do not copy");
    assert!(panic.contains("sm_80"), "{panic}");
}
