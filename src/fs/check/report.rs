//! The findings of a check.

use std::collections::BTreeSet;
use std::fmt;

use crate::format::record::QuotaUsage;
use crate::format::{FormatError, Ino, NameFault, StripeId};

/// The disagreement of two records.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// A record does not decode.
    Damaged(FormatError),
    /// A name leads to no inode.
    NameWithoutInode,
    /// A name says something else of its inode's kind than the inode.
    NameOfOtherKind,
    /// A name has no position in the listing of its directory, or another name's.
    NameWithoutPosition,
    /// A position in a listing has no name.
    PositionWithoutName,
    /// An entry has a name that POSIX forbids. Its inode goes on without this name.
    BadName(NameFault),
    /// A listing has a name twice. The position that the name does not lead to is surplus.
    DuplicateName,
    /// A directory has a second name, or the root has one.
    DirectoryNamedTwice,
    /// Names lie in something that is no directory.
    NamesOutsideDirectory,
    /// A directory does not know the directory it lies in.
    WrongParent,
    /// The links are not as many as the names (for a directory: as its subdirectories say).
    WrongLinks {
        /// Links in the record.
        recorded: u32,
        /// Links counted.
        counted: u32,
    },
    /// A directory's size is not the number of its entries, or its next cookie is in use.
    WrongEntries,
    /// An inode has links but no name.
    Nameless,
    /// There is no root directory.
    NoRoot,
    /// A directory is not below the root.
    Unreachable,
    /// An inode has no name and is not marked to be removed.
    Unmarked,
    /// Attributes of an inode that is not there.
    AttributeWithoutInode,
    /// Extents of an inode that is not there or is no regular file.
    ExtentWithoutFile,
    /// Extents overlap.
    Overlap,
    /// Extents behind the end of a file that is not marked to be cut off there.
    BehindEnd,
    /// The bytes in extents are not as many as the inode says.
    WrongAllocation {
        /// Bytes in the record.
        recorded: u64,
        /// Bytes counted.
        counted: u64,
    },
    /// The bytes in unwritten extents are not as many as the inode says, or the mark of these is wrong.
    WrongUnwritten {
        /// Bytes in the record.
        recorded: u64,
        /// Bytes counted.
        counted: u64,
    },
    /// A file has bytes in its record and in extents.
    InlineAndExtents,
    /// An extent whose stripe does not know of it.
    ExtentWithoutBackref(StripeId),
    /// A stripe that knows of an extent which is not there.
    BackrefWithoutExtent(StripeId),
    /// An extent in a stripe that is not there, or does not reach so far: the bytes are lost.
    ExtentWithoutStripe(StripeId),
    /// A stripe in a segment that is not there, does not know of it, or does not reach so far.
    StripeWithoutPlace(StripeId),
    /// A stripe without the checksums of a shard that was written.
    StripeWithoutSums(StripeId),
    /// A segment that knows of a stripe which is not there or lies elsewhere.
    PlaceWithoutStripe(StripeId),
    /// A segment file that is gone, or too short for the shards that were written to it.
    ShardsMissing {
        /// The directory and the file in it.
        file: String,
        /// The length of the file in bytes, or `None` if there is none.
        found: Option<u64>,
        /// The number of missing shards.
        shards: u64,
    },
    /// An inode names a class of stripes that has no code.
    ClassWithoutCode,
    /// A quota of a directory that is not there.
    QuotaWithoutDirectory,
    /// A quota whose way to the outermost quota around it has no end, or leads to no quota.
    WrongOuterQuota,
    /// A directory does not name the quota in which it lies.
    WrongQuota,
    /// A quota does not count what the inodes that name it add up to.
    WrongUsage {
        /// The usage in the record.
        recorded: QuotaUsage,
        /// The usage counted.
        counted: QuotaUsage,
    },
    /// The index has fewer copies than it should.
    CopiesMissing {
        /// Copies found.
        found: usize,
        /// Copies there should be.
        wanted: usize,
    },
}

