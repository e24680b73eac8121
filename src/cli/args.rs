//! Commands, arguments and help.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use clap::{ArgAction, Args, Parser, Subcommand};

use super::alerts::AlertsArguments;
use super::bench::BenchArguments;
use super::completions::CompletionsArguments;
use super::dashboard::DashboardArguments;
use super::manual::ManArguments;
use super::quota::QuotaArguments;
use super::sandbox::SandboxArguments;
use super::service::ServiceArguments;
use super::size::parse_size;
use super::time::{Since, Wait, parse_since, parse_time, parse_timeout, parse_wait};
use super::version;

/// Where an option that every command has stands in its help.
const LAST: usize = 900;

/// Threads that serve requests at most: each has a buffer for the longest request.
const MOST_THREADS: u64 = 256;

/// A POSIX filesystem over K+M directories, any M of which may die.
#[derive(Debug, Parser)]
#[command(
    name = "cauchyfs",
    version,
    long_version = version::long(),
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:
  cauchyfs create --data 4 --parity 2 /srv/d0 /srv/d1 /srv/d2 /srv/d3 /srv/d4 \\
      /srv/d5
  cauchyfs mount /srv/d* /mnt/photos
  cauchyfs status /mnt/photos
  cauchyfs unmount /mnt/photos

Exit codes: 0 done, 1 wrong usage, 2 the environment or I/O failed, \
3 done or running but degraded or incomplete, 4 data is lost."
)]
pub(super) struct Arguments {
    /// Log more; twice for everything.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = LAST)]
    pub(super) verbose: u8,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Create(CreateArguments),
    Mount(Box<MountArguments>),
    Unmount(UnmountArguments),
    Status(StatusArguments),
    Usage(UsageArguments),
    Events(EventsArguments),
    Alerts(AlertsArguments),
    Dashboard(DashboardArguments),
    Check(CheckArguments),
    Extract(ExtractArguments),
    Scrub(ScrubArguments),
    Rebuild(RebuildArguments),
    Balance(BalanceArguments),
    Pause(PauseArguments),
    Resume(ResumeArguments),
    Set(SetArguments),
    Quota(QuotaArguments),
    Member(MemberArguments),
    Bench(BenchArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
}

/// Make a volume over N ≥ K+M directories, which are created if absent and refused unless empty.
/// Directories, also those that were there, get mode 0700 and files 0600. Prints the volume's id.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs create --data 4 --parity 2 d0 d1 d2 d3 d4 d5
  # more than K+M is fine
  cauchyfs create --data 4 --parity 2 --label photos /srv/disk{0..7}")]
pub(super) struct CreateArguments {
    /// Data shards of a stripe.
    #[arg(long, value_name = "K")]
    pub(super) data: u16,
    /// Parity shards of a stripe: how many directories may be lost.
    #[arg(long, value_name = "M")]
    pub(super) parity: u16,
    /// Bytes that a segment takes in each of its directories [default: 256MiB]. In all sizes, 4M, 4MB and 4MiB are the same, units are
    /// powers of 1024, and 1.5GiB is fine.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) segment_size: Option<u64>,
    /// Bytes of a full stripe in each of its directories.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_size)]
    pub(super) stripe_unit: u64,
    /// The erasure code. rs-cauchy and rs-fft are for any K+M up to 255; rs-fft takes less time if M is about 8 or
    /// more, and builds of this program that do not know it refuse the volume. crs-w4, crs-w5, crs-w6, crs-w7 and crs-w8 compute with XOR
    /// alone, and are for K+M up to 16, 32, 64, 128 and 255. random-gf2 adds up data shards by random rows that `create`
    /// searches for: K+M up to 64, K and M from 2, M up to 16; with M = 2, K up to about 45. It survives fewer losses than M for sure, and says how many.
    #[arg(long, default_value = "rs-cauchy", value_name = "CODE")]
    pub(super) code: String,
    /// A name of your choice, shown by `status` and `df`.
    #[arg(long, default_value = "")]
    pub(super) label: String,
    /// Make it as root although a directory belongs to another user.
    #[arg(long)]
    pub(super) trust_members: bool,
    /// The directories, each best on a disk of its own.
    #[arg(value_name = "DIR", required = true)]
    pub(super) directories: Vec<PathBuf>,
}

/// Mount a volume: any order of its directories, any subset that suffices. Returns when the mount is
/// usable and leaves a daemon behind; exits with 3 if directories are missing. A directory that is named
/// and missing is taken in as soon as it is there. One that is not named stays out, until
/// `cauchyfs member replace MOUNTPOINT DIR DIR` takes it in.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of its own, independent of the others"
)]
#[derive(Debug, Args)]
#[command(
    override_usage = "cauchyfs mount [OPTIONS] DIR... MOUNTPOINT\n       cauchyfs mount [OPTIONS] --volume NAME",
    args_override_self = true,
    after_help = "Examples:
  cauchyfs mount d0 d1 d2 d3 d4 d5 /mnt/photos
  cauchyfs mount -o ro,noatime d0 d1 d2 d3 /mnt/photos  # two of six are gone
  cauchyfs mount --volume photos  # as /etc/cauchyfs/volumes/photos.conf says
  # as fstab does
  mount -t cauchyfs /srv/d0:/srv/d1:/srv/d2 /mnt/photos -o cache-size=1GiB

