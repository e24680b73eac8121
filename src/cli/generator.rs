//! The generator of systemd: orders volumes after the mounts of the disks that their directories lie on.
//!
//! systemd calls `cauchyfs-generator NORMAL EARLY LATE`, early in the boot and at each `daemon-reload`. The three are
//! directories for units; the additions go to the first. A disk that is missing must not keep a volume from being
//! mounted, so the units want the disks and do not require them.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::directories::split_source;
use super::failure::Failure;
use super::volume_file;
use crate::control::fault::Fault;

/// The name by which systemd calls this program.
const NAME: &str = "cauchyfs-generator";

/// The name of an addition to a unit.
const ADDITION: &str = "50-cauchyfs-disks.conf";

/// Types of lines of fstab that are volumes.
const TYPES: [&[u8]; 2] = [b"cauchyfs", b"fuse.cauchyfs"];

/// A unit, and the directories on disks that are to be there before it.
#[derive(Debug, PartialEq, Eq)]
struct Ordered {
    unit: OsString,
    directories: Vec<PathBuf>,
    /// The place whose mounts the unit cannot do without.
    mountpoint: PathBuf,
}

/// Runs as the generator if that is how the program was called.
pub(super) fn run_if_asked(given: &[OsString]) -> Option<ExitCode> {
    let called_as = Path::new(given.first()?).file_name()?;
    if called_as != NAME {
        return None;
    }
    let target = Path::new(given.get(1).map_or(OsStr::new("/tmp"), OsString::as_os_str));
    let sources = (Path::new(volume_file::HOME), Path::new("/etc/fstab"));
    Some(match run(target, sources) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let shown = target.display();
            Failure::environment(format!("cannot write units below {shown}: {error}")).print();
            Fault::Environment.into()
        }
    })
}

/// Writes the additions for all volumes below `target`. A file that is wrong is left out: its service reports that.
fn run(target: &Path, (files, fstab): (&Path, &Path)) -> io::Result<()> {
    let found = of_files(files).into_iter().chain(of_fstab(fstab));
    for ordered in found {
        let mut name = ordered.unit.clone();
        name.push(".d");
        let directory = target.join(name);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(ADDITION), addition(&ordered))?;
    }
    Ok(())
}

/// Returns the services of all files of volumes.
fn of_files(home: &Path) -> Vec<Ordered> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    let ordered = entries.filter_map(|entry| {
        let path = entry.path();
        let is_file = path.extension().is_some_and(|end| end == volume_file::END);
        let file = is_file.then(|| volume_file::read(&path).ok()).flatten()?;
        let mut unit = OsString::from("cauchyfs@");
        unit.push(path.file_stem()?);
        unit.push(".service");
        Some(Ordered {
            unit,
            directories: file.directories,
            mountpoint: file.mountpoint,
        })
    });
    ordered.collect()
}

/// Returns the mounts of all volumes in an fstab.
fn of_fstab(path: &Path) -> Vec<Ordered> {
    let text = fs::read(path).unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .filter_map(of_line)
        .collect()
}

fn of_line(line: &[u8]) -> Option<Ordered> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let (source, place, kind) = (words.next()?, words.next()?, words.next()?);
    if source.starts_with(b"#") || !TYPES.contains(&kind) {
        return None;
    }
    let mountpoint = PathBuf::from(OsString::from_vec(unescaped(place)));
    let source = PathBuf::from(OsString::from_vec(unescaped(source)));
    Some(Ordered {
        unit: mount_unit(&mountpoint).into(),
        directories: split_source(&source),
        mountpoint,
    })
}

/// Replaces `\040` and the like, with which fstab spells spaces.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, others @ ..] = rest {
        let octal = others.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &others[3..];
        } else {
            bytes.push(*first);
            rest = others;
        }
    }
    bytes
}

/// Returns what is added to a unit.
fn addition(ordered: &Ordered) -> String {
    let mut text = String::from("# Made by cauchyfs-generator.\n[Unit]\n");
    let above = ordered.directories.iter().flat_map(|path| path.ancestors());
    let mut units: Vec<String> = above
        .filter(|path| path.parent().is_some() && path.is_absolute())
        .map(mount_unit)
        .collect();
    units.sort_unstable();
    units.dedup();
    for unit in units {
        writeln!(text, "Wants={unit}\nAfter={unit}").expect("writing to a string cannot fail");
    }
    if let Some(above) = ordered.mountpoint.parent().and_then(Path::to_str)
        && !above.contains(char::is_control)
    {
        let escaped = above
            .replace('\\', "\\\\")
            .replace('%', "%%")
            .replace('"', "\\\"");
        writeln!(text, "RequiresMountsFor=\"{escaped}\"").expect("writing to a string cannot fail");
    }
    text
}

