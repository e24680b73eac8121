//! The reasons why a volume could not be created or opened, and the remedy for each.

use std::fmt;

use super::reason::{AbsenceReason, Unusable};
use super::remedy::{DirectoryChoice, DirectoryStep, Remedy, VolumeStep};
use crate::codec::{CodeId, CodecError, Geometry};
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
pub struct Branch {
    /// The epoch that they have reached.
    pub epoch: Epoch,
    /// Their paths.
    pub paths: Vec<String>,
}

impl fmt::Display for Branch {
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

    /// More shards than members that stay in the end, for the code that a volume in use is to have. One that another has come
    /// to replace does not stay, although both are there.
    #[error(
        "{geometry} needs {} directories, and {staying} are there to stay{}{}",
        geometry.total_shards(),
        without_replaced(*replaced),
        without(absent)
    )]
    TooFewStay {
        /// The geometry asked for.
        geometry: Geometry,
        /// The members that stay in the end: online, not being drained, and not yet to be replaced by another of them.
        staying: usize,
        /// A member that is not among them, because another has come to replace it.
        replaced: Option<MemberIndex>,
        /// The members that are away, and stay once they are back.
        absent: Vec<Absent>,
    },

    /// Members are away, or are not up to date yet, while the code of a volume is to be changed.
    #[error(
        "the code is changed only while all directories are there and up to date{}",
        without(absent)
    )]
    NotAllHere {
        /// The members that are away.
        absent: Vec<Absent>,
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
    #[error(
        "without member {index}{}, {} left, and a stripe needs {needed}",
        and_replaced(*replaced),
        members_are(*staying)
    )]
    TooFewLeft {
        /// The member.
        index: MemberIndex,
        /// The number that would be left.
        staying: usize,
        /// Shards of a stripe.
        needed: usize,
        /// A member that is to leave as well, because another has come to replace it.
        replaced: Option<MemberIndex>,
    },

    /// Without a member the others would be too few for a stripe of a code that directories have.
    #[error(
        "without member {index}{}, {} left, and a stripe of {geometry} {code}, a code of directories, needs {}",
        and_replaced(*replaced),
        members_are(*staying),
        geometry.total_shards()
    )]
    TooFewLeftForDirectories {
        /// The member.
        index: MemberIndex,
        /// The number that would be left.
        staying: usize,
        /// The shards of a stripe.
        geometry: Geometry,
        /// The code.
        code: CodeId,
        /// A member that is away, if one is: another can have its place.
        away: Option<MemberIndex>,
        /// A member that is to leave as well, because another has come to replace it.
        replaced: Option<MemberIndex>,
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
    #[error("{} {kind}, {needed} needed to {}; missing: {}", members(*found), mount_or_read(kind, *needed, *to_read), list(missing))]
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
        without_superblock: Vec<String>,
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
        "{path} has lost its superblock, and it is unknown whether it went on without the others: {reason}"
    )]
    MayBeAhead {
        /// The directory.
        path: String,
        /// The part that could not be read.
        reason: String,
    },

    /// Parts of the volume were mounted without each other, and each has what the others lack.
    #[error("members were mounted apart: {}", list(branches))]
    SplitBrain {
        /// The parts.
        branches: Vec<Branch>,
    },

    /// Absent members have gone on from the state of the given ones.
    #[error(
        "{branch} went on without these: written to, each half would have what the other lacks"
    )]
    Superseded {
        /// Those that are ahead.
        branch: Branch,
    },

    /// The geometry or the code is impossible or unknown.
    #[error(transparent)]
    Codec(#[from] CodecError),

    /// So many members failed that the volume cannot go on. The acknowledged data is on those that failed; nothing more
    /// is accepted.
    #[error("{} {kind}, {needed} needed to {purpose}", members(*live))]
    Failed {
        /// The kind counted: `"left"`, or of these the ones that were up to date.
        kind: &'static str,
        /// The number left.
        live: usize,
        /// The number needed.
        needed: usize,
        /// The purpose for which so many are needed: a verb with its object.
        purpose: &'static str,
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

/// Returns the words about a member that is to leave as well, because another has come to replace it.
fn and_replaced(replaced: Option<MemberIndex>) -> String {
    replaced.map_or_else(String::new, |old| {
        format!(", and member {old} that another has come to replace")
    })
}

/// Returns the words about a member that does not count, because another has come to replace it.
fn without_replaced(replaced: Option<MemberIndex>) -> String {
    replaced.map_or_else(String::new, |old| {
        format!(" without member {old}, which another has come to replace")
    })
}

fn members_are(count: usize) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", members(count))
}

/// Names the members that are away.
fn without(absent: &[Absent]) -> String {
    match absent {
        [] => String::new(),
        _ => format!("; away: {}", list(absent)),
    }
}

fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

/// Returns the purpose of so many members of a kind, and how many it takes to read if these are fewer.
fn mount_or_read(kind: &str, needed: usize, to_read: usize) -> String {
    match kind {
        _ if to_read < needed => format!("mount ({to_read} to read only)"),
        "found" => "mount or read".to_owned(),
        _ => "mount".to_owned(),
    }
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let texts: Vec<_> = items.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl MembersError {
    /// Returns the remedy, where there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Option { .. } | Self::Store(_) | Self::Codec(_) | Self::NotAMember { .. } => {
                return None;
            }
            Self::NoDirectory => DirectoryChoice::OfVolume.into(),
            Self::TooFewDirectories { given, geometry } => {
                let shards = geometry.total_shards();
                let missing = shards - given;
                DirectoryChoice::More { shards, missing }.into()
            }
            Self::TooManyDirectories { most, .. } => DirectoryChoice::AtMost { most: *most }.into(),
            Self::TooFewStay { absent, .. } if absent.is_empty() => VolumeStep::AddForCode.into(),
            Self::TooFewStay { .. } => VolumeStep::BringBackForCode.into(),
            Self::NotAllHere { .. } => VolumeStep::CompleteMembers.into(),
            Self::NotNow => VolumeStep::CheckAndRemount.into(),
            Self::NotEmpty { path, .. } => Remedy::directory(path, DirectoryStep::UseEmptyOne),
            Self::AlreadyMember { path } => Remedy::directory(path, DirectoryStep::IdentifyVolume),
            Self::UnreadableMember { path, .. } => {
                Remedy::directory(path, DirectoryStep::KeepUnreadable)
            }
            Self::FormerMember { path, .. } => {
                Remedy::directory(path, DirectoryStep::EmptyFormerMember)
            }
            Self::OwnMember { .. } => DirectoryChoice::NoMember.into(),
            Self::InUse { path, .. } => Remedy::directory(path, DirectoryStep::FindOtherUse),
            Self::HeldUp { .. } => VolumeStep::WaitForHolder.into(),
            Self::PartlyInUse { .. } => DirectoryChoice::Answering.into(),
            Self::Foreign { path, .. } => Remedy::directory(path, DirectoryStep::LeaveOut),
            Self::Diverged { path } => Remedy::directory(path, DirectoryStep::ExtractAndEmpty),
            Self::StillThere { .. } => VolumeStep::AddBeforeRemove.into(),
            Self::TooFewLeft { .. } => VolumeStep::AddFirst.into(),
            Self::TooFewLeftForDirectories { away, .. } => match away {
                Some(MemberIndex(away)) => VolumeStep::ReplaceOrNarrowDirectories { away: *away },
                None => VolumeStep::AddOrNarrowDirectories,
            }
            .into(),
            Self::NoSuchMember { .. } => VolumeStep::ListMembers.into(),
            Self::NoMember { unusable } => choice_without_members(unusable).into(),
            Self::MixedVolumes {
                volume,
                other_volume,
                ..
            } => DirectoryChoice::OneVolume {
                volume: volume.0,
                other_volume: other_volume.0,
            }
            .into(),
            Self::SameMember {
                path, other_path, ..
            } => DirectoryChoice::OneOf {
                path: path.clone(),
                other_path: other_path.clone(),
            }
            .into(),
            Self::ReadOnlyFeatures { .. } => VolumeStep::ReadOnlyOrNewerVersion.into(),
            Self::Newer { .. } => VolumeStep::UseNewerVersion.into(),
            Self::TooFew {
                readable,
                unfinished,
                without_superblock,
                ..
            } => DirectoryChoice::All {
                recovers_superblocks: !without_superblock.is_empty(),
                readable: *readable,
                unfinished: *unfinished,
            }
            .into(),
            Self::OldSuperblocks { path } => {
                Remedy::directory(path, DirectoryStep::RecoverNewerSuperblock)
            }
            Self::MayBeAhead { .. } => VolumeStep::MakeDisksAnswer.into(),
            Self::SplitBrain { branches } => choose_part(branches).into(),
            Self::Superseded { branch } => DirectoryChoice::Superseding {
                paths: branch.paths.clone(),
            }
            .into(),
            Self::Failed { .. } => VolumeStep::BringBackAndRemount.into(),
        })
    }
}

fn choice_without_members(unusable: &[Unusable]) -> DirectoryChoice {
    let mut reasons = unusable.iter().map(|unusable| &unusable.reason);
    if reasons.any(AbsenceReason::is_missing_superblock) {
        DirectoryChoice::WithSuperblock
    } else {
        DirectoryChoice::Mounted
    }
}

fn choose_part(branches: &[Branch]) -> DirectoryChoice {
    let mut paths = branches.iter().map(|branch| branch.paths.clone());
    DirectoryChoice::OnePart {
        kept: paths.next().unwrap_or_default(),
        others: paths.flatten().collect(),
    }
}
