//! The kernels of the random code: elimination of the rows of many messages, and the product of the inverses and packets.

use super::{
    kernel::{Kernel, Spread, WORD_BYTES},
    writer::lut,
};

const SOLVE_WARP: &str = include_str!("../../../../kernels/solve_warp.ptx");
const SOLVE_BLOCK: &str = include_str!("../../../../kernels/solve_block.ptx");
const PRODUCT: &str = include_str!("../../../../kernels/product.ptx");

/// The multipliers and the step of `SplitMix64`. CODING.md, "The random code", has the definition.
const MULTIPLIERS: [u64; 2] = [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Lanes of a warp, and bits of a word.
const LANES: usize = 32;

/// The most source packets, and the most packets, of a message that a warp solves.
const MOST_OF_WARP: (usize, usize) = (LANES, 2 * LANES);

/// Threads of a block whose warps solve a message each.
const WARP_THREADS: usize = 128;

/// The most threads of a block that solves one message. The kernel's text allows for as many.
const MOST_THREADS: usize = 1024;

/// Rows that a thread can tell used ones of: a bit each.
const MOST_ROWS_OF_THREAD: usize = 32;

/// Bytes between rows in shared memory.
const GAP: usize = WORD_BYTES;

/// Columns that are eliminated at a time.
const COLUMNS: usize = 8;

/// Bytes of each packet that a block multiplies: a word for each lane.
pub(crate) const STRIP: usize = LANES * WORD_BYTES;

/// Bits of the inverse that pick an entry of a table.
const TABLE_BITS: usize = 4;

/// Entries of a table: all sums of its sources.
const ENTRIES: usize = 1 << TABLE_BITS;

/// Tables of a word of the inverse.
const TABLES: usize = LANES / TABLE_BITS;

/// Bytes of a table, of which each lane has a word of each entry.
const TABLE_BYTES: usize = ENTRIES * STRIP;

/// Targets of a warp.
const TARGETS: usize = 8;

/// The two numbers of warps for which there is a product.
const WARPS: [usize; 2] = [4, 8];

/// The way to solve messages of one code and number of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SolveShape {
    /// The index of the kernel in its module.
    pub(crate) kernel: usize,
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Messages of a block.
    pub(crate) messages: usize,
    /// Bytes of shared memory of a block.
    pub(crate) shared_bytes: usize,
    /// Words of a row are two to the power of this.
    pub(crate) shift: u32,
}

/// Returns the logarithm of the number of words that a row of the inverse takes: a power of two.
pub(crate) fn row_shift(sources: usize) -> u32 {
    sources.div_ceil(LANES).next_power_of_two().ilog2()
}

impl SolveShape {
    /// Returns the shape for messages of so many source packets, of which so many packets arrived; nothing if no device
    /// could solve them.
    pub(crate) fn new(sources: usize, packets: usize) -> Option<Self> {
        let shift = row_shift(sources);
        if sources <= MOST_OF_WARP.0 && packets <= MOST_OF_WARP.1 {
            return Some(Self {
                kernel: 0,
                threads: WARP_THREADS,
                messages: WARP_THREADS / LANES,
                shared_bytes: 0,
                shift,
            });
        }
        let threads = packets.next_power_of_two().clamp(64, MOST_THREADS);
        if packets > threads * MOST_ROWS_OF_THREAD {
            return None;
        }
        let words = 1 << shift;
        let rows = packets * (words * WORD_BYTES + GAP + WORD_BYTES);
        let tables = 2 * ENTRIES * words * WORD_BYTES;
        let pivots = (COLUMNS + sources.next_multiple_of(COLUMNS)) * WORD_BYTES;
        Some(Self {
            kernel: 1,
            threads,
            messages: 1,
            shared_bytes: rows + tables + pivots,
            shift,
        })
    }
}

/// The way to multiply inverses of one size by packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProductShape {
    /// The index of the kernel in its module.
    pub(crate) kernel: usize,
    /// Blocks that the targets of a message take.
    pub(crate) groups: usize,
    /// Bytes of shared memory of a block.
    pub(crate) shared_bytes: usize,
}

