//! Runs PTX on the CPU, warp after warp, so that tests need no GPU.
//!
//! It knows the instructions that the kernels use, and is strict: a register that is not declared, or
//! declared twice, an unknown instruction, an access outside of memory or one that is not aligned all
//! panic.

mod memory;
mod parse;

use std::collections::HashMap;

pub(super) use memory::Memory;
use parse::{Function, Instruction, Operand};

const LANES: usize = 32;

/// The parameters with which a kernel is started.
pub(super) struct Launch<'l> {
    pub(super) kernel: &'l str,
    /// Blocks along x, y and z.
    pub(super) grid: [u32; 3],
    /// Threads of a block.
    pub(super) threads: u32,
    /// Values of parameters, by name.
    pub(super) parameters: &'l [(&'l str, u64)],
}

/// Runs a kernel of a module to its end.
pub(super) fn run(module: &str, launch: &Launch<'_>, memory: &mut Memory) {
    let function = Function::parse(module, launch.kernel);
    let parameters: HashMap<&str, u64> = launch.parameters.iter().copied().collect();
    assert_eq!(parameters.len(), function.parameters.len(), "parameters");
    assert!(launch.threads <= function.most_threads, "too many threads");
    memory.set_constants(&function.constants);
    let [columns, rows, layers] = launch.grid;
    for z in 0..layers {
        for y in 0..rows {
            for x in 0..columns {
                for first in (0..launch.threads).step_by(LANES) {
                    let special = HashMap::from([
                        ("%ctaid.x", x),
                        ("%ctaid.y", y),
                        ("%ctaid.z", z),
                        ("%nctaid.y", rows),
                        ("%ntid.x", launch.threads),
                    ]);
                    Warp {
                        function: &function,
                        parameters: &parameters,
                        special,
                        first,
                        registers: vec![[None; LANES]; function.registers.len()],
                        memory,
                    }
                    .run();
                }
            }
        }
    }
}

/// Threads that run in step.
struct Warp<'w> {
    function: &'w Function<'w>,
    parameters: &'w HashMap<&'w str, u64>,
    special: HashMap<&'static str, u32>,
    first: u32,
    registers: Vec<[Option<u64>; LANES]>,
    memory: &'w mut Memory,
}

impl Warp<'_> {
    /// Runs all lanes until each has returned; those that lag behind first, so that they meet again.
    fn run(&mut self) {
        let mut at = [Some(0); LANES];
        while let Some(now) = at.iter().flatten().min().copied() {
            let lanes: Vec<usize> = (0..LANES).filter(|&lane| at[lane] == Some(now)).collect();
            let instruction = &self.function.instructions[now];
            let lanes_on: Vec<usize> = lanes
                .iter()
                .copied()
                .filter(|&lane| self.is_on(instruction, lane))
                .collect();
            for &lane in &lanes {
                at[lane] = Some(now + 1);
            }
            match instruction.name {
                "ret" => lanes_on.iter().for_each(|&lane| at[lane] = None),
                "bra" => {
                    let Operand::Label(target) = instruction.operands[0] else {
                        panic!("{instruction:?}");
                    };
                    for lane in lanes_on {
                        at[lane] = Some(target);
                    }
                }
                "shfl.sync.bfly.b32" => {
                    assert_eq!(lanes_on.len(), LANES, "all lanes take part");
                    self.exchange(instruction);
                }
                _ => {
                    for lane in lanes_on {
                        self.execute(instruction, lane);
                    }
                }
            }
        }
    }

    fn is_on(&self, instruction: &Instruction<'_>, lane: usize) -> bool {
        let Some((predicate, wanted)) = instruction.guard else {
            return true;
        };
        (self.register(predicate, lane) == 1) == wanted
    }

    fn register(&self, index: usize, lane: usize) -> u64 {
        let name = &self.function.registers[index];
        self.registers[index][lane].unwrap_or_else(|| panic!("{name} is read, but never written"))
    }

    fn value(&self, operand: &Operand<'_>, lane: usize) -> u64 {
        match *operand {
            Operand::Register(index) => self.register(index, lane),
            Operand::Immediate(value) => value,
            Operand::Special("%tid.x") => u64::from(self.first) + lane as u64,
            Operand::Special(name) => u64::from(self.special[name]),
            Operand::Address(register, offset) => self.register(register, lane) + offset,
            Operand::Parameter(name) => self.parameters[name],
            Operand::Constants => Memory::CONSTANTS,
            Operand::Label(_) | Operand::Vector(_) => panic!("{operand:?} has no value"),
        }
    }

    /// Hands each lane what the lane has whose number differs in the bits given.
    fn exchange(&mut self, instruction: &Instruction<'_>) {
        let [Operand::Register(into), Operand::Register(from), ..] = instruction.operands[..]
        else {
            panic!("{instruction:?}");
        };
        let bits = usize::try_from(self.value(&instruction.operands[2], 0)).expect("a lane");
        let values: Vec<u64> = (0..LANES).map(|lane| self.register(from, lane)).collect();
        for lane in 0..LANES {
            self.registers[into][lane] = Some(values[lane ^ bits]);
        }
    }

    fn execute(&mut self, instruction: &Instruction<'_>, lane: usize) {
        let operands = &instruction.operands[..];
        let name = instruction.name;
        if name.starts_with("ld.param") || name.starts_with("mov.") {
            let value = self.value(&operands[1], lane);
            self.write(&operands[0], lane, value);
        } else if name.starts_with("ld.") {
            let at = self.value(&operands[1], lane);
            if name.split('.').next_back() == Some("u8") {
                let value = u64::from(self.memory.byte(at));
                self.write(&operands[0], lane, value);
                return;
            }
            let targets = operands[0].registers();
            let words = self.memory.words(at, targets.len());
            for (target, word) in targets.into_iter().zip(words) {
                self.registers[target][lane] = Some(u64::from(word));
            }
        } else if name.starts_with("st.") {
            let at = self.value(&operands[0], lane);
            let sources = operands[1].registers();
            let words = sources.into_iter().map(|r| low(self.register(r, lane)));
            let words: Vec<u32> = words.collect();
            self.memory.store(at, &words);
        } else {
            let inputs: Vec<u64> = operands[1..]
                .iter()
                .map(|operand| self.value(operand, lane))
                .collect();
            self.write(&operands[0], lane, compute(name, &inputs));
        }
    }

    fn write(&mut self, operand: &Operand<'_>, lane: usize, value: u64) {
        let Operand::Register(index) = *operand else {
            panic!("{operand:?} cannot be written");
        };
        self.registers[index][lane] = Some(value);
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).expect("32 bits")
}

