//! Backing directories: the one layer that touches files.