impl ProductShape {
    /// Returns the shape for so many source packets.
    pub(crate) fn new(sources: usize) -> Self {
        let is_small = sources <= WARPS[0] * TARGETS;
        let warps = if is_small { WARPS[0] } else { WARPS[1] };
        // A second set of tables is made only where there are more sources than one has.
        let sets = if sources <= LANES { 1 } else { 2 };
        Self {
            kernel: if is_small { 2 } else { 3 },
            groups: sources.div_ceil(warps * TARGETS),
            shared_bytes: sets * TABLES * TABLE_BYTES,
        }
    }
}

/// Mixes the bits of a word: the output function of `SplitMix64`.
pub(crate) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(MULTIPLIERS[0]);
    let word = (word ^ (word >> 27)).wrapping_mul(MULTIPLIERS[1]);
    word ^ (word >> 31)
}

/// Returns the text of all kernels, and the kernels in the order of the indices in shapes.
pub(super) fn print() -> Vec<(String, Kernel)> {
    let mut printed = vec![
        (
            SOLVE_WARP
                .replace("{threads}", &WARP_THREADS.to_string())
                .replace("{rows}", &lines(&rows())),
            kernel("solve_by_warp", WARP_THREADS),
        ),
        (
            SOLVE_BLOCK
                .replace("{threads}", &MOST_THREADS.to_string())
                .replace("{gap}", &GAP.to_string())
                .replace("{word}", &lines(&word()))
                .replace("{sum}", &lines(&sum()))
                .replace("{xor3}", &format!("{:#x}", lut::XOR3)),
            kernel("solve_by_block", MOST_THREADS),
        ),
    ];
    printed.extend(WARPS.map(product));
    printed
}

fn kernel(name: &str, threads: usize) -> Kernel {
    Kernel {
        name: name.to_owned(),
        threads,
        bytes: WORD_BYTES,
        spread: Spread::Columns,
    }
}

fn lines(lines: &[String]) -> String {
    lines.join("\n    ")
}

/// Mixes the bits of `%z`.
fn mixed() -> Vec<String> {
    let step = |shift: u32, multiplier: Option<u64>| {
        let mut lines = vec![
            format!("shr.u64 %h, %z, {shift};"),
            "xor.b64 %z, %z, %h;".to_owned(),
        ];
        lines.extend(multiplier.map(|by| format!("mul.lo.u64 %z, %z, {by:#x};")));
        lines
    };
    [
        (30, Some(MULTIPLIERS[0])),
        (27, Some(MULTIPLIERS[1])),
        (31, None),
    ]
    .into_iter()
    .flat_map(|(shift, multiplier)| step(shift, multiplier))
    .collect()
}

/// Makes the rows of a lane of the kernel for warps.
fn rows() -> Vec<String> {
    let mut lines = Vec::new();
    for half in 0..2 {
        lines.extend([
            format!("add.u32 %packet, %lane, {};", half * LANES),
            "setp.lt.u32 %there, %packet, %packets;".to_owned(),
            "mad.lo.u32 %index, %message, %packets, %packet;".to_owned(),
            "mul.wide.u32 %wide, %index, 8;".to_owned(),
            "add.u64 %p, %numbers, %wide;".to_owned(),
            "mov.u64 %number, 0;".to_owned(),
            "@%there ld.global.nc.u64 %number, [%p];".to_owned(),
            "add.u64 %z, %seed, %number;".to_owned(),
        ]);
        lines.extend(mixed());
        lines.push(format!("add.u64 %z, %z, {STEP:#x};"));
        lines.extend(mixed());
        lines.extend([
            "cvt.u32.u64 %x, %z;".to_owned(),
            "and.b32 %x, %x, %columns;".to_owned(),
            "setp.lt.u64 %unit, %number, %limit;".to_owned(),
            "cvt.u32.u64 %y, %number;".to_owned(),
            "shl.b32 %y, %one, %y;".to_owned(),
            "selp.b32 %x, %y, %x, %unit;".to_owned(),
            format!("selp.b32 %row{half}, %x, 0, %there;"),
            format!("selp.b32 %open{half}, 0xffffffff, 0, %there;"),
        ]);
    }
    lines
}