Options for -o: ro, rw, allow_other, nosuid, nodev, noexec, suid, dev, exec, noatime, relatime, \
strictatime, sync, dirsync, no_writeback, open_requests, fsname=NAME, and every long option above \
as name or name=value, which the same option without -o overrides. With \
open_requests the kernel requests each open of a file from the daemon. Small files are then \
slower to read, and the daemon knows which files are written. default_permissions is always on, \
and so are nosuid and nodev unless suid or dev is given by name (`defaults` gives neither; in \
fstab write allow_suid and allow_dev, since mount(8) does not pass the short names on); _netdev, \
nofail, user and x-* are for others and ignored, and so are nodiratime and lazytime. The kernel \
serves what it has cached by itself: such reads set no access time, whatever is chosen."
)]
pub(super) struct MountArguments {
    /// Mount options, separated by commas.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Coding engine: auto, cpu, cuda, or one of the CPU by name.
    #[arg(long, default_value = "auto", value_name = "ENGINE")]
    pub(super) engine: String,
    /// Memory for caches and buffers.
    #[arg(long, default_value = "256MiB", value_name = "SIZE", value_parser = parse_size)]
    pub(super) cache_size: u64,
    /// Threads that serve requests; 0 for one per CPU and two more.
    #[arg(long, default_value_t = 0, value_name = "N",
        value_parser = RangedU64ValueParser::<usize>::new().range(..=MOST_THREADS))]
    pub(super) threads: usize,
    /// How requests of the kernel come. uring has a queue for each CPU; it needs Linux 6.14 or later, with Y in
    /// `/sys/module/fuse/parameters/enable_uring`. auto is uring where that is so, else classic.
    #[arg(long, default_value = "auto", value_name = "TRANSPORT",
        value_parser = PossibleValuesParser::new(["auto", "uring", "classic"]))]
    pub(super) transport: String,
    /// How long a directory may be away before what it held is rebuilt onto the others: 90s, 10m, 2h,
    /// 1d or never.
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = parse_wait)]
    pub(super) rebuild_after: Wait,
    /// How long a directory may take for one operation before it counts as hung, and is marked faulted: from
    /// 1s to 10m.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_timeout)]
    pub(super) member_timeout: Duration,
    /// The policy while a directory is full and the others are too few for all shards. `stop` reports that there is no
    /// space. `degrade` writes fewer shards, which survive fewer losses, and adds the others once there is room.
    #[arg(long, default_value = "stop", value_name = "POLICY",
        value_parser = PossibleValuesParser::new(["stop", "degrade"]))]
    pub(super) full_member: String,
    /// The fate of requests of programs while more directories are away than the volume can lose. `error` fails them.
    /// `wait` has them wait until enough directories are back. A signal ends the wait of a program if it ends the program.
    /// An unmount is refused while programs wait; `unmount --lazy` fails them.
    #[arg(long, default_value = "error", value_name = "POLICY",
        value_parser = PossibleValuesParser::new(["error", "wait"]))]
    pub(super) on_failure: String,
    /// Refuse to remove files once more than this part of them was removed within an hour, until `cauchyfs resume`: 25%.
    /// Off unless given. A file counts that loses its last name, and was there when the hour began, or at the mount if that
    /// is later. Files that a rename replaces by new ones or that are cut do not count. At least 10 may always go, and nothing
    /// is refused before the files are counted, which takes seconds after the mount. Programs see EPERM;
    /// everything else goes on, background work too. It costs a count of all files at the mount and every hour, but for
    /// pauses. The count of removals begins again with a mount. A refusal stays during an outage and for
    /// the next mount with `--interlock`. A mount without it ends the refusal, and a crash none that a program saw.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub(super) interlock: Option<u8>,
    /// Serve metrics for Prometheus over HTTP, at the path `/metrics`. A port alone is one of 127.0.0.1: 9464. Another
    /// address is given with its port: `192.0.2.1:9464` or `[::1]:9464`. All that reach it can read the metrics. A scrape
    /// must name the host by that address, or the loopback as `localhost`: other names are refused, because a web page
    /// could have its own name point here. So give Prometheus the address as the target.
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub(super) metrics: Option<SocketAddr>,
    /// Scrub again when so much time has passed since the last scrub: 30d, 12h. Off unless given.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) scrub_interval: Option<Duration>,
    /// Bytes in a second that background work may write in a rebuild or a compaction, and read in a scrub; no limit
    /// unless given. A compaction that a write waits for has no limit. Commands have `--rate`.
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(super) background_rate: Option<u64>,
    /// Stay in the foreground.
    #[arg(long)]
    pub(super) foreground: bool,
    /// Mount as root although a member, or a file in it, belongs to another user or can be written to by one. Such a
    /// user can then change what root's daemon reads and serves. Without this option the mount is refused. A user who
    /// may write to the directory above a member can always take the member away, but put nothing in its place.
    #[arg(long)]
    pub(super) trust_members: bool,
    /// Write the log to this file, with mode 0600; without it a daemon logs to syslog. Devices such as `/dev/null` and
    /// `/dev/stderr` keep their modes.
    #[arg(long, value_name = "FILE")]
    pub(super) log_file: Option<PathBuf>,
    /// Send alerts to the receivers in this file instead of `/etc/cauchyfs/alerts.toml`, or, for an ordinary user,
    /// `~/.config/cauchyfs/alerts.toml`. `cauchyfs alerts --help` describes it.
    #[arg(long, value_name = "FILE")]
    pub(super) alerts: Option<PathBuf>,
    /// Started by mount(8): degraded is no failure.
    #[arg(long, hide = true)]
    pub(super) fstab: bool,
    /// This is the daemon; standard output is where its parent waits for news.
    #[arg(long, hide = true)]
    pub(super) report: bool,
    /// A directory that is known not to answer; for the daemon, whose parent has waited for it.
    #[arg(long, hide = true, value_name = "DIR")]
    pub(super) silent: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) service: ServiceArguments,
    /// The directories, then where to mount.
    #[arg(value_name = "DIR... MOUNTPOINT", required_unless_present = "volume", num_args = 2..)]
    pub(super) paths: Vec<PathBuf>,
}

