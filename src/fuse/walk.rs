//! Opening directories without following symlinks, and without asking what is mounted on them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags};

/// The flags for opening a directory: as a place to go on from, not to be read, and never through a symlink.
const AS_PLACE: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens the directory at an absolute path in which no component is a symlink.
///
/// # Errors
///
/// If one is, or if there is no such directory.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let root = rustix::fs::openat(CWD, "/", AS_PLACE, Mode::empty())?;
    open_below(root, components.as_path())
}

/// Opens a directory below another one; no component of `path` may be a symlink or `..`.
///
/// # Errors
///
/// If one is, or if there is no such directory.
pub fn open_below(directory: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    path.components()
        .try_fold(directory, |directory, component| match component {
            Component::Normal(name) => {
                let opened = rustix::fs::openat(directory.as_fd(), name, AS_PLACE, Mode::empty())?;
                Ok(opened)
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        })
}

/// Opens what has the name `name` in a directory, of whatever kind: a single file can be a mountpoint too.
///
/// # Errors
///
/// If there is nothing of that name. A symlink is opened itself.
pub fn open_entry(directory: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = AS_PLACE.difference(OFlags::DIRECTORY);
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn a_directory_is_opened_and_a_symlink_on_the_way_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(home.path()).unwrap();
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::write(base.join("file"), "").unwrap();
        symlink("a", base.join("link")).unwrap();
        let opened = open_directory(&base.join("a/b")).unwrap();
        let expected = fs::metadata(base.join("a/b")).unwrap().ino();
        assert_eq!(rustix::fs::fstat(&opened).unwrap().st_ino, expected);
        for wrong in ["link", "link/b", "file", "a/../a", "none"] {
            open_directory(&base.join(wrong)).expect_err(wrong);
        }
        open_directory(Path::new("relative")).expect_err("it is not absolute");
        assert!(open_directory(Path::new("/")).is_ok());
        let base = open_directory(&base).unwrap();
        for (name, kind) in [("file", FileType::RegularFile), ("link", FileType::Symlink)] {
            let opened = open_entry(&base, OsStr::new(name)).unwrap();
            let found = rustix::fs::fstat(&opened).unwrap();
            assert_eq!(FileType::from_raw_mode(found.st_mode), kind, "{name}");
        }
    }
}