/// Makes word `%w` of the row of `%number` in `%x`, in the kernel for blocks.
fn word() -> Vec<String> {
    let mut lines = vec!["add.u64 %z, %seed, %number;".to_owned()];
    lines.extend(mixed());
    lines.extend([
        "shr.u32 %y, %w, 1;".to_owned(),
        "add.u32 %y, %y, 1;".to_owned(),
        "cvt.u64.u32 %wide, %y;".to_owned(),
        format!("mul.lo.u64 %wide, %wide, {STEP:#x};"),
        "add.u64 %z, %z, %wide;".to_owned(),
    ]);
    lines.extend(mixed());
    for line in [
        "shr.u64 %h, %z, 32;",
        "cvt.u32.u64 %x, %z;",
        "cvt.u32.u64 %y, %h;",
        "and.b32 %c, %w, 1;",
        "setp.eq.u32 %low, %c, 0;",
        "selp.b32 %x, %x, %y, %low;",
        // The columns that there are. A shift by all 32 bits gives 0.
        "shl.b32 %y, %w, 5;",
        "sub.s32 %y, %sources, %y;",
        "max.s32 %y, %y, 0;",
        "min.s32 %y, %y, 32;",
        "shl.b32 %y, %one, %y;",
        "sub.u32 %y, %y, 1;",
        "and.b32 %x, %x, %y;",
        // A source packet's own row.
        "setp.lt.u64 %unit, %number, %limit;",
        "cvt.u32.u64 %y, %number;",
        "and.b32 %c, %y, 31;",
        "shl.b32 %c, %one, %c;",
        "shr.u32 %y, %y, 5;",
        "setp.eq.u32 %here, %y, %w;",
        "selp.b32 %c, %c, 0, %here;",
        "selp.b32 %x, %c, %x, %unit;",
    ] {
        lines.push(line.to_owned());
    }
    lines
}

/// Adds up word `%w` of those of four pivots that the bits of `%m` name. A column without a pivot has none.
fn sum() -> Vec<String> {
    let add = |pivot: usize| {
        [
            format!("ld.shared.u32 %pivot, [%b+{}];", pivot * WORD_BYTES),
            format!("and.b32 %x, %m, {};", 1 << pivot),
            "setp.ne.u32 %has, %x, 0;".to_owned(),
            "setp.ne.u32 %other, %pivot, 0xffffffff;".to_owned(),
            "and.pred %both, %has, %other;".to_owned(),
            "mad.lo.u32 %a, %pivot, %stride, %w;".to_owned(),
            "mov.u32 %y, 0;".to_owned(),
            "@%both ld.shared.u32 %y, [%a];".to_owned(),
            "xor.b32 %sum, %sum, %y;".to_owned(),
        ]
    };
    (0..TABLE_BITS).flat_map(add).collect()
}

