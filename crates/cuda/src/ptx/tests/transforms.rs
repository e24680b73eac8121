//! The kernel that encodes by transforms.

use super::*;
use crate::ptx::fft::MOST_SOURCES;
use cauchyfs_codec::{CodeId, Codec};

/// The compute capability and the shared memory of an NVIDIA A100.
const DEVICE: (usize, usize) = (8, 163 << 10);

fn generator(k: usize, m: usize) -> Matrix {
    let geometry = Geometry::new(k, m).expect("valid");
    let engine = select("scalar").expect("everywhere");
    let codec = Codec::new(CodeId::RS_FFT, geometry, engine).expect("valid");
    codec.generator().clone()
}

/// Returns the matrix that computes 16 data shards in a row from all other shards.
fn decoding(k: usize, first: usize) -> Matrix {
    let generator = generator(k, 16);
    let rows = Matrix::from_fn(k + 16, k, |row, column| match row.checked_sub(k) {
        None => u8::from(row == column),
        Some(parity) => generator.at(parity, column),
    });
    let all: Vec<usize> = (0..k).collect();
    let lost = first..first + 16;
    let used: Vec<usize> = (0..k + 16).filter(|shard| !lost.contains(shard)).collect();
    let solved = rows.select(&used, &all).inverse().expect("MDS");
    solved.select(&lost.collect::<Vec<_>>(), &all)
}

fn module(k: usize, m: usize, kind: Kind) -> (Matrix, Module) {
    let matrix = generator(k, m);
    let module = Module::for_transforms(&matrix, kind, DEVICE);
    (matrix, module.expect("there is a kernel for it"))
}

#[test]
fn the_kernel_agrees_with_the_scalar_engine_for_any_number_of_sources() {
    for (k, m) in [(9, 9), (16, 16), (17, 16), (24, 12), (31, 10), (64, 16)] {
        let (matrix, module) = module(k, m, Kind::Write);
        Layout::new(matrix, 601, 2).check(&module, 1, "by transforms");
    }
}

#[test]
fn a_whole_chunk_of_lost_data_is_computed_from_all_others() {
    for (k, first) in [
        (16, 0),
        (24, 0),
        (32, 0),
        (32, 16),
        (40, 16),
        (64, 0),
        (64, 32),
        (64, 48),
    ] {
        let matrix = decoding(k, first);
        let module = Module::for_transforms(&matrix, Kind::Write, DEVICE).expect("there is one");
        for layout in Layout::both(&matrix, 601, 2) {
            layout.check(&module, 1, "by transforms");
        }
    }
    for (k, first) in [(32, 8), (33, 0), (60, 16), (MOST_SOURCES + 8, 0)] {
        let found = Module::for_transforms(&decoding(k, first), Kind::Write, DEVICE);
        assert!(found.is_none(), "{k} from {first} on");
    }
}

#[test]
fn every_length_is_encoded_to_its_last_byte_and_no_further() {
    let (matrix, module) = module(10, 9, Kind::Write);
    for bytes in [1, 513, 8193] {
        Layout::new(matrix.clone(), bytes, 3).check(&module, 1, "by transforms");
    }
    for bytes in [15, 16, 17, 511, 512, 8191, 8192, 20_000] {
        Layout::tight(matrix.clone(), bytes, 3).check(&module, 1, "by transforms");
    }
}

#[test]
fn comparing_finds_every_wrong_block_and_no_other() {
    let (k, m) = (17, 10);
    let (matrix, module) = module(k, m, Kind::Compare);
    let loose = [37, 8192 + 3].map(|bytes| Layout::new(matrix.clone(), bytes, 2));
    let tight = [530, 4096].map(|bytes| Layout::tight(matrix.clone(), bytes, 2));
    for layout in loose.into_iter().chain(tight) {
        let bytes = layout.bytes;
        let sound = layout.expected(layout.memory());
        assert!(layout.run(&module, 1, sound.clone()) == sound, "{bytes}");
        for (stripe, target, byte) in [
            (0, 0, 0),
            (1, m - 1, bytes - 1),
            (0, m / 2, bytes / 2),
            (1, 3, 4095.min(bytes - 1)),
            (1, 0, 4096.min(bytes - 1)),
        ] {
            let mut damaged = sound.clone();
            damaged[layout.shard(stripe, k + target)][byte] ^= 0x10;
            let mut expected = damaged.clone();
            let block = (stripe * m + target) * layout.blocks() + byte / BLOCK_BYTES;
            expected[layout.verdicts_at + 4 * block] = 1;
            assert!(
                layout.run(&module, 1, damaged) == expected,
                "{bytes} bytes, byte {byte} of target {target} of stripe {stripe}"
            );
        }
    }
}

