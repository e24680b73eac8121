//! Runs PTX on the CPU, warp after warp, so that tests need no GPU.
//!
//! The warps of a block take turns at its barriers, in an order that the caller chooses: a barrier that is missing between
//! warps shows in one of two opposite orders.
//!
//! It knows the instructions that the kernels use, and is strict: a register that is not declared, or
//! declared twice, an unknown instruction, an access outside of memory or one that is not aligned all
//! panic. So does an access to bytes of shared memory while a copy is on its way to them.

mod memory;
mod parse;

use std::collections::{HashMap, VecDeque};

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
    /// Bytes of shared memory of a block.
    pub(super) shared_bytes: usize,
    /// True if the last warp of a block runs first.
    pub(super) is_backwards: bool,
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
                memory.start_block(launch.shared_bytes);
                let special = HashMap::from([
                    ("%ctaid.x", x),
                    ("%ctaid.y", y),
                    ("%ctaid.z", z),
                    ("%nctaid.x", columns),
                    ("%nctaid.y", rows),
                    ("%ntid.x", launch.threads),
                ]);
                let starts = (0..launch.threads).step_by(LANES);
                let warps = starts.map(|first| Warp {
                    function: &function,
                    parameters: &parameters,
                    special: &special,
                    first,
                    at: [Some(0); LANES],
                    registers: vec![[None; LANES]; function.registers.len()],
                    copies: std::array::from_fn(|_| VecDeque::from([Vec::new()])),
                });
                let mut warps: Vec<Warp<'_>> = warps.collect();
                if launch.is_backwards {
                    warps.reverse();
                }
                run_block(&mut warps, memory);
            }
        }
    }
}

/// Runs the warps of a block to their end, from barrier to barrier.
fn run_block(warps: &mut [Warp<'_>], memory: &mut Memory) {
    while warps.iter().any(Warp::is_running) {
        let stops = warps.iter_mut().filter_map(|warp| warp.run(memory));
        let stops: Vec<usize> = stops.collect();
        assert!(
            stops.windows(2).all(|pair| pair[0] == pair[1]),
            "all warps that run are at one barrier: {stops:?}"
        );
    }
}

/// Threads that run in step.
struct Warp<'w> {
    function: &'w Function<'w>,
    parameters: &'w HashMap<&'w str, u64>,
    special: &'w HashMap<&'static str, u32>,
    first: u32,
    /// The next instruction of each lane that has not returned.
    at: [Option<usize>; LANES],
    registers: Vec<[Option<u64>; LANES]>,
    /// For each lane, groups of copies to shared memory that are on their way. The last one is not committed yet.
    copies: [VecDeque<Vec<SharedCopy>>; LANES],
}

/// Words on their way to an address in shared memory.
struct SharedCopy {
    to: u64,
    words: Vec<u32>,
}