/// Returns the product by blocks of so many warps.
fn product(warps: usize) -> (String, Kernel) {
    let (targets, threads) = (warps * TARGETS, warps * LANES);
    let own_tables = TABLES / warps;
    let own_sources = own_tables * TABLE_BITS;
    let rows = (1..TARGETS).map(|target| {
        let before = target - 1;
        format!("add.u64 %i{target}, %i{before}, %row;")
    });
    let are_there = (0..TARGETS).flat_map(|target| {
        [
            format!("add.u32 %t, %target, {target};"),
            format!("setp.lt.u32 %q{target}, %t, %sources;"),
        ]
    });
    let accumulators = (0..TARGETS).map(|target| format!("mov.u32 %a{target}, 0;"));
    let coefficients = (0..TARGETS).flat_map(|target| {
        [
            format!("mov.u32 %c{target}, 0;"),
            format!("@%q{target} ld.global.nc.u32 %c{target}, [%i{target}];"),
            format!("add.u64 %i{target}, %i{target}, {WORD_BYTES};"),
        ]
    });
    let store = (0..TARGETS).flat_map(|target| {
        [
            format!("@%q{target} st.global.cs.u32 [%p], %a{target};"),
            "add.u64 %p, %p, %row;".to_owned(),
        ]
    });
    let text = PRODUCT
        .replace("{targets}", &targets.to_string())
        .replace("{threads}", &threads.to_string())
        .replace("{strip}", &STRIP.to_string())
        .replace("{prefetched}", &own_sources.to_string())
        .replace("{made}", &(own_tables * TABLE_BYTES).to_string())
        .replace("{made_shift}", &own_sources.ilog2().to_string())
        .replace("{set}", &(TABLES * TABLE_BYTES).to_string())
        .replace("{rows}", &lines(&rows.chain(are_there).collect::<Vec<_>>()))
        .replace("{accumulators}", &lines(&accumulators.collect::<Vec<_>>()))
        .replace("{load}", &lines(&load(own_sources)))
        .replace("{make}", &lines(&make(own_tables)))
        .replace("{coefficients}", &lines(&coefficients.collect::<Vec<_>>()))
        .replace("{look}", &lines(&look()))
        .replace("{store}", &lines(&store.collect::<Vec<_>>()));
    (text, kernel(&format!("product_of_{targets}"), threads))
}

/// Reads this lane's words of so many sources. Behind the last there are zeros.
fn load(count: usize) -> Vec<String> {
    let word = |source: usize| {
        [
            format!("add.u32 %index, %source, {source};"),
            "setp.lt.u32 %there, %index, %sources;".to_owned(),
            "mul.wide.u32 %wide, %index, 4;".to_owned(),
            "add.u64 %o, %order, %wide;".to_owned(),
            "mov.u32 %t, 0;".to_owned(),
            "@%there ld.global.nc.u32 %t, [%o];".to_owned(),
            "mul.wide.u32 %wide, %t, %pitch;".to_owned(),
            "add.u64 %o, %packets, %wide;".to_owned(),
            "and.pred %there, %there, %inside;".to_owned(),
            format!("mov.u32 %x{source}, 0;"),
            format!("@%there ld.global.nc.u32 %x{source}, [%o];"),
        ]
    };
    (0..count).flat_map(word).collect()
}

/// Makes so many tables from the words that were read.
fn make(tables: usize) -> Vec<String> {
    let mut lines = vec![
        "add.u32 %at, %made, %set;".to_owned(),
        "mov.u32 %e0, 0;".to_owned(),
    ];
    for table in 0..tables {
        for entry in 1..ENTRIES {
            let word = table * TABLE_BITS + entry.trailing_zeros() as usize;
            let rest = entry & (entry - 1);
            lines.push(match rest {
                0 => format!("mov.u32 %e{entry}, %x{word};"),
                _ => format!("xor.b32 %e{entry}, %e{rest}, %x{word};"),
            });
        }
        for entry in 0..ENTRIES {
            let offset = table * TABLE_BYTES + entry * STRIP;
            lines.push(format!("st.shared.u32 [%at+{offset}], %e{entry};"));
        }
    }
    lines
}

/// Adds to each target the entries that its word of the inverse picks, two at a time.
fn look() -> Vec<String> {
    let mut lines = vec!["add.u32 %at, %looked, %set;".to_owned()];
    for target in 0..TARGETS {
        for table in 0..TABLES {
            let into = ["%u", "%v"][table % 2];
            let (bit, offset) = (table * TABLE_BITS, table * TABLE_BYTES);
            lines.extend([
                format!("bfe.u32 %t, %c{target}, {bit}, {TABLE_BITS};"),
                format!("mad.lo.u32 %t, %t, {STRIP}, %at;"),
                format!("ld.shared.u32 {into}, [%t+{offset}];"),
            ]);
            if table % 2 == 1 {
                let table = lut::XOR3;
                lines.push(format!(
                    "lop3.b32 %a{target}, %a{target}, %u, %v, {table:#x};"
                ));
            }
        }
    }
    lines
}