#[test]
fn other_matrices_and_lesser_devices_have_no_such_kernel() {
    let of = |matrix: &Matrix, device| Module::for_transforms(matrix, Kind::Write, device);
    assert!(of(&generator(32, 16), DEVICE).is_some());
    assert!(of(&generator(32, 16), (7, DEVICE.1)).is_none());
    assert!(of(&generator(32, 16), (8, 99 << 10)).is_none());
    assert!(of(&cauchy(32, 16), DEVICE).is_none());
    assert!(of(&generator(MOST_SOURCES, 16), DEVICE).is_some());
    for (k, m) in [(32, 8), (32, 17), (8, 16), (MOST_SOURCES + 1, 16)] {
        assert!(of(&generator(k, m), DEVICE).is_none(), "{k}+{m}");
    }
}

/// The cache of instructions holds 128 KiB, an instruction takes 16 bytes, and most lines become one.
#[test]
fn the_code_fits_the_cache_of_instructions() {
    let chunks = (0..=MOST_SOURCES - 16).step_by(16);
    let chunks = chunks.map(|first| (Some(first), decoding(MOST_SOURCES, first)));
    let mut matrices = vec![(None, generator(MOST_SOURCES, 16))];
    matrices.extend(chunks);
    assert_eq!(matrices.len(), 7, "the parities, and six chunks of data");
    for kind in [Kind::Write, Kind::Compare] {
        for (first, matrix) in &matrices {
            let module = Module::for_transforms(matrix, kind, DEVICE).expect("there is one");
            let lines = module.text.lines().filter(|line| line.ends_with(';'));
            let lines = lines.count();
            assert!(lines <= (128 << 10) / 16, "{kind:?} of {first:?}: {lines}");
        }
    }
}

#[test]
fn the_emulator_tells_a_group_that_is_overwritten_before_it_is_read() {
    let (matrix, module) = module(17, 9, Kind::Write);
    let layout = Layout::new(matrix, 16, 1);
    let at = |part: &str| module.text.find(part).expect(part);
    let (load, barrier, copied) = (
        at("    ld.shared"),
        at("    bar.sync 0;\n"),
        at("$copied:\n"),
    );
    let [first, read, copy, last] = [0..load, load..barrier, barrier..copied, copied..usize::MAX]
        .map(|range| &module.text[range.start..range.end.min(module.text.len())]);
    let run = |text: String| {
        let kernels = module.kernels.clone();
        panic_of(|| layout.run(&Module { text, kernels }, 1, layout.memory()))
    };
    assert_eq!(run([first, read, copy, last].concat()), None);
    // The label ends what copies.
    let label = &last[.."$copied:\n".len()];
    let broken = [first, copy, label, read, &last[label.len()..]].concat();
    let panic = run(broken).expect("each group is overwritten first");
    assert!(panic.contains("in flight"), "{panic}");
}

#[test]
fn a_read_beyond_the_last_shard_shows_where_memory_ends() {
    let (matrix, module) = module(17, 10, Kind::Compare);
    let predicate = |compared| format!("setp.lt.u32 %is_high, {compared}, %bytes;");
    let text = module
        .text
        .replace(&predicate("%second"), &predicate("%at"));
    assert_ne!(text, module.text);
    let broken = Module { text, ..module };
    let [loose, tight] = Layout::both(&matrix, 600, 3);
    let run = |layout: &Layout| {
        let sound = layout.expected(layout.memory());
        panic_of(|| assert!(layout.run(&broken, 1, sound.clone()) == sound))
    };
    assert_eq!(run(&loose), None, "other memory lies there");
    run(&tight).expect("no memory lies there");
}
