//! File trees as text: to compare what a volume gives back, and to see what was changed around it.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::SeekFrom;

use super::image::BLOCK;

/// Entries that are looked at, at most, and how deep: hostile trees have no end.
const MAX_ENTRIES: usize = 3000;
const MAX_DEPTH: usize = 24;

/// Bytes that are read of one file, at most.
const MAX_BYTES: u64 = 8 << 20;

/// Paths, escaped, and what lies there.
pub(crate) type Tree = BTreeMap<String, String>;

/// Returns what lies below a directory; errors are part of it. `skip` names directories by path that are not entered.
pub(crate) fn list(root: &Path, skip: &[&Path]) -> Tree {
    let mut tree = Tree::new();
    list_into(root, "", 0, skip, &mut tree);
    tree
}

fn list_into(directory: &Path, prefix: &str, depth: usize, skip: &[&Path], tree: &mut Tree) {
    if depth > MAX_DEPTH || skip.contains(&directory) {
        return;
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            tree.insert(format!("{prefix}!"), error.to_string());
            return;
        }
    };
    for entry in entries {
        if tree.len() > MAX_ENTRIES {
            return;
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                tree.insert(format!("{prefix}!"), error.to_string());
                return;
            }
        };
        let name = format!("{prefix}{}", entry.file_name().as_bytes().escape_ascii());
        let path = entry.path();
        let text = fs::symlink_metadata(&path).map_or_else(
            |error| error.to_string(),
            |metadata| describe(&path, &metadata),
        );
        let is_directory = text.starts_with("directory");
        tree.insert(name.clone(), text);
        if is_directory {
            list_into(&path, &format!("{name}/"), depth + 1, skip, tree);
        }
    }
}

fn describe(path: &Path, metadata: &Metadata) -> String {
    let mode = metadata.mode() & 0o7777;
    let kind = metadata.file_type();
    if kind.is_dir() {
        format!("directory {mode:o} {}", metadata.uid())
    } else if kind.is_symlink() {
        let target = fs::read_link(path);
        format!(
            "symlink {}",
            target.map_or_else(
                |error| error.to_string(),
                |target| target.as_os_str().as_bytes().escape_ascii().to_string()
            )
        )
    } else if kind.is_file() {
        format!(
            "file {mode:o} {} {} {}",
            metadata.uid(),
            metadata.len(),
            hash(path, metadata.len())
        )
    } else if kind.is_fifo() {
        format!("fifo {mode:o}")
    } else {
        format!("special {mode:o} {:x}", metadata.rdev())
    }
}

/// Returns the checksum of a file's blocks that are not all zeros, and of their places; or why it cannot be read.
fn hash(path: &Path, len: u64) -> String {
    match try_hash(path, len) {
        Ok(hash) => format!("{hash:08x}"),
        Err(error) => error.to_string(),
    }
}

fn try_hash(path: &Path, len: u64) -> std::io::Result<u32> {
    let file = File::open(path)?;
    let (mut at, mut read, mut hash) = (0, 0, 0);
    while at < len && read < MAX_BYTES {
        let data = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        // At least one byte further, whatever a hostile file says.
        let end = rustix::fs::seek(&file, SeekFrom::Hole(data))?.max(data + 1);
        at = at.max(data / BLOCK as u64 * BLOCK as u64);
        while at < end && read < MAX_BYTES {
            let mut block = [0; BLOCK];
            let count = file.read_at(&mut block, at)?;
            if count == 0 {
                return Ok(hash);
            }
            if block.iter().any(|byte| *byte != 0) {
                hash = crc32c::crc32c_append(hash, &at.to_le_bytes());
                hash = crc32c::crc32c_append(hash, &block);
            }
            at += BLOCK as u64;
            read += BLOCK as u64;
        }
    }
    Ok(hash)
}

/// Returns the differences of two trees, a few of them.
pub(crate) fn differences(expected: &Tree, found: &Tree) -> Vec<String> {
    let missing = expected
        .iter()
        .filter(|(path, text)| found.get(*path) != Some(*text));
    let missing =
        missing.map(|(path, text)| format!("{path}: {text}, found {:?}", found.get(path)));
    let extra = found
        .iter()
        .filter(|(path, _)| !expected.contains_key(*path));
    let extra = extra.map(|(path, text)| format!("{path}: {text}, not expected"));
    missing.chain(extra).take(5).collect()
}

/// Returns a tree as lines, which [`parse`] reads.
pub(crate) fn to_text(tree: &Tree) -> String {
    tree.iter().fold(String::new(), |text, (path, what)| {
        text + path + "\t" + what + "\n"
    })
}

/// Reads what [`to_text`] wrote.
pub(crate) fn parse(text: &str) -> Tree {
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    lines
        .map(|(path, what)| (path.to_owned(), what.to_owned()))
        .collect()
}
