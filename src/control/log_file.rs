//! The log file of a daemon: the files that are taken for it, and opening it again after a rotation.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// A log file that another program may rename. It is written to until it is opened again under its name.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: Mutex<File>,
}

impl LogFile {
    /// Opens the end of a log file; see [`open`].
    ///
    /// # Errors
    ///
    /// As [`open`].
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = Mutex::new(open(&path)?);
        Ok(Self { path, file })
    }

    /// Returns the path, which is absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes to what `open` returns for the path from now on. Standard output and error stay as they are, and so
    /// does the log if `open` fails.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    pub(crate) fn reopen(&self, open: impl FnOnce(&Path) -> io::Result<File>) -> io::Result<()> {
        if standard_stream(&self.path).is_none() {
            let opened = open(&self.path)?;
            *self.file.lock() = opened;
        }
        Ok(())
    }
}

impl io::Write for &LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().flush()
    }
}

/// Mode bits of a log, which names files and directories.
const LOG_MODE: u32 = 0o600;

/// Opens the end of a log file, for its user alone; it is made if absent. No link is followed, and nothing but a file of
/// this user with one name is opened: whatever another user puts in its place stays as it is. Devices such as
/// `/dev/null` and this process's own standard output and error are taken as they are.
///
/// # Errors
///
/// If it cannot be opened, or is of another kind.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    if let Some(stream) = standard_stream(path) {
        return Ok(File::from(stream?));
    }
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(LOG_MODE)
        // A fifo must not block, nor a terminal become ours.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => unfit("it is a symbolic link"),
            Some(libc::ENXIO) => unfit("it is not a regular file"),
            _ => error,
        })?;
    let meta = file.metadata()?;
    if meta.file_type().is_char_device() {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
        return Ok(file);
    }
    if !meta.is_file() {
        return Err(unfit("it is not a regular file"));
    }
    if meta.nlink() > 1 {
        return Err(unfit("it is a hard link to a file that has other names"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        let owner = meta.uid();
        return Err(unfit(&format!("it belongs to another user, uid {owner}")));
    }
    if meta.mode() & 0o7777 != LOG_MODE {
        file.set_permissions(Permissions::from_mode(LOG_MODE))?;
    }
    Ok(file)
}

/// Returns standard output or error if a path is a name of it. Each of these names is a link, which leads to a terminal,
/// a pipe or a file that the shell has opened.
fn standard_stream(path: &Path) -> Option<io::Result<OwnedFd>> {
    match path.to_str()? {
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => {
            Some(io::stderr().as_fd().try_clone_to_owned())
        }
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => {
            Some(io::stdout().as_fd().try_clone_to_owned())
        }
        _ => None,
    }
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{why}, and a log is written only to a regular file of its own user"),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_renamed_log_gets_all_lines_until_it_is_opened_again_and_then_none() {
        let home = tempfile::tempdir().unwrap();
        let [path, renamed] = ["log", "log.1"].map(|name| home.path().join(name));
        let log = LogFile::open(&path).unwrap();
        let write = |line: &str| (&log).write_all(line.as_bytes()).unwrap();
        write("first\n");
        fs::rename(&path, &renamed).unwrap();
        write("second\n");
        let refused = log.reopen(|_| Err(unfit("on purpose")));
        assert!(refused.is_err());
        write("third\n");
        log.reopen(open).unwrap();
        write("fourth\n");
        let found = [renamed, path].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!(found, ["first\nsecond\nthird\n", "fourth\n"]);
    }

    #[test]
    fn a_log_is_written_for_its_user_alone_also_where_one_is_there() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        for before in [None, Some(0o644), Some(0o666)] {
            if let Some(mode) = before {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            let mode = open(&path).unwrap().metadata().unwrap().mode() & 0o7777;
            assert_eq!(mode, LOG_MODE, "before: {before:?}");
        }
    }

    #[test]
    fn devices_and_standard_streams_are_logs_and_keep_their_modes() {
        for path in ["/dev/null", "/dev/stderr", "/dev/stdout"] {
            let path = Path::new(path);
            let mode = || fs::metadata(path).map(|meta| meta.mode()).ok();
            let before = mode();
            let file = open(path).unwrap();
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            if path == Path::new("/dev/null") {
                assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
            }
            assert_eq!(mode(), before, "{}", path.display());
        }
    }

    #[test]
    fn links_fifos_and_directories_are_no_logs_and_stay_as_they_are() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let victim = at("victim");
        fs::write(&victim, "mine").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
        symlink(&victim, at("symbolic")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        fs::hard_link(&victim, at("hard")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        for name in ["symbolic", "dangling", "hard", "directory", "fifo"] {
            assert!(open(&at(name)).is_err(), "{name}");
        }
        assert!(!at("nowhere").exists());
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o7777, 0o644);
    }
}
