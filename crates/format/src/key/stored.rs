//! The bytes of a key, in place.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

/// The longest key that takes no memory of its own. All keys but those with names are shorter.
const INLINE: usize = 32;

/// A key of the index: opaque bytes, ordered as such.
///
/// A map of keys compares some ten of them for each look-up. So short keys lie in the nodes of the map.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Key(SmallVec<[u8; INLINE]>);

impl Ord for Key {
    /// The order of the bytes. Keys consist of numbers of eight bytes for the most part, so eight are compared at once.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut a, mut b): (&[u8], &[u8]) = (self, other);
        while let (Some((a_word, a_rest)), Some((b_word, b_rest))) =
            (a.split_first_chunk(), b.split_first_chunk())
        {
            if a_word != b_word {
                return u64::from_be_bytes(*a_word).cmp(&u64::from_be_bytes(*b_word));
            }
            (a, b) = (a_rest, b_rest);
        }
        a.cmp(b)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Key {
    /// Returns a key of these bytes.
    #[must_use]
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    /// Returns a key of these parts, one after the other.
    #[must_use]
    pub fn concat(parts: &[&[u8]]) -> Self {
        let mut bytes = SmallVec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        Self(bytes)
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self::copy_from_slice(&bytes)
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::copy_from_slice(text.as_bytes())
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_from_slice(bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Key {
    fn from(bytes: &[u8; N]) -> Self {
        Self::copy_from_slice(bytes)
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::copy_from_slice(text.as_bytes())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "b\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_order_of_their_bytes_whatever_their_lengths() {
        let lens = [0, 1, 2, INLINE - 1, INLINE, INLINE + 1, 2 * INLINE];
        let bytes = |len| [0, 1, u8::MAX].map(|byte| vec![byte; len]);
        let mut all: Vec<Vec<u8>> = lens.into_iter().flat_map(bytes).collect();
        // Others differ in one byte alone.
        for place in 0..20 {
            all.push(vec![7; 20]);
            all.last_mut().expect("it was pushed")[place] = 200;
        }
        for a in &all {
            for b in &all {
                let keys = [a, b].map(|bytes| Key::copy_from_slice(bytes));
                assert_eq!(keys[0].cmp(&keys[1]), a.cmp(b), "{a:?} {b:?}");
                assert_eq!(keys[0] == keys[1], a == b, "{a:?} {b:?}");
            }
        }
    }
}
