//! Trust in files: no user but the superuser and the own one may change what a path names.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links on a path, as the kernel has it.
const MOST_LINKS: usize = 40;

/// Refuses a file of another user than this one and the superuser, and one with `forbidden` rights.
///
/// # Errors
///
/// That it is such a file.
pub(in crate::control::alerts) fn demand_trusted(
    owner: u32,
    mode: u32,
    forbidden: u32,
) -> io::Result<()> {
    demand_owner(owner)?;
    if mode & forbidden & 0o022 != 0 {
        return Err(io::Error::other(
            "other users can write it; `chmod go-w` it",
        ));
    }
    if mode & forbidden != 0 {
        return Err(io::Error::other("other users can read it; `chmod 600` it"));
    }
    Ok(())
}

fn demand_owner(owner: u32) -> io::Result<()> {
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("it belongs to user {owner}")));
    }
    Ok(())
}

/// Refuses a path that another user could lead to another file. No directory on it may belong to another user, or be
/// writable by others; nor may one that its symbolic links lead through. In a directory with the sticky bit,
/// other users cannot replace a file of this user or of the superuser.
///
/// # Errors
///
/// That there is such a directory or link, or that it cannot be read.
pub(in crate::control::alerts) fn demand_trusted_directories(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let mut left: VecDeque<OsString> = names_of(&path);
    let mut place = PathBuf::from("/");
    let mut links = 0;
    demand_directory(&place)?;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            place.pop();
            continue;
        }
        let next = place.join(&name);
        let found = fs::symlink_metadata(&next)?;
        let refuse = |error: io::Error| refused(&next, &error);
        if found.is_symlink() {
            demand_owner(found.uid()).map_err(refuse)?;
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::other("it has too many symbolic links"));
            }
            let target = fs::read_link(&next)?;
            if target.is_absolute() {
                place = PathBuf::from("/");
            }
            let rest = std::mem::take(&mut left);
            left = names_of(&target);
            left.extend(rest);
            continue;
        }
        place = next;
        if left.is_empty() {
            // The caller looks at the file itself.
            return Ok(());
        }
        demand_directory(&place)?;
    }
    Ok(())
}

/// Refuses a program that another user could change or replace.
///
/// # Errors
///
/// That another user could, or that there is none.
fn demand_trusted_program(program: &Path) -> io::Result<()> {
    let found = fs::metadata(program)?;
    demand_trusted(found.uid(), found.mode(), 0o022)?;
    demand_trusted_directories(program)
}

/// Refuses a command of which another user could change the program, or a file that an argument names: it may be the script
/// of an interpreter. Programs run in `/`, so arguments count from there. Options that begin with `-`, files inside options
/// and directories are not looked at.
///
/// # Errors
///
/// That another user could, or that there is no program.
pub(in crate::control::alerts) fn demand_trusted_command(command: &[String]) -> io::Result<()> {
    let [program, arguments @ ..] = command else {
        return Err(io::Error::other("no program is named"));
    };
    demand_trusted_program(Path::new(program))?;
    for argument in arguments.iter().filter(|it| !it.starts_with('-')) {
        let path = Path::new("/").join(argument);
        // A file that this user cannot look at is none to a program of the same user.
        if fs::metadata(&path).is_ok_and(|found| found.is_file()) {
            demand_trusted_program(&path).map_err(|error| {
                io::Error::other(format!("its argument {}: {error}", path.display()))
            })?;
        }
    }
    Ok(())
}

/// Returns the names that a path goes through.
fn names_of(path: &Path) -> VecDeque<OsString> {
    let parts = path.components();
    let names = parts.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

fn demand_directory(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let is_sticky = found.mode() & 0o1000 != 0;
    let forbidden = if is_sticky { 0 } else { 0o022 };
    demand_trusted(found.uid(), found.mode(), forbidden).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &io::Error) -> io::Error {
    let shown = path.display();
    io::Error::other(format!("{shown} lies on its path, and {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_script_that_another_user_could_change_is_refused_as_an_argument() {
        let home = tempfile::tempdir().unwrap();
        let script = home.path().join("it is.sh");
        fs::write(&script, "exit 0").unwrap();
        let shown = script.to_str().unwrap();
        let judge = |arguments: &[&str]| {
            let command = [&["/bin/sh"], arguments].concat();
            let command: Vec<String> = command.into_iter().map(str::to_owned).collect();
            demand_trusted_command(&command)
        };
        let relative = shown.strip_prefix('/').unwrap();
        let ways = [&[shown][..], &["-e", shown, "x"], &[relative]];
        for way in ways {
            judge(way).unwrap();
        }
        fs::set_permissions(&script, fs::Permissions::from_mode(0o646)).unwrap();
        for way in ways {
            let error = judge(way).unwrap_err().to_string();
            let expected = format!("its argument {shown}: other users can write it");
            assert!(error.starts_with(&expected), "{way:?}: {error}");
        }
        // No file of that name is there, or none at all is named.
        for way in [
            &["-c", "exit 0"][..],
            &["no/such/file"],
            &["/tmp"],
            &["a\0b"],
            &[""],
        ] {
            judge(way).unwrap();
        }
        fs::set_permissions(&script, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(judge(&[shown]).is_err(), "it could be replaced");
    }

    #[test]
    fn every_directory_above_a_file_and_behind_a_link_must_be_trusted() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let mode = |name: &str, mode| {
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        for directory in ["a/b", "links", "other"] {
            fs::create_dir_all(path(directory)).unwrap();
        }
        fs::write(path("a/b/f"), "").unwrap();
        symlink("../a/b/f", path("links/relative")).unwrap();
        symlink(path("a/b"), path("other/absolute")).unwrap();
        let names = [
            "a/b/f",
            "links/relative",
            "other/absolute/f",
            "links/../a/b/f",
        ];
        let refusals = || names.map(|name| demand_trusted_directories(&path(name)).is_err());
        assert_eq!(refusals(), [false; 4]);
        for (directory, expected) in [
            ("a", [true, true, true, true]),
            ("a/b", [true, true, true, true]),
            ("links", [false, true, false, true]),
            ("other", [false, false, true, false]),
        ] {
            mode(directory, 0o777);
            assert_eq!(refusals(), expected, "{directory}");
            mode(directory, 0o1777);
            assert_eq!(refusals(), [false; 4], "{directory} is sticky");
            mode(directory, 0o775);
            assert_eq!(refusals(), expected, "{directory} for its group");
            mode(directory, 0o755);
        }
        mode("a", 0o777);
        let error = demand_trusted_directories(&path("a/b/f")).unwrap_err();
        let shown = path("a");
        let expected = format!(
            "{} lies on its path, and other users can write it; `chmod go-w` it",
            shown.display()
        );
        assert_eq!(error.to_string(), expected);
        symlink("loop", path("loop")).unwrap();
        assert!(demand_trusted_directories(&path("loop")).is_err());
    }
}
