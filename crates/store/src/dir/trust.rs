//! Refusing directories of users whom the caller does not trust.
//!
//! The checks look at descriptors and not at paths, and every file is checked again when it is opened. A user who may
//! write to the parent of a directory can so take the directory away. But this user can put nothing in its place.

use std::io;
use std::ops::ControlFlow;

use super::own::{Failed, Seen, Trust};
use super::tree::Tree;
use crate::{StoreError, StoreErrorKind};

/// Most files of the subdirectory that are looked at when a directory is opened: each is checked when it is opened itself.
const MOST_BELOW: usize = 1000;

/// Checks a directory that was opened, what lies at its top, and the first files of its subdirectory.
///
/// # Errors
///
/// [`StoreErrorKind::Untrusted`], naming the first thing that is not as it has to be.
pub(super) fn check(tree: &Tree, subdirectory: &str, label: &str) -> Result<(), StoreError> {
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
    for (dir, most) in [("", usize::MAX), (subdirectory, MOST_BELOW)] {
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
