//! The check of a volume's records: whether they agree with each other, and the repair where they do not.
//!
//! The check works on the index of a volume that is not mounted. It compares names with inodes, counters with
//! what is counted, and extents with the records that lead back to them. It compares stripes with segments, and
//! segments with the files that exist. It reads no bytes of files: that is a scrub's business.
//!
//! Memory grows with the number of directories, and by some 16 bytes for every other inode.

mod checker;
mod classes;
mod names;
mod quotas;
mod report;
mod storage;

use checker::Checker;

use crate::maintenance::Maintenance;

use super::error::FsError;
use super::paths;

pub use report::{CheckReport, Finding, FindingKind};

/// Checks all records again, after something else has repaired what it could, and takes note in `report` of what is
/// still wrong.
///
/// # Errors
///
/// [`FsError::Storage`] if the index cannot be read.
pub fn check_again(maintenance: &Maintenance, report: &mut CheckReport) -> Result<(), FsError> {
    let transactions = maintenance.transactions();
    let again = check(maintenance, false)?;
    let lacking = maintenance.redundancy().files_lacking_shards()?.into_iter();
    let lacking = lacking.map(|(member, segment)| storage::file_of(transactions, member, segment));
    report.settle(&again, &lacking.collect());
    Ok(())
}

/// Checks all records of a volume that is not mounted, and with `repair` repairs what can be repaired without
/// guessing: counts, marks, records that lead nowhere, and missing copies of the index. Inodes that lost their name
/// get one in the root directory.
///
/// Commits are made from here. Nothing else may change records meanwhile, because they could look wrong then.
///
/// # Errors
///
/// [`FsError::Storage`] if the index cannot be read, or written with `repair`.
pub fn check(maintenance: &Maintenance, repair: bool) -> Result<CheckReport, FsError> {
    let transactions = &**maintenance.transactions();
    let mut check = Checker {
        transactions,
        redundancy: maintenance.redundancy(),
        repair,
        report: CheckReport::default(),
    };
    let names = names::check_entries(&mut check)?;
    names::check_positions(&mut check)?;
    names::check_inodes(&mut check, &names)?;
    names::check_attributes(&mut check)?;
    classes::check_classes(&mut check)?;
    storage::check_extents(&mut check)?;
    // Once the inodes are right.
    quotas::check_quotas(&mut check)?;
    storage::check_backrefs(&mut check)?;
    storage::check_stripes(&mut check)?;
    storage::check_segments(&mut check)?;
    storage::check_files(&mut check)?;
    storage::check_copies(&mut check)?;
    let mut report = check.report;
    let inos = report.findings.iter().filter_map(|finding| finding.ino);
    let paths = paths::find(transactions, &inos.collect(), usize::MAX)?;
    for finding in &mut report.findings {
        finding.path = finding
            .ino
            .and_then(|ino| paths.get(&ino)?.first().cloned());
    }
    if repair {
        transactions.sync()?;
    }
    Ok(report)
}
