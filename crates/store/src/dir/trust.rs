//! Refusing directories of users whom the process does not trust.
//!
//! The checks look at descriptors and not at paths, and every file is checked again when it is opened. A user who may
//! write to the directory above a member can so take the member away. But this user can put nothing in its place.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use super::own::{Failed, Seen, Trust};
use super::tree::Tree;
use crate::{StoreError, StoreErrorKind};
use cauchyfs_format::files;

/// Most segment files that are looked at when a directory is opened: each is checked when it is opened itself.
const MOST_SEGMENTS: usize = 1000;

static OWN_USER_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on this process opens only directories that belong to its own user, with all that is in them. No other
/// user may be able to write to them.
pub fn trust_own_user_only() {
    OWN_USER_ONLY.store(true, Ordering::Relaxed);
}

/// Returns which users this process trusts.
pub(super) fn of_process() -> Trust {
    if OWN_USER_ONLY.load(Ordering::Relaxed) {
        Trust::OwnUser
    } else {
        Trust::Anyone
    }
}

/// Checks a directory that was opened, what lies at its top, and its first segments.
///
/// # Errors
///
/// [`StoreErrorKind::Untrusted`], naming the first thing that is not as it has to be.
pub(super) fn check(tree: &Tree, label: &str) -> Result<(), StoreError> {
    if tree.rule().trust() == Trust::Anyone {
        return Ok(());
    }
    let untrusted = |name: &str, seen: &Seen| {
        let problem = problem_of(tree, seen)?;
        let source = io::Error::new(io::ErrorKind::PermissionDenied, problem);
        let kind = StoreErrorKind::Untrusted;
        Some(StoreError::new(kind, label, "trust", name, source))
    };
    let mut found = untrusted("directory", tree.rule().top());
    for (dir, most) in [("", usize::MAX), (files::SEGMENTS, MOST_SEGMENTS)] {
        let mut left = most;
        if found.is_some() {
            break;
        }
        let looked = tree.for_each_entry(dir, |base, seen| {
            let name = if dir.is_empty() {
                base.to_owned()
            } else {
                format!("{dir}/{base}")
            };
            found = untrusted(&name, seen);
            left -= 1;
            if found.is_some() || left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match looked {
            Ok(()) | Err(Failed::Foreign(_) | Failed::ForeignDirectory(_)) => {}
            Err(Failed::Call(errno)) => {
                return Err(StoreError::from_io(
                    label,
                    "trust",
                    "directory",
                    errno.into(),
                ));
            }
        }
    }
    found.map_or(Ok(()), Err)
}

fn problem_of(tree: &Tree, seen: &Seen) -> Option<String> {
    let (owner, mode) = (seen.owner, seen.mode.bits() & 0o7777);
    if !tree.rule().may_own(owner) {
        return Some(format!("it belongs to uid {owner} (mode {mode:04o})"));
    }
    let is_open = seen.is_writable_by_others();
    is_open
        .then(|| format!("others than its owner, uid {owner}, may write to it (mode {mode:04o})"))
}
