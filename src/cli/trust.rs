//! Refusing, as root, directories that belong to other users or that such users may write to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directories::Directories;
use super::failure::Failure;
use crate::fuse::one_line;
use crate::members::directory;
use crate::store::{StoreError, StoreErrorKind};

/// Option without which such directories are refused, and the reason for which it may be given.
const UNLESS: &str = "# or --trust-members, if their users may do all that root may";

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
    let failure = Failure::environment(format!("cannot mount as root: {}", one_line(first)));
    let paths = untrusted.iter().map(|(path, _)| *path);
    Err(failure.advise(command(paths)))
}

/// Puts into words why a directory is refused that is not trusted.
pub(super) fn refusal(error: &StoreError) -> Failure {
    Failure::environment(one_line(error)).advise(command([Path::new(error.label())].into_iter()))
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
            .advise(format!("chown root: {}    {UNLESS}", quoted(path))));
        }
    }
    Ok(())
}

/// Returns the command that gives directories to root alone.
fn command<'a>(paths: impl Iterator<Item = &'a Path>) -> String {
    let quoted: Vec<String> = paths.map(quoted).collect();
    let paths = quoted.join(" ");
    format!("chown -R root: {paths} && chmod -R go-w {paths}    {UNLESS}")
}

/// Quotes a path for a shell.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_a_command_for_every_directory_whatever_its_name() {
        let paths = ["/srv/d 0", "/srv/it's"].map(Path::new);
        assert_eq!(
            command(paths.into_iter()),
            "chown -R root: '/srv/d 0' '/srv/it'\\''s' && chmod -R go-w '/srv/d 0' '/srv/it'\\''s'    \
             # or --trust-members, if their users may do all that root may"
        );
    }
}
