//! The directories that a command is to work on: spelled once, checked before anything is touched.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::abandoned::{is_abandoned, remains_of};
use super::failure::{Failure, warn};
use super::shell::quoted_path;
use crate::control::in_time::Silent;
use crate::format::files::{JOURNALS, SUPERBLOCK};
use crate::fuse::mountinfo::{self, MountEntry};

/// The time that a member may take for one operation before it counts as hung, unless an option says otherwise.
pub(super) const MEMBER_TIMEOUT: Duration = Duration::from_secs(10);

/// The directories of a volume that is to be opened.
#[derive(Debug)]
pub(super) struct Directories {
    /// Those that exist: absolute and free of symlinks.
    pub(super) present: Vec<PathBuf>,
    /// Those that do not, or do not answer: absolute, and free of symlinks as far as they can be followed.
    pub(super) absent: Vec<PathBuf>,
    /// Those of all these that have not answered in time.
    pub(super) silent: Silent,
}

impl Directories {
    /// Sorts out which of `typed` exist.
    ///
    /// # Errors
    ///
    /// If one is no directory, or is given twice in whatever spelling, or lies inside another, or if
    /// none exists.
    pub(super) fn find(typed: &[PathBuf]) -> Result<Self, Failure> {
        Self::find_within(typed, MEMBER_TIMEOUT, Silent::default())
    }

    /// The same, but waits no longer than `patience` for one that hangs, and not for those that are known to be silent.
    ///
    /// # Errors
    ///
    /// As for [`Directories::find`].
    pub(super) fn find_within(
        typed: &[PathBuf],
        patience: Duration,
        silent: Silent,
    ) -> Result<Self, Failure> {
        let (found, refused) = Self::sort(typed, patience, silent);
        match refused.into_iter().next() {
            Some((_, failure)) => Err(failure),
            None => found.not_none(),
        }
    }

    /// The same, but returns those apart for which [`Directories::find`] fails, with the failures. None may exist.
    pub(super) fn sort(
        typed: &[PathBuf],
        patience: Duration,
        silent: Silent,
    ) -> (Self, Vec<(PathBuf, Failure)>) {
        let mut present = Vec::new();
        let mut absent = Vec::new();
        let mut refused = Vec::new();
        let looked = silent.ask_each(typed, patience, look);
        for (path, looked) in typed.iter().zip(looked) {
            let Some(looked) = looked else {
                // Its parent may not answer either.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                silent.note(&path, patience);
                absent.push(path);
                continue;
            };
            let shown = path.display();
            let failure = match looked {
                Ok((found, true)) => match refuse_overlap(&found, &present) {
                    Ok(()) => {
                        present.push(found);
                        continue;
                    }
                    Err(failure) => failure,
                },
                Ok((_, false)) => Failure::usage(format!("{shown} is no directory")),
                Err(error) if is_absence(&error) => {
                    absent.push(spell(path));
                    continue;
                }
                Err(error) => Failure::environment(format!("cannot look at {shown}: {error}")),
            };
            refused.push((path.clone(), failure));
        }
        let found = Self {
            present,
            absent,
            silent,
        };
        (found, refused)
    }

    /// Returns these directories.
    ///
    /// # Errors
    ///
    /// If none of them exists.
    pub(super) fn not_none(self) -> Result<Self, Failure> {
        if self.present.is_empty() {
            return Err(none_exists(&self.absent));
        }
        Ok(self)
    }

