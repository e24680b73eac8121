//! `mount -o remount`: changes the flags that the kernel keeps of a mount, as to stop all writing at shutdown.

use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;

use super::args::MountArguments;
use super::client::LiveMount;
use super::failure::{Failure, Outcome};

/// The option with which mount(8) asks for it.
const REMOUNT: &str = "remount";

/// Options that set a flag, and those that take it away. `suid` and `dev` are not passed on by mount(8).
const FLAGS: [(MountFlags, &[&str], &[&str]); 8] = [
    (MountFlags::RDONLY, &["ro"], &["rw"]),
    (MountFlags::NOSUID, &["nosuid"], &["suid", "allow_suid"]),
    (MountFlags::NODEV, &["nodev"], &["dev", "allow_dev"]),
    (MountFlags::NOEXEC, &["noexec"], &["exec"]),
    (
        MountFlags::NOATIME,
        &["noatime"],
        &["atime", "relatime", "strictatime"],
    ),
    (
        MountFlags::RELATIME,
        &["relatime"],
        &["norelatime", "strictatime", "noatime"],
    ),
    (MountFlags::NODIRATIME, &["nodiratime"], &["diratime"]),
    (MountFlags::SYNCHRONOUS, &["sync"], &["async"]),
];

/// Says whether mount(8) asks for a change of a mount, rather than for a new one.
pub(super) fn is_asked_for(arguments: &MountArguments) -> bool {
    arguments.fstab && words(arguments).any(|word| word == REMOUNT)
}

fn words(arguments: &MountArguments) -> impl Iterator<Item = &str> {
    arguments.options.iter().flat_map(|list| list.split(','))
}

/// Gives a mount the flags that the options name. Other flags stay, and options for the daemon change nothing.
///
/// # Errors
///
/// If no volume is mounted there, or the kernel refuses, as it does for users but root.
pub(super) fn run(arguments: &MountArguments) -> Result<Outcome, Failure> {
    let Some(path) = arguments.paths.last() else {
        return Err(Failure::usage("no mountpoint was given"));
    };
    let mount = LiveMount::at(path)?;
    let mountpoint = mount.mountpoint();
    let failed = |error: rustix::io::Errno| {
        Failure::environment(format!("cannot remount {}: {error}", mountpoint.display()))
    };
    let now = rustix::fs::statvfs(mountpoint).map_err(failed)?.f_flag;
    let before = current(now);
    let flags = changed(before, words(arguments));
    let allows_writes = (before - flags).contains(MountFlags::RDONLY);
    // Its daemon writes nothing, whatever the kernel lets through.
    let is_reader = || mount.report().is_ok_and(|report| report.mounted_read_only);
    if allows_writes && is_reader() {
        return Err(Failure::usage(format!(
            "{} was mounted read-only, and no remount makes it writable",
            mountpoint.display()
        ))
        .advise("unmount it, and mount it without `ro`"));
    }
    rustix::mount::mount_remount(mountpoint, flags, c"").map_err(failed)?;
    Ok(Outcome::Done)
}

/// Returns the flags that a mount has.
fn current(now: StatVfsMountFlags) -> MountFlags {
    let same = [
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
    ];
    let set = same.iter().filter(|(flag, _)| now.contains(*flag));
    set.fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag)
}

fn changed<'a>(flags: MountFlags, words: impl Iterator<Item = &'a str>) -> MountFlags {
    words.fold(flags, |flags, word| {
        FLAGS.iter().fold(flags, |flags, (flag, set, unset)| {
            if set.contains(&word) {
                flags | *flag
            } else if unset.contains(&word) {
                flags - *flag
            } else {
                flags
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_change_the_flags_that_they_name_and_no_others() {
        let before = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME;
        let after = |list: &str| changed(before, list.split(','));
        assert_eq!(
            after("remount,ro,cache-size=1GiB"),
            before | MountFlags::RDONLY
        );
        assert_eq!(after("rw,remount"), before);
        assert_eq!(after("ro,rw"), before);
        assert_eq!(after("allow_suid"), before - MountFlags::NOSUID);
        let without = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(after("noatime"), without | MountFlags::NOATIME);
    }
}
