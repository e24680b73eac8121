//! The arguments of `cauchyfs bench`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{Args, Subcommand, ValueEnum};

use crate::bench::fs::Load;
use crate::bench::papers::Source;
use crate::bench::rateless::{USUAL_MESSAGES, USUAL_PACKETS};
use crate::bench::{Operation, WorkingSet};
use crate::cli::size::parse_size;

/// Measure what this machine can do.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs bench codec                       # everything: about two minutes
  cauchyfs bench codec --json --data 10 --parity 4 --shard-bytes 64KiB
  cauchyfs bench fs /mnt/photos  # a mounted volume, its disks, and FUSE
  cauchyfs bench schedule  # XORs of the codes that know nothing else
  cauchyfs bench rateless  # the random code: about two minutes, more with a GPU
  cauchyfs bench papers  # figures of the literature: about a minute")]
pub(in crate::cli) struct BenchArguments {
    #[command(subcommand)]
    pub(super) what: What,
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub(super) enum What {
    Codec(CodecArguments),
    Fs(FsArguments),
    Papers(PapersArguments),
    Rateless(RatelessArguments),
    Schedule(ScheduleArguments),
}

/// Measure engines and codes: GB/s of data, next to what plain XOR of the same shards reaches in
/// the same seconds. ISA-L is measured as well where libisal.so.2 can be loaded. The engine that `auto`
/// picks is marked, and measured in every way. The others, and the other codes, encode shards of 64 KiB in
/// the cache on one thread unless they are named. Lists are separated by commas. An option that is not
/// given takes the usual values.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs bench codec
  cauchyfs bench codec --data 10 --parity 4 --op encode,decode \\
      --working-set warm
  cauchyfs bench codec --engine avx2,gfni512 --shard-bytes 64KiB --threads 1
  cauchyfs bench codec --code crs-w8 --json --seconds 0.1
  cauchyfs bench codec --engine cuda --working-set pinned --data 10 \\
      --parity 1,2,3,4
  cauchyfs bench codec --engine cuda --working-set pinned --threads 4 \\
      --stripes 1,8
  # next to an ISA-L of your own
  LD_LIBRARY_PATH=~/isa-l/lib cauchyfs bench codec")]
pub(super) struct CodecArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// Data shards of a stripe.
    #[arg(long, value_name = "K", value_delimiter = ',')]
    pub(super) data: Vec<usize>,
    /// Parity shards of a stripe.
    #[arg(long, value_name = "M", value_delimiter = ',')]
    pub(super) parity: Vec<usize>,
    /// Length of a shard.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = shard_size)]
    pub(super) shard_bytes: Vec<usize>,
    /// Threads that code at once, each stripes of its own; for GPUs, callers who wait for them.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(super) threads: Vec<usize>,
    /// Stripes that each of them hands over to GPUs by one call, and waits for together; one unless given.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(super) stripes: Vec<usize>,
    /// Engines: auto, cpu, cuda, or by name.
    #[arg(long = "engine", value_name = "ENGINE", value_delimiter = ',')]
    pub(super) engines: Vec<String>,
    /// Codes.
    #[arg(long = "code", value_name = "CODE", value_delimiter = ',')]
    pub(super) codes: Vec<String>,
    /// Operations on stripes; decode loses as many data shards as there are parities.
    #[arg(long = "op", value_name = "OP", value_delimiter = ',')]
    pub(super) operations: Vec<OperationName>,
    /// Where stripes lie: one stripe in the cache, or 256 MiB of them in turn; for GPUs, these in memory
    /// that is pinned, or pageable, or 2 GiB of them in the memory of the first GPU.
    #[arg(long = "working-set", value_name = "SET", value_delimiter = ',')]
    pub(super) working_sets: Vec<WorkingSetName>,
    /// How long to measure each row.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) seconds: Option<f64>,
}

/// The most threads of a job.
const MOST_JOBS: u64 = 256;

/// Measure a directory by the usual jobs: sequential and random reads and writes, writes with an fdatasync after
/// each, and work on many small files. Beside it, in the same run, two others show where the time goes. One is a
/// directory on the disk of one member, if DIR is on a volume. The other is a filesystem in memory that is mounted
/// through FUSE in the same way. With the defaults this takes about two minutes. `--plain` adds another filesystem in
/// memory, whose bytes also go into plain files beside the members, and takes longer. It works in new directories, which it removes. If it is killed,
/// or interrupted twice, directories named cauchyfs-bench-* stay, and can be removed by hand.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs bench fs /mnt/photos
  cauchyfs bench fs --json --size 1GiB --seconds 10 --jobs 32 /mnt/photos
  cauchyfs bench fs --below /srv /mnt/photos      # compare with this directory
  cauchyfs bench fs --plain /mnt/photos           # and with plain files

