//! The arguments of `cauchyfs quota`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::size::parse_size;
use crate::fs::LimitChange;

/// Limit the bytes and files below a directory of a mounted volume. Programs get EDQUOT ("Disk quota exceeded") beyond
/// a limit, and `df` of the directory shows what is left.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs quota set /mnt/photos/ann --bytes 50GiB --files 100000
  cauchyfs quota set /mnt/photos/ann --files none      # the other limit stays
  cauchyfs quota show /mnt/photos  # all quotas of the volume
  cauchyfs quota show --json /mnt/photos/ann  # those that count this directory
  cauchyfs quota clear /mnt/photos/ann

Bytes are counted as `du` counts them: the storage of each file in units of 512 bytes, holes left out, and \
what two files share for each of them. Extended attributes do not count. Every file, directory, link and device counts as one file, and so does the \
directory itself. A file that is removed counts until the last program closes it.

A quota may lie in another one: everything then counts for both, and the tighter limit decides. \
Renaming and linking from one quota to another fails with EXDEV, so `mv` copies.

While less than 64 MiB are left, files that are opened for writing bypass the page cache of the kernel, so that \
a write which is too much is refused at once (Linux 6.6 and later). Where the kernel opens files by itself, only \
new files do so until the next mount. Into other files programs write through the page cache. If the quota is \
used up by the time the kernel writes that back, fsync tells them, later writes do, and close does with EIO. \
Bytes that are lost so still count. With -o no_writeback every write is refused at once.

Once a quota was set, versions of cauchyfs without quotas refuse the volume, even after `clear`.")]
pub(in crate::cli) struct QuotaArguments {
    #[command(subcommand)]
    pub(in crate::cli) command: QuotaCommand,
}

/// The commands for quotas.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum QuotaCommand {
    /// Give a directory a quota, or change its limits. What it holds is counted first; that goes on if this is
    /// interrupted, and the limits hold meanwhile for what is counted.
    #[command(after_help = "Examples:
  cauchyfs quota set /mnt/photos/ann --bytes 50GiB --files 100000
  cauchyfs quota set /mnt/photos/ann --files none      # the other limit stays")]
    Set(SetQuotaArguments),
    /// Show all quotas of a mount, or those that count a directory, the innermost first.
    #[command(after_help = "Examples:
  cauchyfs quota show /mnt/photos
  cauchyfs quota show --json /mnt/photos/ann

With --json, `state` is in_force, counting (what the directory held before), or stopped (that is not counted, \
and the log says why).")]
    Show(ShowQuotaArguments),
    /// Take the quota of a directory away. One around it goes on to count everything.
    #[command(
        visible_alias = "remove",
        after_help = "Examples:
  cauchyfs quota clear /mnt/photos/ann"
    )]
    Clear(ClearQuotaArguments),
}

/// Arguments of `quota set`.
#[derive(Debug, Args)]
pub(in crate::cli) struct SetQuotaArguments {
    /// The most bytes of files, or `none`.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes_limit, required_unless_present = "files")]
    pub(in crate::cli) bytes: Option<LimitChange>,
    /// The most files, or `none`.
    #[arg(long, value_name = "N", value_parser = parse_files_limit)]
    pub(in crate::cli) files: Option<LimitChange>,
    /// A directory of a mounted volume.
    #[arg(value_name = "DIR")]
    pub(in crate::cli) directory: PathBuf,
}

/// Arguments of `quota show`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowQuotaArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(in crate::cli) json: bool,
    /// Where the volume is mounted, or a directory in it.
    #[arg(value_name = "MOUNTPOINT | DIR")]
    pub(in crate::cli) directory: PathBuf,
}

/// Arguments of `quota clear`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ClearQuotaArguments {
    /// The directory.
    #[arg(value_name = "DIR")]
    pub(in crate::cli) directory: PathBuf,
}

/// Parses a limit of bytes.
fn parse_bytes_limit(text: &str) -> Result<LimitChange, String> {
    match text.trim() {
        "none" => Ok(LimitChange::Remove),
        size => parse_size(size).map(LimitChange::Set),
    }
}

/// Parses a limit of files.
fn parse_files_limit(text: &str) -> Result<LimitChange, String> {
    match text.trim() {
        "none" => Ok(LimitChange::Remove),
        count => count
            .parse()
            .map(LimitChange::Set)
            .map_err(|_| format!("`{count}` is no number of files; write it like 100000, or none")),
    }
}
