//! The `-o` options of a mount.

use super::failure::Failure;

/// The times at which a read moves a file's access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Atime {
    /// If it is older than the last change, or than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

/// The options asked for with `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a mount option of its own, independent of the others"
)]
pub(super) struct MountOptions {
    pub(super) read_only: bool,
    pub(super) allow_other: bool,
    pub(super) suid: bool,
    pub(super) dev: bool,
    /// Mount although others than the superuser, who mounts, own members or may write to them.
    pub(super) trust_members: bool,
    pub(super) exec: bool,
    pub(super) sync: bool,
    pub(super) dirsync: bool,
    pub(super) atime: Atime,
    /// Let the kernel collect small writes.
    pub(super) writeback: bool,
    /// Have the kernel request each open of a file.
    pub(super) open_requests: bool,
    /// The source to show, instead of the volume's label.
    pub(super) fsname: Option<String>,
}

impl MountOptions {
    /// Returns the defaults: read-write, for the user who mounts, with the kernel's write-back cache; set-user-id
    /// programs and device nodes do not count.
    pub(super) fn new() -> Self {
        Self {
            read_only: false,
            allow_other: false,
            suid: false,
            dev: false,
            trust_members: false,
            exec: true,
            sync: false,
            dirsync: false,
            atime: Atime::Relative,
            writeback: true,
            open_requests: false,
            fsname: None,
        }
    }

    /// Applies comma-separated options in order, so that the last word counts.
    ///
    /// # Errors
    ///
    /// A sentence that names an option that is not known.
    pub(super) fn apply(&mut self, list: &str) -> Result<(), Failure> {
        split(list)
            .iter()
            .filter(|option| !option.is_empty())
            .try_for_each(|option| self.apply_one(option))
    }

    fn apply_one(&mut self, option: &str) -> Result<(), Failure> {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            // mount(8) keeps `suid` and `dev` to itself: the other names are for fstab.
            "suid" | "allow_suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" | "allow_dev" => self.dev = true,
            "nodev" => self.dev = false,
            "trust_members" => self.trust_members = true,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "relatime" | "atime" => self.atime = Atime::Relative,
            "noatime" => self.atime = Atime::Never,
            "strictatime" => self.atime = Atime::Strict,
            "writeback" => self.writeback = true,
            "no_writeback" => self.writeback = false,
            "open_requests" => self.open_requests = true,
            "no_open_requests" => self.open_requests = false,
            // Always on, or for mount(8) and init and not for us.
            "defaults"
            | "default_permissions"
            | "_netdev"
            | "nofail"
            | "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "owner"
            | "group"
            | "diratime"
            | "nodiratime"
            | "lazytime"
            | "nolazytime"
            | "norelatime"
            | "nostrictatime"
            | "iversion"
            | "noiversion"
            | "silent"
            | "loud" => {}
            other => self.apply_with_value(other)?,
        }
        Ok(())
    }

    fn apply_with_value(&mut self, option: &str) -> Result<(), Failure> {
        if option == "remount" {
            return Err(Failure::usage("a mount cannot be changed while it is there")
                .advise("unmount it and mount it with the new options; `mount -i -o remount,ro` stops all writing"));
        }
        match option.split_once('=') {
            Some(("fsname", name)) => self.fsname = Some(name.to_owned()),
            Some(("subtype" | "comment" | "uhelper" | "helper", _)) => {}
            _ if option.starts_with("x-") || option.starts_with("X-") => {}
            Some(("user", _)) => {}
            _ => {
                return Err(Failure::usage(format!("unknown mount option `{option}`"))
                    .advise("`cauchyfs mount --help` lists the options that it takes"));
            }
        }
        Ok(())
    }
}

/// Splits at commas that have no backslash before them.
fn split(text: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let current = options.len() - 1;
        match character {
            '\\' => options[current].extend(characters.next()),
            ',' => options.push(String::new()),
            other => options[current].push(other),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<MountOptions, Failure> {
        let mut options = MountOptions::new();
        options.apply(list)?;
        Ok(options)
    }

    #[test]
    fn the_last_of_two_opposites_counts() {
        assert!(!parsed("ro,rw").unwrap().read_only);
        assert!(parsed("rw,ro").unwrap().read_only);
        assert_eq!(parsed("noatime,strictatime").unwrap().atime, Atime::Strict);
    }

    #[test]
    fn options_of_fstab_for_other_programs_are_ignored() {
        let plain = MountOptions::new();
        let list = "defaults,_netdev,nofail,user,x-systemd.automount,X-mount.mkdir,comment=a,default_permissions";
        assert_eq!(parsed(list).unwrap(), plain);
    }

    #[test]
    fn only_their_own_names_turn_set_user_id_programs_and_device_nodes_on() {
        for list in [
            "",
            "defaults",
            "rw,defaults,exec,allow_other",
            "suid,nosuid,dev,nodev",
        ] {
            let options = parsed(list).unwrap();
            assert!(!options.suid && !options.dev, "{list}");
        }
        let options = parsed("defaults,suid").unwrap();
        assert!(options.suid && !options.dev);
        assert!(parsed("nodev,dev").unwrap().dev);
        let options = parsed("rw,allow_suid,allow_dev").unwrap();
        assert!(options.suid && options.dev);
    }

    #[test]
    fn an_unknown_option_is_named() {
        let failure = parsed("ro,frobnicate").unwrap_err();
        assert!(failure.message.contains("`frobnicate`"));
        assert!(parsed("metrics=1").is_err());
    }

    #[test]
    fn a_comma_in_a_name_can_be_escaped() {
        assert_eq!(
            parsed("fsname=a\\,b,ro").unwrap().fsname.as_deref(),
            Some("a,b")
        );
    }
}
