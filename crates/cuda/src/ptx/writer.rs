//! Steps of a program as lines of PTX.

use std::fmt::Write as _;

use super::{
    kernel::{Kind, WORD_BYTES},
    program::{Register, Step},
};

/// The truth tables of three-input instructions.
pub(super) mod lut {
    /// a ^ b ^ c
    pub(crate) const XOR3: u8 = 0x96;
    /// a ^ (b & c)
    pub(crate) const XOR_AND: u8 = 0x78;
    /// (a & b) ^ c
    pub(crate) const AND_XOR: u8 = 0x6A;
    /// (a ^ b) & c
    pub(crate) const DIFFERENCE: u8 = 0x28;
    /// Bits of a where c is set, and of b elsewhere.
    pub(crate) const SELECT: u8 = 0xE4;
}

/// All bits but the lowest of each byte: what was shifted in from the neighbour is cleared.
const NOT_LOWEST: u32 = 0xFEFE_FEFE;

/// x⁸ modulo the field polynomial, in each byte.
const REDUCED: u32 = 0x1D1D_1D1D;

/// Selects the sign of each byte of the first operand, eight times.
const SIGNS: u32 = 0xBA98;

/// Lines of one kernel.
pub(super) struct PtxWriter {
    kind: Kind,
    words: usize,
    text: String,
    /// The number of registers that hold intermediate results.
    fresh: usize,
    /// The number of predicates.
    predicates: usize,
}

impl PtxWriter {
    /// Starts a kernel whose threads take so many words of each shard.
    pub(super) fn new(kind: Kind, words: usize) -> Self {
        let mut writer = Self {
            kind,
            words,
            text: String::new(),
            fresh: 0,
            predicates: 0,
        };
        if kind == Kind::Compare {
            writer.tails();
        }
        writer
    }

