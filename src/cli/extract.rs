//! `cauchyfs extract`: files out of the directories, with no mount, no daemon and no superuser.
//!
//! Nothing is written to the members. What an ordinary user may not set (owners, devices, trusted
//! attributes) is left out; everything else of a file comes along: bytes, holes, hard links,
//! symlinks, permissions, times, `user.` attributes.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use super::args::ExtractArguments;
use super::directories::Directories;
use super::failure::{Failure, Outcome, warn};
use super::mounts;
use super::size::{format_count, format_size};
use super::volume::{Volume, fs_failure};
use crate::format::record::{FileKind, Timestamp};
use crate::format::{BLOCK_SIZE, Ino};
use crate::fs::tree::{self, Entry};
use crate::fs::{Attr, Caller, Fs, FsError, Handle, OpenFlags, Whence};
use crate::fuse::one_line;

/// Bytes that are read at once: enough for a whole stripe of usual geometries.
const PIECE_BYTES: usize = 4 << 20;

/// Bytes that are read at once where more could not be read: one bad block costs no more.
const CAREFUL_BYTES: usize = BLOCK_SIZE;

/// Why something was not copied.
enum Trouble {
    /// It cannot be read from the volume: what else there is still can be.
    Volume(FsError),
    /// It cannot be written, and what follows could not be either.
    Target(Failure),
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Self {
        Self::Volume(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Target(failure)
    }
}

/// Copies files out of a volume.
///
/// # Errors
///
/// If the volume cannot be opened, or the target cannot be written.
pub(super) fn run(arguments: &ExtractArguments) -> Result<Outcome, Failure> {
    let (out, wanted) = arguments
        .to
        .split_first()
        .ok_or_else(|| Failure::usage("--to needs a directory"))?;
    let directories = Directories::find(&arguments.directories)?;
    mounts::refuse_mounted(&directories)?;
    let out = std::path::absolute(out).map_err(Failure::environment)?;
    if let Some(member) = directories
        .present
        .iter()
        .find(|member| out.starts_with(member))
    {
        return Err(Failure::usage(format!(
            "{} lies inside the member {}, which must stay as it is",
            out.display(),
            member.display()
        )));
    }
    let volume = Volume::open_to_look(&directories)?;
    let outcome = Extraction::new(&volume.fs, out).run(wanted);
    volume.close()?;
    outcome
}

struct Extraction<'a> {
    fs: &'a Fs,
    out: PathBuf,
    superuser: bool,
    /// Where an inode with several names was written first.
    linked: HashMap<Ino, PathBuf>,
    /// Directories, whose times and permissions are set when they are full.
    unfinished: Vec<(PathBuf, Attr)>,
    files: u64,
    bytes: u64,
    /// Files and directories of which something could not be read.
    lost: u64,
    /// Bytes of files that could not be read.
    missing: u64,
    /// What could not be made as it is in the volume.
    changed: u64,
    progress: ProgressBar,
    piece: Vec<u8>,
}

impl<'a> Extraction<'a> {
    fn new(fs: &'a Fs, out: PathBuf) -> Self {
        let style = ProgressStyle::with_template("{spinner} {bytes} ({bytes_per_sec}) {wide_msg}")
            .expect("the template is well formed");
        Self {
            fs,
            out,
            superuser: rustix::process::geteuid().is_root(),
            linked: HashMap::new(),
            unfinished: Vec::new(),
            files: 0,
            bytes: 0,
            lost: 0,
            missing: 0,
            changed: 0,
            // Goes to standard error, and is hidden unless that is a terminal.
            progress: ProgressBar::new_spinner().with_style(style),
            piece: vec![0; PIECE_BYTES],
        }
    }

