//! The files on members.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Returns the segment files of a member, by their names.
pub(crate) fn segment_files(member: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(member.join("segments")).expect("the member is there");
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().expect("names are text");
        (name, fs::read(entry.path()).expect("the file is there"))
    };
    entries
        .map(|entry| read(entry.expect("it can be listed")))
        .collect()
}
