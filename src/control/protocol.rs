//! Messages between commands and daemons.
//!
//! Every line of a command is an [`Envelope`], and every line of a daemon an [`Answer`] or empty. A command first asks
//! for the daemon's [`Identity`]. It repeats that in the request proper, and the daemon refuses one that names another
//! mount.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::activity::ActivityReport;
use super::event_report::EventReport;
use super::failure::{DaemonFailure, NotDurable};
use super::metrics::families::Family;
use super::quota::{QuotaEntry, QuotaRequest};
use super::report::{
    FilesUsageReport, GeometryReport, RebuildReport, StatusReport, VolumeUsageReport,
};
use super::scrubbed::{Progress, Scrubbed};
use crate::fuse::mount::Mount;

/// The version of the protocol. Version 1 had requests without envelopes; up to version 2, failures were sentences.
///
/// Each end states its version: the command in every request, the daemon in the answer to the first one. An end that
/// meets another version says so and goes no further. [`RequestRefusal::Version`], the field `version` of a request, and the
/// first request keep their form in all versions.
pub(crate) const VERSION: u32 = 3;

/// A request, and which daemon it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// Stands in every version at this place.
    pub(crate) version: u32,
    /// The mount whose daemon is asked; none for [`Request::Identify`].
    pub(crate) mount: Option<Identity>,
    pub(crate) request: Request,
}

/// As much of an envelope as every version has.
#[derive(Debug, Deserialize)]
pub(crate) struct Versioned {
    pub(crate) version: u32,
}

impl Envelope {
    pub(crate) fn new(mount: Option<Identity>, request: Request) -> Self {
        Self {
            version: VERSION,
            mount,
            request,
        }
    }
}

/// A mount, told from all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The volume's identity.
    pub(crate) volume: String,
    /// The device number of the mount, as `MAJ:MIN`.
    pub(crate) device: String,
    /// The mountpoint. Bytes that are no text are replaced: the device tells such mounts apart.
    pub(crate) mountpoint: String,
}

impl Identity {
    /// Returns that of a volume mounted at a place.
    pub(crate) fn of(volume: String, mount: &Mount) -> Self {
        Self {
            volume,
            device: mount.device().to_owned(),
            mountpoint: shown(mount.mountpoint()),
        }
    }