Random reads bypass the kernel's page cache where the filesystem takes O_DIRECT. Sequential reads begin with \
POSIX_FADV_DONTNEED. Neither empties the cache of a volume's own daemon: choose a --size above its \
--cache-size to read from the members. The filesystem in memory keeps the lengths of \
large files, and few of their bytes. The kernel caches up to twice the size of them.")]
pub(super) struct FsArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// Directory to compare with; by default one on the disk of a member.
    #[arg(long, value_name = "DIR2")]
    pub(super) below: Option<PathBuf>,
    /// Measure a filesystem in memory that also writes plain files beside the first members, one for each shard of a
    /// stripe. They have no checksums, no code and no metadata. Reads of the large file are reads of them. Where DIR is
    /// written, or its large file is read, the time beyond that is the volume's own work. Each file needs twice the length of
    /// the large file, divided by the data shards, and about 1 MiB.
    #[arg(long)]
    pub(super) plain: bool,
    /// Length of the large file. Each directory needs six times as much free space.
    #[arg(long, default_value = "256MiB", value_name = "SIZE", value_parser = large_size)]
    pub(super) size: u64,
    /// How long to measure each job that has no end of its own.
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = seconds)]
    pub(super) seconds: f64,
    /// Threads of the jobs that are measured with one thread and with several.
    #[arg(long, default_value_t = 16, value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_JOBS))]
    pub(super) jobs: usize,
    /// This is the process that serves the filesystem in memory at DIR.
    #[arg(long, hide = true, value_name = "TRANSPORT",
        value_parser = PossibleValuesParser::new(["auto", "classic"]))]
    pub(super) serve: Option<String>,
    #[command(flatten)]
    pub(super) plain_files: PlainArguments,
    /// The directory to measure, for example a mountpoint.
    #[arg(value_name = "DIR")]
    pub(super) directory: PathBuf,
}

/// The plain files of the process that serves the filesystem in memory.
#[derive(Debug, Args)]
pub(super) struct PlainArguments {
    /// A directory for a plain file, once for each shard of a stripe.
    #[arg(
        long = "plain-directory",
        hide = true,
        requires = "serve",
        value_name = "DIR"
    )]
    pub(super) directories: Vec<PathBuf>,
    /// The plain files that are parity files.
    #[arg(
        long = "plain-parity",
        hide = true,
        requires = "serve",
        default_value_t = 0,
        value_name = "M"
    )]
    pub(super) parity: usize,
    /// The most bytes of a shard.
    #[arg(
        long = "plain-unit",
        hide = true,
        requires = "serve",
        default_value_t = 0,
        value_name = "BYTES"
    )]
    pub(super) unit_bytes: u32,
}

/// The most messages whose completeness is counted, and that are decoded by one call.
const MOST_MESSAGES: u64 = 10_000_000;

/// Measure the random code over GF(2): which share of messages is complete after so many packets, next to the exact
/// probability; how long each decoder takes for one message, with packets of 8192 bits and ten more than needed; and
/// the same for many messages of 32 packets by one call. If there is a GPU, it is measured, too: kernels alone, and from
/// pinned memory and back, next to the bus. Speed-ups are over serial elimination on rows and packets, one bit a step, in
/// the same run. With the defaults this takes about two minutes, and 5 GB of memory; the GPU takes more time, and as much of
/// its own memory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs bench rateless
  cauchyfs bench rateless --json --packets 32,1024 --messages 1024
  # a finer count of complete messages
  cauchyfs bench rateless --packets 64 --trials 1000000

Completeness is counted for up to 256 source packets, since it hardly depends on their number.")]
pub(super) struct RatelessArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// Source packets of a message.
    #[arg(long, value_name = "K", value_delimiter = ',', default_values_t = USUAL_PACKETS)]
    pub(super) packets: Vec<usize>,
    /// Messages that are decoded by one call.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = USUAL_MESSAGES,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_MESSAGES))]
    pub(super) messages: Vec<usize>,
    /// Messages whose completeness is counted.
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_MESSAGES))]
    pub(super) trials: usize,
    /// How long to measure each row at least; it has three runs or more.
    #[arg(long, value_name = "SECONDS", default_value = "0.3", value_parser = seconds)]
    pub(super) seconds: f64,
}

