//! `cauchyfs extract`: files out of the directories, with no mount, no daemon and no superuser.
//!
//! Nothing is written to the members, and nothing outside OUT: see [`target`]. The volume may belong to any user.
//!
//! Owners, devices and trusted attributes are left out where an ordinary user may not set them. So is, unless
//! `--privileged` is given, what gives power to the content of files: setuid and setgid bits, devices, and
//! attributes of the namespaces `security.` and `trusted.`. Everything else of a file comes along: bytes,
//! holes, hard links, symlinks, permissions, times, `user.` attributes.

mod left_out;
mod made;
mod resume;
mod target;
mod wanted;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rustix::fs::{FileType, Timespec, Timestamps};

use super::args::ExtractArguments;
use super::directories::Directories;
use super::failure::{Failure, Outcome, warn};
use super::mounts;
use super::progress;
use super::sandbox;
use super::size::{format_count, format_size};
use super::terminal;
use crate::control::volume::Volume;
use crate::control::volume_failure::VolumeFailure;
use crate::format::record::{FileKind, Timestamp};
use crate::format::{BLOCK_SIZE, Ino};
use crate::fs::tree::{self, TreeEntry};
use crate::fs::{Attr, Caller, Fs, FsError, Handle, OpenFlags, Whence};
use crate::fuse::one_line;

use left_out::{LeftOut, is_privileged};
use made::Made;
use target::{Identity, OutputDirectory};
use wanted::{outermost, shown};

/// Bytes that are read at once: enough for a whole stripe of usual geometries.
const PIECE_BYTES: usize = 4 << 20;

/// Bytes that are read at once where more could not be read: one bad block costs no more.
const CAREFUL_BYTES: usize = BLOCK_SIZE;

/// A part done, the rate, the time left, and the file that is copied.
const TEMPLATE: &str = "{bar:20} {percent}% {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}";

/// Setuid and setgid.
const SET_ID_BITS: u16 = 0o6000;

/// The reason why something was not copied.
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
    let led_to = without_links(&out);
    if let Some(member) = directories
        .present
        .iter()
        .find(|member| out.starts_with(member) || led_to.starts_with(member))
    {
        return Err(Failure::usage(format!(
            "{} lies inside the member {}, which must stay as it is",
            out.display(),
            member.display()
        )));
    }
    // Before the sandbox, which lets the command write to this directory alone.
    let target = open_target(&out, wanted)?;
    sandbox::extract(&arguments.sandbox, &directories, &out, arguments.privileged)?;
    let volume = Volume::open_to_look(&directories)?;
    let outcome = Extraction::new(&volume.fs, out, target, arguments.privileged).run(wanted);
    volume.close()?;
    outcome
}

/// Opens OUT, or makes it.
fn open_target(out: &Path, wanted: &[PathBuf]) -> Result<OutputDirectory, Failure> {
    // With the whole tree, OUT gets the permissions of the volume's root in the end.
    let is_whole = wanted.is_empty() || outermost(wanted).iter().any(Vec::is_empty);
    let mode = if is_whole { 0o700 } else { 0o777 };
    OutputDirectory::open(out, mode).map_err(|error| unwritable(out, b"", &error))
}

/// Returns where a path leads that may not exist yet, as far as it can be followed.
fn without_links(path: &Path) -> PathBuf {
    let mut above = path.ancestors();
    let found = above.find_map(|above| Some((above, above.canonicalize().ok()?)));
    match found.map(|(above, led_to)| (path.strip_prefix(above), led_to)) {
        Some((Ok(rest), led_to)) => led_to.join(rest),
        _ => path.to_owned(),
    }
}

/// A name that an inode with several names got first.
struct First {
    path: Vec<u8>,
    identity: Identity,
    is_damaged: bool,
    /// Names that are still to come.
    left: u32,
}

/// Outcome of an attempt to give a name to an inode that has been copied.
enum Link {
    /// The name leads to the copy.
    Made,
    /// The inode has to be copied; so many of its names are still to come.
    Left(u32),
}

/// A directory that was made and is being filled.
struct Unfinished {
    path: Vec<u8>,
    attr: Attr,
    identity: Identity,
    mark: Vec<u8>,
}

