//! The table of mounts: `/proc/self/mountinfo`, read without touching the mounts themselves.
//!
//! A `stat` of a mountpoint fails or hangs if its daemon is gone or stuck. So everything here works from the kernel's
//! table and from parent directories alone.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The filesystem type of our mounts.
pub const FS_TYPE: &str = "fuse.cauchyfs";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number.
    pub id: u64,
    /// The number of the mount that it lies on: another at the same place, if it is above that.
    pub parent: u64,
    /// Major and minor number of the mounted filesystem's device, as `MAJ:MIN`.
    pub device: String,
    /// The mountpoint: absolute, as the kernel spells it.
    pub mountpoint: PathBuf,
    /// Filesystem type, subtype included.
    pub fs_type: String,
    /// The source given at the mount.
    pub source: OsString,
    /// Options of the filesystem (not of the mount), such as `user_id=0`.
    pub super_options: String,
}

impl MountEntry {
    /// Returns whether this is a mount of ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Returns the user that mounted it, where the filesystem says so.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        self.super_options
            .split(',')
            .find_map(|option| option.strip_prefix("user_id="))
            .and_then(|id| id.parse().ok())
    }
}

/// Returns every mount, in the order in which they were made.
///
/// # Errors
///
/// If `/proc/self/mountinfo` cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(entries(&fs::read("/proc/self/mountinfo")?))
}

fn entries(table: &[u8]) -> Vec<MountEntry> {
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(parse_line).collect()
}

/// Returns the mounts of one filesystem in the tables of all processes that `/proc` shows, with the number of the
/// process. Processes of one mount namespace have the same mounts; every namespace has its own numbers for them.
pub fn mounts_in_all_processes(device: &str) -> impl Iterator<Item = (u32, MountEntry)> {
    processes().into_iter().flat_map(move |process| {
        // The process may have ended.
        let table = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        let mut found = entries(&table);
        found.retain(|entry| entry.device == device);
        found.into_iter().map(move |entry| (process, entry))
    })
}

/// Returns the processes that `/proc` shows, by number.
#[must_use]
pub fn processes() -> Vec<u32> {
    let listed = fs::read_dir("/proc").into_iter().flatten();
    let names = listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut processes: Vec<u32> = names.collect();
    processes.sort_unstable();
    processes
}

/// Returns the mount on top at `mountpoint`, which must be spelled as [`locate`] returns it.
///
/// # Errors
///
/// If `/proc/self/mountinfo` cannot be read.
pub fn mount_at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    let mut on_it = mounts()?;
    on_it.retain(|entry| entry.mountpoint == mountpoint);
    Ok(topmost(on_it))
}

/// Returns that of the mounts at one place which lies on no other: whichever was made last, another may have been
/// moved above it.
fn topmost(mut stack: Vec<MountEntry>) -> Option<MountEntry> {
    let below: Vec<u64> = stack.iter().map(|entry| entry.parent).collect();
    let top = stack.iter().rposition(|entry| !below.contains(&entry.id));
    top.map(|top| stack.swap_remove(top))
}

/// Returns the absolute path, free of symlinks, of a directory that may be a mountpoint whose
/// daemon does not answer.
///
/// # Errors
///
/// If the parent does not exist, or if the path does not and is no mountpoint either.
pub fn locate(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    if let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) {
        let candidate = fs::canonicalize(parent)?.join(name);
        if mount_at(&candidate)?.is_some() {
            return Ok(candidate);
        }
    }
    fs::canonicalize(&absolute)
}

/// Parses `36 35 98:0 /root /mount options [tags...] - type source super-options`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let number = |field: &[u8]| str::from_utf8(field).ok()?.parse().ok();
    Some(MountEntry {
        id: number(fields.first()?)?,
        parent: number(fields.get(1)?)?,
        device: String::from_utf8(fields.get(2)?.to_vec()).ok()?,
        mountpoint: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
        fs_type: String::from_utf8_lossy(fields.get(separator + 1)?).into_owned(),
        source: OsString::from_vec(unescape(fields.get(separator + 2)?)),
        super_options: String::from_utf8_lossy(fields.get(separator + 3)?).into_owned(),
    })
}

/// Undoes the kernel's `\040` for blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(value) = octal {
            plain.push(value);
            rest = &tail[3..];
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_blanks_and_tags_is_read_field_by_field() {
        let line = b"52 22 0:47 / /mnt/my\\040photos rw,nosuid shared:7 master:1 - fuse.cauchyfs a\\134b rw,user_id=1000,group_id=1000";
        let entry = parse_line(line).expect("the line is well formed");
        assert_eq!((entry.id, entry.parent), (52, 22));
        assert_eq!(entry.device, "0:47");
        assert_eq!(entry.mountpoint, Path::new("/mnt/my photos"));
        assert_eq!(entry.source, OsString::from("a\\b"));
        assert_eq!(entry.user(), Some(1000));
        assert!(entry.is_ours());
    }

    #[test]
    fn the_top_of_stacked_mounts_counts_in_any_order_of_listing() {
        let at = |id: u64, parent: u64| {
            let line = format!("{id} {parent} 0:{id} / /mnt rw - fuse.cauchyfs x rw");
            parse_line(line.as_bytes()).expect("the line is well formed")
        };
        let stack = [at(60, 22), at(50, 60), at(70, 50)];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            let listed = order.map(|place: usize| stack[place].clone());
            let top = topmost(listed.to_vec()).expect("there are mounts");
            assert_eq!(top.id, 70, "{order:?}");
        }
        assert_eq!(topmost(Vec::new()), None);
    }

    #[test]
    fn cut_lines_are_skipped_wherever_they_are_cut() {
        let line = b"52 22 0:47 / /mnt rw - fuse x rw";
        for len in 0..line.len() - 2 {
            assert_eq!(parse_line(&line[..len]), None, "cut at {len}");
        }
        assert!(parse_line(line).is_some());
    }

    #[test]
    fn a_mount_is_found_in_the_table_of_every_process_that_has_it() {
        let root = mount_at(Path::new("/")).unwrap().unwrap();
        let me = std::process::id();
        let mut found = mounts_in_all_processes(&root.device);
        assert!(found.any(|(process, entry)| process == me && entry == root));
        assert_eq!(mounts_in_all_processes("0:0").next(), None);
        assert!(processes().is_sorted());
    }

    #[test]
    fn the_root_directory_is_located_and_mounted() {
        assert_eq!(locate(Path::new("/")).unwrap(), Path::new("/"));
        assert!(mount_at(Path::new("/")).unwrap().is_some());
    }
}
