//! The reasons why bytes from a disk were refused.

use std::fmt;

use super::NAME_MAX;

/// The reason why bytes are not what they are taken for. Nothing here can be retried: the bytes are damaged,
/// or were written by a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes end before the structure does.
    #[error("{what} is cut off: {len} bytes, {needed} needed")]
    Truncated {
        /// The structure.
        what: &'static str,
        /// Bytes that were there.
        len: usize,
        /// Bytes that the fields read so far need at least.
        needed: usize,
    },

    /// Bytes follow after the structure's end.
    #[error("{what} is followed by {extra} stray bytes")]
    Trailing {
        /// The structure.
        what: &'static str,
        /// Bytes after its end.
        extra: usize,
    },

    /// The structure does not begin with its magic number or key tag.
    #[error("{what} does not begin as one")]
    Magic {
        /// The structure.
        what: &'static str,
    },

    /// The structure was written in a version that this build does not know.
    #[error("{what} has version {found}, this build knows {known}")]
    Version {
        /// The structure.
        what: &'static str,
        /// Version found.
        found: u16,
        /// Newest version this build reads.
        known: u16,
    },

    /// The structure uses features without which this build would misread it.
    #[error("{what} needs features {unknown:#x}, which this build does not know")]
    Features {
        /// The structure.
        what: &'static str,
        /// The unknown feature bits.
        unknown: u64,
    },

    /// A field holds a value that it never has.
    #[error("{what} has {field} {value}")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value that it holds.
        value: u64,
    },

    /// A name is none that POSIX allows, so it must never reach a program that opens it.
    #[error("{what} has {fault}")]
    Name {
        /// The structure.
        what: &'static str,
        /// The rule that the name breaks.
        fault: NameFault,
    },

    /// The checksum does not match the bytes.
    #[error("{what} has checksum {computed:08x}, {stored:08x} stored")]
    Checksum {
        /// The structure.
        what: &'static str,
        /// Checksum stored with the bytes.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
}

/// Rule of names that a name breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameFault {
    /// It has no bytes.
    Empty,
    /// It has more bytes than a name or a target may have.
    TooLong {
        /// Bytes found.
        len: usize,
    },
    /// It is `.` or `..`, which every directory has and no record holds.
    Dots,
    /// It holds `/`, which separates names.
    Slash,
    /// It holds a NUL, which ends strings of the system.
    Nul,
}

impl NameFault {
    /// Returns the rule that the name of a directory entry breaks, if it breaks one.
    #[must_use]
    pub fn of_entry(name: &[u8]) -> Option<Self> {
        match name {
            b"." | b".." => Some(Self::Dots),
            _ if name.contains(&b'/') => Some(Self::Slash),
            _ => Self::of_bytes(name, NAME_MAX),
        }
    }

    /// Returns the rule that a string of at most `most` bytes breaks, if it breaks one.
    #[must_use]
    pub fn of_bytes(bytes: &[u8], most: usize) -> Option<Self> {
        match bytes.len() {
            0 => Some(Self::Empty),
            len if len > most => Some(Self::TooLong { len }),
            _ if bytes.contains(&0) => Some(Self::Nul),
            _ => None,
        }
    }
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("an empty name"),
            Self::TooLong { len } => write!(f, "a name of {len} bytes"),
            Self::Dots => f.write_str("`.` or `..` for a name"),
            Self::Slash => f.write_str("a name with a slash"),
            Self::Nul => f.write_str("a name with a NUL"),
        }
    }
}