struct Extraction<'a> {
    fs: &'a Fs,
    out: PathBuf,
    target: OutputDirectory,
    superuser: bool,
    privileged: bool,
    /// Inodes with several names.
    linked: HashMap<Ino, First>,
    /// Directories on the way to the last entry, which get their times and permissions when they are full.
    unfinished: Vec<Unfinished>,
    files: u64,
    /// Files that an earlier run has copied.
    kept: u64,
    bytes: u64,
    /// Files and directories of which something could not be read.
    lost: u64,
    /// Bytes of files that could not be read.
    missing: u64,
    /// Things that could not be made as they are in the volume.
    changed: u64,
    left_out: LeftOut,
    progress: ProgressBar,
    piece: Vec<u8>,
}

impl<'a> Extraction<'a> {
    fn new(fs: &'a Fs, out: PathBuf, target: OutputDirectory, privileged: bool) -> Self {
        Self {
            fs,
            out,
            target,
            superuser: rustix::process::geteuid().is_root(),
            privileged,
            linked: HashMap::new(),
            unfinished: Vec::new(),
            files: 0,
            kept: 0,
            bytes: 0,
            lost: 0,
            missing: 0,
            changed: 0,
            left_out: LeftOut::default(),
            progress: progress::bar_of(TEMPLATE),
            piece: vec![0; PIECE_BYTES],
        }
    }

    fn run(mut self, wanted: &[PathBuf]) -> Result<Outcome, Failure> {
        self.copy_out(wanted)?;
        self.progress.finish_and_clear();
        terminal::report(&self.summary());
        Ok(self.outcome())
    }

    /// Copies what is wanted; everything if nothing is named. Makes nothing unless all that is named is there.
    fn copy_out(&mut self, wanted: &[PathBuf]) -> Result<(), Failure> {
        let wanted = if wanted.is_empty() {
            vec![Vec::new()]
        } else {
            outermost(wanted)
        };
        for inside in &wanted {
            tree::resolve(self.fs, inside).map_err(|error| match error {
                FsError::NotFound | FsError::NotDirectory => {
                    Failure::usage(format!("there is no {} in the volume", shown(inside)))
                        .advise("name paths from the root of the volume, without the mountpoint")
                }
                error => VolumeFailure::from(error).into(),
            })?;
        }
        if !self.progress.is_hidden() {
            progress::show(&self.progress, 0, self.total(&wanted));
        }
        for inside in wanted {
            self.parents(&inside)?;
            self.subtree(&inside)?;
        }
        while let Some(full) = self.unfinished.pop() {
            self.finish_directory(&full)?;
        }
        Ok(())
    }

    /// Returns how many bytes there are to copy, without holes. Copying tells what cannot be read.
    fn total(&self, wanted: &[Vec<u8>]) -> u64 {
        let mut seen = HashSet::new();
        let walks = wanted
            .iter()
            .filter_map(|path| tree::walk(self.fs, path).ok());
        let attrs = walks.flatten().filter_map(|entry| Some(entry.ok()?.attr));
        let files = attrs.filter(|attr| attr.kind == FileKind::Regular);
        // A further name takes no bytes.
        let copied = files.filter(|attr| attr.links < 2 || seen.insert(attr.ino));
        copied.fold(0, |sum: u64, attr| {
            sum.saturating_add(attr.blocks_512 * 512)
        })
    }

    fn summary(&self) -> String {
        let (files, bytes) = (format_count(self.files, "file"), format_size(self.bytes));
        let mut lines = vec![format!("{files}, {bytes}")];
        if self.kept > 0 {
            let kept = format_count(self.kept, "file");
            lines.push(format!("{kept} of an earlier run, complete already"));
        }
        if self.lost > 0 {
            let (lost, missing) = (self.lost, format_size(self.missing));
            lines.push(format!("{lost} of them incomplete, {missing} missing"));
        }
        if !self.left_out.is_empty() {
            lines.push(self.left_out.to_string());
        }
        lines.join("\n")
    }

    fn outcome(&self) -> Outcome {
        if self.lost > 0 {
            Outcome::Lost
        } else if self.changed > 0 || !self.left_out.is_empty() {
            Outcome::Degraded
        } else {
            Outcome::Done
        }
    }

    /// Makes the directories above a path that was asked for.
    fn parents(&mut self, inside: &[u8]) -> Result<(), Failure> {
        for end in (0..inside.len()).filter(|&at| inside[at] == b'/') {
            let path = inside[..end].to_vec();
            if self.unfinished.iter().any(|open| open.path == path) {
                continue;
            }
            let attr = tree::resolve(self.fs, &path).map_err(VolumeFailure::from)?;
            self.take(&TreeEntry { path, attr })?;
        }
        Ok(())
    }