/// Returns the name of the unit of a mount, as `systemd-escape --path --suffix=mount` does. In a unit file `%` stands for
/// itself only if it is escaped, which it is here.
fn mount_unit(path: &Path) -> String {
    let parts: Vec<&OsStr> = path
        .components()
        .filter_map(|part| match part {
            std::path::Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let mut unit = String::new();
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            unit.push('-');
        }
        for (at, byte) in part.as_bytes().iter().enumerate() {
            let is_plain = byte.is_ascii_alphanumeric() || b":_.".contains(byte);
            if is_plain && !(*byte == b'.' && at == 0 && index == 0) {
                unit.push(char::from(*byte));
            } else {
                write!(unit, "\\x{byte:02x}").expect("writing to a string cannot fail");
            }
        }
    }
    if unit.is_empty() {
        unit.push('-');
    }
    unit + ".mount"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_mounts_have_the_names_that_systemd_gives_them() {
        // From `systemd-escape --path --suffix=mount` of systemd 252.
        for (path, unit) in [
            ("/", "-.mount"),
            ("/srv/d0", "srv-d0.mount"),
            ("/srv//d0/", "srv-d0.mount"),
            ("/srv/my-disk", r"srv-my\x2ddisk.mount"),
            ("/.hidden/.b", r"\x2ehidden-.b.mount"),
            ("/mnt/a b%", r"mnt-a\x20b\x25.mount"),
            ("/mnt/ü", r"mnt-\xc3\xbc.mount"),
        ] {
            assert_eq!(mount_unit(Path::new(path)), unit, "{path}");
        }
    }

    #[test]
    fn a_service_wants_all_mounts_above_its_directories_and_comes_after_them() {
        let home = tempfile::tempdir().unwrap();
        let (files, target) = (home.path().join("volumes"), home.path().join("units"));
        fs::create_dir(&files).unwrap();
        let text = "directory = /srv/d0/v\ndirectory = /srv/d1/v\nmountpoint = /mnt/photos\n";
        fs::write(files.join("photos.conf"), text).unwrap();
        fs::write(files.join("wrong.conf"), "directory").unwrap();
        fs::write(files.join("photos.conf.bak"), text).unwrap();
        let fstab = home.path().join("fstab");
        let lines = "# /a:/b /c cauchyfs\n/dev/sda1 / ext4 defaults 0 1\n/srv/d\\0400:/srv/d1 /mnt/x fuse.cauchyfs nofail 0 0\n";
        fs::write(&fstab, lines).unwrap();
        run(&target, (&files, &fstab)).unwrap();
        let mut made: Vec<_> = fs::read_dir(&target)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        made.sort();
        assert_eq!(made, ["cauchyfs@photos.service.d", "mnt-x.mount.d"]);
        let read = |name: &str| fs::read_to_string(target.join(name).join(ADDITION)).unwrap();
        let service = read("cauchyfs@photos.service.d");
        for unit in [
            "srv.mount",
            "srv-d0.mount",
            "srv-d0-v.mount",
            "srv-d1-v.mount",
        ] {
            assert!(
                service.contains(&format!("\nWants={unit}\nAfter={unit}\n")),
                "{service}"
            );
        }
        assert!(
            service.contains("\nRequiresMountsFor=\"/mnt\"\n"),
            "{service}"
        );
        assert!(!service.contains("\nRequires="), "{service}");
        let mount = read("mnt-x.mount.d");
        assert!(mount.contains("\nAfter=srv-d\\x200.mount\n"), "{mount}");
    }

    #[test]
    fn only_its_name_makes_the_program_a_generator() {
        for given in ["cauchyfs", "/usr/bin/cauchyfs", "mount.cauchyfs"] {
            assert!(run_if_asked(&[given.into(), "/nowhere".into()]).is_none());
        }
    }
}
