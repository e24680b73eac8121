//! Files with content that can be told apart, and trees that can be compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use cauchyfs_testkit::fill_pattern;
pub(crate) use cauchyfs_testkit::pattern;

use super::{must, text};

/// Returns what is below `root`, by path: kind, permissions, and the bytes or the target.
fn tree_digest(root: &Path) -> BTreeMap<String, String> {
    let mut digest = BTreeMap::new();
    visit(root, root, &mut digest);
    digest
}

/// Fails at the first path where two trees differ.
#[track_caller]
pub(crate) fn compare_trees(expected: &Path, found: &Path) {
    let (expected, found) = (tree_digest(expected), tree_digest(found));
    for (path, what) in &expected {
        assert_eq!(found.get(path), Some(what), "at {path}");
    }
    assert_eq!(expected.len(), found.len(), "one tree has more");
}

fn visit(root: &Path, directory: &Path, digest: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).expect("the directory can be listed") {
        let path = entry.expect("the entry can be read").path();
        let meta = path.symlink_metadata().expect("the entry is there");
        let name = path.strip_prefix(root).expect("it is below the root");
        let mode = meta.permissions().mode();
        let what = if meta.is_dir() {
            visit(root, &path, digest);
            format!("directory {mode:o}")
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).expect("the link can be read");
            format!("link {}", target.display())
        } else if meta.is_file() {
            format!("file {mode:o} {} {:016x}", meta.size(), hash_file(&path))
        } else {
            format!("special {mode:o}")
        };
        digest.insert(name.to_string_lossy().into_owned(), what);
    }
}

fn hash_file(path: &Path) -> u64 {
    let mut file = File::open(path).expect("the file can be opened");
    let mut piece = vec![0; 1 << 20];
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    loop {
        let len = file
            .read(&mut piece)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        if len == 0 {
            return hash;
        }
        for chunk in piece[..len].chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 31;
        }
    }
}

/// Writes a file of `len` bytes of [`pattern`] in pieces.
pub(crate) fn write_large(path: &Path, seed: u64, len: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < len {
        let now = usize::try_from(len - offset).map_or(piece.len(), |left| left.min(piece.len()));
        fill_pattern(seed, offset, &mut piece[..now]);
        file.write_all(&piece[..now])?;
        offset += now as u64;
    }
    Ok(())
}

/// Fails unless the file holds what [`write_large`] wrote.
#[track_caller]
pub(crate) fn check_large(path: &Path, seed: u64, len: u64) {
    let mut file = File::open(path).expect("the file can be opened");
    let (mut found, mut expected) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut offset = 0;
    while offset < len {
        let now = usize::try_from(len - offset).map_or(found.len(), |left| left.min(found.len()));
        file.read_exact(&mut found[..now])
            .unwrap_or_else(|error| panic!("{} at {offset}: {error}", path.display()));
        fill_pattern(seed, offset, &mut expected[..now]);
        assert!(
            found[..now] == expected[..now],
            "{} differs in the MiB at {offset}",
            path.display()
        );
        offset += now as u64;
    }
    assert_eq!(
        file.read(&mut found).expect("the end can be read"),
        0,
        "it is longer"
    );
}

/// Copies our own source, a real tree of real files, to a new directory.
pub(crate) fn copy_source(target: &Path) {
    fs::create_dir(target).expect("the target is writable");
    for part in ["src", "crates", "tests", "Cargo.toml", "Cargo.lock"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(part);
        must("cp", &["-a", text(&from), text(target)]);
    }
}
