//! Counts where the space of members goes, and which stripes hold some files.
//!
//! The files of a member are asked for the blocks that they take. The records of stripes tell the use of the blocks of
//! segment files. Both are read while the volume is in use, so each count is right for the time of the call alone.
//! The uses of a member always sum to the blocks of its files.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId, files};
use crate::membership::Members;
use crate::stripes::{StripeRecords, Stripes};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use shares::{FileShare, Shares};

mod file_stripes;
mod shares;

pub use file_stripes::{FileStripes, FilesUsage};

/// The bytes that the files of one member take on its filesystem, by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberUsage {
    /// Data shards: bytes of files, in whole blocks.
    pub data: u64,
    /// Parity shards.
    pub parity: u64,
    /// Shards of bytes that no file holds any more, until they are freed or compacted, and files that are about to go.
    pub dead: u64,
    /// Segment files that no shard fills yet, also those that are being made.
    pub preallocated: u64,
    /// The two files of the journal.
    pub journal: u64,
    /// The copy of the index, where the member has one.
    pub index: u64,
    /// The files that hold space back.
    pub held_back: u64,
    /// The superblock, the lock, and files of other names.
    pub other: u64,
}

impl MemberUsage {
    /// Returns the bytes of all uses.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self {
            data,
            parity,
            dead,
            preallocated,
            journal,
            index,
            held_back,
            other,
        } = self;
        data + parity + dead + preallocated + journal + index + held_back + other
    }
}

/// The space that a volume takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The members that answered.
    pub members: BTreeMap<MemberIndex, MemberUsage>,
    /// Bytes on the members that files hold; those that several files share count once.
    pub held_bytes: u64,
    /// Bytes that were accepted and are in memory, not on the members yet. The journal may have some of them.
    pub unwritten_bytes: u64,
}

/// Counter of the space that data and metadata take.
pub struct UsageCounter {
    members: Arc<Members>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
}

impl UsageCounter {
    pub(super) fn new(
        members: Arc<Members>,
        stripes: Arc<Stripes>,
        records: Arc<StripeRecords>,
        catalog: Arc<Catalog>,
    ) -> Self {
        Self {
            members,
            stripes,
            records,
            catalog,
        }
    }

    /// Counts the space that the volume takes on its online members. Lists the files of each, and walks the records of
    /// all stripes.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn count(&self) -> Result<VolumeUsage, CommitError> {
        // Before the segments and stripes are read: a file that is removed meanwhile belongs to none then.
        let mut listed = Vec::new();
        for member in self.members.membership().live() {
            match self.members.io().taken_by_file(member) {
                Ok(files) => listed.push((member, files)),
                // Most likely it is out of the volume by now.
                Err(error) => tracing::debug!("{error}"),
            }
        }
        // In this order: a segment that is ready meanwhile is among the others then.
        let unfinished = self.stripes.segments().unfinished();
        let segments: HashMap<SegmentId, Segment> =
            self.stripes.segments().records().into_iter().collect();
        let mut shares = Shares::default();
        self.catalog.for_each_stripe_with_live(|stripe, live| {
            if let Some(segment) = segments.get(&stripe.segment) {
                shares.add(segment, stripe, live);
            }
        })?;
        let usage_of = |files: Vec<(String, u64)>, member| {
            let mut usage = MemberUsage::default();
            for (name, taken) in files {
                add_file(&mut usage, &name, taken, |segment| {
                    match segments.get(&segment) {
                        Some(record) => shares.of_file(segment, record, member),
                        None if unfinished == Some(segment) => Some(FileShare::unfilled(taken)),
                        None => None,
                    }
                });
            }
            usage
        };
        let members = listed
            .into_iter()
            .map(|(member, files)| (member, usage_of(files, member)));
        Ok(VolumeUsage {
            members: members.collect(),
            held_bytes: shares.held_bytes(),
            unwritten_bytes: self.stripes.writer().unwritten_bytes(),
        })
    }
}

/// Adds a file that takes so many bytes to the usage of its member. `share_of` tells the use of a segment file; one
/// that has none belongs to no segment any more.
fn add_file(
    usage: &mut MemberUsage,
    name: &str,
    taken: u64,
    share_of: impl FnOnce(SegmentId) -> Option<FileShare>,
) {
    if files::JOURNALS.contains(&name) {
        usage.journal += taken;
    } else if name == files::INDEX {
        usage.index += taken;
    } else if [files::BALLAST, files::DATA_BALLAST].contains(&name) {
        usage.held_back += taken;
    } else if let Some(segment) = files::parse_segment(name) {
        match share_of(segment) {
            Some(share) => {
                let parts = share.of_blocks(taken);
                usage.data += parts.data;
                usage.parity += parts.parity;
                usage.dead += parts.dead;
                usage.preallocated += parts.preallocated;
            }
            None => usage.dead += taken,
        }
    } else {
        usage.other += taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_a_member_counts_once_and_by_its_use() {
        let mut usage = MemberUsage::default();
        for (name, taken) in [
            (files::JOURNALS[0], 1),
            (files::JOURNALS[1], 2),
            (files::INDEX, 4),
            (files::BALLAST, 8),
            (files::DATA_BALLAST, 16),
            (files::SUPERBLOCK, 32),
            ("segments/0000000000000007", 64),
            ("segments/7", 128),
        ] {
            add_file(&mut usage, name, taken, |segment| {
                assert_eq!(segment, SegmentId(7));
                None
            });
        }
        let expected = MemberUsage {
            journal: 3,
            index: 4,
            held_back: 24,
            other: 32 + 128,
            dead: 64,
            ..MemberUsage::default()
        };
        assert_eq!(usage, expected);
        assert_eq!(usage.total(), 255);
    }
}
