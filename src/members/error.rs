//! The reasons why a volume could not be created or opened, and the remedies for its owner.

use std::fmt;

use super::{AbsenceReason, Unusable};
use crate::codec::{CodecError, Geometry};
use crate::format::{Epoch, FormatError, MemberIndex, VolumeId};
use crate::store::{Holder, StoreError};

/// A member that was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// Its index.
    pub index: MemberIndex,
    /// The path where it was last seen; empty if that is not known.
    pub path: String,
    /// The problem with the directory that is there.
    pub reason: Option<AbsenceReason>,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.path.as_str(), &self.reason) {
            ("", _) => write!(f, "member {}", self.index),
            (path, None) => write!(f, "member {} (last seen at {path})", self.index),
            (path, Some(reason)) => write!(f, "member {} ({path}: {reason})", self.index),
        }
    }
}

/// Members that went on together, without the others, after an epoch they all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// The epoch that they have reached.
    pub epoch: Epoch,
    /// Their paths.
    pub paths: Vec<String>,
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {})", self.paths.join(", "), self.epoch)
    }
}

/// The reason why a volume could not be created, opened or used. Unless stated otherwise, nothing was changed, and
/// trying again helps only once the cause is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembersError {
    /// No directory was given.
    #[error("no directory given")]
    NoDirectory,

    /// Fewer directories than a stripe has shards.
    #[error("{given} directories given, {} needed for {geometry}", geometry.total_shards())]
    TooFewDirectories {
        /// The number given.
        given: usize,
        /// The geometry asked for.
        geometry: Geometry,
    },

    /// More directories than a volume can have.
    #[error("{given} directories given, a volume has at most {most}")]
    TooManyDirectories {
        /// The number given.
        given: usize,
        /// The largest possible number.
        most: usize,
    },

    /// A size or label that a volume cannot have.
    #[error("{option} {value}: {problem}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The value asked for.
        value: String,
        /// The problem with it.
        problem: String,
    },

    /// A directory for a new volume has something in it.
    #[error("{path} is not empty: it has {found}")]
    NotEmpty {
        /// The directory.
        path: String,
        /// Something in it.
        found: String,
    },

    /// A directory for a new volume belongs to a volume already.
    #[error("{path} is a member of a volume already")]
    AlreadyMember {
        /// The directory.
        path: String,
    },

    /// A directory to be added to a volume is a member of one, and it cannot be told of which.
    #[error("{path} is a member of a volume, which cannot be told: {reason}")]
    UnreadableMember {
        /// The directory.
        path: String,
        /// The problem with its superblock.
        reason: AbsenceReason,
    },

    /// A directory that is to come into a volume was one of its members.
    #[error("{path} was member {index} of this very volume, which has let it go since")]
    FormerMember {
        /// The directory.
        path: String,
        /// The member that it was.
        index: MemberIndex,
    },

    /// A directory that is to come into a volume is one of its members.
    #[error("{path} is member {index} of this very volume")]
    OwnMember {
        /// The directory.
        path: String,
        /// The member that it is.
        index: MemberIndex,
    },

    /// Another process has the member, or, for a new volume, it was given twice.
    #[error("{path} is in use{}", by(holder.as_ref()))]
    InUse {
        /// The directory.
        path: String,
        /// The process that has it, if that is known.
        holder: Option<Holder>,
    },

    /// A process has the member that was killed, and cannot end because something hangs that it asked for on one of its
    /// directories. It has all of them until then.
    #[error("{path} is in use by {holder}")]
    HeldUp {
        /// The directory.
        path: String,
        /// The process that has it.
        holder: Holder,
    },

    /// Other processes have some directories, but none serves the volume with them: they are too few for that, and all
    /// others are free. The volume can be opened without these.
    #[error("in use: {}", list(held))]
    PartlyInUse {
        /// The directories, and the process that has each.
        held: Vec<Unusable>,
    },

    /// A directory has something in it, but nothing of a volume.
    #[error("{path} is not a member of a volume: it has {found}, but no superblock")]
    Foreign {
        /// The directory.
        path: String,
        /// Something in it.
        found: String,
    },

    /// A directory was named as a member that is back, and is none.
    #[error("{path} is not a member of the volume: {reason}")]
    NotAMember {
        /// The directory.
        path: String,
        /// The thing found there.
        reason: AbsenceReason,
    },

    /// A member that is back was mounted apart, or was away for too long to tell.
    #[error("{path} went on without the others, or has been away for too long to tell")]
    Diverged {
        /// The directory.
        path: String,
    },

    /// The place of a member is wanted that is not gone.
    #[error("member {index} ({path}) is still there")]
    StillThere {
        /// The member.
        index: MemberIndex,
        /// Its directory.
        path: String,
    },

    /// There is no member of this number.
    #[error("the volume has no member {index}")]
    NoSuchMember {
        /// The number.
        index: MemberIndex,
    },

    /// Without a member the others would be too few for a stripe.
    #[error("without member {index}, {} left, and a stripe needs {needed}", members_are(*staying))]
    TooFewLeft {
        /// The member.
        index: MemberIndex,
        /// The number that would be left.
        staying: usize,
        /// Shards of a stripe.
        needed: usize,
    },

    /// Members cannot change while nothing can be written.
    #[error("members cannot change: the volume is not open to be written to")]
    NotNow,

    /// None of the directories is a usable member.
    #[error("no member of a volume found: {}", list(unusable))]
    NoMember {
        /// The directories, and the problem with each.
        unusable: Vec<Unusable>,
    },

    /// Members of two volumes were given.
    #[error("{path} belongs to volume {volume}, but {other_path} to volume {other_volume}")]
    MixedVolumes {
        /// A directory.
        path: String,
        /// Its volume.
        volume: VolumeId,
        /// A directory of another volume.
        other_path: String,
        /// The other volume.
        other_volume: VolumeId,
    },

    /// The same directory, or a copy of it, was given twice.
    #[error("{path} and {other_path} are both member {index}")]
    SameMember {
        /// The member.
        index: MemberIndex,
        /// One directory.
        path: String,
        /// The other.
        other_path: String,
    },

    /// A superblock was written by a newer build.
    #[error("{path}: {source}")]
    Newer {
        /// The directory.
        path: String,
        /// The unknown version or feature.
        source: FormatError,
    },

    /// The volume uses features for whose sake this build must not write to it.
    #[error("the volume uses features {unknown:#x}, with which this build can only read it")]
    ReadOnlyFeatures {
        /// The unknown feature bits.
        unknown: u64,
    },

    /// Fewer members than the volume needs.
    #[error("{} {kind}, {needed} needed{}; missing: {}", members(*found), or_to_read(*needed, *to_read), list(missing))]
    TooFew {
        /// The number found.
        found: usize,
        /// The kind counted: `"found"`, or `"up to date"`.
        kind: &'static str,
        /// The number needed to write.
        needed: usize,
        /// The number needed to read.
        to_read: usize,
        /// Those that were not found.
        missing: Vec<Absent>,
        /// Directories in which something of a member is, but no superblock.
        bereft: Vec<String>,
        /// Set if they are enough to read what is on them.
        readable: bool,
        /// Set if nothing was ever written to them, because the creation of the volume was interrupted.
        unfinished: bool,
    },

    /// A directory without a superblock holds data newer than all superblocks that are left.
    #[error("{path} has lost its superblock, and went on without those that have theirs")]
    OldSuperblocks {
        /// The directory.
        path: String,
    },

    /// A directory has lost its superblock, and it cannot be told whether it went on without those that have theirs.
    #[error(
        "{path} has lost its superblock, and nobody can tell whether it went on without the others: {reason}"
    )]
    MayBeAhead {
        /// The directory.
        path: String,
        /// The part that could not be read.
        reason: String,
    },

    /// Parts of the volume were mounted without each other, and each has what the others lack.
    #[error("members were mounted apart: {}", list(halves))]
    SplitBrain {
        /// The parts.
        halves: Vec<Half>,
    },

    /// Absent members have gone on from the state of the given ones.
    #[error("{half} went on without these: written to, each half would have what the other lacks")]
    Overtaken {
        /// Those that are ahead.
        half: Half,
    },

    /// The geometry or the code is impossible or unknown.
    #[error(transparent)]
    Codec(#[from] CodecError),

    /// So many members failed that the volume cannot go on. The acknowledged data is on those that failed; nothing more
    /// is accepted.
    #[error("{} {kind}, {needed} needed", members(*live))]
    Failed {
        /// The kind counted: `"left"`, or of these the ones that were up to date.
        kind: &'static str,
        /// The number left.
        live: usize,
        /// The number needed.
        needed: usize,
    },

    /// A directory failed while the volume was being made. The new volume's superblocks are
    /// removed again as far as possible.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Puts a number of members into words.
fn members(count: usize) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} member{ending}")
}