impl MountArguments {
    /// Returns whether this process is to be the daemon itself.
    pub(super) fn is_daemon(&self) -> bool {
        self.report || self.foreground
    }
}

/// Flush, stop the daemon, and return once everything is durable. Also clears away a mount whose
/// daemon is dead. If another mount namespace has the mount too, the daemon serves that until the
/// mount is gone there: everything is durable, the process is named, and the exit code is 3.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs unmount /mnt/photos
  cauchyfs unmount --lazy /mnt/photos  # although something below is in use")]
pub(super) struct UnmountArguments {
    /// Do it although files below are in use; their users get errors.
    #[arg(long)]
    pub(super) lazy: bool,
    /// Where it is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Show state, members and what to do next, of a mount or of unmounted directories. Exits with 3 if
/// the volume is degraded, or too few directories are there to read it, with 4 if data is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs status /mnt/photos
  cauchyfs status --json d0 d1 d2 d3 d4 d5

With --json, `redundancy` says how many bytes of files survive how many more losses, counted on the \
directories, and `index` does so for the records: `copies_wanted`, and which `members` have a copy. One \
copy is enough; `index` is null where too few directories are there to look into it. For a member that is \
not in full use, `reason` is a sentence, and `cause` the same for programs: its `kind` is one stable word, \
such as no_directory, failed, flapping, mounted_apart, superblock_damaged or unverified, beside the fields \
that belong to it.")]
pub(super) struct StatusArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) sandbox: SandboxArguments,
    /// A mountpoint, or the directories of an unmounted volume.
    #[arg(value_name = "MOUNTPOINT | DIR", required = true)]
    pub(super) paths: Vec<PathBuf>,
}

