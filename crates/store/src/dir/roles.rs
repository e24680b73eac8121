//! The roles of a directory's files, as their users tell them.

/// The roles of a directory's files, by name: all that a [`DirStore`](super::DirStore) knows of what it holds.
#[derive(Debug)]
pub struct FileRoles {
    /// Empty file whose lock stands for the whole directory.
    pub lock: &'static str,
    /// Files whose owner may own all others. The first of them that is there counts.
    pub owners: &'static [&'static str],
    /// Subdirectory of which the first files are checked when the directory is opened.
    pub subdirectory: &'static str,
    /// Returns whether aligned I/O on a file bypasses the page cache. That serves files whose users cache them.
    pub bypasses_cache: fn(&str) -> bool,
    /// Returns whether a directory without this file is still of use: the file is one of many, or can be written again.
    pub is_expendable: fn(&str) -> bool,
}
