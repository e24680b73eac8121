//! The `cauchyfs` binary.

use std::process::ExitCode;

/// Ends the process with a message at the limit that a command has set itself.
#[global_allocator]
static ALLOCATOR: cauchyfs_sandbox::memory::Allocator = cauchyfs_sandbox::memory::Allocator;

fn main() -> ExitCode {
    cauchyfs::cli::run()
}
