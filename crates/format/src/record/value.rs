//! The bytes of a value, in place if they are few.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

/// The longest value that takes no memory of its own: extents, back references, counters and marks are shorter. A longer
/// array would make every value larger. An optional value takes one word more.
const INLINE: usize = 23;
const _: () = assert!(size_of::<Value>() == size_of::<Bytes>());
const _: () = assert!(size_of::<Option<Value>>() <= size_of::<Bytes>() + size_of::<usize>());

/// A value of the index: opaque bytes. Clones of a short value are copies, and those of a longer one share its memory.
///
/// # Examples
///
/// ```
/// # use cauchyfs_format::record::Value;
/// let short = Value::from(b"short");
/// assert_eq!(&*short, b"short");
/// assert_eq!(Value::from(vec![7; 1000]).len(), 1000);
/// ```
#[derive(Clone)]
pub struct Value(Storage);

#[derive(Clone)]
enum Storage {
    /// The first `len` bytes of the array.
    Inline {
        len: u8,
        bytes: [u8; INLINE],
    },
    Shared(Bytes),
}

impl Value {
    /// Returns a value of these bytes.
    #[must_use]
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Self::inline(bytes).unwrap_or_else(|| Self(Storage::Shared(Bytes::copy_from_slice(bytes))))
    }

    fn inline(short: &[u8]) -> Option<Self> {
        let mut bytes = [0; INLINE];
        bytes.get_mut(..short.len())?.copy_from_slice(short);
        let len = u8::try_from(short.len()).ok()?;
        Some(Self(Storage::Inline { len, bytes }))
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Storage::Shared(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::inline(&bytes).unwrap_or(Self(Storage::Shared(bytes)))
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::inline(&bytes).unwrap_or_else(|| Self(Storage::Shared(bytes.into())))
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Self {
        Self::copy_from_slice(bytes)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::copy_from_slice(text.as_bytes())
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StripeId;
    use crate::record::{Backref, Counter, Extent, Marker, Record};

    #[test]
    fn values_keep_their_bytes_whatever_their_lengths() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 255, 256, 257, 70_000] {
            let bytes: Vec<u8> = (1..=251).cycle().take(len).collect();
            let values = [
                Value::copy_from_slice(&bytes),
                Value::from(Bytes::from(bytes.clone())),
                Value::from(bytes.clone()),
            ];
            for value in &values {
                assert!(**value == *bytes && *value.clone() == *bytes, "{len} bytes");
                assert!(*value == values[0], "{len} bytes");
            }
            let mut other = bytes;
            if let Some(last) = other.last_mut() {
                *last = 0;
                assert!(Value::from(other) != values[0], "{len} bytes");
            }
        }
    }

    /// A value that is shared points elsewhere, and each of its clones to the same place.
    #[test]
    fn records_of_a_small_write_take_no_memory_of_their_own() {
        let is_inline = |value: Value| value.as_ptr() != value.clone().as_ptr();
        let extent = Extent {
            len: u64::MAX,
            stripe: StripeId(u64::MAX),
            stripe_offset: u32::MAX,
        };
        let backref = Backref {
            len: u64::MAX,
            stripe_offset: u32::MAX,
        };
        assert!(is_inline(extent.encode()));
        assert!(is_inline(backref.encode()));
        assert!(is_inline(Counter(u64::MAX).encode()));
        assert!(is_inline(Marker.encode()));
        assert!(!is_inline(Value::from(vec![7; INLINE + 1])));
    }
}
