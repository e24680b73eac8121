//! Reading fields from bytes that may hold anything. Writing goes through [`bytes::BufMut`].

use super::FormatError;

/// The greatest count that a field may hold. Volumes never come near it, so counting on from a count that
/// was read never overflows.
pub const MAX_COUNT: u64 = 1 << 63;

/// Takes fields off the front of a byte string; every call checks that the bytes are there.
///
/// # Examples
///
/// ```
/// # use cauchyfs_format::{FormatError, wire::Reader};
/// let mut reader = Reader::new("pair", &[1, 0, 2]);
/// assert_eq!(reader.u16(), Ok(1));
/// assert_eq!(reader.u8(), Ok(2));
/// assert_eq!(reader.u8(), Err(FormatError::Truncated { what: "pair", len: 3, needed: 4 }));
/// assert_eq!(reader.finish(), Ok(()));
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
    taken: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`, which are taken for a `what`.
    #[must_use]
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            what,
            rest: bytes,
            taken: 0,
        }
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.short(len))?;
        self.rest = rest;
        self.taken += len;
        Ok(head)
    }

    /// Takes the next `N` bytes as an array.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or_else(|| self.short(N))?;
        self.rest = rest;
        self.taken += N;
        Ok(*head)
    }

    /// Takes a byte.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if there is none left.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    /// Takes a little-endian `u16`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer than 2 bytes are left.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a little-endian `u32`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer than 4 bytes are left.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a little-endian `u64`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer than 8 bytes are left.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a little-endian `u64` that something is counted by.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer than 8 bytes are left, [`FormatError::Field`] beyond
    /// [`MAX_COUNT`].
    pub fn count(&mut self, field: &'static str) -> Result<u64, FormatError> {
        match self.u64()? {
            count if count <= MAX_COUNT => Ok(count),
            count => Err(self.bad(field, count)),
        }
    }

    /// Takes a little-endian `i64`.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer than 8 bytes are left.
    pub fn i64(&mut self) -> Result<i64, FormatError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Takes a big-endian `u64`, as keys hold them.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] if fewer than 8 bytes are left.
    pub fn u64_be(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes the version byte that every record begins with.
    ///
    /// # Errors
    ///
    /// [`FormatError::Version`] if it is not `known`, [`FormatError::Truncated`] if it is missing.
    pub fn version(&mut self, known: u8) -> Result<(), FormatError> {
        match self.u8()? {
            found if found == known => Ok(()),
            found => Err(FormatError::Version {
                what: self.what,
                found: found.into(),
                known: known.into(),
            }),
        }
    }

    /// Says whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.taken += self.rest.len();
        std::mem::take(&mut self.rest)
    }

    /// Says that the structure ends here.
    ///
    /// # Errors
    ///
    /// [`FormatError::Trailing`] if bytes are left.
    pub fn finish(self) -> Result<(), FormatError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(FormatError::Trailing {
            what: self.what,
            extra: self.rest.len(),
        })
    }

    /// Returns the error that `field` holds the impossible `value`.
    #[must_use]
    pub fn bad(&self, field: &'static str, value: impl Into<u64>) -> FormatError {
        FormatError::Field {
            what: self.what,
            field,
            value: value.into(),
        }
    }

    fn short(&self, len: usize) -> FormatError {
        FormatError::Truncated {
            what: self.what,
            len: self.taken + self.rest.len(),
            needed: self.taken.saturating_add(len),
        }
    }
}