/// Show where the space of a mounted volume goes, member by member. For a file in it, show its size, its stripes, the
/// members that hold it, and the losses that it survives now. For a directory, show the same of everything below it. Exits with 3 if the file survives fewer losses than it should, with 4 if bytes of it are lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs usage /mnt/photos
  cauchyfs usage /mnt/photos/2024/beach.jpg
  # a path after the mountpoint begins there
  cauchyfs usage --json /mnt/photos 2024

The columns of a member sum to the bytes that its files take on their filesystem, as `du` counts them, but for \
the directories themselves.

  data          bytes of files, in whole blocks
  parity        shards that make up for lost members
  dead          replaced or deleted bytes; those of dead stripes come free
                within seconds, the others by compaction when room is needed
  preallocated  room of the segments that are being written, so that accepted
                bytes always find room
  journal       two files of equal length on every member, each 1/64 of the
                smallest member and at most 32 MiB, so that an fsync never waits
                for room
  index         a copy of the records of all files, on M+1 members
  held back     beside each copy of the index 1/64 of the member and at most
                64 MiB, as much as the journal: when other programs fill the
                disk, the index still takes in all of the journal, and a full
                volume can be freed by deleting; and where nothing can be
                reserved, the room of all stripes in memory
  other         the superblock, and small files

So an empty volume takes up to 64 MiB on each member, and up to 130 MiB on each with a copy of the index. That is \
less on small members, and does not grow with the data.")]
pub(super) struct UsageArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// Where the volume is mounted, or a path inside.
    #[arg(value_name = "MOUNTPOINT | PATH")]
    pub(super) mountpoint: PathBuf,
    /// A path below the mountpoint.
    #[arg(value_name = "PATH")]
    pub(super) path: Option<PathBuf>,
}

/// Show what happened to a volume. Events tell of members that were missing, slow, full or replaced. They tell of redundancy,
/// rebuilds, scrubs, errors, lost files and room, and of daemons that started, stopped or crashed. Every member keeps the
/// newest of them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs events /mnt/photos
  cauchyfs events --follow --since 2h /mnt/photos
  cauchyfs events --json d0 d1 d2 d3 d4 d5  # of a volume that is not mounted

Each line has the local time, the severity (info, warning or critical), the number of the member, and what \
happened. With --json each line is an object: `time` (RFC 3339), `sequence`, `severity`, `volume`, `member` and its \
`path` (or null), `event`, such as member_missing or scrub_finished, and the numbers that belong to that event. \
A volume that is mounted read-only records nothing on its members. Ctrl-C ends --follow; it goes on when the daemon \
ends and the volume is mounted again.")]
pub(super) struct EventsArguments {
    /// Go on, and show new events as they come.
    #[arg(long)]
    pub(super) follow: bool,
    /// Show events from this time on. It is a span before now, such as 2h or 3d, or a local date or time, such as 2026-11-26
    /// or 2026-11-26T20:00. A time may have a zone, as in 2026-11-26T20:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub(super) since: Option<Since>,
    /// Print one JSON object on each line.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) sandbox: SandboxArguments,
    /// A mountpoint, or directories of a volume.
    #[arg(value_name = "MOUNTPOINT | DIR", required = true)]
    pub(super) paths: Vec<PathBuf>,
}

/// Read every shard, every copy of the index and every superblock of a mounted volume, verify them, and
/// repair what is wrong. Goes on where the last scrub stopped. Exits with 3 if something is missing or
/// could not be repaired, with 4 if data is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs scrub /mnt/photos
  cauchyfs scrub --rate 50MiB /mnt/photos  # read no more than this in a second
  cauchyfs scrub --json /mnt/photos

