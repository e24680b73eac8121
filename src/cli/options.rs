//! The `-o` options of a mount.
//!
//! Every flag of `mount` is an option of the same name too, for fstab: `--cache-size 1GiB` is `-o cache-size=1GiB`.
//! [`take_flags`] turns these options back into flags before the command line is parsed. In all names but those that
//! begin with `x-`, dashes and underscores are the same.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, CommandFactory};

use super::args::Arguments;
use super::failure::Failure;

/// Options that are no flags and take no value.
const WORDS: [&str; 44] = [
    "ro",
    "rw",
    "allow_other",
    "suid",
    "nosuid",
    "allow_suid",
    "dev",
    "nodev",
    "allow_dev",
    "exec",
    "noexec",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "writeback",
    "no_writeback",
    "open_requests",
    "no_open_requests",
    "defaults",
    "default_permissions",
    "_netdev",
    "nofail",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "fsname",
];

/// The similarity from which on a known name is taken for what was meant, from 0 to 1.
const SIMILAR: f64 = 0.7;

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
    /// `nosuid` was said, and `suid` not since.
    nosuid: bool,
    /// The same of `nodev` and `dev`.
    nodev: bool,
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
            nosuid: false,
            nodev: false,
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
        if option.starts_with("x-") || option.starts_with("X-") {
            return Ok(());
        }
        match normal(option).as_str() {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            // mount(8) keeps `suid` and `dev` to itself: the other names are for fstab.
            // It also moves `nosuid` and `nodev` to the front: these count wherever they stand.
            "suid" => (self.suid, self.nosuid) = (true, false),
            "allow_suid" => self.suid = !self.nosuid,
            "nosuid" => (self.suid, self.nosuid) = (false, true),
            "dev" => (self.dev, self.nodev) = (true, false),
            "allow_dev" => self.dev = !self.nodev,
            "nodev" => (self.dev, self.nodev) = (false, true),
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
            _ => self.apply_with_value(option)?,
        }
        Ok(())
    }

    fn apply_with_value(&mut self, option: &str) -> Result<(), Failure> {
        if option == "remount" {
            return Err(Failure::usage("a mount cannot be changed while it is there")
                .advise("unmount it and mount it with the new options; `mount -o remount,ro` stops all writing"));
        }
        match option.split_once('=') {
            Some(("fsname", name)) => self.fsname = Some(name.to_owned()),
            Some(("subtype" | "comment" | "uhelper" | "helper" | "user", _)) => {}
            _ => return Err(unknown(option)),
        }
        Ok(())
    }
}

/// Returns the refusal of an option that is not known; it names the one that is most like it.
fn unknown(option: &str) -> Failure {
    let name = option.split('=').next().unwrap_or_default();
    let command = mount_command();
    let flags = flags(&command).filter_map(Arg::get_long);
    let known = flags.chain(WORDS);
    let rated = known.map(|known| (strsim::jaro(&normal(name), &normal(known)), known));
    let nearest = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
    let help = "`cauchyfs mount --help` lists the options that it takes";
    let failure = Failure::usage(format!("unknown mount option `{option}`"));
    match nearest.filter(|(similarity, _)| *similarity >= SIMILAR) {
        Some((_, nearest)) => {
            failure.advise(format!("`{nearest}` is the nearest known one; {help}"))
        }
        None => failure.advise(help),
    }
}

/// Returns the name of an option with underscores alone.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the definition of the command.
pub(super) fn mount_command() -> clap::Command {
    let mut all = Arguments::command();
    all.build();
    let mount = all.find_subcommand("mount").cloned();
    mount.unwrap_or(all)
}

/// Returns the flags that are options too.
pub(super) fn flags(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
    shown.filter(|flag| {
        let long = flag.get_long();
        long.is_some_and(|long| !["options", "help", "version", "volume"].contains(&long))
    })
}

