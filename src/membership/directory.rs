//! Opening the directories of members.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::format::files;
use crate::store::{DirStore, FileRoles, StoreError, Trust};

/// The roles of a member's files. What lies in segments and journals is cached once already, above the stores. All
/// other files, the index before all, want the page cache. A member goes on without a segment file, whose bytes others
/// can replace, and without a superblock, whose content is all known. It goes on without events, which others have too.
static ROLES: FileRoles = FileRoles {
    lock: files::LOCK,
    owners: &[files::SUPERBLOCK, files::LOCK],
    subdirectory: files::SEGMENTS,
    bypasses_cache: |name| is_in_segments(name) || files::JOURNALS.contains(&name),
    is_expendable: |name| {
        is_in_segments(name)
            || [files::SUPERBLOCK, files::EVENTS, files::OLD_EVENTS].contains(&name)
    },
};

fn is_in_segments(name: &str) -> bool {
    let below = name.strip_prefix(files::SEGMENTS);
    below.is_some_and(|below| below.starts_with('/'))
}

static OWN_USER_ONLY: AtomicBool = AtomicBool::new(false);

/// Makes this process open only directories that belong to its own user, with all that is in them. No other user may be
/// able to write to them.
pub fn trust_own_user_only() {
    OWN_USER_ONLY.store(true, Ordering::Relaxed);
}

/// Opens the directory of a member, of a user whom this process trusts; see [`trust_own_user_only`].
///
/// # Errors
///
/// As [`DirStore::open`].
pub fn open(path: impl Into<PathBuf>) -> Result<DirStore, StoreError> {
    let trust = if OWN_USER_ONLY.load(Ordering::Relaxed) {
        Trust::OwnUser
    } else {
        Trust::Anyone
    };
    open_trusting(path, trust)
}

/// Opens the directory of a member, of a user whom `trust` covers.
///
/// # Errors
///
/// As [`DirStore::open`].
pub fn open_trusting(path: impl Into<PathBuf>, trust: Trust) -> Result<DirStore, StoreError> {
    DirStore::open(path, &ROLES, trust)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentId;

    #[test]
    fn segments_and_journals_bypass_the_page_cache_and_all_other_files_use_it() {
        let segment = files::segment(SegmentId(7));
        let direct = [&*segment, files::JOURNALS[0], files::JOURNALS[1]];
        assert!(direct.into_iter().all(ROLES.bypasses_cache));
        let cached = [files::INDEX, files::SUPERBLOCK, files::LOCK, files::BALLAST];
        assert!(!cached.into_iter().any(ROLES.bypasses_cache));
    }

    #[test]
    fn only_segments_the_superblock_and_events_are_expendable() {
        let segment = files::segment(SegmentId(7));
        let expendable = [
            &*segment,
            files::SUPERBLOCK,
            files::EVENTS,
            files::OLD_EVENTS,
        ];
        assert!(expendable.into_iter().all(ROLES.is_expendable));
        let needed = [
            files::INDEX,
            files::JOURNALS[0],
            files::JOURNALS[1],
            files::LOCK,
        ];
        assert!(!needed.into_iter().any(ROLES.is_expendable));
    }
}