Files go on being used meanwhile. Ctrl-C stops it, unless others wait for it too; `cauchyfs status` \
says how far it is.")]
pub(super) struct ScrubArguments {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// The most that is read in a second, of all directories together.
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(super) rate: Option<u64>,
    /// Where it is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Bring every stripe back to full redundancy, the most endangered first: onto directories that are back
/// or new, else onto free space of the others. Goes on if this command is interrupted. What was rebuilt before
/// the volume is unmounted, or crashes, stays so; the rest is rebuilt when this is called again, or by itself
/// after `mount --rebuild-after`. Exits with 3 if something could not be rebuilt, with 4 if data is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs rebuild /mnt/photos
  # write no more than 50 MiB a second
  cauchyfs rebuild --rate 50MiB /mnt/photos")]
pub(super) struct RebuildArguments {
    #[command(flatten)]
    pub(super) rebuild: RebuildOptions,
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Stop rebuilds, scrubs, moves of data, compaction and the hourly count of `--interlock`, each after its current step. Programs go on using
/// the volume. Members are still watched and taken back, space is freed, and what is written becomes durable. Commands that
/// order such work are refused. The pause ends with `resume`, or when the volume is unmounted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs pause /mnt/photos
  cauchyfs resume /mnt/photos

While work is paused, lost shards are not rebuilt, and another loss may be one too many. A write that needs room \
still makes room.")]
pub(super) struct PauseArguments {
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Go on with the background work that `pause` stopped. If none is paused, let files be removed again that `--interlock`
/// refused to remove. One order does one of these, and says what is left. A pause ends with the mount, so a `resume` behind a
/// pause that is over allows removals.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs resume /mnt/photos")]
pub(super) struct ResumeArguments {
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Even out the directories: move data from the fullest to the emptiest, until all are equally full, to within
/// one segment. What is missing is rebuilt first. Goes on if this command is interrupted. What was moved stays so,
/// and the same command goes on after an unmount. Exits with 3 if something is missing, with 4 if data is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs balance /mnt/photos
  # write no more than 50 MiB a second
  cauchyfs balance --rate 50MiB /mnt/photos")]
pub(super) struct BalanceArguments {
    #[command(flatten)]
    pub(super) rebuild: RebuildOptions,
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Change the code of a volume while it is in use. New data has the new code at once, and programs only wait a moment for
/// that. Then the data that is there is brought to it. If parity shards are added to rs-cauchy, these alone are written, and
/// all others stay. Any other change writes the data again. A change of the stripe unit also rewrites the data of directories
/// with codes of their own. Every stripe tolerates as many losses as before until it tolerates more. Goes on if this command is
/// interrupted, after a crash, and at the next mount. Another change may follow at any time. Exits with 3 if something could
/// not be brought to it, with 4 if data is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs set --show /mnt/photos
  cauchyfs set --parity 3 /mnt/photos  # one more directory may be lost
  # write no more than 50 MiB a second
  cauchyfs set --parity 3 --rate 50MiB /mnt/photos
  # K+M directories must be there
  cauchyfs set --data 8 --code rs-cauchy /mnt/photos
  cauchyfs set --path /mnt/photos/scratch --data 5 --parity 1 /mnt/photos
  cauchyfs set --path /mnt/photos/scratch --parity 1 --rewrite /mnt/photos
  cauchyfs set --path /mnt/photos/scratch --show /mnt/photos

With --path, files and directories that are made in DIR from now on get the code. Directories below it that had the same \
code follow. A file keeps its code where it is moved, and for what is added to it, until it is copied or rewritten with \
--rewrite. That passes directories by that were given a code of their own. The index survives as many losses as the code \
of the volume, and holds files up to 2048 bytes. So no directory can have more parity. Give the volume the most that any \
needs, and directories less. A directory with the code that the volume has follows later changes of the volume. Free space \
is estimated by the code of the volume. --rewrite is refused if there is too little room for what the new code takes more. \
That is estimated: it counts what other commands left to be rewritten, and bytes that files share for each of them. Others that \
write meanwhile may take the room. The rewriting then waits for some. It waits as well for a directory of the volume that is \
away until that is given up, and longer if the others are too few for the codes of all files that share a stripe. \
A volume can have 15 codes of directories in its life. While a directory or stripes have a code, `member remove` is refused \
if too few members would stay for it. Data that is written while members are too few, or one of them is drained, has the \
code of the volume if that survives more then. It gets its own once there are enough, and stays so if the \
volume has fewer. Once a directory was given a code, versions of cauchyfs without this refuse the volume. --show lists up to \
1000 directories, or says why they are not known; in JSON that is null, and `inode` tells those apart whose names are no UTF-8. \
Exits with 3 if files are yet to be rewritten, some could not be read, or the directories are not known.")]
pub(super) struct SetArguments {
    /// Data shards of a stripe.
    #[arg(long, value_name = "K")]
    pub(super) data: Option<u8>,
    /// Parity shards of a stripe: how many directories may be lost.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) parity: Option<u8>,
    /// The erasure code; `cauchyfs create --help` lists them.
    #[arg(long, value_name = "CODE")]
    pub(super) code: Option<String>,
    /// Bytes of a full stripe in each directory. New data gets this unit at once, and data with another one is rewritten. Data
    /// from before a change by an earlier build keeps its unit.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) stripe_unit: Option<u64>,
    /// Change the code of this directory of the volume, and of what is made below it, instead of that of the volume.
    #[arg(long, value_name = "DIR", conflicts_with = "stripe_unit")]
    pub(super) path: Option<PathBuf>,
    /// Give the files below the directory the code as well, and write their data again.
    #[arg(long, requires = "path", conflicts_with = "show")]
    pub(super) rewrite: bool,
    /// Change nothing, and print the code of new data. Without --path also how much data has which, and the directories
    /// whose code is not that of the directory in which they lie.
    #[arg(long, conflicts_with_all = ["data", "parity", "code", "stripe_unit", "rate"])]
    pub(super) show: bool,
    #[command(flatten)]
    pub(super) rebuild: RebuildOptions,
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
}

/// Change the directories of a mounted volume.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs member add /mnt/photos /srv/d6
  cauchyfs member replace /mnt/photos /srv/d2 /srv/e2
  cauchyfs member replace /mnt/photos 2 /srv/e2
  cauchyfs member remove /mnt/photos /srv/d3")]
pub(super) struct MemberArguments {
    #[command(subcommand)]
    pub(super) change: MemberChange,
}

/// The changes of the members.
#[derive(Debug, Subcommand)]
pub(super) enum MemberChange {
    /// Add an empty directory, made if absent. New data uses it at once, and so does what was lost. Or keep one
    /// that is being removed.
    #[command(after_help = "Examples:
  cauchyfs member add /mnt/photos /srv/d6
  cauchyfs member add --balance /mnt/photos /srv/d6  # move old data there, too
  cauchyfs member add /mnt/photos /srv/d3  # it was to be removed: it stays")]
    Add(AddArguments),
    /// Put an empty directory, made if absent, in the place of another, and rebuild or copy what was
    /// there; or take back one that was away. One that is still there is drained, and then removed. That is refused while
    /// members are too few for the volume.
    #[command(after_help = "Examples:
  cauchyfs member replace /mnt/photos /srv/d2 /srv/e2
  cauchyfs member replace /mnt/photos 2 /srv/e2
  # it was away, and is back
  cauchyfs member replace /mnt/photos /srv/d2 /srv/d2")]
    Replace(ReplaceArguments),
    /// Drain a directory: move everything off it, then remove it. Refused if the others would be too few, also for a code that
    /// `set --path` gave to directories of the volume. It goes on if this is interrupted; `status` shows how far it is,
    /// and `member add` keeps the directory after all.
    #[command(after_help = "Examples:
  cauchyfs member remove /mnt/photos /srv/d3
  cauchyfs member remove /mnt/photos 3
  cauchyfs member add /mnt/photos /srv/d3  # while it is being drained: it stays")]
    Remove(RemoveArguments),
}

/// Arguments of `member remove`.
#[derive(Debug, Args)]
pub(super) struct RemoveArguments {
    #[command(flatten)]
    pub(super) rebuild: RebuildOptions,
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
    /// The directory, or its number in `status`.
    #[arg(value_name = "DIR")]
    pub(super) member: String,
}

/// Arguments of `member add`.
#[derive(Debug, Args)]
pub(super) struct AddArguments {
    /// Move old data to it, too, until all are as full as the others.
    #[arg(long)]
    pub(super) balance: bool,
    #[command(flatten)]
    pub(super) rebuild: RebuildOptions,
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
    /// The directory, best on a disk of its own.
    #[arg(value_name = "DIR")]
    pub(super) directory: PathBuf,
}

/// Arguments of `member replace`.
#[derive(Debug, Args)]
pub(super) struct ReplaceArguments {
    #[command(flatten)]
    pub(super) rebuild: RebuildOptions,
    /// Where the volume is mounted.
    pub(super) mountpoint: PathBuf,
    /// The directory whose place is taken, or its number in `status`.
    #[arg(value_name = "OLD")]
    pub(super) old: String,
    /// The directory that takes its place.
    #[arg(value_name = "NEW")]
    pub(super) new: PathBuf,
}

/// The options of a rebuild.
#[derive(Debug, Args)]
pub(super) struct RebuildOptions {
    /// Print one JSON document.
    #[arg(long)]
    pub(super) json: bool,
    /// Bytes that may be written in a second; the newest limit counts for all that is under way.
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub(super) rate: Option<u64>,
}

/// Parses a size, with `/s` behind it or not.
fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text.trim().trim_end_matches("/s"))? {
        0 => Err("at this rate nothing would ever be done".to_owned()),
        rate => Ok(rate),
    }
}

/// Check the structure of an unmounted volume: metadata against shards. Exits with 3 if something is
/// missing or wrong but no data is lost, with 4 if data is lost.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs check d0 d1 d2 d3 d4 d5
  cauchyfs check --repair d0 d1 d2 d3 d4 d5
  cauchyfs check --deep d0 d1 d2 d3 d4 d5      # reads all data")]
pub(super) struct CheckArguments {
    /// Repair what can be repaired.
    #[arg(long)]
    pub(super) repair: bool,
    /// Read every shard, and count redundancy by what is right; with --repair, repair what is wrong.
    #[arg(long)]
    pub(super) deep: bool,
    #[command(flatten)]
    pub(super) sandbox: SandboxArguments,
    /// The volume's directories.
    #[arg(value_name = "DIR", required = true)]
    pub(super) directories: Vec<PathBuf>,
}

/// Copy files out of the directories with no mount, no daemon and no superuser. Writes nothing to
/// the directories, and nothing outside OUT. The same command goes on after an interruption: files that are
/// complete stay. What is incomplete is named NAME.damaged. Exits with 3 if something was left out, with 4 if data
/// is lost.
#[derive(Debug, Args)]
#[command(
    override_usage = "cauchyfs extract [OPTIONS] DIR... --to OUT [PATH...]",
    after_help = "Examples:
  cauchyfs extract d0 d1 d3 d5 --to /tmp/out
  cauchyfs extract d0 d1 d3 d5 --to /tmp/out albums/2024 notes.txt
  # a volume that you trust
  cauchyfs extract --privileged d0 d1 d3 d5 --to /mnt/system

An OUT that exists, and directories in it, keep their owners, permissions and times. Nothing in it is \
overwritten, and no link in it is followed. A file counts as complete if its kind, size and time are those of \
the volume. The superuser's copies belong to the owners that the volume names."
)]
pub(super) struct ExtractArguments {
    /// Restore setuid and setgid bits, devices, and attributes such as `security.capability`, too. They give
    /// programs from the volume power over this machine.
    #[arg(long)]
    pub(super) privileged: bool,
    #[command(flatten)]
    pub(super) sandbox: SandboxArguments,
    /// The volume's directories, as many as it takes.
    #[arg(value_name = "DIR", required = true)]
    pub(super) directories: Vec<PathBuf>,
    /// Where the files go, and after it which ones; all if none is named.
    #[arg(long, value_names = ["OUT", "PATH"], num_args = 1.., required = true)]
    pub(super) to: Vec<PathBuf>,
}
/// Reads a percentage from 1 to 100, with or without a sign.
fn parse_percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let percent = number.trim_end().parse::<u8>().ok();
    percent
        .filter(|percent| (1..=100).contains(percent))
        .ok_or_else(|| "give a percentage from 1 to 100: 25%".to_owned())
}

/// Reads the address of a listener: a port of the loopback, or an address with a port. Names are not looked up.
fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    let address: SocketAddr = match port.parse::<u16>() {
        Ok(port) => (Ipv4Addr::LOCALHOST, port).into(),
        Err(_) => text.parse().map_err(|_| {
            "give a port, or an IP address with a port: 9464, 127.0.0.1:9464, [::1]:9464".to_owned()
        })?,
    };
    // Nothing would tell which port the system picked.
    if address.port() == 0 {
        return Err("give a port other than 0".to_owned());
    }
    Ok(address)
}
