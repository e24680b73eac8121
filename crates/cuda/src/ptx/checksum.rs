//! The kernel that computes CRC32C.
//!
//! It reads all shards once more than the kernel that applies a matrix, but that is not its cost. An H100 copies 1506
//! GB/s within its memory (3012 read and written). The kernel gets through 906 GB/s there, held up by some eighty
//! instructions for each word. For one kernel in place of both, that would save a quarter of their time at most. It
//! would need a state per shard in registers, which are short already; with 64+16 there are not as many. The bus,
//! which brings 50 GB/s of data, waits for neither. From it, stripes of 10+4 with checksums go as fast as copies of
//! the same bytes alone.

use super::{
    kernel::{Kernel, Spread},
    writer::lut,
};
use cauchyfs_codec::BLOCK_BYTES;

const CHECKSUM: &str = include_str!("../../../../kernels/checksum.ptx");

/// The polynomial of CRC32C without x³², its highest coefficient in the lowest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// x⁰: as of all polynomials here, the coefficient of x³¹⁻ᵇ is in bit b.
const ONE: u32 = 1 << 31;

/// x¹.
const X: u32 = 1 << 30;

/// Lanes of a warp, and bits of a word.
const LANES: usize = 32;

/// Threads of a block.
const THREADS: usize = 256;

/// Returns the product of two polynomials.
fn times(mut a: u32, b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..u32::BITS).rev() {
        if b >> bit & 1 == 1 {
            product ^= a;
        }
        let carried = if a & 1 == 1 { POLYNOMIAL } else { 0 };
        a = a >> 1 ^ carried;
    }
    product
}

/// Returns x to the power of `exponent`, by squaring.
fn power(exponent: usize) -> u32 {
    let bits = (0..usize::BITS - exponent.leading_zeros()).rev();
    bits.fold(ONE, |power, bit| {
        let squared = times(power, power);
        match exponent >> bit & 1 {
            0 => squared,
            _ => times(squared, X),
        }
    })
}

/// Returns what the register that a CRC starts with, all ones, amounts to behind so many bytes.
pub(crate) fn start_of_length(bytes: usize) -> u32 {
    times(u32::MAX, power(bytes * 8))
}

pub(super) fn print() -> (String, Kernel) {
    let behind = (0..LANES).map(|lane| power(LANES * (LANES - lane)));
    let behind: Vec<String> = behind.map(|power| format!("{power:#x}")).collect();
    let text = CHECKSUM
        .replace("{behind}", &behind.join(", "))
        .replace("{threads}", &THREADS.to_string())
        .replace("{polynomial}", &format!("{POLYNOMIAL:#x}"))
        .replace("{xor_and}", &format!("{:#x}", lut::XOR_AND))
        .replace("{bytes}", &lines(&bytes()))
        .replace("{advance}", &lines(&advance()))
        .replace("{reduce}", &lines(&reduce()));
    let kernel = Kernel {
        name: "checksum".to_owned(),
        threads: THREADS,
        bytes: BLOCK_BYTES / LANES,
        spread: Spread::Columns,
    };
    (text, kernel)
}

fn lines(lines: &[String]) -> String {
    lines.join("\n    ")
}

/// Reads those bytes of a word that are there, when there are `%pad` zeros in front of the block.
fn bytes() -> Vec<String> {
    let mut lines = vec!["sub.s32 %at, %position, %pad;".to_owned()];
    for byte in 0..4 {
        lines.extend([
            "setp.ge.s32 %there, %at, 0;".to_owned(),
            "cvt.s64.s32 %wide, %at;".to_owned(),
            "add.u64 %q, %p, %wide;".to_owned(),
            "mov.u32 %byte, 0;".to_owned(),
            "@%there ld.global.nc.u8 %byte, [%q];".to_owned(),
            format!("shl.b32 %byte, %byte, {};", 8 * byte),
            "or.b32 %word, %word, %byte;".to_owned(),
            "add.s32 %at, %at, 1;".to_owned(),
        ]);
    }
    lines
}

/// Multiplies by x¹⁰²⁴, which takes the sum over to the lane's next word. Each set bit stands for a power of x; the
/// product of that power is added. The products go to four sums by turns, so that they do not wait for each other.
fn advance() -> Vec<String> {
    let mut lines: Vec<String> = (0..4).map(|byte| format!("mov.u32 %a{byte}, 0;")).collect();
    for shift in 0..8 {
        lines.push(format!("shl.b32 %y, %sum, {shift};"));
        for byte in 0..4 {
            let bit = 8 * byte + 7 - shift;
            let power = times(1 << bit, power(LANES * LANES));
            let selector = 0x8888 | (byte * 0x1111);
            lines.push(format!("prmt.b32 %m, %y, 0, {selector:#x};"));
            let table = lut::AND_XOR;
            lines.push(format!(
                "lop3.b32 %a{byte}, %m, {power:#x}, %a{byte}, {table:#x};"
            ));
        }
    }
    let table = lut::XOR3;
    lines.push(format!("lop3.b32 %sum, %a0, %a1, %a2, {table:#x};"));
    lines.push("xor.b32 %sum, %sum, %a3;".to_owned());
    lines
}

/// Adds the sums of all lanes up.
fn reduce() -> Vec<String> {
    let step = |distance: usize| {
        [
            format!("shfl.sync.bfly.b32 %m, %other, {distance}, 0x1f, 0xffffffff;"),
            "xor.b32 %other, %other, %m;".to_owned(),
        ]
    };
    [16, 8, 4, 2, 1].into_iter().flat_map(step).collect()
}
