//! Damage to the files of a member while they are in use.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Bytes of a superblock's slot; the other one is right.
const SLOT_BYTES: u64 = 64 << 10;

fn segments(member: &Path) -> Vec<PathBuf> {
    // A member that has no segment yet has no directory for them either.
    let Ok(entries) = fs::read_dir(member.join("segments")) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("the member is there").path())
        .collect();
    paths.sort();
    paths
}

/// Opens a file, unless its owner has removed it meanwhile.
fn open(path: &Path) -> Option<File> {
    File::options().read(true).write(true).open(path).ok()
}

/// Turns some bytes of a file into others.
fn flip(file: &File, offset: u64) {
    let mut bytes = [0; 8];
    let read = file.read_at(&mut bytes, offset).expect("it can be read");
    let wrong = bytes.map(|byte| byte ^ 0x55);
    file.write_all_at(&wrong[..read], offset)
        .expect("it can be written");
}

/// Damages files of a member in a way that is drawn, and says how.
pub(super) fn spoil(member: &Path, rng: &mut StdRng) -> String {
    let segments = segments(member);
    let choice = rng.random_range(0..8);
    match choice {
        0 => {
            let slot = rng.random_range(0..2) * SLOT_BYTES;
            if let Some(file) = open(&member.join("superblock")) {
                flip(&file, slot + rng.random_range(0..200));
            }
            return format!("superblock, slot at {slot}");
        }
        1 => {
            // Not all members have one.
            if let Some(file) = open(&member.join("index")) {
                let len = file.metadata().expect("it is open").len();
                for _ in 0..20 {
                    flip(&file, rng.random_range(0..len.max(1)));
                }
                return format!("20 places of {len} bytes of the index");
            }
        }
        _ => {}
    }
    let mut hit = 0;
    let share = [0.1, 0.5, 1.0].choose(rng).expect("there are some");
    for (number, path) in segments.iter().enumerate() {
        if !rng.random_bool(*share) {
            continue;
        }
        let Some(file) = open(path) else { continue };
        let len = file.metadata().expect("it is open").len();
        hit += 1;
        match choice {
            2 => file
                .set_len(rng.random_range(0..=len))
                .expect("it can be cut"),
            3 => drop(fs::remove_file(path)),
            4 => {
                let offset = rng.random_range(0..=len);
                let zeros = vec![0; usize::try_from(len - offset).expect("it is small") / 2];
                file.write_all_at(&zeros, offset).expect("there is room");
            }
            5 => {
                let other = &segments[(number + 1) % segments.len()];
                if let Ok(bytes) = fs::read(other) {
                    file.write_all_at(&bytes, 0).expect("there is room");
                }
            }
            _ => {
                for _ in 0..rng.random_range(1..50) {
                    flip(&file, rng.random_range(0..len.max(1)));
                }
            }
        }
    }
    format!("way {choice}, {hit} of {} segment files", segments.len())
}