    /// Says whether it is the mount at `mountpoint`, of that device if one is known.
    pub(crate) fn is_at(&self, mountpoint: &Path, device: Option<&str>) -> bool {
        self.mountpoint == shown(mountpoint) && device.is_none_or(|device| self.device == device)
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The reason why a daemon does not do what a request says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RequestRefusal {
    /// The request is of another version of the protocol.
    Version {
        /// The version that the daemon speaks.
        spoken: u32,
    },
    /// The request names another mount.
    Mount {
        /// The mount that the daemon serves.
        served: Identity,
    },
    /// The request names no mount, or the daemon has not mounted the volume yet.
    Unnamed,
    /// The request is more than a question, and the socket takes no others.
    QuestionsOnly,
    /// The request makes no sense in this version.
    Malformed,
}

/// Request to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// Asks which mount this is. The only request that names none.
    Identify,
    /// Asks for the state of the volume.
    Status,
    /// Which directories are in use? Answered at once, where a status may have to count.
    Directories,
    /// Which volume is it, and which members is it without?
    Membership,
    /// Where does the space go?
    Usage {
        /// The inode to ask for, with everything in it; all members without.
        ino: Option<u64>,
    },
    /// Verify everything and repair what is wrong; goes on as long as the client is there.
    Scrub {
        /// The most that may be read in a second.
        bytes_per_second: Option<u64>,
    },
    /// Unmount, make everything durable, answer, exit.
    Unmount {
        /// Although something below the mountpoint is in use.
        lazy: bool,
    },
    /// Say when the volume is unmounted, if its mount was taken away. If something else keeps the mount, make
    /// everything durable and say so.
    AwaitEnd,
    /// Rebuild what is missing.
    Rebuild {
        /// The most bytes in a second, if limited.
        bytes_per_second: Option<u64>,
    },
    /// Rebuild what is missing, and then move shards from the fullest members to the emptiest.
    Balance {
        /// The most bytes in a second, if limited.
        bytes_per_second: Option<u64>,
    },
    /// Take a directory into the volume, and rebuild what it is to have.
    Join {
        /// The member whose place it takes, by path or number; it gets one of its own without.
        old: Option<String>,
        /// The directory.
        directory: PathBuf,
        /// True if old data is to move there.
        balance: bool,
        /// The most bytes in a second, if limited.
        bytes_per_second: Option<u64>,
    },
    /// Move everything off a member, and let it go.
    Remove {
        /// The member, by path or number.
        member: String,
        /// The most bytes in a second, if limited.
        bytes_per_second: Option<u64>,
    },
    /// Asks for the progress of that. Answered once it is done, and otherwise in a moment.
    RebuildProgress {
        /// Number that answered the order.
        order: u64,
    },
    /// Set, clear or list quotas of directories.
    Quota(QuotaRequest),
    /// Have background work pause: rebuilds, scrubs and compaction.
    Pause,
    /// Have it go on.
    Resume,
    /// Asks for events, the oldest first. Answered at once.
    Events {
        /// The sequence number of an event: only later ones are wanted.
        after: Option<u64>,
        /// The time of the first event that is wanted, in milliseconds since 1970.
        since_ms: Option<i64>,
    },
    /// Asks for the counts of requests and bytes. Answered at once.
    Activity,
    /// Asks for all metrics, which are some seconds old.
    Metrics,
    /// Give a directory a code, or ask for it.
    DirectoryCode(DirectoryCodeRequest),
    /// Change the code of the volume, and bring all stripes to it.
    SetCode {
        /// The change.
        change: CodeChange,
        /// The most bytes in a second, if limited.
        bytes_per_second: Option<u64>,
    },
}

impl Request {
    /// Returns whether it asks for what is known, and for no work on the volume.
    pub(crate) fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Directories
                | Self::Membership
                | Self::Quota(QuotaRequest::List { .. })
                | Self::DirectoryCode(
                    DirectoryCodeRequest::Show { .. } | DirectoryCodeRequest::List
                )
        )
    }

    /// Returns whether it orders background work.
    pub(crate) fn is_work(&self) -> bool {
        matches!(
            self,
            Self::Scrub { .. }
                | Self::Rebuild { .. }
                | Self::Balance { .. }
                | Self::Join { .. }
                | Self::Remove { .. }
                | Self::SetCode { .. }
                | Self::DirectoryCode(DirectoryCodeRequest::Set { rewrite: true, .. })
        )
    }

    /// Returns whether a group may send it that is to see the state of the volume, and to change nothing.
    pub(crate) fn is_for_group(&self) -> bool {
        match self {
            Self::Status | Self::Events { .. } | Self::Activity | Self::Metrics => true,
            Self::Identify
            | Self::Directories
            | Self::Membership
            | Self::Usage { .. }
            | Self::Scrub { .. }
            | Self::Unmount { .. }
            | Self::AwaitEnd
            | Self::Rebuild { .. }
            | Self::Balance { .. }
            | Self::Join { .. }
            | Self::Remove { .. }
            | Self::RebuildProgress { .. }
            | Self::Quota(_)
            | Self::Pause
            | Self::Resume
            | Self::DirectoryCode(_)
            | Self::SetCode { .. } => false,
        }
    }
}

/// The change of the code of a volume. What is not named stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CodeChange {
    /// The number of data shards.
    pub(crate) data: Option<u8>,
    /// The number of parity shards.
    pub(crate) parity: Option<u8>,
    /// The name of the code.
    pub(crate) code: Option<String>,
    /// The most bytes of one shard.
    pub(crate) unit_bytes: Option<u32>,
}

/// A request about the code of a directory, which is named by its inode number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DirectoryCodeRequest {
    /// Asks for the code of what is made in it.
    Show {
        /// The directory.
        directory: u64,
    },
    /// Asks for all directories with codes of their own.
    List,
    /// Give it a code, for what is made in it from now on.
    Set {
        /// The directory.
        directory: u64,
        /// The change.
        change: CodeChange,
        /// True if the files below it get the code as well.
        rewrite: bool,
        /// The most bytes in a second that are rewritten, if limited.
        bytes_per_second: Option<u64>,
    },
}

