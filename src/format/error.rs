//! Why bytes from a disk were refused.

/// Why bytes are not what they are taken for. Nothing here can be retried: the bytes are damaged, or
/// were written by a newer version.
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
        /// What it holds.
        value: u64,
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