    /// Makes and checks the directories of a volume that is to be created, and has `use_them` do so. Returns
    /// what it does.
    ///
    /// # Errors
    ///
    /// If one cannot be made, is not empty, is given twice, or lies inside another, and what `use_them` fails
    /// with. Directories made here are gone again then.
    pub(super) fn make<T>(
        typed: &[PathBuf],
        use_them: impl FnOnce(&[PathBuf]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut made = Vec::new();
        let checked = Self::make_and_check(typed, &mut made);
        let used = checked.and_then(|directories| use_them(&directories));
        if used.is_err() {
            for path in made.iter().rev() {
                if let Err(error) = fs::remove_dir(path) {
                    warn(format_args!(
                        "{} was made and stays behind: {error}",
                        path.display()
                    ));
                }
            }
        }
        used
    }

    fn make_and_check(typed: &[PathBuf], made: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
        for path in typed {
            if path.exists() && !path.is_dir() {
                let shown = path.display();
                return Err(Failure::usage(format!("{shown} is no directory")));
            }
            make_member(path, made).map_err(|error| {
                Failure::environment(format!("cannot make {}: {error}", path.display()))
            })?;
        }
        let found = Self::find(typed)?;
        for path in &found.present {
            refuse_content(path)?;
            refuse_member_above(path)?;
        }
        Ok(found.present)
    }
}

/// Returns the one spelling of a path, and whether a directory is there.
fn look(path: &Path) -> io::Result<(PathBuf, bool)> {
    let found = fs::canonicalize(path)?;
    // The kernel may remember the names of what does not answer any more.
    let is_directory = fs::metadata(&found)?.is_dir();
    Ok((found, is_directory))
}

/// Says that nothing is there, or nothing that answers: a member that counts as gone.
fn is_absence(error: &io::Error) -> bool {
    let gone = [
        libc::ENOENT,
        libc::ENOTCONN,
        libc::EIO,
        libc::ESTALE,
        libc::ENODEV,
        libc::ETIMEDOUT,
        libc::EHOSTDOWN,
    ];
    error
        .raw_os_error()
        .is_some_and(|errno| gone.contains(&errno))
}

/// Spells a path that does not exist as it would be if it did.
pub(super) fn spell(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (
        absolute.parent().map(fs::canonicalize),
        absolute.file_name(),
    ) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// Makes a directory that is to be a member, for its user alone whatever the umask, and those above it. `made` gets
/// all that were not there.
pub(super) fn make_member(path: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let before = made.len();
    make_directory(path, 0o700, made)?;
    if made.len() > before {
        // The umask may have taken away more than it had to.
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Makes a directory with a mode of which the umask takes away, and those above it, to which only their user may write.
fn make_directory(path: &Path, bits: u32, made: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        make_directory(parent, 0o755, made)?;
    }
    match fs::DirBuilder::new().mode(bits).create(path) {
        Ok(()) => {
            made.push(path.to_owned());
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

fn refuse_content(path: &Path) -> Result<(), Failure> {
    let unreadable =
        |error| Failure::environment(format!("cannot list {}: {error}", path.display()));
    if path.join(SUPERBLOCK).exists() {
        return Err(
            Failure::usage(format!("{} belongs to a volume already", path.display())).advise(
                format!("`cauchyfs status {}` says to which", quoted_path(path)),
            ),
        );
    }
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        let is_left_by_mkfs =
            name == "lost+found" && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_left_by_mkfs {
            return Err(Failure::usage(format!(
                "{} is not empty: it holds {}",
                path.display(),
                Path::new(&name).display()
            ))
            .advise("a member is a directory of its own; name an empty or a new one"));
        }
    }
    Ok(())
}

/// Checks where a directory lies, absent or not, that a mounted volume is to take in.
///
/// # Errors
///
/// If it lies inside a member, or below the mountpoint: the volume would wait for itself.
pub(super) fn check_newcomer(typed: &Path, mountpoint: &Path) -> Result<(), Failure> {
    let path = fs::canonicalize(typed).unwrap_or_else(|_| spell(typed));
    if path.starts_with(mountpoint) {
        return Err(Failure::usage(format!(
            "{} lies inside the mount {} itself",
            path.display(),
            mountpoint.display()
        ))
        .advise("a member must lie outside the volume, best on a disk of its own"));
    }
    refuse_member_above(&path)
}

/// Refuses a directory below a member of another volume, which is to be left alone.
fn refuse_member_above(path: &Path) -> Result<(), Failure> {
    let is_member = |above: &&Path| {
        let has = |name: &str| above.join(name).is_file();
        has(SUPERBLOCK) && JOURNALS.iter().any(|journal| has(journal))
    };
    let shown = path.display();
    match path.ancestors().skip(1).find(is_member) {
        Some(member) => Err(Failure::usage(format!(
            "{shown} lies inside {}, a member of a volume",
            member.display()
        ))
        .advise("only CauchyFS may write into a member: name a directory outside")),
        None => Ok(()),
    }
}

fn none_exists(paths: &[PathBuf]) -> Failure {
    let shown: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let message = match shown.as_slice() {
        [] => return Failure::usage("no directory given"),
        [path] => format!("{path} does not exist, or does not answer"),
        paths => format!("none of these exists or answers: {}", paths.join(", ")),
    };
    Failure::environment(message).advise("check the paths, and that their disks are mounted")
}

/// Refuses a directory that is one of `others`, or lies inside one, or has one inside.
fn refuse_overlap(one: &Path, others: &[PathBuf]) -> Result<(), Failure> {
    for other in others {
        if is_same(one, other) {
            return Err(
                Failure::usage(format!("{} is given twice", other.display()))
                    .advise("every member needs a directory of its own, best on a disk of its own"),
            );
        }
        for (inner, outer) in [(one, other.as_path()), (other, one)] {
            if inner.starts_with(outer) {
                return Err(Failure::usage(format!(
                    "{} lies inside {}",
                    inner.display(),
                    outer.display()
                ))
                .advise("members must lie side by side, not in one another"));
            }
        }
    }
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    one == other || matches!((identity(one), identity(other)), (Ok(a), Ok(b)) if a == b)
}

/// Checks a mountpoint against the directories that will back it, and returns its one spelling.
///
/// # Errors
///
/// If it is absent or no directory, is a member, lies inside one, holds one, or has a volume mounted
/// on it, with a daemon.
pub(super) fn check_mountpoint(typed: &Path, members: &[PathBuf]) -> Result<PathBuf, Failure> {
    let shown = typed.display();
    let place = quoted_path(typed);
    let mountpoint = mountinfo::locate(typed).map_err(|error| {
        let message = format!("cannot mount on {shown}: {error}");
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::usage(message).advise(format!("make it first: `mkdir -p {place}`"))
            }
            io::ErrorKind::NotADirectory => Failure::usage(message),
            _ => Failure::environment(message),
        }
    })?;
    let mounted = mountinfo::mount_at(&mountpoint)
        .map_err(|error| Failure::environment(format!("cannot read the mount table: {error}")))?;
    let mounted = mounted.filter(MountEntry::is_ours);
    // The mount of a dead daemon is taken away before anything is mounted there.
    let is_abandoned = mounted
        .as_ref()
        .is_some_and(|entry| is_abandoned(&mountpoint, entry));
    if let Some(entry) = &mounted
        && !is_abandoned
    {
        if let Some(pid) = remains_of(&mountpoint, entry) {
            return Err(Failure::environment(format!(
                "{shown} has a CauchyFS volume mounted on it whose daemon was killed; its process {pid} cannot end \
                 before the directory answers on which it hangs"
            ))
            .advise(format!("`cauchyfs unmount {place}` takes the mount away")));
        }
        return Err(Failure::usage(format!(
            "{shown} has a CauchyFS volume mounted on it already"
        ))
        .advise(format!(
            "`cauchyfs status {place}` shows it, `cauchyfs unmount {place}` takes it away"
        )));
    }
    if !is_abandoned && !mountpoint.is_dir() {
        return Err(Failure::usage(format!("{shown} is no directory")));
    }
    for member in members {
        if mountpoint.starts_with(member) {
            return Err(Failure::usage(format!(
                "the mountpoint {shown} lies inside the member {}",
                member.display()
            ))
            .advise("mount it somewhere outside all members"));
        }
        if member.starts_with(&mountpoint) {
            return Err(Failure::usage(format!(
                "the member {} lies inside the mountpoint {shown}, which would hide it",
                member.display()
            ))
            .advise("mount it somewhere that holds no member"));
        }
    }
    if mountpoint.join(SUPERBLOCK).exists() {
        return Err(Failure::usage(format!(
            "{shown} is a member of a volume, and a mount would hide it"
        ))
        .advise("the last path is where to mount: a directory that is no member"));
    }
    Ok(mountpoint)
}

/// Returns what is to be said of a mountpoint that holds something; nothing if it cannot be looked at, as below the
/// mount of a dead daemon.
pub(super) fn hidden_at(mountpoint: &Path) -> Option<String> {
    let is_empty = fs::read_dir(mountpoint).ok()?.next().is_none();
    (!is_empty).then(|| {
        format!(
            "{} is not empty; what is in it is hidden while the volume is mounted",
            mountpoint.display()
        )
    })
}

/// Splits `DIR:DIR:...` as fstab has it; `\:` is a colon and `\\` a backslash in a name.
pub(super) fn split_source(source: &Path) -> Vec<PathBuf> {
    let mut names = vec![Vec::new()];
    let mut bytes = source.as_os_str().as_bytes().iter();
    while let Some(&byte) = bytes.next() {
        let last = names.len() - 1;
        match byte {
            b'\\' => names[last].extend(bytes.next()),
            b':' => names.push(Vec::new()),
            _ => names[last].push(byte),
        }
    }
    names
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(std::ffi::OsString::from_vec(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn one_directory_in_two_spellings_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        fs::create_dir(&a).unwrap();
        symlink(&a, &b).unwrap();
        let dotted = a.join("..").join("a");
        for twin in [a.clone(), b, dotted] {
            let failure = Directories::find(&[a.clone(), twin.clone()]).unwrap_err();
            assert!(
                failure.message.contains("given twice"),
                "{}",
                twin.display()
            );
        }
    }

    #[test]
    fn a_directory_inside_another_is_refused_in_either_order() {
        let home = tempfile::tempdir().unwrap();
        let inner = home.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        for order in [
            [home.path().into(), inner.clone()],
            [inner.clone(), home.path().into()],
        ] {
            let failure = Directories::find(&order).unwrap_err();
            assert!(
                failure.message.contains("lies inside"),
                "{}",
                failure.message
            );
        }
    }

    #[test]
    fn a_refused_create_leaves_no_directory_behind() {
        let home = tempfile::tempdir().unwrap();
        let full = home.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("note"), "mine").unwrap();
        let fresh = home.path().join("new/deep");
        let use_them = |_: &[PathBuf]| Ok(());
        let failure = Directories::make(&[fresh.clone(), full.clone()], use_them).unwrap_err();
        assert!(
            failure.message.contains("it holds note"),
            "{}",
            failure.message
        );
        assert!(!home.path().join("new").exists());
        assert!(full.join("note").exists());
        let use_them = |made: &[PathBuf]| -> Result<(), Failure> {
            assert!(made[0].ends_with("new/deep") && made[0].is_dir());
            Err(Failure::environment("too small"))
        };
        let failure = Directories::make(std::slice::from_ref(&fresh), use_them).unwrap_err();
        assert_eq!(failure.message, "too small");
        assert!(!home.path().join("new").exists());
    }

    #[test]
    fn a_directory_fresh_from_mkfs_counts_as_empty() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("lost+found")).unwrap();
        assert!(Directories::make(&[home.path().into()], |_| Ok(())).is_ok());
    }

    #[test]
    fn missing_directories_are_spelled_as_if_they_were_there() {
        let home = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(home.path()).unwrap();
        let here = base.join("here");
        fs::create_dir(&here).unwrap();
        let gone = here.join("..").join("gone");
        let found = Directories::find(&[here, gone]).unwrap();
        assert_eq!(found.absent, [base.join("gone")]);
        assert_eq!(found.present.len(), 1);
    }

    #[test]
    fn a_mountpoint_may_neither_hold_a_member_nor_lie_in_one() {
        let home = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(home.path()).unwrap();
        let inner = base.join("in");
        fs::create_dir(&inner).unwrap();
        assert!(check_mountpoint(&inner, std::slice::from_ref(&base)).is_err());
        assert!(check_mountpoint(&base, std::slice::from_ref(&inner)).is_err());
        assert!(check_mountpoint(&base.join("none"), &[]).is_err());
        assert_eq!(check_mountpoint(&inner, &[]).unwrap(), inner);
    }

    #[test]
    fn a_member_is_no_mountpoint_although_it_was_not_meant_to_be_a_member_here() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(SUPERBLOCK), "").unwrap();
        let failure = check_mountpoint(home.path(), &[]).unwrap_err();
        assert!(
            failure.message.contains("is a member of a volume"),
            "{}",
            failure.message
        );
    }

    #[test]
    fn a_source_splits_at_colons_that_are_not_escaped() {
        assert_eq!(
            split_source(Path::new("/a:/b\\:c::/d\\\\e")),
            [Path::new("/a"), Path::new("/b:c"), Path::new("/d\\e")]
        );
    }
}
