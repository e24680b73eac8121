//! The commands with which mount(8) and umount(8) call us.

use std::ffi::OsString;
use std::path::Path;

use super::COMMANDS;

/// Turns what mount(8) and umount(8) call us with into a command; anything else stays as it is.
///
/// mount(8) runs `mount.fuse.cauchyfs SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS] [-t TYPE]`, or by way of
/// `mount.fuse3` `cauchyfs SOURCE MOUNTPOINT -o OPTIONS`. The source is `DIR:DIR:...`, a colon in a
/// name written as `\:`. umount(8) runs `umount.fuse.cauchyfs MOUNTPOINT [-flnrv] [-t TYPE]`.
pub(super) fn canonical(given: Vec<OsString>) -> Vec<OsString> {
    let called_as = given
        .first()
        .and_then(|program| Path::new(program).file_name()?.to_str())
        .unwrap_or_default();
    let names_no_command = given.len() > 2
        && given[1].to_str().is_none_or(|first| {
            !first.starts_with('-') && first.contains('/') && !COMMANDS.contains(&first)
        });
    match called_as {
        "umount.fuse.cauchyfs" | "umount.cauchyfs" => unmount(given.into_iter().skip(1)),
        "mount.fuse.cauchyfs" | "mount.cauchyfs" => mount(given.into_iter().skip(1)),
        _ if names_no_command => without_added(mount(given.into_iter().skip(1))),
        _ => given,
    }
}

fn mount(mut given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["cauchyfs", "mount", "--fstab"].map(Into::into).into();
    let mut paths = Vec::new();
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-o") => {
                arguments.push(argument);
                arguments.extend(given.next());
            }
            Some("-t" | "-N") => {
                given.next();
            }
            Some("-v") => arguments.push(argument),
            // Sloppy, no mtab: neither means anything here.
            Some("-s" | "-n") => {}
            Some(flag) if flag.starts_with('-') => arguments.push(argument),
            _ => paths.push(argument),
        }
    }
    arguments.push("--".into());
    arguments.extend(paths);
    arguments
}

/// Takes away `dev` and `suid`, which `mount.fuse3` adds to the end of the options of every mount by root, unless they
/// hold the opposite. Options that were asked for by name stand before.
fn without_added(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let last = arguments.iter().rposition(|argument| argument == "-o");
    if let Some(options) = last.and_then(|at| arguments.get_mut(at + 1))
        && let Some(text) = options.to_str()
    {
        let mut words: Vec<&str> = text.split(',').collect();
        for added in ["suid", "dev"] {
            words.pop_if(|word| *word == added);
        }
        *options = words.join(",").into();
    }
    arguments
}

fn unmount(mut given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["cauchyfs", "unmount"].map(Into::into).into();
    let mut paths = Vec::new();
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-t" | "-N") => {
                given.next();
            }
            Some("-l") => arguments.push("--lazy".into()),
            Some("-v") => arguments.push(argument),
            // By force, no mtab, else read only: none means anything here.
            Some("-f" | "-n" | "-r") => {}
            Some(flag) if flag.starts_with('-') => arguments.push(argument),
            _ => paths.push(argument),
        }
    }
    arguments.push("--".into());
    arguments.extend(paths);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical_text(given: &str) -> String {
        let given = given.split(' ').map(OsString::from).collect();
        canonical(given)
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn both_ways_in_which_mount_calls_become_a_mount_command() {
        assert_eq!(
            canonical_text(
                "/sbin/mount.fuse.cauchyfs /a:/b /mnt -n -o rw,noatime -t fuse.cauchyfs"
            ),
            "cauchyfs mount --fstab -o rw,noatime -- /a:/b /mnt"
        );
        assert_eq!(
            canonical_text("cauchyfs /a:/b /mnt -o rw,dev,suid"),
            "cauchyfs mount --fstab -o rw -- /a:/b /mnt"
        );
    }

    #[test]
    fn options_added_by_mount_fuse3_are_dropped_and_explicit_ones_stay() {
        for (given, left) in [
            ("dev,suid", ""),
            ("suid,dev,dev,suid", "suid,dev"),
            ("noatime,allow_suid,dev,suid", "noatime,allow_suid"),
            ("nosuid,dev", "nosuid"),
            ("nodev,suid", "nodev"),
            ("nosuid,nodev", "nosuid,nodev"),
        ] {
            assert_eq!(
                canonical_text(&format!("cauchyfs /a:/b /mnt -o {given}")),
                format!("cauchyfs mount --fstab -o {left} -- /a:/b /mnt")
            );
        }
        assert_eq!(
            canonical_text("mount.fuse.cauchyfs /a:/b /mnt -o rw,dev,suid"),
            "cauchyfs mount --fstab -o rw,dev,suid -- /a:/b /mnt"
        );
    }

    #[test]
    fn the_way_in_which_umount_calls_becomes_an_unmount_command() {
        for (given, expected) in [
            ("/mnt", "-- /mnt"),
            ("/mnt -v -t fuse.cauchyfs", "-v -- /mnt"),
            ("-l -n /mnt", "--lazy -- /mnt"),
        ] {
            assert_eq!(
                canonical_text(&format!("/sbin/umount.fuse.cauchyfs {given}")),
                format!("cauchyfs unmount {expected}")
            );
        }
    }

    #[test]
    fn commands_are_left_alone() {
        for given in [
            "cauchyfs status /mnt /mnt",
            "cauchyfs",
            "cauchyfs -v create /a",
            "cauchyfs /a",
        ] {
            assert_eq!(canonical_text(given), given);
        }
    }
}
