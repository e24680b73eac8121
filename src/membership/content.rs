//! The contents of a directory that may become a member, or may have been one: files of CauchyFS, and foreign ones.
//!
//! A directory in the place of a member, whose disk is not mounted, is looked into again and again, and may have
//! millions of entries. So only some of them are looked at.

use std::ops::ControlFlow;

use crate::format::files;
use crate::store::{EntryKind, Store, StoreError};

/// The directory that `mkfs` leaves at the top of a filesystem.
const LOST_AND_FOUND: &str = "lost+found";

/// Most entries of a directory that are looked at, many times what a member has beside its segments. One foreign entry
/// is enough to know.
const MOST_ENTRIES: usize = 1000;

/// The contents of a directory. An interrupted attempt may have left a lock in it.
#[derive(Debug, Default)]
pub(super) struct DirectoryContent {
    /// A file of a member, the superblock before all others, and these before segments.
    pub(super) ours: Option<String>,
    /// Set if there are segments.
    pub(super) has_segments: bool,
    /// A file, directory, link or socket that no member has.
    pub(super) foreign: Option<String>,
}

impl DirectoryContent {
    /// Looks into a directory.
    ///
    /// # Errors
    ///
    /// Only those of a failing directory.
    pub(super) fn of(store: &dyn Store) -> Result<Self, StoreError> {
        let mut content = Self::default();
        let mut has_subdirectory = false;
        let mut events = None;
        look_at_some(store, "", |name, kind| match (name, kind) {
            (files::LOCK, EntryKind::File) | (LOST_AND_FOUND, EntryKind::Directory) => {}
            (files::SEGMENTS, EntryKind::Directory) => has_subdirectory = true,
            (files::SUPERBLOCK, EntryKind::File) => content.ours = Some(name.to_owned()),
            (_, EntryKind::File) if is_of_member(name) => {
                content.ours.get_or_insert_with(|| name.to_owned());
            }
            (files::EVENTS | files::OLD_EVENTS, EntryKind::File) => {
                events = Some(name.to_owned());
            }
            _ => note(&mut content.foreign, name.to_owned()),
        })?;
        if has_subdirectory {
            look_at_some(store, files::SEGMENTS, |name, kind| {
                let name = format!("{}/{name}", files::SEGMENTS);
                if kind == EntryKind::File && files::parse_segment(&name).is_some() {
                    content.has_segments = true;
                    content.ours.get_or_insert(name);
                } else {
                    note(&mut content.foreign, name);
                }
            })?;
        }
        // Others may have files of these names as well.
        if content.ours.is_none()
            && let Some(name) = events
        {
            note(&mut content.foreign, name);
        }
        Ok(content)
    }

    /// Returns something that is in the directory; a superblock, if it has one.
    pub(super) fn any(self) -> Option<String> {
        self.ours.or(self.foreign)
    }
}

fn is_of_member(name: &str) -> bool {
    files::JOURNALS.contains(&name)
        || [files::INDEX, files::BALLAST, files::DATA_BALLAST].contains(&name)
}

/// Notes the first entry found, in a form that can be shown.
fn note(found: &mut Option<String>, name: String) {
    found.get_or_insert_with(|| {
        if name.chars().any(char::is_control) {
            name.escape_debug().to_string()
        } else {
            name
        }
    });
}

fn look_at_some(
    store: &dyn Store,
    dir: &str,
    mut look: impl FnMut(&str, EntryKind),
) -> Result<(), StoreError> {
    let mut left = MOST_ENTRIES;
    store.visit(dir, &mut |name, kind| {
        look(name, kind);
        left -= 1;
        if left == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;
    use crate::membership::directory;

    /// Returns the content of a directory once something was put there.
    fn content_with(put: impl FnOnce(&Path)) -> DirectoryContent {
        let home = tempfile::tempdir().expect("there is room");
        put(home.path());
        let store = directory::open(home.path()).expect("it was just made");
        DirectoryContent::of(&store).expect("nothing fails")
    }

    #[test]
    fn every_entry_that_no_member_has_is_foreign() {
        type Put = fn(&Path);
        let foreign: [(&str, Put); 8] = [
            ("photos", |top| fs::create_dir(top.join("photos")).unwrap()),
            ("link", |top| symlink("nowhere", top.join("link")).unwrap()),
            ("socket", |top| {
                drop(UnixListener::bind(top.join("socket")).unwrap());
            }),
            ("two words", |top| {
                fs::write(top.join("two words"), "").unwrap();
            }),
            ("a\\nb", |top| fs::write(top.join("a\nb"), "").unwrap()),
            ("journal.0", |top| {
                fs::create_dir(top.join("journal.0")).unwrap();
            }),
            ("segments", |top| {
                symlink("/srv", top.join("segments")).unwrap();
            }),
            ("segments/old", |top| {
                fs::create_dir_all(top.join("segments/old")).unwrap();
            }),
        ];
        for (name, put) in foreign {
            let content = content_with(put);
            assert_eq!(content.foreign.as_deref(), Some(name));
            assert!(content.ours.is_none(), "{name}: {content:?}");
        }
    }

    #[test]
    fn the_remains_of_an_interrupted_creation_or_of_mkfs_count_as_nothing() {
        let content = content_with(|top| {
            for directory in [LOST_AND_FOUND, files::SEGMENTS] {
                fs::create_dir(top.join(directory)).unwrap();
            }
            fs::write(top.join(files::LOCK), "").unwrap();
        });
        assert!(content.any().is_none());
    }

    #[test]
    fn a_superblock_is_named_before_all_other_files_of_a_member_and_segments_last() {
        const SEGMENT: &str = "segments/000000000000002a";
        for (names, first) in [
            (&[SEGMENT][..], SEGMENT),
            (&[SEGMENT, files::INDEX], files::INDEX),
            (
                &[SEGMENT, files::INDEX, files::SUPERBLOCK],
                files::SUPERBLOCK,
            ),
            (
                &[files::SUPERBLOCK, "photos", files::INDEX],
                files::SUPERBLOCK,
            ),
        ] {
            let content = content_with(|top| {
                fs::create_dir(top.join(files::SEGMENTS)).unwrap();
                for name in names {
                    fs::write(top.join(name), "").unwrap();
                }
            });
            assert_eq!(content.has_segments, names.contains(&SEGMENT));
            assert_eq!(content.any().as_deref(), Some(first), "{names:?}");
        }
    }

    #[test]
    fn only_some_of_very_many_entries_are_read() {
        let home = tempfile::tempdir().expect("there is room");
        for number in 0..=MOST_ENTRIES {
            fs::write(home.path().join(number.to_string()), "").unwrap();
        }
        let store = directory::open(home.path()).expect("it was just made");
        let mut looked_at = 0;
        look_at_some(&store, "", |_, _| looked_at += 1).expect("nothing fails");
        assert_eq!(looked_at, MOST_ENTRIES);
    }
}