    /// Adds a line.
    pub(super) fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "    {line}"); // a string takes any text
    }

    /// Adds a label.
    pub(super) fn label(&mut self, label: &str) {
        let _ = writeln!(self.text, "{label}:"); // a string takes any text
    }

    /// Returns the lines so far, and goes on without them.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Returns the lines that declare registers, `program` of them for programs, and those of the body.
    pub(super) fn finish(self, program: usize) -> (String, String) {
        let mut registers = format!(
            "    .reg .b32 %r<{}>, %d<{}>",
            program.max(1),
            self.fresh.max(1)
        );
        if self.kind == Kind::Compare {
            let _ = write!(
                registers,
                ", %m<{}>, %one;\n    .reg .b64 %v;\n    .reg .pred %p<{}>",
                self.words,
                self.predicates.max(1)
            );
        }
        registers.push(';');
        (registers, self.text.trim_end().to_owned())
    }

    /// Makes masks of the bytes of this thread's words that lie within the shard.
    fn tails(&mut self) {
        let left = self.fresh();
        self.line("mov.u32 %one, 1;");
        self.line(&format!("sub.u32 {left}, %bytes, %at;"));
        for word in 0..self.words {
            let bits = self.fresh();
            self.line(&format!("sub.s32 {bits}, {left}, {};", word * WORD_BYTES));
            self.line(&format!("max.s32 {bits}, {bits}, 0;"));
            self.line(&format!("min.s32 {bits}, {bits}, {WORD_BYTES};"));
            self.line(&format!("shl.b32 {bits}, {bits}, 3;"));
            // A shift by all 32 bits gives 0 in PTX, so that the mask is of all bits.
            self.line(&format!("shl.b32 {bits}, %one, {bits};"));
            self.line(&format!("sub.u32 %m{word}, {bits}, 1;"));
        }
    }

    /// Makes the addresses of so many targets.
    pub(super) fn targets(&mut self, count: usize) {
        for target in 1..count {
            self.line(&format!("add.u64 %t{target}, %t{}, %pitch;", target - 1));
        }
    }

    /// Reads this thread's words of the next source.
    pub(super) fn load(&mut self, into: &[String]) {
        let (vector, list) = vector(into);
        self.line(&format!("ld.global.nc{vector}.u32 {list}, [%s];"));
        self.line("add.u64 %s, %s, %pitch;");
    }

    /// Adds a step of a program. Sources are loaded in order, whatever their number.
    pub(super) fn step(&mut self, step: &Step) {
        match step {
            Step::Load { into } => self.load(&names(into)),
            Step::Zero { into } => self.line(&format!("mov.u32 {}, 0;", name(*into))),
            Step::Xor { into, from: [a, b] } => {
                let line = format!("xor.b32 {}, {}, {};", name(*into), name(*a), name(*b));
                self.line(&line);
            }
            Step::Xor3 {
                into,
                from: [a, b, c],
            } => self.lop3(&name(*into), [&name(*a), &name(*b), &name(*c)], lut::XOR3),
            Step::Double { into, from, plus } => {
                let plus = plus.map(name);
                self.double(&name(*into), &name(*from), plus.as_deref());
            }
            Step::Finish { target, from } => self.deliver(*target, &names(from)),
        }
    }

    /// Multiplies each byte by x, and adds another register if there is one.
    pub(super) fn double(&mut self, into: &str, from: &str, plus: Option<&str>) {
        let (signs, shifted, sum) = (self.fresh(), self.fresh(), self.fresh());
        self.line(&format!("prmt.b32 {signs}, {from}, 0, {SIGNS:#x};"));
        self.line(&format!("shl.b32 {shifted}, {from}, 1;"));
        match plus {
            Some(plus) => self.lop3(
                &sum,
                [&shifted, &format!("{NOT_LOWEST:#x}"), plus],
                lut::AND_XOR,
            ),
            None => self.line(&format!("and.b32 {sum}, {shifted}, {NOT_LOWEST:#x};")),
        }
        self.lop3(into, [&signs, &format!("{REDUCED:#x}"), &sum], lut::AND_XOR);
    }

    /// Adds a three-input instruction.
    pub(super) fn lop3(&mut self, into: &str, [a, b, c]: [&str; 3], table: u8) {
        self.line(&format!("lop3.b32 {into}, {a}, {b}, {c}, {table:#x};"));
    }

    /// Writes this thread's words of a target, or compares them with those that are there.
    pub(super) fn deliver(&mut self, target: usize, from: &[String]) {
        let (vector, list) = vector(from);
        if self.kind == Kind::Write {
            self.line(&format!("st.global.cs{vector}.u32 [%t{target}], {list};"));
            return;
        }
        let there: Vec<String> = from.iter().map(|_| self.fresh()).collect();
        let (_, list) = self::vector(&there);
        self.line(&format!("ld.global.nc{vector}.u32 {list}, [%t{target}];"));
        let difference = self.fresh();
        self.line(&format!("mov.u32 {difference}, 0;"));
        for (word, (from, there)) in from.iter().zip(&there).enumerate() {
            let mask = format!("%m{word}");
            self.lop3(there, [from, there, &mask], lut::DIFFERENCE);
            self.line(&format!("or.b32 {difference}, {difference}, {there};"));
        }
        let differs = format!("%p{}", self.predicates);
        self.predicates += 1;
        self.line(&format!("setp.ne.u32 {differs}, {difference}, 0;"));
        let step = target * WORD_BYTES;
        self.line(&format!("@{differs} mad.wide.u32 %v, %blocks, {step}, %w;"));
        self.line(&format!("@{differs} st.global.u32 [%v], %one;"));
    }

    /// Returns one more register.
    pub(super) fn fresh(&mut self) -> String {
        self.fresh += 1;
        format!("%d{}", self.fresh - 1)
    }
}

fn name(register: Register) -> String {
    format!("%r{}", register.0)
}

fn names(registers: &[Register]) -> Vec<String> {
    registers.iter().copied().map(name).collect()
}

/// Returns how instructions that move so many words at once are marked, and their operand.
pub(super) fn vector(names: &[String]) -> (String, String) {
    match names {
        [one] => (String::new(), one.clone()),
        several => (
            format!(".v{}", several.len()),
            format!("{{{}}}", several.join(", ")),
        ),
    }
}
