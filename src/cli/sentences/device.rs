//! The advice for a user who may not open `/dev/fuse`, or may not use it to mount.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::unistd::{Gid, Group, Uid, User};

use crate::cli::shell::quoted;

/// The device of FUSE.
const DEVICE: &str = "/dev/fuse";

/// Mode bits that let the group of a device read and write it.
const GROUP_ACCESS: u32 = 0o060;

/// Advice if the kernel has no FUSE.
pub(super) const LOAD_MODULE: &str = "load the module as root with `modprobe fuse`; a container needs the device of its host, as with `--device /dev/fuse`";

/// Returns the advice on what `fusermount3` said, if this is about access.
pub(super) fn on_helper(said: &str) -> Option<String> {
    let advice = if said.contains("user_allow_other") {
        "add the line `user_allow_other` to /etc/fuse.conf, or leave out allow_other".to_owned()
    } else if said.contains("device not found") {
        LOAD_MODULE.to_owned()
    } else if said.contains(DEVICE) && said.contains("Permission denied") {
        on_access()
    } else if said.contains("mountpoint") && (said.contains("access") || said.contains("owner")) {
        "a user mounts only on a directory of that user: `ls -ld` shows whose it is, and `chown` as root gives it away"
            .to_owned()
    } else if said.contains("Operation not permitted") {
        "give root's rights back to the helper, as root: `chmod u+s \"$(command -v fusermount3)\"`; a container may \
         deny mounting"
            .to_owned()
    } else {
        return None;
    };
    Some(advice)
}

/// Returns the advice for the user of this process, who may not open the device.
pub(super) fn on_access() -> String {
    let user = Uid::effective();
    if user.is_root() {
        return "this system denies the device to root: a container needs it from its host, as with `--device /dev/fuse \
                --cap-add SYS_ADMIN`"
            .to_owned();
    }
    let name = User::from_uid(user).ok().flatten();
    let name = name.map_or_else(|| user.to_string(), |user| user.name);
    let found = fs::metadata(DEVICE).ok();
    let group = found.filter(|found| found.mode() & GROUP_ACCESS == GROUP_ACCESS);
    let group = group.and_then(|found| Group::from_gid(Gid::from_raw(found.gid())).ok()?);
    for_user(&name, group.as_ref().map(|group| group.name.as_str()))
}

/// Returns the advice for a user; `group` may open the device.
fn for_user(user: &str, group: Option<&str>) -> String {
    let open = format!("`chmod a+rw {DEVICE}` lets every user open it until the next boot");
    match group {
        // Members of that group can do more than mount.
        None | Some("root") => format!("as root, {open}"),
        Some(group) => {
            let (user, group) = (quoted(user), quoted(group));
            format!(
                "as root, `usermod -aG {group} {user}` lets this user open it from the next login on; {open}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_of_the_helper_that_a_user_can_do_something_about_gets_advice() {
        for (said, part) in [
            (
                "fusermount3: failed to open /dev/fuse: Permission denied",
                "/dev/fuse",
            ),
            (
                "fusermount3: fuse device not found, try 'modprobe fuse' first",
                "`modprobe fuse`",
            ),
            (
                "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
                "user_allow_other",
            ),
            (
                "fusermount3: user has no write access to mountpoint /mnt",
                "`chown`",
            ),
            (
                "fusermount3: mount failed: Operation not permitted",
                "chmod u+s",
            ),
        ] {
            let advice = on_helper(said).unwrap_or_default();
            assert!(advice.contains(part), "{said}: {advice}");
            assert!(!advice.contains('\n'), "{advice}");
        }
        assert_eq!(on_helper("fusermount3: something else"), None);
    }

    #[test]
    fn a_user_joins_the_group_that_may_open_the_device_unless_it_is_the_superusers() {
        let advice = for_user("ann", Some("fuse"));
        assert!(advice.contains("`usermod -aG 'fuse' 'ann'`"), "{advice}");
        for group in [None, Some("root")] {
            let advice = for_user("ann", group);
            assert!(!advice.contains("usermod"), "{advice}");
            assert!(advice.contains("`chmod a+rw /dev/fuse`"), "{advice}");
        }
    }
}
