//! The access for which a volume is opened.

/// The access for which a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written to any member; writers are locked out.
    ReadOnly,
    /// Members are locked; superblocks are written when membership changes.
    ReadWrite,
}
