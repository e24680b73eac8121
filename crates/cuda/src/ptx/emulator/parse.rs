//! PTX text taken apart.

use std::collections::HashMap;

/// The header of modules for all devices.
const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// The header of modules for devices that have the instructions `cp.async`.
const COPYING_HEADER: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

#[derive(Debug, Clone)]
pub(super) enum Operand<'t> {
    Register(usize),
    Immediate(u64),
    Special(&'t str),
    /// The address in a register, plus so many bytes.
    Address(usize, u64),
    Parameter(&'t str),
    Label(usize),
    Vector(Vec<usize>),
    /// The address of the module's constants.
    Constants,
    /// The address of the shared memory of a block.
    Shared,
}

impl Operand<'_> {
    /// Returns the registers of one or several.
    pub(super) fn registers(&self) -> Vec<usize> {
        match self {
            Self::Register(one) => vec![*one],
            Self::Vector(several) => several.clone(),
            other => panic!("{other:?} is no register"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Instruction<'t> {
    /// A predicate, and what it must be for the instruction to be carried out.
    pub(super) guard: Option<(usize, bool)>,
    pub(super) name: &'t str,
    pub(super) operands: Vec<Operand<'t>>,
}

/// A kernel.
pub(super) struct Function<'t> {
    pub(super) instructions: Vec<Instruction<'t>>,
    /// Names of all registers that are declared.
    pub(super) registers: Vec<String>,
    pub(super) parameters: Vec<&'t str>,
    pub(super) most_threads: u32,
    /// Constants of the module.
    pub(super) constants: Vec<u32>,
}

/// The meanings of names.
#[derive(Default)]
struct Names<'t> {
    registers: HashMap<String, usize>,
    labels: HashMap<&'t str, usize>,
    constants: Option<&'t str>,
}

impl<'t> Function<'t> {
    pub(super) fn parse(module: &'t str, kernel: &str) -> Self {
        let may_copy = module.starts_with(COPYING_HEADER);
        assert!(may_copy || module.starts_with(HEADER), "the header");
        assert!(!module.contains("{{"), "all braces are filled in");
        let (before, from) = module
            .split_once(&format!(".visible .entry {kernel}("))
            .expect("there is such a kernel");
        let (head, from) = from.split_once("\n{\n").expect("a kernel has a body");
        let (body, _) = from.split_once("\n}").expect("the body ends");
        let mut names = Names::default();
        let constants = constants(before, &mut names);
        let parameters = head.split_once(')').expect("parameters end").0;
        let parameters = parameters.split(',');
        let parameters = parameters.filter_map(|p| p.split_whitespace().last());
        let threads = head.split_once(".maxntid ").expect("a block has a size").1;
        let threads = threads.split(',').next().unwrap_or_default();
        let mut statements = Vec::new();
        for line in body
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default().trim())
        {
            if let Some(label) = line.strip_suffix(':') {
                let old = names.labels.insert(label, statements.len());
                assert_eq!(old, None, "label {label}");
            } else if let Some(declaration) = line.strip_prefix(".reg ") {
                names.declare(declaration);
            } else if !line.is_empty() {
                statements.push(line.strip_suffix(';').unwrap_or_else(|| panic!("{line}")));
            }
        }
        let instructions: Vec<Instruction<'t>> = statements
            .iter()
            .map(|text| names.instruction(text))
            .collect();
        let copies = instructions.iter().any(|i| i.name.starts_with("cp.async"));
        assert!(may_copy || !copies, "cp.async needs .target sm_80");
        let mut registers = vec![String::new(); names.registers.len()];
        for (name, index) in names.registers {
            registers[index] = name;
        }
        Self {
            instructions,
            registers,
            parameters: parameters.collect(),
            most_threads: threads.parse().expect("a number"),
            constants,
        }
    }
}

/// Returns the module's constants, of which there is one table at most.
fn constants<'t>(text: &'t str, names: &mut Names<'t>) -> Vec<u32> {
    let Some((_, table)) = text.split_once(".const .align 4 .b32 ") else {
        return Vec::new();
    };
    let (name, values) = table.split_once('[').expect("a table has a length");
    names.constants = Some(name);
    let (length, values) = values.split_once("] = {").expect("a table has values");
    let values = values.split_once('}').expect("the table ends").0;
    let words: Vec<u32> = values
        .split(',')
        .map(|value| u32::try_from(number(value.trim()).expect("a number")).expect("a word"))
        .collect();
    assert_eq!(length, words.len().to_string());
    words
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<'t> Names<'t> {
    fn declare(&mut self, declaration: &str) {
        let (_, list) = declaration.split_once(' ').expect("a type and names");
        for name in list.trim_end_matches(';').split(',').map(str::trim) {
            let Some((stem, count)) = name.split_once('<') else {
                self.add(name);
                continue;
            };
            let count: usize = count.trim_end_matches('>').parse().expect("a number");
            (0..count).for_each(|index| self.add(&format!("{stem}{index}")));
        }
    }

    fn add(&mut self, name: &str) {
        let index = self.registers.len();
        let old = self.registers.insert(name.to_owned(), index);
        assert_eq!(old, None, "{name} is declared twice");
    }

    fn register(&self, name: &str) -> usize {
        let found = self.registers.get(name);
        *found.unwrap_or_else(|| panic!("{name} is not declared"))
    }

    fn instruction(&self, text: &'t str) -> Instruction<'t> {
        let (guard, text) = match text.strip_prefix('@') {
            None => (None, text),
            Some(guarded) => {
                let (predicate, text) = guarded.split_once(' ').expect("a guarded instruction");
                let name = predicate.trim_start_matches('!');
                let guard = (self.register(name), name == predicate);
                (Some(guard), text)
            }
        };
        let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
        Instruction {
            guard,
            name,
            operands: split(operands)
                .into_iter()
                .map(|o| self.operand(o))
                .collect(),
        }
    }

    fn operand(&self, text: &'t str) -> Operand<'t> {
        if let Some(list) = text.strip_prefix('{') {
            let names = list.trim_end_matches('}').split(',');
            return Operand::Vector(names.map(|name| self.register(name.trim())).collect());
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.trim_end_matches(']');
            let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
            return if base.starts_with('%') {
                Operand::Address(self.register(base), number(offset).expect("a number"))
            } else {
                Operand::Parameter(inner)
            };
        }
        if let Some(value) = number(text) {
            return Operand::Immediate(value);
        }
        if text.starts_with('$') {
            return Operand::Label(*self.labels.get(text).unwrap_or_else(|| panic!("{text}")));
        }
        if self.constants == Some(text) {
            return Operand::Constants;
        }
        if text == "room" {
            return Operand::Shared;
        }
        let is_special = ["%tid", "%ntid", "%ctaid", "%nctaid"]
            .iter()
            .any(|special| text.split('.').next() == Some(special));
        if is_special {
            return Operand::Special(text);
        }
        Operand::Register(self.register(text))
    }
}

/// Splits operands at commas outside of braces.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(|character| {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}