    fn run(mut self, wanted: &[PathBuf]) -> Result<Outcome, Failure> {
        fs::create_dir_all(&self.out).map_err(|error| self.unwritable(&self.out, &error))?;
        if wanted.is_empty() {
            self.subtree(b"")?;
        }
        for inside in outermost(wanted) {
            tree::resolve(self.fs, &inside).map_err(|error| match error {
                FsError::NotFound | FsError::NotDirectory => {
                    let shown = String::from_utf8_lossy(&inside);
                    Failure::usage(format!("there is no {shown} in the volume"))
                        .advise("name paths from the root of the volume, without the mountpoint")
                }
                error => fs_failure(&error),
            })?;
            self.parents(&inside)?;
            self.subtree(&inside)?;
        }
        for (path, attr) in std::mem::take(&mut self.unfinished).into_iter().rev() {
            let finished = self.finish(&path, &attr);
            self.go_on(&path, finished)?;
        }
        self.progress.finish_and_clear();
        let (files, bytes) = (format_count(self.files, "file"), format_size(self.bytes));
        println!("{files}, {bytes}");
        if self.lost > 0 {
            let (lost, missing) = (self.lost, format_size(self.missing));
            println!("{lost} of them incomplete, {missing} missing");
        }
        Ok(if self.lost > 0 {
            Outcome::Lost
        } else if self.changed > 0 {
            Outcome::Degraded
        } else {
            Outcome::Done
        })
    }

    /// Makes the directories above a path that was asked for.
    fn parents(&mut self, inside: &[u8]) -> Result<(), Failure> {
        for end in (0..inside.len()).filter(|&at| inside[at] == b'/') {
            let parent = inside[..end].to_vec();
            let attr = tree::resolve(self.fs, &parent).map_err(|error| fs_failure(&error))?;
            let entry = Entry { path: parent, attr };
            let done = self.entry(&entry);
            self.go_on(&self.target(&entry), done)?;
        }
        Ok(())
    }

    fn subtree(&mut self, inside: &[u8]) -> Result<(), Failure> {
        for entry in tree::walk(self.fs, inside).map_err(|error| fs_failure(&error))? {
            match entry {
                Ok(entry) => {
                    let done = self.entry(&entry);
                    self.go_on(&self.target(&entry), done)?;
                }
                // The walk knows only below what it was.
                Err(error) => {
                    let below = self.out.join(OsStr::from_bytes(inside));
                    self.go_on(&below, Err(error.into()))?;
                }
            }
        }
        Ok(())
    }

    /// Counts and names what cannot be read, and ends only at what cannot be written.
    fn go_on(&mut self, target: &Path, done: Result<(), Trouble>) -> Result<(), Failure> {
        match done {
            Ok(()) => Ok(()),
            Err(Trouble::Target(failure)) => Err(failure),
            Err(Trouble::Volume(error)) => {
                self.lose(target, &error);
                Ok(())
            }
        }
    }

    fn lose(&mut self, target: &Path, error: &FsError) {
        self.lost += 1;
        let shown = target.display();
        warn(format_args!("{shown} is incomplete: {}", one_line(error)));
    }

    fn target(&self, entry: &Entry) -> PathBuf {
        self.out.join(OsStr::from_bytes(&entry.path))
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), Trouble> {
        let target = self.target(entry);
        self.progress
            .set_message(String::from_utf8_lossy(&entry.path).into_owned());
        let is_directory = entry.attr.kind == FileKind::Directory;
        if !is_directory && let Some(first) = self.linked.get(&entry.attr.ino) {
            return fs::hard_link(first, &target)
                .map_err(|error| self.unwritable(&target, &error).into());
        }
        self.make(&target, &entry.attr)?;
        if is_directory {
            self.unfinished.push((target, entry.attr));
            return Ok(());
        }
        // A device may have been left out.
        if target.symlink_metadata().is_err() {
            return Ok(());
        }
        self.files += 1;
        if entry.attr.links > 1 {
            self.linked.insert(entry.attr.ino, target.clone());
        }
        self.finish(&target, &entry.attr)?;
        Ok(())
    }