/// Measure what five sources of the literature have figures for, and print these beside ours, with the ratio: a table for
/// each source. A ratio says how many times as fast or good ours is, so higher is better in every row. Whatever needs a GPU says `no GPU` on a machine without one. The figures come from other hardware, which
/// the last column names. With the defaults this takes about a minute, and 5 GB of memory for the thesis.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs bench papers
  cauchyfs bench papers --json
  cauchyfs bench papers --source fast19,opencl --seconds 1

The sources are G-CRS (Cauchy Reed-Solomon on GPUs), the FAST '19 study of XOR codes, a thesis on the random code, \
GPU-RSCode (Reed-Solomon on a GPU with several streams), and a study of OpenCL on CPU, GPU and FPGA.")]
pub(super) struct PapersArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// Measure these sources only.
    #[arg(long = "source", value_name = "SOURCE", value_delimiter = ',')]
    pub(super) sources: Vec<SourceName>,
    /// How long to measure most figures.
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    pub(super) seconds: f64,
}

/// Count the XORs and copies of packets that the codes crs-w4 to crs-w8 take. Table 3 of the FAST '19
/// study has the counts beside them. With --search, look for shorter schedules, and print them in the
/// form of crates/codec/src/points.rs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs bench schedule
  cauchyfs bench schedule --search 500  # of the study's geometries: minutes
  cauchyfs bench schedule --code crs-w6 --data 5 --parity 3 --search 50 \\
      --new-points")]
pub(super) struct ScheduleArguments {
    /// The code.
    #[arg(long)]
    pub(super) code: Option<String>,
    /// Data shards of a stripe.
    #[arg(long, value_name = "K")]
    pub(super) data: Option<usize>,
    /// Parity shards of a stripe.
    #[arg(long, value_name = "M")]
    pub(super) parity: Option<usize>,
    /// Look for a shorter schedule, with so many seeds.
    #[arg(long, value_name = "TRIES")]
    pub(super) search: Option<u32>,
    /// Look for other points of the Cauchy matrix, too: of a geometry that no volume has yet, since
    /// they change parity.
    #[arg(long, requires = "search")]
    pub(super) new_points: bool,
}

/// The names of [`Operation`]s.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum OperationName {
    Encode,
    Decode,
    Verify,
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Encode => Self::Encode,
            OperationName::Decode => Self::Decode,
            OperationName::Verify => Self::Verify,
        }
    }
}

/// The names of [`WorkingSet`]s.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum WorkingSetName {
    Warm,
    Cold,
    Device,
    Pinned,
    Pageable,
}

impl From<WorkingSetName> for WorkingSet {
    fn from(name: WorkingSetName) -> Self {
        match name {
            WorkingSetName::Warm => Self::Warm,
            WorkingSetName::Cold => Self::Cold,
            WorkingSetName::Device => Self::Device,
            WorkingSetName::Pinned => Self::Pinned,
            WorkingSetName::Pageable => Self::Pageable,
        }
    }
}

/// The names of [`Source`]s.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum SourceName {
    GCrs,
    Fast19,
    Thesis,
    GpuRscode,
    Opencl,
}

impl From<SourceName> for Source {
    fn from(name: SourceName) -> Self {
        match name {
            SourceName::GCrs => Self::GCrs,
            SourceName::Fast19 => Self::Fast19,
            SourceName::Thesis => Self::Thesis,
            SourceName::GpuRscode => Self::GpuRscode,
            SourceName::Opencl => Self::Opencl,
        }
    }
}

fn shard_size(text: &str) -> Result<usize, String> {
    usize::try_from(parse_size(text)?).map_err(|_| format!("`{text}` is too large"))
}

fn large_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size if size < Load::LEAST_SIZE => Err(format!("`{text}` is too small; 1MiB is the least")),
        size => Ok(size),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let range = f64::MIN_POSITIVE..=3600.0;
    let parsed = text.parse().ok().filter(|seconds| range.contains(seconds));
    parsed.ok_or_else(|| format!("`{text}` is no time; write seconds, above 0 and up to 3600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_has_a_mebibyte_at_least() {
        assert_eq!(large_size("1M"), Ok(1 << 20));
        for text in ["0", "1023K", "x"] {
            assert!(large_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_that_cannot_be_waited_for_are_refused() {
        assert_eq!(seconds("0.01"), Ok(0.01));
        for text in ["0", "-1", "inf", "nan", "x", "1e9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