fn members_are(count: usize) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", members(count))
}

fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

fn or_to_read(needed: usize, to_read: usize) -> String {
    if to_read < needed {
        format!(" ({to_read} to read only)")
    } else {
        String::new()
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let texts: Vec<_> = items.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The advice for a directory whose position cannot be told.
const WHEN_NOBODY_CAN_TELL: &str = "see that all disks answer, and try again; or look at the others with `mount -o ro` or `cauchyfs extract`; only if \
     nothing of what it holds is needed, move it away";

/// The advice for a process that was killed and cannot end.
const WHEN_HELD_UP: &str = "one of its directories hangs, and what was under way there may still be written: see that its disk answers again, \
     thaw it, or `umount -f` a network mount, then try again; or start the machine anew";

impl MembersError {
    /// Returns the remedy, in one line, where there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoDirectory => Some("name the directories that make up the volume".into()),
            Self::TooFewDirectories { given, geometry } => Some(format!(
                "each of the {} shards of a stripe goes to a directory of its own: name {} more, or choose fewer shards",
                geometry.total_shards(),
                geometry.total_shards() - given,
            )),
            Self::TooManyDirectories { most, .. } => Some(format!("name at most {most}")),
            Self::Option { .. }
            | Self::Store(_)
            | Self::Codec(_)
            | Self::NotAMember { .. } => None,
            Self::NotNow => Some(
                "see that the directories are all right, unmount the volume, and mount it again"
                    .into(),
            ),
            Self::NotEmpty { path, .. } => Some(format!(
                "a volume is made in empty directories only: make one below it, such as {path}/member"
            )),
            Self::AlreadyMember { path } => Some(format!(
                "`cauchyfs status {path}` says which; only if nothing of that volume is needed any more, empty {path} first"
            )),
            Self::UnreadableMember { path, .. } => Some(format!(
                "leave {path} as it is: `cauchyfs member replace MOUNTPOINT OLD NEW_DIR` makes anew what it held, or, with the \
                 volume unmounted, `cauchyfs check --repair` with all directories its superblock; only if nothing of any \
                 volume is needed of it any more, empty it first"
            )),
            Self::FormerMember { path, .. } => Some(format!(
                "what it holds is of no use to the volume any more: empty {path}, and it is as good as any other"
            )),
            Self::OwnMember { .. } => Some(
                "leave what it holds alone, and name a directory that is no member; `cauchyfs status` lists them".into(),
            ),
            Self::InUse { path, .. } => Some(format!(
                "a volume with {path} is mounted already, or {path} was given twice"
            )),
            Self::HeldUp { .. } => Some(WHEN_HELD_UP.into()),
            Self::PartlyInUse { .. } => Some(
                "a daemon that is unmounted keeps a directory until its disk answers: leave those out that do not".into(),
            ),
            Self::Foreign { path, .. } => Some(format!(
                "leave {path} out, or give the directory that is a member"
            )),
            Self::Diverged { path } => Some(format!(
                "`cauchyfs extract` of it, and of those that it was mounted with, copies out what is needed; then \
                 empty {path}, and the same command takes it in"
            )),
            Self::StillThere { .. } => Some(
                "add the new directory, and then remove the old one: nothing is lost meanwhile".into(),
            ),
            Self::TooFewLeft { .. } => Some(
                "add a directory first, with `cauchyfs member add`, or replace this one".into(),
            ),
            Self::NoSuchMember { .. } => Some("`cauchyfs status` lists the members".into()),
            Self::NoMember { unusable } => Some(way_to_members(unusable).into()),
            Self::MixedVolumes { volume, other_volume, .. } => Some(format!(
                "give directories of {volume} or of {other_volume}, not of both"
            )),
            Self::SameMember { path, other_path, .. } => Some(format!(
                "leave out {other_path} or {path}; if one is a copy of the other, leave out the older one"
            )),
            Self::ReadOnlyFeatures { .. } => Some(
                "mount it with `-o ro`, or use the version of cauchyfs that wrote it, or a newer one"
                    .into(),
            ),
            Self::Newer { .. } => Some("use the version of cauchyfs that wrote it, or a newer one".into()),
            Self::TooFew { readable, unfinished, bereft, .. } => Some(format!(
                "give all directories of the volume{}{}",
                if bereft.is_empty() {
                    ", and check that their disks are mounted"
                } else {
                    " to `cauchyfs check --repair`: it writes superblocks anew that are lost"
                },
                if *readable {
                    "; if the rest is lost for good, mount it with `-o ro` or save what is left with \
                     `cauchyfs extract`"
                } else if *unfinished {
                    "; nothing was ever written to these: if a `cauchyfs create` was cut off, empty them and run it again"
                } else {
                    ""
                }
            )),
            Self::OldSuperblocks { path } => Some(format!(
                "give all directories of the volume to `cauchyfs check --repair`: with the superblock of one with which {path} \
                 was mounted last, or if none is missing, that of {path} can be made anew; without, `mount -o ro` and \
                 `cauchyfs extract` show what the others held before; leave {path} as it is"
            )),
            Self::MayBeAhead { .. } => Some(WHEN_NOBODY_CAN_TELL.into()),
            Self::SplitBrain { halves } => Some(way_out(halves)),
            Self::Overtaken { half } => Some(format!(
                "give them all, {} too; or look at these with `mount -o ro` or `cauchyfs extract`; only if nothing of \
                 what those hold is needed, move them away or empty them first",
                half.paths.join(" ")
            )),
            Self::Failed { .. } => Some(
                "unmount, bring the failed members back, and mount again".into(),
            ),
        }
    }
}

fn way_to_members(unusable: &[Unusable]) -> &'static str {
    let mut reasons = unusable.iter().map(|unusable| &unusable.reason);
    if reasons.any(AbsenceReason::is_missing_superblock) {
        "a superblock that is lost is made anew from another member's: give `cauchyfs check --repair` a directory of the \
         volume that has its own; without any, only a copy of one from a backup helps; for a volume that never came to be, \
         run `cauchyfs create` again in other directories"
    } else {
        "check the paths, and that the disks are mounted; a new volume is made with `cauchyfs create`, in empty directories"
    }
}

fn way_out(halves: &[Half]) -> String {
    let first = halves
        .first()
        .map_or(String::new(), |half| half.paths.join(" "));
    let others: Vec<_> = halves
        .iter()
        .skip(1)
        .flat_map(|half| half.paths.clone())
        .collect();
    let others = others.join(" ");
    format!(
        "each half has writes that the other lacks; choose which to keep, with all its directories, and mount it \
         alone, say {first}; copy what it lacks out of the other with `cauchyfs extract {others} --to DIR`; then \
         empty the other's directories, and give each back with `cauchyfs member replace MOUNTPOINT DIR DIR`"
    )
}
