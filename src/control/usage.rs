//! Reports on the space of a volume, and on that of files, composed from the parts of the volume.

use std::collections::BTreeMap;

use super::report::{
    FilesUsageReport, MemberShardsReport, MemberUsageReport, StripesReport, UsesReport,
    VolumeUsageReport,
};
use super::summary::index_report;
use super::volume_failure::VolumeFailure;
use crate::format::record::FileKind;
use crate::format::{Ino, MemberIndex};
use crate::fs::{Attr, Fs, FsError, tree};
use crate::maintenance::{FileStripes, Maintenance, MemberUsage};
use crate::membership::{MemberState, MemberStatus, Members};

/// Says where the space of a volume goes.
///
/// # Errors
///
/// If its records cannot be read.
pub(super) fn volume_usage(maintenance: &Maintenance) -> Result<VolumeUsageReport, VolumeFailure> {
    let counted = maintenance.usage().count().map_err(VolumeFailure::from)?;
    let members = maintenance.transactions().members();
    let known = members.known_members().into_iter();
    Ok(VolumeUsageReport {
        volume: members.shape().volume_id().to_string(),
        label: members.shape().label().to_owned(),
        held_bytes: counted.held_bytes,
        unwritten_bytes: counted.unwritten_bytes,
        members: known
            .map(|member| {
                let usage = counted.members.get(&member.index);
                member_usage(member, usage)
            })
            .collect(),
    })
}

fn member_usage(member: MemberStatus, usage: Option<&MemberUsage>) -> MemberUsageReport {
    let absence = member.refusal.or(member.reason);
    let absence = absence.filter(|_| member.state != MemberState::Online);
    let reason = absence.map_or_else(
        || "it did not answer".to_owned(),
        |reason| reason.to_string(),
    );
    MemberUsageReport {
        index: member.index.0,
        path: Some(member.path).filter(|path| !path.is_empty()),
        bytes_used: usage.map(MemberUsage::total),
        uses: usage.map(UsesReport::from),
        reason: usage.is_none().then_some(reason),
    }
}

/// Says where a file is, or everything in a directory, and which losses it survives.
///
/// # Errors
///
/// If it is gone, or records cannot be read.
pub(super) fn files_usage(
    fs: &Fs,
    maintenance: &Maintenance,
    ino: Ino,
) -> Result<FilesUsageReport, VolumeFailure> {
    let mut sum = Sum::default();
    let mut is_directory = false;
    for entry in tree::walk_from(fs, ino).map_err(VolumeFailure::from)? {
        match entry {
            Ok(entry) => {
                is_directory |= entry.attr.ino == ino && entry.attr.kind == FileKind::Directory;
                sum.add(maintenance, &entry.attr)?;
            }
            // It was removed meanwhile.
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
    }
    sum.report(maintenance, is_directory)
}

/// The sum over some files.
#[derive(Default)]
struct Sum {
    stripes: FileStripes,
    files: u64,
    directories: u64,
    size: u64,
    allocated_bytes: u64,
}

impl Sum {
    fn add(&mut self, maintenance: &Maintenance, attr: &Attr) -> Result<(), VolumeFailure> {
        if attr.kind == FileKind::Directory {
            self.directories += 1;
            return Ok(());
        }
        let usage = maintenance.usage();
        let is_new = usage.add_file(attr.ino, &mut self.stripes);
        if is_new.map_err(VolumeFailure::from)? {
            self.files += 1;
            self.size = self.size.saturating_add(attr.size);
            self.allocated_bytes += attr.blocks_512 * 512;
        }
        Ok(())
    }

    fn report(
        self,
        maintenance: &Maintenance,
        is_directory: bool,
    ) -> Result<FilesUsageReport, VolumeFailure> {
        let counted = maintenance.usage().count_stripes(&self.stripes);
        let counted = counted.map_err(VolumeFailure::from)?;
        let transactions = maintenance.transactions();
        let index = index_report(transactions);
        let of_index = i64::try_from(index.members.len()).unwrap_or(i64::MAX) - 1;
        let fewest = counted.losses_tolerated.keys().next().copied();
        let fewest = fewest.map_or(of_index, |fewest| of_index.min(fewest.into()));
        let is_lost = counted.without_record > 0;
        let rows = counted.losses_tolerated.iter();
        Ok(FilesUsageReport {
            is_directory,
            files: self.files,
            directories: self.directories,
            size: self.size,
            allocated_bytes: self.allocated_bytes,
            extents: counted.extents,
            reserved_bytes: counted.reserved_bytes,
            stripes: counted.losses_tolerated.values().sum(),
            unwritten_stripes: counted.unwritten,
            stripes_without_record: counted.without_record,
            bytes_without_record: counted.bytes_without_record,
            stripes_below_full: counted.below_full,
            losses_tolerated: if is_lost { fewest.min(-1) } else { fewest },
            redundancy: rows
                .map(|(losses, stripes)| StripesReport {
                    losses_tolerated: (*losses).into(),
                    stripes: *stripes,
                })
                .collect(),
            index,
            members: holders(transactions.members(), &counted.shards),
        })
    }
}

fn holders(members: &Members, shards: &BTreeMap<MemberIndex, u64>) -> Vec<MemberShardsReport> {
    let live = members.membership().live();
    let of_member = |(index, shards): (&MemberIndex, &u64)| MemberShardsReport {
        index: index.0,
        path: Some(members.membership().path(*index)).filter(|path| !path.is_empty()),
        shards: *shards,
        is_online: live.contains(index),
    };
    shards.iter().map(of_member).collect()
}
