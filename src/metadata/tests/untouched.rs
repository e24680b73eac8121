//! The state of a volume that could not be opened: it is unchanged.

use std::collections::BTreeMap;

use cauchyfs_testkit::subsets;

use super::rig::{Progress, Refused, Rig, Script, content, difference, inline, play, verify};
use crate::format::files;
use crate::format::frame::{FRAMES_START, HEAD_BYTES};
use crate::membership::Access;
use crate::metadata::MetaError;
use crate::store::{MemDisk, Store};

const SEED: u64 = 91;
const UNITS: usize = 5;

type Harm = fn(&MemDisk);

const HARMS: [(&str, Harm); 4] = [
    ("removed", |disk| {
        disk.open().remove("index").expect("it is there");
    }),
    ("emptied", |disk| {
        disk.open().truncate("index", 0).expect("it is there");
    }),
    ("without heads", |disk| {
        disk.corrupt("index", 0, |bytes| bytes.fill(0), 2 * HEAD_BYTES);
    }),
    ("without pages", |disk| {
        let len = disk.open().open_len("index").expect("it is there") - FRAMES_START;
        let len = usize::try_from(len).expect("small");
        disk.corrupt("index", FRAMES_START, |bytes| bytes.fill(0xa5), len);
    }),
];

/// Every byte in the directories, but for the locks.
pub(super) fn image(rig: &Rig) -> Vec<BTreeMap<String, Vec<u8>>> {
    let files_of = |disk: &MemDisk| {
        let store = disk.open();
        let dirs = ["", files::SEGMENTS];
        let listed = dirs.iter().flat_map(|dir| store.list(dir).expect("list"));
        let kept = listed.filter(|(name, _)| name != files::LOCK);
        kept.map(|(name, len)| {
            let mut bytes = vec![0; usize::try_from(len).expect("small")];
            store.read_at(&name, 0, &mut bytes).expect("read");
            (name, bytes)
        })
        .collect()
    };
    rig.disks.iter().map(files_of).collect()
}

/// Tries to open the volume without `lost`; says whether that was refused for want of an index.
fn refused_and_untouched(
    rig: &Rig,
    lost: &[usize],
    script: &Script,
    progress: Progress,
    case: &str,
) -> Option<Refused> {
    let before = image(rig);
    match rig.open(lost, None, Access::ReadWrite) {
        Ok((meta, ..)) => {
            let found = content(&meta).expect("content");
            let expected = &script.states[progress.acknowledged];
            assert!(
                found == *expected,
                "{case}: {}",
                difference(expected, &found)
            );
            None
        }
        Err(refused) => {
            assert!(
                image(rig) == before,
                "{case}: {refused:?}, but something was written"
            );
            Some(refused)
        }
    }
}

/// Otherwise those that were tried first would mark the only member missing that has what they lack.
#[test]
fn members_that_could_not_be_opened_alone_open_once_the_others_are_back() {
    let mut without_index = 0;
    for (k, m, count) in [(2, 1, 3), (1, 1, 3), (2, 2, 4)] {
        let origin = Rig::new(k, m, count);
        let script = Script::new(SEED, UNITS);
        let (progress, outcome) = play(&origin, None, &script, 2, &inline());
        outcome.expect("nothing fails");
        let holders =
            (0..count).filter(|disk| origin.disks[*disk].open().open_len("index").is_ok());
        let holders: Vec<_> = holders.collect();
        for (how, harm) in HARMS {
            for hurt in subsets(count, m) {
                if !hurt.iter().all(|disk| holders.contains(disk)) {
                    continue;
                }
                let origin = origin.fork();
                for disk in &hurt {
                    harm(&origin.disks[*disk]);
                }
                for lost in subsets(count, count - 1) {
                    let case = format!("{k}+{m}: {hurt:?} {how}, {lost:?} lost, seed {SEED}");
                    let rig = origin.fork();
                    let refused = refused_and_untouched(&rig, &lost, &script, progress, &case);
                    let Some(refused) = refused else { continue };
                    if matches!(refused, Refused::Meta(MetaError::NoIndex { .. })) {
                        without_index += 1;
                    }
                    verify(&rig, &[], &script, progress, &case);
                }
            }
        }
    }
    assert!(
        without_index > 0,
        "nothing was refused for want of an index"
    );
}
