//! From a matrix to straight-line code for one thread.
//!
//! A thread computes the same few words of all targets. Gathering the coefficient bits of equal weight, a target is Σ
//! xᵇ·(XOR of the sources whose coefficient has bit b). Horner's rule evaluates it from the highest bit down. Each of
//! these XORs has an accumulator in a register. Many are over the same sources, so sources come in groups of eight, two
//! halves of four. Of each half, every XOR that any accumulator needs is made once (at most eleven). An accumulator
//! then takes one three-input XOR per group (the method of Four Russians). All operands are chosen by coefficients,
//! never by data.

use std::ops::Range;

use cauchyfs_codec::Matrix;

/// A 32-bit register. Each is written once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Register(pub(super) usize);

/// The next step of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Reads this thread's words of the next source.
    Load { into: Vec<Register> },
    /// Writes zero.
    Zero { into: Register },
    /// Adds two registers.
    Xor { into: Register, from: [Register; 2] },
    /// Adds three registers.
    Xor3 { into: Register, from: [Register; 3] },
    /// Multiplies each byte by x and adds another register if there is one.
    Double {
        into: Register,
        from: Register,
        plus: Option<Register>,
    },
    /// Hands over this thread's words of a target, counted from the first one.
    Finish { target: usize, from: Vec<Register> },
}

/// Code that computes some targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// The steps, in order.
    pub(super) steps: Vec<Step>,
    /// The number of registers that are written.
    pub(super) registers: usize,
}

impl Program {
    /// Returns the code that computes targets `rows` of `matrix`, so many 32-bit words of each.
    pub(super) fn new(matrix: &Matrix, rows: Range<usize>, words: usize) -> Self {
        let mut builder = Builder {
            coefficients: Coefficients::new(matrix, rows),
            program: Self {
                steps: Vec::new(),
                registers: 0,
            },
            words,
        };
        builder.build();
        builder.program
    }
}

/// The coefficients of the targets to compute.
struct Coefficients {
    columns: usize,
    rows: Vec<Vec<u8>>,
    /// True if the first row is what is left of it when all others are added to it.
    folded: bool,
}

impl Coefficients {
    /// Returns rows of a matrix, the first one with all others added to it if that leaves nothing but
    /// ones and zeros.
    ///
    /// So it is with lost data shards that parity 0, the XOR of all data, helps to decode. It takes one
    /// accumulator in place of eight then.
    fn new(matrix: &Matrix, range: Range<usize>) -> Self {
        let mut rows: Vec<Vec<u8>> = range.map(|row| matrix.row(row).to_vec()).collect();
        let columns = matrix.columns();
        let sum = |column: usize| rows.iter().fold(0, |sum, row| sum ^ row[column]);
        let sums: Vec<u8> = (0..columns).map(sum).collect();
        let plain = |row: &[u8]| row.iter().all(|&coefficient| coefficient <= 1);
        let folded = rows.len() > 1 && !plain(&rows[0]) && plain(&sums);
        if folded {
            rows[0] = sums;
        }
        Self {
            columns,
            rows,
            folded,
        }
    }
}

/// Sources whose XORs are made together.
const HALF: usize = 4;

/// Sources that an accumulator takes in one step.
const GROUP: usize = 2 * HALF;

/// Bits of a coefficient.
const BITS: usize = 8;

struct Builder {
    coefficients: Coefficients,
    program: Program,
    words: usize,
}

/// XORs of one word of up to four sources, by the set of sources as bits.
type Sums = [Option<Register>; 1 << HALF];

impl Builder {
    fn build(&mut self) {
        let words = self.words;
        let rows = self.coefficients.rows.len();
        let mut accumulators = vec![vec![[None; BITS]; rows]; words];
        let groups = self.coefficients.columns.div_ceil(GROUP);
        let mut next = self.load(0);
        for group in 0..groups {
            // The sources of the next group are on their way while this one is worked on.
            let loaded = std::mem::replace(&mut next, self.load(group + 1));
            for (word, accumulators) in accumulators.iter_mut().enumerate() {
                let sources: Vec<Register> = loaded.iter().map(|source| source[word]).collect();
                self.add_group(group * GROUP, &sources, accumulators);
            }
        }
        self.finish(&accumulators);
    }