impl FindingKind {
    /// Returns whether data is lost, which no repair brings back.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Damaged(_)
                | Self::NameWithoutInode
                | Self::NoRoot
                | Self::ExtentWithoutStripe(_)
                | Self::StripeWithoutPlace(_)
        )
    }

    /// Returns the segment file that shards are missing in.
    fn shards_file(&self) -> Option<&str> {
        match self {
            Self::ShardsMissing { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Returns whether both are the same fault: a file that lacks shards does so however much of it there is by now,
    /// and the index lacks copies however many there are.
    fn is_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::ShardsMissing { file, .. }, Self::ShardsMissing { file: other, .. }) => {
                file == other
            }
            (Self::CopiesMissing { .. }, Self::CopiesMissing { .. }) => true,
            _ => self == other,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The disagreement itself.
    pub kind: FindingKind,
    /// The inode concerned, if one is.
    pub ino: Option<Ino>,
    /// A path to it from the root on, without a leading slash, if it has one.
    pub path: Option<Vec<u8>>,
    /// True if it has been repaired.
    pub repaired: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.ino) {
            (Some(path), _) => write!(f, "/{}: ", String::from_utf8_lossy(path))?,
            (None, Some(ino)) => write!(f, "inode {ino}: ")?,
            (None, None) => {}
        }
        write!(f, "{}", self.kind)?;
        if self.repaired {
            write!(f, " (repaired)")?;
        }
        Ok(())
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(error) => write!(f, "{error}"),
            Self::NameWithoutInode => f.write_str("a name leads to no inode"),
            Self::NameOfOtherKind => f.write_str("a name is wrong about the inode's kind"),
            Self::NameWithoutPosition => f.write_str("a name is not in its directory's listing"),
            Self::PositionWithoutName => f.write_str("a listing has an entry without a name"),
            Self::BadName(fault) => write!(f, "an entry has {fault}"),
            Self::DuplicateName => f.write_str("a listing has a name twice"),
            Self::DirectoryNamedTwice => f.write_str("the directory has a second name"),
            Self::NamesOutsideDirectory => f.write_str("names lie in what is no directory"),
            Self::WrongParent => f.write_str("the directory has a wrong parent"),
            Self::WrongLinks { recorded, counted } => {
                write!(f, "{recorded} links recorded, {counted} counted")
            }
            Self::WrongEntries => f.write_str("the directory miscounts its entries"),
            Self::Nameless => f.write_str("the inode has no name"),
            Self::NoRoot => f.write_str("there is no root directory"),
            Self::Unreachable => f.write_str("the directory is not below the root"),
            Self::Unmarked => f.write_str("the inode has no name and is not marked for removal"),
            Self::AttributeWithoutInode => f.write_str("attributes of an inode that is not there"),
            Self::ExtentWithoutFile => f.write_str("extents of what is no file"),
            Self::Overlap => f.write_str("extents overlap"),
            Self::BehindEnd => f.write_str("extents lie behind the end of the file"),
            Self::WrongAllocation { recorded, counted } => {
                write!(f, "{recorded} bytes recorded, {counted} in extents")
            }
            Self::WrongUnwritten { recorded, counted } => {
                write!(
                    f,
                    "{recorded} unwritten bytes recorded, {counted} in extents"
                )
            }
            Self::InlineAndExtents => f.write_str("bytes lie in the record and in extents"),
            Self::ExtentWithoutBackref(stripe) => {
                write!(f, "stripe {stripe} does not know of an extent")
            }
            Self::BackrefWithoutExtent(stripe) => {
                write!(f, "stripe {stripe} knows of an extent that is not there")
            }
            Self::ExtentWithoutStripe(stripe) => {
                write!(f, "bytes in stripe {stripe} are lost: it is not there")
            }
            Self::StripeWithoutPlace(stripe) => write!(f, "stripe {stripe} lies in no segment"),
            Self::StripeWithoutSums(stripe) => write!(f, "stripe {stripe} lacks checksums"),
            Self::PlaceWithoutStripe(stripe) => {
                write!(f, "a segment holds stripe {stripe}, which is not there")
            }
            Self::ShardsMissing {
                file,
                found: None,
                shards,
            } => write!(f, "{file} is not there: {shards} shards are missing"),
            Self::ShardsMissing {
                file,
                found: Some(len),
                shards,
            } => write!(
                f,
                "{file} ends after {len} bytes: {shards} shards are missing"
            ),
            Self::ClassWithoutCode => f.write_str("its code is not recorded"),
            Self::QuotaWithoutDirectory => {
                f.write_str("a quota is of a directory that is not there")
            }
            Self::WrongOuterQuota => f.write_str("the quota lies in one that is not there"),
            Self::WrongQuota => f.write_str("the directory belongs to another quota"),
            Self::WrongUsage { recorded, counted } => write!(
                f,
                "the quota has {} bytes and {} files recorded, {} and {} counted",
                recorded.bytes, recorded.files, counted.bytes, counted.files
            ),
            Self::CopiesMissing { found, wanted } => {
                write!(f, "the index has {found} of {wanted} copies")
            }
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The findings, in the order in which they were found; the first ten thousand.
    pub findings: Vec<Finding>,
    /// Findings in all.
    pub found: u64,
    /// The number of findings that were repaired.
    pub repaired: u64,
    /// Findings that mean lost data.
    pub lost: u64,
    /// Inodes, directories included.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Extents.
    pub extents: u64,
    /// Bytes in extents; what files share counts for each.
    pub bytes: u64,
    /// Stripes.
    pub stripes: u64,
    /// Stripes that hold nothing and are not marked to be freed. No fault after a crash, which may come
    /// between a stripe and the file it was for: a mount finds them and frees them.
    pub unclaimed: u64,
}

impl CheckReport {
    /// Records what is still wrong. `again` is another check of the same volume; `lacking` names the segment
    /// files that lack shards on online members. Every other finding has been repaired by something else. Lost data
    /// stays lost.
    pub(super) fn settle(&mut self, again: &Self, lacking: &BTreeSet<String>) {
        self.lost = self.lost.max(again.lost);
        if again.found == 0 && lacking.is_empty() {
            self.repaired = self.found;
        }
        if again.found > again.findings.len() as u64 {
            // Any of those that are listed may be among those that no longer are.
            return;
        }
        for finding in &mut self.findings {
            let mut left = again.findings.iter();
            let left = left.find(|left| left.ino == finding.ino && left.kind.is_of(&finding.kind));
            if let Some(left) = left.filter(|_| !finding.repaired) {
                finding.kind.clone_from(&left.kind);
            }
            // Shards that could not be restored are out of the records of what was written.
            let is_short = finding
                .kind
                .shards_file()
                .is_some_and(|file| lacking.contains(file));
            if !finding.repaired && left.is_none() && !is_short {
                finding.repaired = true;
                self.repaired = self.found.min(self.repaired + 1);
            }
        }
    }
}