    fn subtree(&mut self, inside: &[u8]) -> Result<(), Failure> {
        for entry in tree::walk(self.fs, inside).map_err(VolumeFailure::from)? {
            match entry {
                Ok(entry) => self.take(&entry)?,
                // The walk knows only below what it was.
                Err(error) => self.lose(inside, &error),
            }
        }
        Ok(())
    }

    /// Copies an entry. Counts and names what cannot be read, and fails only at what cannot be written.
    fn take(&mut self, entry: &TreeEntry) -> Result<(), Failure> {
        self.leave_until(&entry.path)?;
        let done = self.entry(entry);
        self.go_on(&entry.path, done)
    }

    fn go_on(&mut self, path: &[u8], done: Result<(), Trouble>) -> Result<(), Failure> {
        match done {
            Ok(()) => Ok(()),
            Err(Trouble::Target(failure)) => Err(failure),
            Err(Trouble::Volume(error)) => {
                self.lose(path, &error);
                Ok(())
            }
        }
    }

    fn lose(&mut self, path: &[u8], error: &FsError) {
        self.lost += 1;
        let shown = place(&self.out, path);
        warn(format_args!("{shown} is incomplete: {}", one_line(error)));
    }

    /// Takes note of what cannot be as it is in the volume.
    fn change(&mut self, path: &[u8], what: &str, error: &io::Error) {
        self.changed += 1;
        let shown = place(&self.out, path);
        warn(format_args!("{shown}: cannot set {what}: {error}"));
    }

    fn unwritable(&self, path: &[u8], error: &io::Error) -> Failure {
        unwritable(&self.out, path, error)
    }

    fn entry(&mut self, entry: &TreeEntry) -> Result<(), Trouble> {
        let (path, attr) = (&entry.path, &entry.attr);
        self.progress.set_message(shown(path));
        if attr.kind == FileKind::Directory {
            return Ok(self.directory(path, attr)?);
        }
        if self.is_there(path, attr)? {
            return Ok(());
        }
        let left = match self.link(path, attr)? {
            Link::Made => return Ok(()),
            Link::Left(names) => names,
        };
        let partial = self.clear_partial(path, attr)?;
        let Some((made, unread)) = self.make(&partial, path, attr)? else {
            return Ok(());
        };
        self.files += 1;
        let stat = made.stat().map_err(|error| self.unwritable(path, &error))?;
        // The part that could be copied is finished like any other file.
        let unread = unread.or(self.finish(path, &made, attr).err());
        let is_damaged = unread.is_some();
        let inode = (attr, Identity::of(&stat));
        let (path, identity) = self.publish(&partial, path, inode, is_damaged)?;
        if let Some(error) = unread {
            self.lose(&path, &error);
        }
        let first = First {
            path,
            identity,
            is_damaged,
            left,
        };
        self.note_first(attr, first);
        Ok(())
    }

    /// Makes a directory, or goes on with one that an interrupted run has made. Others that exist stay as they are.
    fn directory(&mut self, path: &[u8], attr: &Attr) -> Result<(), Failure> {
        let mark = resume::mark(self.fs, path, attr);
        let made = self.target.directory(path);
        let made = made.map_err(|error| self.unwritable(path, &error))?;
        let marked = match made {
            Some(identity) => self.target.mark(&mark).map(|()| Some(identity)),
            None => self.target.marked(path, &mark),
        };
        if let Some(identity) = marked.map_err(|error| self.unwritable(&mark, &error))? {
            self.unfinished.push(Unfinished {
                path: path.to_vec(),
                attr: *attr,
                identity,
                mark,
            });
        }
        Ok(())
    }

    /// Gives an inode that has been copied another name. Where the target takes no such link, the inode is copied once
    /// more, and the names that follow are linked to the new copy.
    fn link(&mut self, path: &[u8], attr: &Attr) -> Result<Link, Failure> {
        let Some(first) = self.linked.get_mut(&attr.ino) else {
            return Ok(Link::Left(attr.links.saturating_sub(1)));
        };
        let path = &if first.is_damaged {
            resume::damaged(self.fs, path)
        } else {
            path.to_vec()
        };
        let is_there = self.target.found(path);
        let is_there = is_there.map(|found| found.map(|stat| Identity::of(&stat)));
        let linked = match is_there {
            // An earlier run has made the link.
            Ok(Some(identity)) if identity == first.identity => Ok(()),
            Ok(_) => self.target.link(&first.path, first.identity, path),
            Err(error) => Err(error),
        };
        first.left -= 1;
        let (left, original) = (first.left, place(&self.out, &first.path));
        if left == 0 {
            self.linked.remove(&attr.ino);
        }
        match linked {
            Ok(()) => Ok(Link::Made),
            Err(error) if takes_no_link(&error) => {
                self.changed += 1;
                let shown = place(&self.out, path);
                warn(format_args!(
                    "{shown} is a copy of its own, and no hard link to {original}: {error}"
                ));
                Ok(Link::Left(left))
            }
            Err(error) => Err(self.unwritable(path, &error)),
        }
    }

