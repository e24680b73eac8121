//! The `cauchyfs` binary.

fn main() {}
