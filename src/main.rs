//! The `cauchyfs` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    cauchyfs::cli::run()
}
