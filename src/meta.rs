//! Metadata: a replicated journal before an ordered index.