impl Warp<'_> {
    fn is_running(&self) -> bool {
        self.at.iter().any(Option::is_some)
    }

    /// Runs all lanes until each has returned, or all are at a barrier, which is returned; those that lag behind first, so
    /// that they meet again.
    fn run(&mut self, memory: &mut Memory) -> Option<usize> {
        while let Some(now) = self.at.iter().flatten().min().copied() {
            let at = self.at;
            let lanes: Vec<usize> = (0..LANES).filter(|&lane| at[lane] == Some(now)).collect();
            let instruction = &self.function.instructions[now];
            let lanes_on: Vec<usize> = lanes
                .iter()
                .copied()
                .filter(|&lane| self.is_on(instruction, lane))
                .collect();
            for &lane in &lanes {
                self.at[lane] = Some(now + 1);
            }
            match instruction.name {
                "ret" => lanes_on.iter().for_each(|&lane| self.at[lane] = None),
                "bar.sync" => {
                    assert_eq!(lanes_on.len(), LANES, "all lanes are at the barrier");
                    return Some(now);
                }
                "bar.warp.sync" => assert_eq!(lanes_on.len(), LANES, "all lanes meet"),
                "vote.sync.ballot.b32" => {
                    assert_eq!(lanes_on.len(), LANES, "all lanes take part");
                    self.vote(instruction);
                }
                "bra" => {
                    let Operand::Label(target) = instruction.operands[0] else {
                        panic!("{instruction:?}");
                    };
                    for lane in lanes_on {
                        self.at[lane] = Some(target);
                    }
                }
                "shfl.sync.bfly.b32" | "shfl.sync.idx.b32" => {
                    assert_eq!(lanes_on.len(), LANES, "all lanes take part");
                    self.exchange(instruction);
                }
                _ => {
                    for lane in lanes_on {
                        self.execute(instruction, lane, memory);
                    }
                }
            }
        }
        None
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
            Operand::Shared => Memory::SHARED,
            Operand::Label(_) | Operand::Vector(_) => panic!("{operand:?} has no value"),
        }
    }

    /// Tells all lanes of which ones a predicate is true.
    fn vote(&mut self, instruction: &Instruction<'_>) {
        let [Operand::Register(into), Operand::Register(from), ..] = instruction.operands[..]
        else {
            panic!("{instruction:?}");
        };
        let votes = (0..LANES).map(|lane| self.register(from, lane) << lane);
        self.registers[into] = [Some(votes.sum()); LANES];
    }

    /// Hands each lane what another lane has: that of the number given, or whose number differs in the bits given.
    fn exchange(&mut self, instruction: &Instruction<'_>) {
        let [Operand::Register(into), Operand::Register(from), ..] = instruction.operands[..]
        else {
            panic!("{instruction:?}");
        };
        let given = (0..LANES).map(|lane| self.value(&instruction.operands[2], lane));
        let given: Vec<usize> = given.map(|g| usize::try_from(g).expect("a lane")).collect();
        let values: Vec<u64> = (0..LANES).map(|lane| self.register(from, lane)).collect();
        for (lane, given) in given.into_iter().enumerate() {
            let other = match instruction.name {
                "shfl.sync.idx.b32" => given,
                _ => lane ^ given,
            };
            self.registers[into][lane] = Some(values[other]);
        }
    }

    fn execute(&mut self, instruction: &Instruction<'_>, lane: usize, memory: &mut Memory) {
        let operands = &instruction.operands[..];
        let name = instruction.name;
        if name.starts_with("ld.param") || name.starts_with("mov.") {
            let value = self.value(&operands[1], lane);
            self.write(&operands[0], lane, value);
        } else if name.starts_with("cp.async.") {
            self.copy(instruction, lane, memory);
        } else if name == "ld.shared.v4.u32" {
            let at = self.value(&operands[1], lane);
            let targets = operands[0].registers();
            let words = memory.shared_words(at, targets.len());
            for (target, word) in targets.into_iter().zip(words) {
                self.registers[target][lane] = Some(u64::from(word));
            }
        } else if name == "st.shared.v4.u32" {
            let at = self.value(&operands[0], lane);
            let sources = operands[1].registers().into_iter();
            let words: Vec<u32> = sources.map(|r| low(self.register(r, lane))).collect();
            memory.store_shared_words(at, &words);
        } else if name.starts_with("ld.shared") {
            let at = self.value(&operands[1], lane);
            let value = memory.shared(at, width(name));
            self.write(&operands[0], lane, u64::from(value));
        } else if name.starts_with("st.shared") || name.starts_with("red.shared.min") {
            let at = self.value(&operands[0], lane);
            let new = low(self.value(&operands[1], lane));
            let new = match name.strip_prefix("red.") {
                Some(_) => new.min(memory.shared(at, width(name))),
                None => new,
            };
            memory.store_shared(at, width(name), new);
        } else if name == "ld.global.nc.u64" {
            let at = self.value(&operands[1], lane);
            let words = memory.words(at, 2);
            let value = u64::from(words[1]) << 32 | u64::from(words[0]);
            self.write(&operands[0], lane, value);
        } else if name.starts_with("ld.") {
            let at = self.value(&operands[1], lane);
            if name.split('.').next_back() == Some("u8") {
                let value = u64::from(memory.byte(at));
                self.write(&operands[0], lane, value);
                return;
            }
            let targets = operands[0].registers();
            let words = memory.words(at, targets.len());
            for (target, word) in targets.into_iter().zip(words) {
                self.registers[target][lane] = Some(u64::from(word));
            }
        } else if name.starts_with("st.") {
            let at = self.value(&operands[0], lane);
            let sources = operands[1].registers();
            let words = sources.into_iter().map(|r| low(self.register(r, lane)));
            let words: Vec<u32> = words.collect();
            memory.store(at, &words);
        } else {
            let inputs: Vec<u64> = operands[1..]
                .iter()
                .map(|operand| self.value(operand, lane))
                .collect();
            self.write(&operands[0], lane, compute(name, &inputs));
        }
    }

    /// Copies to shared memory, where the bytes may be accessed only after a wait for their group.
    fn copy(&mut self, instruction: &Instruction<'_>, lane: usize, memory: &mut Memory) {
        let operands = &instruction.operands[..];
        match instruction.name {
            "cp.async.cg.shared.global" => {
                assert_eq!(self.value(&operands[2], lane), 16, "bytes of a copy");
                let copy = SharedCopy {
                    to: self.value(&operands[0], lane),
                    words: memory.words(self.value(&operands[1], lane), 4),
                };
                memory.start_copy(copy.to, 16);
                let open = self.copies[lane]
                    .back_mut()
                    .expect("there is an open group");
                open.push(copy);
            }
            "cp.async.commit_group" => self.copies[lane].push_back(Vec::new()),
            "cp.async.wait_group" => {
                let left = usize::try_from(self.value(&operands[0], lane)).expect("few") + 1;
                while self.copies[lane].len() > left {
                    for copy in self.copies[lane].pop_front().into_iter().flatten() {
                        memory.end_copy(copy.to, &copy.words);
                    }
                }
            }
            name => panic!("unknown instruction {name}"),
        }
    }

    fn write(&mut self, operand: &Operand<'_>, lane: usize, value: u64) {
        let Operand::Register(index) = *operand else {
            panic!("{operand:?} cannot be written");
        };
        self.registers[index][lane] = Some(value);
    }
}

