//! Refusing, as root, directories that belong to other users or that such users may write to.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directories::Directories;
use super::failure::Failure;
use super::sentences::{UNLESS, give_to_root};
use super::shell::quoted_path;
use crate::format::files;
use crate::fuse::one_line;
use crate::membership::directory;
use crate::store::{StoreError, StoreErrorKind};

/// Has this process take only members that belong to root alone, if it runs as root.
///
/// # Errors
///
/// If one of the directories that are there, or a file in it, belongs to another user or can be written to by one.
pub(super) fn demand(directories: &Directories, patience: Duration) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    directory::trust_own_user_only();
    let present = &directories.present;
    let silent = &directories.silent;
    let opened = silent.ask_each(present, patience, |path| directory::open(path).err());
    let errors = opened.into_iter().map(Option::flatten);
    let is_untrusted = |error: &StoreError| error.kind() == StoreErrorKind::Untrusted;
    let untrusted: Vec<_> = present
        .iter()
        .zip(errors)
        .filter_map(|(path, error)| Some((path.as_path(), error.filter(is_untrusted)?)))
        .collect();
    let Some((_, first)) = untrusted.first() else {
        return Ok(());
    };
    if let Some((path, _)) = untrusted.iter().find(|(path, _)| is_foreign(path)) {
        // Its rights are as others need them.
        let shown = path.display();
        return Err(Failure::usage(format!(
            "{shown} is not a member of a volume: it has no superblock"
        ))
        .advise(format!(
            "leave {shown} out, or give the directory that is a member"
        )));
    }
    let failure = Failure::environment(format!("cannot mount as root: {}", one_line(first)));
    let paths = untrusted.iter();
    let paths: Vec<String> = paths.map(|(path, _)| path.display().to_string()).collect();
    Err(failure.advise(give_to_root(&paths)))
}

/// Returns whether a directory has nothing of a member in it.
fn is_foreign(path: &Path) -> bool {
    let is_absent = |name| {
        let found = fs::symlink_metadata(path.join(name));
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    is_absent(files::SUPERBLOCK) && is_absent(files::SEGMENTS)
}

/// Refuses to make members, as root, of directories that belong to other users.
///
/// # Errors
///
/// If there is one.
pub(super) fn refuse_directories_of_others(directories: &[PathBuf]) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for path in directories {
        // One that cannot be looked at fails when it is opened.
        let Ok(meta) = fs::metadata(path) else {
            continue;
        };
        if meta.uid() != 0 {
            let (shown, mode) = (path.display(), meta.mode() & 0o7777);
            return Err(Failure::environment(format!(
                "{shown} belongs to uid {} (mode {mode:04o}), and has to belong to root, who makes a member of it",
                meta.uid()
            ))
            .advise(format!("chown root: {}    {UNLESS}", quoted_path(path))));
        }
    }
    Ok(())
}
