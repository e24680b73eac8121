//! New journals on filesystems that mark reserved space as used when it is first written.

use super::rig::{Rig, first, inline};
use crate::codec::Geometry;
use crate::format::files;
use crate::membership::{Access, CreateOptions, Members};
use crate::metadata::Meta;
use crate::store::{Call, CallKind, FaultPlan, MemDisk, Store};

/// The most bytes that one operation may write: a slow member is not given up if it answers each in time.
const PIECE: u64 = 1 << 20;

/// The member whose filesystem marks nothing.
const PLAIN: usize = 0;

/// Makes a volume of three members with faults, and records the calls of its metadata.
fn formatted(plan: &FaultPlan) -> Rig {
    let disks: Vec<_> = (0..3)
        .map(|index| MemDisk::new(&format!("disk {index}"), 160 << 20))
        .collect();
    for disk in &disks[PLAIN + 1..] {
        disk.mark_first_writes();
    }
    let rig = Rig { disks };
    let geometry = Geometry::new(2, 1).expect("the geometry is valid");
    Members::create(&rig.stores(&[], None), &CreateOptions::new(geometry)).expect("create");
    let stores = rig.stores(&[], Some(plan));
    let members = Members::open(stores, Access::ReadWrite, inline()).expect("members");
    plan.record();
    Meta::format(&members, &first()).expect("format");
    rig
}

/// Asserts that the first writes to a file are of this range, piece by piece.
#[track_caller]
pub(super) fn assert_written(
    calls: &[Call],
    (member, name): (usize, &str),
    range: std::ops::Range<u64>,
) {
    let is_write =
        |call: &&Call| (call.member, call.kind, &*call.name) == (member, CallKind::Write, name);
    let mut next = range.start;
    for call in calls.iter().filter(is_write) {
        if next == range.end {
            return;
        }
        assert_eq!(call.offset, next, "{call:?}");
        assert!(call.len <= PIECE, "{call:?}");
        next += call.len;
    }
    assert_eq!(next, range.end, "{name} of member {member}");
}

/// Asserts that nothing was written to a file.
#[track_caller]
fn assert_not_written(calls: &[Call], (member, name): (usize, &str)) {
    let mut calls = calls.iter();
    let is_write =
        |call: &&Call| (call.member, call.kind, &*call.name) == (member, CallKind::Write, name);
    assert_eq!(calls.find(is_write), None);
}

fn len(disk: &MemDisk, name: &str) -> u64 {
    disk.open().open_len(name).expect("the file is there")
}

#[test]
fn the_journals_of_a_new_volume_are_written_in_small_pieces_where_the_filesystem_marks_first_writes()
 {
    let plan = FaultPlan::new();
    let rig = formatted(&plan);
    let calls = plan.take_log();
    for name in files::JOURNALS {
        let size = len(&rig.disks[PLAIN], name);
        assert!(size > 2 * PIECE && !size.is_multiple_of(PIECE), "{size}");
        assert_not_written(&calls, (PLAIN, name));
        for (member, disk) in rig.disks.iter().enumerate().skip(PLAIN + 1) {
            assert_eq!(len(disk, name), size);
            assert_written(&calls, (member, name), 0..size);
        }
    }
}

/// Only the space that is added to an old journal is written, because its records may still be needed.
#[test]
fn a_mount_writes_the_space_of_journals_that_it_makes_or_extends() {
    let rig = formatted(&FaultPlan::new());
    let [lost, short] = files::JOURNALS;
    let size = len(&rig.disks[PLAIN], lost);
    rig.disks[1].open().remove(lost).expect("it is there");
    // A file of a megabyte or more would tell the others their length.
    let rest = PIECE / 2;
    rig.disks[2]
        .open()
        .truncate(short, rest)
        .expect("it is there");
    let plan = FaultPlan::new();
    plan.record();
    drop(rig.mounted(Some(&plan), Access::ReadWrite));
    let calls = plan.take_log();
    for (member, name, range) in [(1, lost, 0..size), (2, short, rest..size)] {
        assert_eq!(len(&rig.disks[member], name), size);
        assert_written(&calls, (member, name), range);
    }
    assert_not_written(&calls, (1, short));
    assert_not_written(&calls, (PLAIN, short));
}