/// Returns how many bytes an access to shared memory takes.
fn width(name: &str) -> usize {
    match name.split('.').next_back() {
        Some("u8") => 1,
        Some("u32") => 4,
        _ => panic!("unknown instruction {name}"),
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
        "div.u32" => word(low(a) / low(b)),
        "mul.lo.u32" => word(low(a).wrapping_mul(low(b))),
        "mul.wide.u32" => word(low(a)) * word(low(b)),
        "mad.lo.u32" => word(low(a).wrapping_mul(low(b)).wrapping_add(low(c))),
        "mad.wide.u32" => (word(low(a)) * word(low(b))).wrapping_add(c),
        "mad.lo.u64" => a.wrapping_mul(b).wrapping_add(c),
        "mul.lo.u64" => a.wrapping_mul(b),
        "xor.b64" => a ^ b,
        "shl.b64" => a.checked_shl(low(b)).unwrap_or(0),
        "shr.u64" => a.checked_shr(low(b)).unwrap_or(0),
        "cvt.u64.u32" | "cvt.u32.u64" => word(low(a)),
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
        "setp.eq.u32" => u64::from(low(a) == low(b)),
        "setp.lt.u64" => u64::from(a < b),
        "and.pred" => a & b,
        "brev.b32" => word(low(a).reverse_bits()),
        "clz.b32" => word(low(a).leading_zeros()),
        "bfe.u32" => word(low(a) >> low(b) & ((1 << low(c)) - 1)),
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