    /// Loads the sources of a group, of which there may be none.
    fn load(&mut self, group: usize) -> Vec<Vec<Register>> {
        let end = self.coefficients.columns.min((group + 1) * GROUP);
        let load = |_| {
            let words = 0..self.words;
            let into: Vec<Register> = words.map(|_| self.register()).collect();
            let step = Step::Load { into: into.clone() };
            self.program.steps.push(step);
            into
        };
        (group * GROUP..end).map(load).collect()
    }

    /// Adds one word of each source of a group to the accumulators of all rows.
    fn add_group(
        &mut self,
        first: usize,
        sources: &[Register],
        accumulators: &mut [[Option<Register>; BITS]],
    ) {
        let (low, high) = sources.split_at(sources.len().min(HALF));
        let mut sums: [Sums; 2] = [low, high].map(|half| {
            let mut sums = Sums::default();
            for (index, &source) in half.iter().enumerate() {
                sums[1 << index] = Some(source);
            }
            sums
        });
        for (row, accumulators) in accumulators.iter_mut().enumerate() {
            for (bit, accumulator) in accumulators.iter_mut().enumerate() {
                let mut terms: Vec<Register> = Vec::from_iter(*accumulator);
                for (half, sums) in sums.iter_mut().enumerate() {
                    let from = (first + half * HALF).min(first + sources.len());
                    let to = (from + HALF).min(first + sources.len());
                    let coefficients = &self.coefficients.rows[row][from..to];
                    let with_bit = |(index, c): (usize, &u8)| usize::from(c >> bit & 1) << index;
                    let set = coefficients.iter().enumerate().map(with_bit).sum();
                    terms.extend(self.sum(sums, set));
                }
                *accumulator = self.add(&terms);
            }
        }
    }

    /// Returns the XOR of a set of sources, made from the largest part of it that is there already;
    /// none of the empty set.
    fn sum(&mut self, sums: &mut Sums, set: usize) -> Option<Register> {
        if set == 0 || sums[set].is_some() {
            return sums[set];
        }
        let parts = (1..set).filter(|part| part & !set == 0 && sums[*part].is_some());
        let part = parts.max_by_key(|part| part.count_ones())?;
        let rest = (0..HALF).map(|index| 1 << index);
        let rest = rest.filter(|one| (set & !part) & one != 0);
        let terms: Vec<Register> = std::iter::once(part)
            .chain(rest)
            .filter_map(|part| sums[part])
            .collect();
        sums[set] = self.add(&terms);
        sums[set]
    }

    /// Returns the XOR of registers; none of none.
    fn add(&mut self, terms: &[Register]) -> Option<Register> {
        let (&first, rest) = terms.split_first()?;
        let mut sum = first;
        for terms in rest.chunks(2) {
            let into = self.register();
            let step = if let [a, b] = *terms {
                let from = [sum, a, b];
                Step::Xor3 { into, from }
            } else {
                let from = [sum, terms[0]];
                Step::Xor { into, from }
            };
            self.program.steps.push(step);
            sum = into;
        }
        Some(sum)
    }

    /// Makes targets of the accumulators, indexed by word, row and bit.
    fn finish(&mut self, accumulators: &[Vec<[Option<Register>; BITS]>]) {
        let rows = self.coefficients.rows.len();
        let folded = self.coefficients.folded;
        let mut targets: Vec<Vec<Register>> = vec![Vec::new(); rows];
        // A folded row needs all others.
        let order: Vec<usize> = if folded {
            (1..rows).chain([0]).collect()
        } else {
            (0..rows).collect()
        };
        for row in order {
            for (word, accumulators) in accumulators.iter().enumerate() {
                let mut terms = vec![self.evaluate(&accumulators[row])];
                if folded && row == 0 {
                    terms.extend(targets[1..].iter().map(|target| target[word]));
                }
                let sum = self.add(&terms);
                targets[row].extend(sum);
            }
            self.program.steps.push(Step::Finish {
                target: row,
                from: targets[row].clone(),
            });
        }
    }

    /// Returns Σ xᵇ·accumulator b.
    fn evaluate(&mut self, accumulators: &[Option<Register>; BITS]) -> Register {
        let mut sum = None;
        for &plus in accumulators.iter().rev() {
            sum = match sum {
                None => plus,
                Some(from) => {
                    let into = self.register();
                    self.program.steps.push(Step::Double { into, from, plus });
                    Some(into)
                }
            };
        }
        sum.unwrap_or_else(|| {
            let into = self.register();
            self.program.steps.push(Step::Zero { into });
            into
        })
    }

    fn register(&mut self) -> Register {
        self.program.registers += 1;
        Register(self.program.registers - 1)
    }
}
