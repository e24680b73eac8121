//! Making a volume, cut off.

use super::*;
use crate::membership::{DirectoryChoice, DirectoryStep, Remedy, VolumeStep};

fn options() -> CreateOptions {
    CreateOptions::new(Geometry::new(2, 1).unwrap())
}

/// Says whether a remedy is to create the volume again.
fn is_to_create(remedy: &Remedy) -> bool {
    matches!(
        remedy,
        Remedy::Volume(VolumeStep::CreateAgain)
            | Remedy::Choice(
                DirectoryChoice::Mounted
                    | DirectoryChoice::WithSuperblock
                    | DirectoryChoice::All {
                        unfinished: true,
                        ..
                    }
            )
    )
}

/// Says whether a remedy is to empty a directory, or to use one that is empty.
fn is_to_empty(remedy: &Remedy) -> bool {
    matches!(
        remedy,
        Remedy::Directory {
            step: DirectoryStep::IdentifyVolume | DirectoryStep::UseEmptyOne,
            ..
        }
    )
}

#[track_caller]
fn assert_remedy(error: &CommitError, is_right: fn(&Remedy) -> bool, context: &str) {
    let remedy = error.remedy();
    let is_right = remedy.as_ref().is_some_and(is_right);
    assert!(is_right, "{context}: {error}: {remedy:?}");
}

/// The remains are a volume, or are reported as none, with the remedy.
#[test]
fn the_rest_of_an_unfinished_volume_can_be_used_or_names_the_remedy() {
    let mut outcomes = BTreeMap::<String, u32>::new();
    for call in 1.. {
        let blank = |i| MemDisk::new(&format!("disk{i}"), DISK);
        let rig = Rig {
            disks: (0..3).map(blank).collect(),
        };
        let plan = FaultPlan::new();
        plan.add(cauchyfs_testkit::power_cut_at(call));
        let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
        if Transactions::create(&stores, &options(), executor()).is_ok() {
            assert!(call > 20, "only {call} calls were made");
            break;
        }
        for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(call)] {
            let context = format!("cut at call {call}, {policy:?}");
            let rig = rig.fork();
            rig.cut(policy);
            let outcome = match TestFs::open(rig.fork().stores(&[]), Access::ReadWrite) {
                Ok(fs) => {
                    fs.write(1, b"works").unwrap();
                    fs.sync().unwrap();
                    "opened".to_owned()
                }
                Err(error) => {
                    assert_remedy(&error, is_to_create, &context);
                    error.to_string()
                }
            };
            *outcomes.entry(outcome).or_default() += 1;
            if let Err(error) = Transactions::create(&rig.stores(&[]), &options(), executor()) {
                assert_remedy(&error, is_to_empty, &context);
                rig.disks.iter().for_each(MemDisk::wipe);
                Transactions::create(&rig.stores(&[]), &options(), executor()).unwrap();
            }
            rig.fork().open(&[]).write(1, b"works").unwrap();
        }
    }
    assert!(outcomes.len() >= 3, "{outcomes:?}");
}

#[test]
fn a_volume_that_was_written_to_and_lost_its_index_is_not_called_unfinished() {
    for len in [10, 100_000] {
        let rig = Rig::new(2, 1, 3);
        let fs = rig.open(&[]);
        fs.write(1, &pattern(1, len)).unwrap();
        fs.sync().unwrap();
        drop(fs);
        rig.cut(CutPolicy::Drop);
        for disk in &rig.disks {
            disk.open().remove(files::INDEX).unwrap();
        }
        let refused = TestFs::open(rig.stores(&[]), Access::ReadWrite).err();
        let error = refused.expect("there is no index");
        assert!(error.to_string().contains("holds a copy"), "{error}");
        let all = Remedy::from(DirectoryChoice::Latest);
        assert_eq!(error.remedy(), Some(all));
    }
}