    /// Makes anything but a directory at a path of its own; a device may be left out. Returns also what kept a part of it
    /// from being read.
    fn make(
        &mut self,
        partial: &[u8],
        path: &[u8],
        attr: &Attr,
    ) -> Result<Option<(Made, Option<FsError>)>, Trouble> {
        let (kind, device) = match attr.kind {
            FileKind::Regular => return Ok(Some(self.regular(partial, path, attr)?)),
            // Those are made before, and finished when they are full.
            FileKind::Directory => return Ok(None),
            FileKind::Symlink => {
                let leads_to = self.fs.attributes().read_link(attr.ino)?;
                let made = self.target.symlink(partial, &leads_to);
                let made = made.map_err(|error| self.unwritable(path, &error))?;
                return Ok(Some((made, None)));
            }
            FileKind::CharDevice | FileKind::BlockDevice if !self.privileged => {
                self.left_out.devices += 1;
                return Ok(None);
            }
            FileKind::CharDevice | FileKind::BlockDevice if !self.superuser => {
                self.changed += 1;
                let shown = place(&self.out, path);
                warn(format_args!(
                    "{shown} is a device; only the superuser can make it"
                ));
                return Ok(None);
            }
            FileKind::Fifo => (FileType::Fifo, 0),
            FileKind::Socket => (FileType::Socket, 0),
            FileKind::CharDevice => (FileType::CharacterDevice, attr.rdev),
            FileKind::BlockDevice => (FileType::BlockDevice, attr.rdev),
        };
        let made = self.target.node(partial, kind, device);
        let made = made.map_err(|error| self.unwritable(path, &error))?;
        Ok(Some((made, None)))
    }

    /// Writes a file that no other user may read before it has its own permissions.
    fn regular(
        &mut self,
        partial: &[u8],
        path: &[u8],
        attr: &Attr,
    ) -> Result<(Made, Option<FsError>), Trouble> {
        let made = self.target.file(partial);
        let file = made.map_err(|error| self.unwritable(path, &error))?;
        let unread = match self.content(&file, path, attr) {
            Err(Trouble::Volume(error)) => Some(error),
            Err(failure) => return Err(failure),
            Ok(()) => None,
        };
        Ok((file.into(), unread))
    }