    fn make(&mut self, target: &Path, attr: &Attr) -> Result<(), Trouble> {
        let made = match attr.kind {
            FileKind::Directory => match DirBuilder::new().mode(0o700).create(target) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && target.is_dir() => {
                    Ok(())
                }
                made => made,
            },
            FileKind::Symlink => {
                let link = self.fs.readlink(attr.ino)?;
                symlink(OsStr::from_bytes(&link), target)
            }
            FileKind::Regular => return self.regular(target, attr),
            FileKind::Fifo => make_node(target, FileType::Fifo, 0),
            FileKind::Socket => make_node(target, FileType::Socket, 0),
            FileKind::CharDevice | FileKind::BlockDevice if !self.superuser => {
                self.changed += 1;
                warn(format_args!(
                    "{} is a device; only the superuser can make it",
                    target.display()
                ));
                return Ok(());
            }
            FileKind::CharDevice => make_node(target, FileType::CharacterDevice, attr.rdev),
            FileKind::BlockDevice => make_node(target, FileType::BlockDevice, attr.rdev),
        };
        made.map_err(|error| self.unwritable(target, &error).into())
    }

    /// Writes a file that nobody else may read before it has its own permissions.
    fn regular(&mut self, target: &Path, attr: &Attr) -> Result<(), Trouble> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(target)
            .map_err(|error| self.unwritable(target, &error))?;
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        let handle = self.fs.open_file(&Caller::ROOT, attr.ino, flags)?;
        let copied = self.copy(&file, handle, target, attr.size);
        self.fs.release(handle)?;
        file.set_len(attr.size)
            .map_err(|error| self.unwritable(target, &error))?;
        match copied {
            // What there is of it is finished like any other file.
            Err(Trouble::Volume(error)) => {
                self.lose(target, &error);
                Ok(())
            }
            copied => copied,
        }
    }

    /// Copies data and leaves holes; what cannot be read becomes a hole, and is counted and named.
    fn copy(
        &mut self,
        file: &File,
        handle: Handle,
        target: &Path,
        size: u64,
    ) -> Result<(), Trouble> {
        let mut offset = 0;
        let mut first_error = None;
        while offset < size {
            offset = match self.fs.seek(handle, offset, Whence::Data) {
                Err(FsError::NoSuchOffset) => break,
                found => found?,
            };
            let end = self.fs.seek(handle, offset, Whence::Hole)?;
            let mut careful_until = 0;
            while offset < end {
                let most = if offset < careful_until {
                    CAREFUL_BYTES
                } else {
                    PIECE_BYTES
                };
                let len = usize::try_from(end - offset).map_or(most, |left| left.min(most));
                match self.fs.read(handle, offset, &mut self.piece[..len]) {
                    Ok(0) => break,
                    Ok(read) => {
                        file.write_all_at(&self.piece[..read], offset)
                            .map_err(|error| self.unwritable(target, &error))?;
                        self.bytes += read as u64;
                        self.progress.inc(read as u64);
                        offset += read as u64;
                    }
                    Err(_) if len > CAREFUL_BYTES => careful_until = offset + len as u64,
                    Err(error) => {
                        first_error.get_or_insert(error);
                        self.missing += len as u64;
                        offset += len as u64;
                    }
                }
            }
            // The file ends before its size says.
            if offset < end {
                break;
            }
        }
        first_error.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Sets what a finished file carries besides its bytes.
    fn finish(&mut self, target: &Path, attr: &Attr) -> Result<(), Trouble> {
        // A change of owner takes capabilities away, one of permissions fits the ACL to them.
        self.own(target, attr)
            .map_err(|error| self.unwritable(target, &error))?;
        let attributes = self.attributes(target, attr);
        permit(target, attr)
            .and_then(|()| stamp(target, attr))
            .map_err(|error| self.unwritable(target, &error))?;
        Ok(attributes?)
    }

    fn own(&self, target: &Path, attr: &Attr) -> io::Result<()> {
        if self.superuser {
            std::os::unix::fs::lchown(target, Some(attr.uid), Some(attr.gid))?;
        }
        Ok(())
    }

    /// Sets the extended attributes that the target takes; the others are named in one line.
    fn attributes(&mut self, target: &Path, attr: &Attr) -> Result<(), FsError> {
        let names = self.fs.listxattr(&Caller::ROOT, attr.ino)?;
        let mut refused = Vec::new();
        let mut reason = None;
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            if !self.superuser && !name.starts_with(b"user.") {
                continue;
            }
            let value = self.fs.getxattr(attr.ino, name)?;
            let set = rustix::fs::lsetxattr(target, name, &value, XattrFlags::empty());
            if let Err(error) = set {
                refused.push(String::from_utf8_lossy(name).into_owned());
                reason.get_or_insert(error);
            }
        }
        if let Some(reason) = reason {
            self.changed += 1;
            let (shown, count) = (
                target.display(),
                format_count(refused.len() as u64, "attribute"),
            );
            let names = refused.join(", ");
            warn(format_args!(
                "{shown} goes without {count} ({names}): {reason}"
            ));
        }
        Ok(())
    }

    fn unwritable(&self, path: &Path, error: &io::Error) -> Failure {
        let failure = Failure::environment(format!("cannot write {}: {error}", path.display()));
        if error.kind() == io::ErrorKind::AlreadyExists {
            failure.advise(format!(
                "nothing is overwritten; choose an empty directory instead of {}",
                self.out.display()
            ))
        } else {
            failure
        }
    }
}