/// A directory with a code of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirectoryCodeEntry {
    /// Its inode number.
    pub(crate) directory: u64,
    /// Its path below the mountpoint, without a leading slash. Bytes that are no text are replaced.
    pub(crate) path: Option<String>,
    /// The class of its stripes.
    pub(crate) class: u8,
    /// The code of what is made in it, if it is known.
    pub(crate) geometry: Option<GeometryReport>,
}

/// Answer of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// The state of the volume.
    Status(Box<StatusReport>),
    /// The directories that are open and locked.
    Directories(Vec<PathBuf>),
    /// The volume.
    Membership(Membership),
    /// The space that the volume takes.
    VolumeUsage(Box<VolumeUsageReport>),
    /// The place of a file, or of all files in a directory.
    FilesUsage(Box<FilesUsageReport>),
    /// The progress of a scrub; the answer is yet to come.
    Scrubbing(Progress),
    /// Result of a scrub.
    Scrubbed(Scrubbed),
    /// It will be rebuilt; the number of the order.
    Ordered(u64),
    /// A directory is a member now.
    Joined {
        /// Its number.
        member: u16,
        /// The number of the order to rebuild.
        order: u64,
    },
    /// A member is to be emptied and removed.
    Leaving {
        /// Its number.
        member: u16,
        /// The number of the order to rebuild.
        order: u64,
    },
    /// The progress of a rebuild.
    Rebuild {
        /// In numbers.
        report: RebuildReport,
        /// True if the order is carried out.
        done: bool,
    },
    /// The code of what is made in a directory.
    DirectoryCode(GeometryReport),
    /// The directories with codes of their own.
    DirectoryCodes {
        /// The first ones, by path.
        directories: Vec<DirectoryCodeEntry>,
        /// True if there are more.
        has_more: bool,
    },
    /// A quota was set or cleared, durably.
    QuotaChanged,
    /// The quotas that were asked for.
    Quotas(Vec<QuotaEntry>),
    /// Background work pauses.
    Paused {
        /// True if it did so before.
        was_paused: bool,
    },
    /// Background work goes on.
    Resumed {
        /// True if it had paused.
        was_paused: bool,
        /// True if files were not removed any more. Daemons before this field have no interlock.
        #[serde(default)]
        was_locked: bool,
        /// True if files are still not removed. Daemons before this field had both orders in one.
        #[serde(default)]
        is_locked: bool,
    },
    /// The events that were asked for.
    Events {
        /// The first ones.
        events: Vec<EventReport>,
        /// True if there are more.
        has_more: bool,
    },
    /// The counts of requests and bytes.
    Activity(ActivityReport),
    /// The metrics.
    Metrics(Vec<Family>),
    /// Unmounted; everything is durable.
    Unmounted,
    /// The same, but the kernel lets the process end only when these directories answer.
    Lingering(Vec<String>),
    /// The mount is gone from its place, and something else keeps it: another mount namespace, another mountpoint, or
    /// an open file. The daemon serves it. Everything is durable, unless a reason is told.
    Held(Option<NotDurable>),
    /// The mount is at its place.
    Mounted,
    /// Something below the mountpoint is in use.
    Busy,
    /// It could not be done.
    Failed(DaemonFailure),
    /// The mount, and the version that the daemon speaks.
    Identity {
        /// Stands in every version at this place.
        version: u32,
        /// The mount.
        mount: Identity,
    },
    /// The request is not for this daemon.
    Refused(RequestRefusal),
}

/// The volume that a mount serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    /// Its identity.
    pub(crate) volume: String,
    /// True if it is written to.
    pub(crate) writable: bool,
    /// The members that it is without.
    pub(crate) away: Vec<Absentee>,
}

/// A member that a mount is without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Absentee {
    /// Its number.
    pub(crate) index: u16,
    /// Its identity.
    pub(crate) id: String,
}
