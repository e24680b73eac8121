//! A thin adapter from FUSE requests to [`crate::fs`].