fn signed(value: u64) -> i32 {
    low(value).cast_signed()
}

/// Returns the result of an instruction that neither branches nor touches memory.
fn compute(name: &str, inputs: &[u64]) -> u64 {
    let (a, b) = (inputs[0], inputs.get(1).copied().unwrap_or(0));
    let c = inputs.get(2).copied().unwrap_or(0);
    let word = |value: u32| u64::from(value);
    match name {
        "add.u32" | "add.s32" => word(low(a).wrapping_add(low(b))),
        "sub.u32" | "sub.s32" => word(low(a).wrapping_sub(low(b))),
        "add.u64" => a.wrapping_add(b),
        "mul.lo.u32" => word(low(a).wrapping_mul(low(b))),
        "mul.wide.u32" => word(low(a)) * word(low(b)),
        "mad.lo.u32" => word(low(a).wrapping_mul(low(b)).wrapping_add(low(c))),
        "mad.wide.u32" => (word(low(a)) * word(low(b))).wrapping_add(c),
        "mad.lo.u64" => a.wrapping_mul(b).wrapping_add(c),
        "cvt.u64.u32" => word(low(a)),
        "cvt.s64.s32" => i64::from(signed(a)).cast_unsigned(),
        "and.b32" => word(low(a) & low(b)),
        "or.b32" => word(low(a) | low(b)),
        "xor.b32" => word(low(a) ^ low(b)),
        "not.b32" => word(!low(a)),
        "neg.s32" => word(low(a).wrapping_neg()),
        "shl.b32" => word(low(a).checked_shl(low(b)).unwrap_or(0)),
        "shr.u32" => word(low(a).checked_shr(low(b)).unwrap_or(0)),
        "shr.s32" => word((signed(a) >> low(b).min(31)).cast_unsigned()),
        "min.u32" => word(low(a).min(low(b))),
        "min.s32" => word(signed(a).min(signed(b)).cast_unsigned()),
        "max.s32" => word(signed(a).max(signed(b)).cast_unsigned()),
        "setp.ge.u32" => u64::from(low(a) >= low(b)),
        "setp.lt.u32" => u64::from(low(a) < low(b)),
        "setp.ne.u32" => u64::from(low(a) != low(b)),
        "setp.ge.s32" => u64::from(signed(a) >= signed(b)),
        "selp.b32" => {
            if c == 1 {
                a
            } else {
                b
            }
        }
        "lop3.b32" => word(look_up(low(a), low(b), low(c), low(inputs[3]))),
        "prmt.b32" => word(permute(low(a), low(b), low(c))),
        _ => panic!("unknown instruction {name}"),
    }
}

/// Returns, for each bit, the entry of the truth table for the bits of a, b and c.
fn look_up(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..32).fold(0, |result, bit| {
        let entry = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
        result | (table >> entry & 1) << bit
    })
}

/// Returns four of the eight bytes of b and a, or their signs.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    let picked = [0, 4, 8, 12].map(|shift| {
        let byte = bytes[(selector >> shift & 7) as usize];
        match selector >> shift & 8 {
            0 => byte,
            _ => {
                if byte & 0x80 == 0 {
                    0
                } else {
                    0xFF
                }
            }
        }
    });
    u32::from_le_bytes(picked)
}
