//! Decoding packet by packet.

use super::{
    BitRows, Method, RandomCode, RandomCodec, RatelessError,
    packets::{Numbered, check_rank},
};

/// A message of which packets arrive one by one. The rank is known after each. Packets that add nothing to it are not
/// kept.
///
/// It eliminates the rows alone as they arrive, which is cheap; [`Self::finish`] decodes the packets that were kept.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{self as codec, rateless::{Form, IncrementalDecoder, RandomCode, RandomCodec}};
/// let codec = RandomCodec::new(RandomCode::new(Form::Systematic, 2, 7)?, codec::select("auto")?);
/// let mut decoder = IncrementalDecoder::new(codec, 3);
/// assert!(decoder.add(1, b"xyz")?);
/// assert!(!decoder.add(1, b"xyz")?, "the same packet again");
/// assert_eq!(decoder.rank(), 1);
/// assert!(decoder.add(0, b"abc")?);
/// let (mut first, mut second) = ([0; 3], [0; 3]);
/// decoder.finish(&mut [&mut first, &mut second])?;
/// assert_eq!((&first, &second), (b"abc", b"xyz"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct IncrementalDecoder<'p> {
    codec: RandomCodec<'p>,
    packet_bytes: usize,
    /// The rank of the rows, and how to raise it.
    rows: Echelon,
    /// The packets that raised the rank.
    kept: Vec<(u64, Vec<u8>)>,
}

impl<'p> IncrementalDecoder<'p> {
    /// Returns the decoder of a message of which nothing arrived yet.
    #[must_use]
    pub fn new(codec: RandomCodec<'p>, packet_bytes: usize) -> Self {
        Self {
            codec,
            packet_bytes,
            rows: Echelon::new(codec.code()),
            kept: Vec::new(),
        }
    }

    /// Takes a packet. Returns whether it raised the rank.
    ///
    /// # Errors
    ///
    /// [`RatelessError::PacketLength`] if it is longer or shorter than the others.
    pub fn add(&mut self, number: u64, packet: &[u8]) -> Result<bool, RatelessError> {
        if packet.len() != self.packet_bytes {
            return Err(RatelessError::PacketLength {
                seen: packet.len(),
                needed: self.packet_bytes,
            });
        }
        let is_new = self.rows.add(number);
        if is_new {
            self.kept.push((number, packet.to_vec()));
        }
        Ok(is_new)
    }

    /// Returns the rank of all packets that arrived.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rows.rank()
    }

    /// Returns whether the message can be decoded.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.rows.is_complete()
    }

    /// Writes all source packets.
    ///
    /// # Errors
    ///
    /// [`RatelessError::Rank`] if the message is not complete. Otherwise as [`RandomCodec::decode`].
    pub fn finish(&self, targets: &mut [&mut [u8]]) -> Result<(), RatelessError> {
        check_rank(self.rank(), self.codec.code().source_packets())?;
        let kept = self.kept.iter();
        let kept: Vec<Numbered> = kept
            .map(|(number, packet)| (*number, &packet[..]))
            .collect();
        self.codec.decode(Method::Tables, &kept, targets)
    }
}

/// The rank of rows that arrive one by one, without their packets.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::rateless::{Echelon, Form, RandomCode, RatelessError};
/// let mut rows = Echelon::new(RandomCode::new(Form::Plain, 100, 7)?);
/// let needed = (1..).find(|&number| { rows.add(number); rows.is_complete() });
/// assert!((100..130).contains(&needed.unwrap_or(0)));
/// # Ok::<(), RatelessError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Echelon {
    code: RandomCode,
    rank: usize,
    /// For each column the row whose first bit is there, or zeros if there is none yet.
    rows: BitRows,
    /// The row that is being reduced.
    row: Vec<u64>,
}

impl Echelon {
    /// Returns the state in which no row arrived yet.
    #[must_use]
    pub fn new(code: RandomCode) -> Self {
        let rows = BitRows::new(code.source_packets(), code.source_packets());
        Self {
            code,
            rank: 0,
            row: vec![0; rows.row_words()],
            rows,
        }
    }

    /// Takes the row of the packet with this number. Returns whether it raised the rank.
    pub fn add(&mut self, number: u64) -> bool {
        self.code.write_row(number, &mut self.row);
        for index in 0..self.row.len() {
            while self.row[index] != 0 {
                let column = 64 * index + self.row[index].trailing_zeros() as usize;
                let known = self.rows.row(column);
                if known[index] == 0 {
                    self.rows.row_mut(column).copy_from_slice(&self.row);
                    self.rank += 1;
                    return true;
                }
                // Rows are zero before their own column.
                for (word, known) in self.row[index..].iter_mut().zip(&known[index..]) {
                    *word ^= known;
                }
            }
        }
        false
    }

    /// Returns the rank of all rows that arrived.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns whether the rank is full.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.rank == self.code.source_packets()
    }
}