fn make_node(target: &Path, kind: FileType, device: u32) -> io::Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::mknodat(
        CWD,
        target,
        kind,
        mode,
        u64::from(device),
    )?)
}

fn permit(target: &Path, attr: &Attr) -> io::Result<()> {
    if attr.kind == FileKind::Symlink {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(u32::from(attr.permissions));
    Ok(rustix::fs::chmodat(CWD, target, mode, AtFlags::empty())?)
}

fn stamp(target: &Path, attr: &Attr) -> io::Result<()> {
    let times = Timestamps {
        last_access: timespec(attr.atime),
        last_modification: timespec(attr.mtime),
    };
    Ok(rustix::fs::utimensat(
        CWD,
        target,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.into(),
    }
}

/// Returns a path as the volume spells it: from its root, without dots.
fn normalized(path: &Path) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.as_bytes()),
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    parts.join(&b'/')
}

/// Returns paths as the volume spells them, without those that lie below another of them.
fn outermost(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let all: BTreeSet<Vec<u8>> = paths.iter().map(|path| normalized(path)).collect();
    let lies_below_another = |path: &[u8]| {
        let above = (0..path.len()).filter(|&end| path[end] == b'/');
        let parent = |end| all.contains(&path[..end]);
        !path.is_empty() && (all.contains(&b""[..]) || above.into_iter().any(parent))
    };
    all.iter()
        .filter(|path| !lies_below_another(path))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_spelled_from_the_root_of_the_volume() {
        for (typed, inside) in [
            ("/", ""),
            ("a/b", "a/b"),
            ("/a/./b/", "a/b"),
            ("a/../b", "b"),
            ("../../x", "x"),
        ] {
            assert_eq!(normalized(Path::new(typed)), inside.as_bytes(), "{typed}");
        }
    }

    #[test]
    fn what_lies_below_another_path_comes_with_it() {
        let outermost_of = |typed: &[&str]| {
            let paths: Vec<PathBuf> = typed.iter().map(PathBuf::from).collect();
            let found = outermost(&paths).into_iter();
            found
                .map(|path| String::from_utf8(path).expect("it was typed as UTF-8"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            outermost_of(&["b", "a/b", "a", "/a/./c", "ab", "b"]),
            ["a", "ab", "b"]
        );
        assert_eq!(outermost_of(&["a/b", "/", "c"]), [""]);
        assert_eq!(outermost_of(&["a/b/c", "a/b-c"]), ["a/b-c", "a/b/c"]);
    }
}