/// Takes the flags out of comma-separated options; returns them as arguments, and the lists without them.
///
/// # Errors
///
/// If a flag that needs a value has none, or one that takes none has one.
pub(super) fn take_flags(lists: &[String]) -> Result<(Vec<OsString>, Vec<String>), clap::Error> {
    let mut command = mount_command();
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    for list in lists {
        let mut others = Vec::new();
        for option in split(list) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option.as_str(), None),
            };
            let name = normal(name);
            let found =
                flags(&command).find(|flag| flag.get_long().map(normal) == Some(name.clone()));
            let Some((long, takes_value)) =
                found.and_then(|flag| Some((flag.get_long()?, flag.get_action().takes_values())))
            else {
                others.push(option.replace('\\', "\\\\").replace(',', "\\,"));
                continue;
            };
            match value {
                Some(value) if takes_value => taken.push(format!("--{long}={value}").into()),
                None if !takes_value => taken.push(format!("--{long}").into()),
                _ => {
                    let rule = if takes_value { "needs a" } else { "takes no" };
                    let text = format!("the mount option `{option}` {rule} value");
                    return Err(command.error(ErrorKind::InvalidValue, text));
                }
            }
        }
        left.push(others.join(","));
    }
    Ok((taken, left))
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
        // mount(8) puts its own words first.
        let refused = parsed("rw,nosuid,nodev,allow_suid,allow_dev").unwrap();
        assert!(!refused.suid && !refused.dev);
        let options = parsed("rw,allow_suid,allow_dev").unwrap();
        assert!(options.suid && options.dev);
    }

    #[test]
    fn an_unknown_option_is_named_with_the_nearest_known_one() {
        for (given, nearest) in [
            ("noatme", "noatime"),
            ("allowother", "allow_other"),
            ("cach-size=1GiB", "cache-size"),
            ("member_timeuot=5s", "member-timeout"),
            ("fs_name=x", "fsname"),
        ] {
            let failure = parsed(&format!("ro,{given}")).unwrap_err();
            assert!(failure.message.contains(&format!("`{given}`")));
            let advice = failure.advice.unwrap();
            assert!(advice.starts_with(&format!("`{nearest}` ")), "{advice}");
        }
        let advice = parsed("zzz").unwrap_err().advice.unwrap();
        assert!(advice.starts_with("`cauchyfs mount --help`"), "{advice}");
    }

    #[test]
    fn every_known_word_is_taken_with_dashes_and_with_underscores() {
        for word in WORDS.iter().filter(|word| **word != "fsname") {
            for word in [(*word).to_owned(), word.replace('_', "-")] {
                assert!(parsed(&word).is_ok(), "{word}");
            }
        }
    }

    #[test]
    fn every_flag_is_an_option_with_dashes_and_with_underscores() {
        let command = mount_command();
        let mut count = 0;
        for flag in flags(&command) {
            let long = flag.get_long().unwrap();
            let value = if flag.get_action().takes_values() {
                "=1"
            } else {
                ""
            };
            for name in [long.to_owned(), normal(long)] {
                let list = format!("ro,{name}{value},x-a=b");
                let (taken, left) = take_flags(&[list]).unwrap();
                assert_eq!(taken, [OsString::from(format!("--{long}{value}"))]);
                assert_eq!(left, ["ro,x-a=b"]);
            }
            let wrong = if value.is_empty() { "=1" } else { "" };
            assert!(take_flags(&[format!("{long}{wrong}")]).is_err(), "{long}");
            count += 1;
        }
        assert!(count > 10, "{count}");
    }

    #[test]
    fn options_that_stay_are_as_they_were() {
        let list = "fsname=a\\,b\\\\c,ro".to_owned();
        let (taken, left) = take_flags(std::slice::from_ref(&list)).unwrap();
        assert_eq!((taken.len(), left), (0, vec![list]));
    }

    #[test]
    fn a_comma_in_a_name_can_be_escaped() {
        assert_eq!(
            parsed("fsname=a\\,b,ro").unwrap().fsname.as_deref(),
            Some("a,b")
        );
    }
}