    fn content(&mut self, file: &File, path: &[u8], attr: &Attr) -> Result<(), Trouble> {
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        let handle = self.fs.open_files().open(&Caller::ROOT, attr.ino, flags)?;
        let copied = self.copy(file, handle, path, attr.size);
        self.fs.open_files().release(handle)?;
        match file.set_len(attr.size) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(FsError::FileTooBig.into());
            }
            set => set.map_err(|error| self.unwritable(path, &error))?,
        }
        copied
    }

    /// Copies data and leaves holes; what cannot be read becomes a hole, and is counted and named.
    fn copy(&mut self, file: &File, handle: Handle, path: &[u8], size: u64) -> Result<(), Trouble> {
        let mut offset = 0;
        let mut first_error = None;
        while offset < size {
            offset = match self.fs.reader().seek(handle, offset, Whence::Data) {
                Err(FsError::NoSuchOffset) => break,
                found => found?,
            };
            let end = self.fs.reader().seek(handle, offset, Whence::Hole)?;
            let mut careful_until = 0;
            while offset < end {
                let most = if offset < careful_until {
                    CAREFUL_BYTES
                } else {
                    PIECE_BYTES
                };
                let len = usize::try_from(end - offset).map_or(most, |left| left.min(most));
                match self
                    .fs
                    .reader()
                    .read(handle, offset, &mut self.piece[..len])
                {
                    Ok(0) => break,
                    Ok(read) => {
                        file.write_all_at(&self.piece[..read], offset)
                            .map_err(|error| self.unwritable(path, &error))?;
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

    /// Finishes the directories that the walk has left.
    fn leave_until(&mut self, path: &[u8]) -> Result<(), Failure> {
        let is_below = |outer: &[u8]| {
            let rest = path.strip_prefix(outer);
            outer.is_empty() || rest.is_some_and(|rest| rest.first() == Some(&b'/'))
        };
        while let Some(full) = self.unfinished.pop_if(|last| !is_below(&last.path)) {
            self.finish_directory(&full)?;
        }
        Ok(())
    }

    fn finish_directory(&mut self, full: &Unfinished) -> Result<(), Failure> {
        let path = &full.path;
        let removed = self.target.remove(&full.mark);
        removed.map_err(|error| self.unwritable(&full.mark, &error))?;
        let made = self.target.made_directory(path, full.identity);
        let made = made.map_err(|error| self.unwritable(path, &error))?;
        let finished = self.finish(path, &made, &full.attr);
        self.go_on(path, finished.map_err(Trouble::Volume))
    }

    /// Sets what a finished file carries besides its bytes.
    fn finish(&mut self, path: &[u8], made: &Made, attr: &Attr) -> Result<(), FsError> {
        // A change of owner takes capabilities away, one of permissions fits the ACL to them.
        let mut permissions = self.permissions(attr);
        if self.superuser
            && let Err(error) = made.set_owner(attr.uid, attr.gid)
        {
            // These bits would lend the power of the user who extracts.
            permissions &= !SET_ID_BITS;
            self.change(path, "the owner", &error);
        }
        let attributes = self.attributes(path, made, attr);
        if attr.kind != FileKind::Symlink
            && let Err(error) = made.set_permissions(permissions)
        {
            self.change(path, "the permissions", &error);
        }
        let times = Timestamps {
            last_access: timespec(attr.atime),
            last_modification: timespec(attr.mtime),
        };
        if let Err(error) = made.set_times(&times) {
            self.change(path, "the times", &error);
        }
        attributes
    }

    /// Returns the permissions that a file gets.
    fn permissions(&mut self, attr: &Attr) -> u16 {
        if self.privileged || attr.kind == FileKind::Symlink {
            return attr.permissions;
        }
        self.left_out.set_ids += u64::from(attr.permissions & SET_ID_BITS != 0);
        attr.permissions & !SET_ID_BITS
    }

    /// Returns whether an attribute is not to be restored, and counts it then.
    fn leaves_out(&mut self, name: &[u8]) -> bool {
        match (is_privileged(name), self.privileged, self.superuser) {
            (false, ..) | (_, true, true) => return false,
            (_, false, _) => self.left_out.attributes += 1,
            (_, true, false) => self.left_out.attributes_of_root += 1,
        }
        true
    }

    /// Sets the extended attributes that the target takes; the others are named in one line.
    fn attributes(&mut self, path: &[u8], made: &Made, attr: &Attr) -> Result<(), FsError> {
        let names = self.fs.xattrs().list(&Caller::ROOT, attr.ino)?;
        let mut refused = Vec::new();
        let mut reason = None;
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            if self.leaves_out(name) {
                continue;
            }
            let value = self.fs.xattrs().get(attr.ino, name)?;
            if let Err(error) = made.set_attribute(name, &value) {
                refused.push(shown(name));
                reason.get_or_insert(error);
            }
        }
        if let Some(reason) = reason {
            self.changed += 1;
            let (shown, count) = (
                place(&self.out, path),
                format_count(refused.len() as u64, "attribute"),
            );
            let names = refused.join(", ");
            warn(format_args!(
                "{shown} goes without {count} ({names}): {reason}"
            ));
        }
        Ok(())
    }
}

/// Says whether a filesystem, or the kernel, refuses a hard link where it would take a file: the two directories count
/// as apart, or the file has the most names that it may have.
fn takes_no_link(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EMLINK))
}

/// Returns a path in OUT as a terminal may show it.
fn place(out: &Path, path: &[u8]) -> String {
    let mut whole = out.as_os_str().as_bytes().to_vec();
    if !path.is_empty() {
        whole.push(b'/');
        whole.extend_from_slice(path);
    }
    shown(&whole)
}

fn unwritable(out: &Path, path: &[u8], error: &io::Error) -> Failure {
    let (whole, out) = (place(out, path), place(out, b""));
    match error.raw_os_error() {
        Some(libc::EEXIST) => Failure::environment(format!("cannot write {whole}: {error}"))
            .advise(format!(
                "nothing is overwritten; choose an empty directory instead of {out}"
            )),
        Some(libc::ELOOP | libc::ENOTDIR) if !path.is_empty() => {
            Failure::environment(format!("cannot write {whole}: a link is in the way")).advise(
                format!("links are not followed; choose an empty directory instead of {out}"),
            )
        }
        _ => Failure::environment(format!("cannot write {whole}: {error}")),
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.into(),
    }
}

#[cfg(test)]
mod tests;
