//! The kernel for all matrices, which reads the coefficients while it runs.
//!
//! It takes several times the instructions of a kernel for one matrix, yet far less time than the bus takes. It is
//! there at once, for matrices that are used a few times only.

use super::{
    kernel::{Kernel, Kind, Shape},
    writer::{PtxWriter, lut},
};
use cauchyfs_codec::Matrix;

/// Targets that a block computes: as many coefficients as fit a register.
pub(super) const ROWS: usize = 4;

const SHAPE: Shape = Shape {
    words: 4,
    blocks: 1,
};

/// Bits of a coefficient.
const BITS: usize = 8;

/// Returns the coefficients of a matrix as the kernel wants them: for four targets a word per source, for
/// the next four another, and zeros in place of targets that there are not.
pub(crate) fn coefficients(matrix: &Matrix) -> Vec<u32> {
    let parts = matrix.rows().div_ceil(ROWS);
    let of = |part: usize, column: usize| {
        let rows = (part * ROWS..(part + 1) * ROWS).enumerate();
        let present = rows.filter(|(_, row)| *row < matrix.rows());
        present.fold(0, |word, (byte, row)| {
            word | u32::from(matrix.at(row, column)) << (byte * BITS)
        })
    };
    (0..parts)
        .flat_map(|part| (0..matrix.columns()).map(move |column| of(part, column)))
        .collect()
}

pub(super) fn print(kind: Kind) -> (String, Kernel) {
    let words = SHAPE.words;
    let list = |letter: &str, count: usize| -> Vec<String> {
        (0..count)
            .map(|index| format!("%{letter}{index}"))
            .collect()
    };
    let sources = list("x", words);
    let sums = list("a", ROWS * words);
    let mut writer = PtxWriter::new(kind, words);
    writer.targets(ROWS);
    for sum in &sums {
        writer.line(&format!("mov.u32 {sum}, 0;"));
    }
    for line in [
        "mul.lo.u32 %index, %z, %sources;",
        "mul.wide.u32 %y, %index, 4;",
        "ld.param.u64 %c, [coefficients];",
        "add.u64 %c, %c, %y;",
        "mov.u32 %left, %sources;",
    ] {
        writer.line(line);
    }
    writer.label("$source");
    writer.load(&sources);
    writer.line("ld.global.nc.u32 %bits, [%c];");
    writer.line("add.u64 %c, %c, 4;");
    for bit in 0..BITS {
        add_bit(&mut writer, bit, &sources, &sums);
        if bit + 1 < BITS {
            for source in &sources {
                writer.double(source, source, None);
            }
        }
    }
    for line in [
        "sub.u32 %left, %left, 1;",
        "setp.ne.u32 %more, %left, 0;",
        "@%more bra $source;",
    ] {
        writer.line(line);
    }
    for (row, sums) in sums.chunks(words).enumerate() {
        if row > 0 {
            writer.line("add.u32 %first, %first, 1;");
            writer.line("setp.ge.u32 %outside, %first, %rows;");
            writer.line("@%outside ret;");
        }
        writer.deliver(row, sums);
    }
    let (registers, body) = writer.finish(0);
    let registers = format!(
        "{registers}\n    .reg .pred %more;\n    .reg .b32 %x<{words}>, %a<{}>, %z, %left, %bits, %shifted, \
         %mask;\n    .reg .b64 %c;",
        sums.len()
    );
    let first = format!("mov.u32 %z, %ctaid.z;\n    mul.lo.u32 %first, %z, {ROWS};");
    let text = SHAPE.frame("any_targets", &registers, ROWS, &first, &body);
    (text, SHAPE.kernel("any_targets"))
}

/// Adds x to the power of `bit`, times the sources, to the sums of those targets whose coefficients have
/// that bit.
fn add_bit(writer: &mut PtxWriter, bit: usize, sources: &[String], sums: &[String]) {
    let shift = BITS - 1 - bit;
    writer.line(&format!("shl.b32 %shifted, %bits, {shift};"));
    for (row, sums) in sums.chunks(sources.len()).enumerate() {
        // The sign of this byte, in all bits of the word.
        let selector = 0x8888 | (row * 0x1111);
        writer.line(&format!("prmt.b32 %mask, %shifted, 0, {selector:#x};"));
        for (sum, source) in sums.iter().zip(sources) {
            writer.lop3(sum, [sum, source, "%mask"], lut::XOR_AND);
        }
    }
}
