//! The rows of the random code. CODING.md, "The random code", defines them to the bit.

use super::{BitRows, LEAST_PACKETS, MOST_PACKETS, RatelessError};

/// The step of the counter of `SplitMix64`: 2⁶⁴ divided by the golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The choice of the packets that are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Every packet is coded.
    Plain,
    /// The first k packets are the source packets themselves. All others are those of the plain form.
    Systematic,
}

/// A random code: a number of source packets, a seed and a form. It determines every row.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::rateless::{Form, RandomCode, RatelessError};
/// let code = RandomCode::new(Form::Systematic, 3, 7)?;
/// let rows = code.rows(&[1, 1 << 40]);
/// assert_eq!([0, 1, 2].map(|column| rows.at(0, column)), [false, true, false]);
/// # Ok::<(), RatelessError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RandomCode {
    form: Form,
    source_packets: usize,
    seed: u64,
    /// `mix(seed)`, which every row begins with.
    mixed_seed: u64,
}

impl RandomCode {
    /// Returns the code of so many source packets.
    ///
    /// # Errors
    ///
    /// [`RatelessError::SourcePackets`] if these are fewer than [`LEAST_PACKETS`] or more than [`MOST_PACKETS`].
    pub fn new(form: Form, source_packets: usize, seed: u64) -> Result<Self, RatelessError> {
        if !(LEAST_PACKETS..=MOST_PACKETS).contains(&source_packets) {
            return Err(RatelessError::SourcePackets {
                seen: source_packets,
                least: LEAST_PACKETS,
                most: MOST_PACKETS,
            });
        }
        Ok(Self {
            form,
            source_packets,
            seed,
            mixed_seed: mix(seed),
        })
    }

    /// Returns the form.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns how many source packets a message has: k.
    #[must_use]
    pub fn source_packets(&self) -> usize {
        self.source_packets
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the rows of these packets, in the order given. Each takes O(k), whatever its number is.
    #[must_use]
    pub fn rows(&self, numbers: &[u64]) -> BitRows {
        let mut rows = BitRows::new(numbers.len(), self.source_packets);
        for (row, &number) in numbers.iter().enumerate() {
            self.write_row(number, rows.row_mut(row));
        }
        rows
    }

    /// Writes a row over words that hold at least one bit for each source packet.
    pub(crate) fn write_row(&self, number: u64, words: &mut [u64]) {
        let source = usize::try_from(number).unwrap_or(usize::MAX);
        if self.form == Form::Systematic && source < self.source_packets {
            words.fill(0);
            words[source / 64] = 1 << (source % 64);
            return;
        }
        let start = mix(self.mixed_seed.wrapping_add(number));
        let (whole, rest) = (self.source_packets / 64, self.source_packets % 64);
        let mut counter = start;
        for (index, word) in words.iter_mut().enumerate() {
            counter = counter.wrapping_add(STEP);
            *word = match index {
                _ if index < whole => mix(counter),
                _ if index == whole && rest > 0 => mix(counter) & ((1 << rest) - 1),
                _ => 0,
            };
        }
    }
}

/// Mixes the bits of a word: the output function of `SplitMix64`, which is a bijection.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
