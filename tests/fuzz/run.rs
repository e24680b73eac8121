//! One hostile volume, every command, and what none of them may do.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Signal, kill_process};

use super::cage::{self, Ended, Running};
use super::image::Image;
use super::mutate::{Case, victims_in};
use super::tree::{self, Tree};
use super::volumes::{Base, tree_of};

/// Directories between the guarded one and OUT, so that `..` lands in one that is watched.
const DEPTH: usize = 6;

/// Mode of an OUT that was there before: `extract` leaves it alone.
const TRAPS_MODE: u32 = 0o710;

/// The variable with which a walk finds the mountpoint; set for the child that walks.
pub(crate) const WALK: &str = "CAUCHYFS_FUZZ_WALK";

/// Size of the filesystem on which all of a case lies.
const ARENA_SIZE: &str = "size=512m";

/// The longest time that a member may take in a mount of a case.
const MEMBER_TIMEOUT: &str = "2s";

/// Directories in which cases are run, one after the other.
pub(crate) struct Arena {
    outer: PathBuf,
    members: Vec<PathBuf>,
    out: PathBuf,
    mountpoint: PathBuf,
    logs: PathBuf,
}

impl Arena {
    pub(crate) fn new(home: &Path, base: &Base) -> Self {
        let outer = home.join("outer");
        let mut above = outer.clone();
        for level in 0..DEPTH {
            above = above.join(format!("level-{level}"));
        }
        let arena = Self {
            members: (0..base.members())
                .map(|number| outer.join(format!("members/d{number}")))
                .collect(),
            out: above.join("OUT"),
            mountpoint: outer.join("mnt"),
            logs: home.join("logs"),
            outer,
        };
        fs::create_dir_all(&arena.outer).unwrap();
        // A small filesystem: volumes keep back a part of what there is.
        let words = ["-t", "tmpfs", "-o", ARENA_SIZE, "tmpfs"];
        let mount = Command::new("mount").args(words).arg(&arena.outer).status();
        assert!(mount.unwrap().success());
        fs::create_dir_all(arena.outer.join("members")).unwrap();
        fs::create_dir(&arena.mountpoint).unwrap();
        arena
    }

    /// Makes all that a case finds: the members, the files that must stay as they are, no OUT.
    fn reset(&self, image: &Image) {
        let _ = unmount(&self.mountpoint, UnmountFlags::DETACH);
        let victims = victims_in(&self.outer);
        // First the members, which may have links to what is below.
        for member in &self.members {
            let _ = fs::remove_dir_all(member);
        }
        let _ = fs::remove_dir_all(self.outer.join("level-0"));
        fs::create_dir_all(self.out.parent().unwrap()).unwrap();
        let _ = fs::remove_dir_all(&victims);
        fs::create_dir(&victims).unwrap();
        fs::create_dir(victims.join("directory")).unwrap();
        fs::write(victims.join("file"), "a victim's bytes").unwrap();
        fs::write(victims.join("empty"), "").unwrap();
        fs::write(victims.join("directory/inside"), "bytes inside").unwrap();
        let journal = image
            .0
            .iter()
            .enumerate()
            .find_map(|(member, _)| image.file(member, "journal.0"));
        let journal = journal.map_or_else(Vec::new, |journal| journal.read_at(0, 64 << 10));
        fs::write(victims.join("journal"), journal).unwrap();
        for entry in fs::read_dir(&victims).unwrap() {
            fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o711)).unwrap();
        }
        for name in names("/run") {
            let path = Path::new("/run").join(name);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        image.write(&self.members).unwrap();
    }

    /// Returns everything around the members and OUT.
    fn surroundings(&self) -> Tree {
        let mut skip: Vec<&Path> = self.members.iter().map(PathBuf::as_path).collect();
        skip.extend([self.out.as_path(), self.mountpoint.as_path()]);
        let mut tree = tree::list(&self.outer, &skip);
        // Commands may make, remove or change these themselves.
        tree.retain(|path, _| !path.ends_with("/OUT") && !path.starts_with("members/d"));
        tree.insert("run".into(), format!("{:?}", names("/run")));
        tree
    }

    fn run(&self, words: &[&str], rest: &[&Path]) -> Ended {
        self.start(words, rest, "command").wait()
    }

    fn start(&self, words: &[&str], rest: &[&Path], name: &str) -> Running {
        let mut arguments: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
        arguments.extend(rest.iter().map(|path| path.to_path_buf()));
        cage::start(&cage::binary(), &arguments, &self.logs.join(name))
    }

    fn directories(&self) -> Vec<&Path> {
        self.members.iter().map(PathBuf::as_path).collect()
    }

    fn extract(&self) -> Ended {
        let mut arguments = self.directories();
        let to = Path::new("--to");
        arguments.extend([to, &self.out]);
        self.run(&["extract"], &arguments)
    }

    /// Returns what `extract` and a mount make of a sound volume.
    pub(crate) fn look(&self, image: &Image) -> (Tree, Tree) {
        self.reset(image);
        let ended = self.extract();
        assert!(matches!(ended.code(), Some(0 | 3)), "{ended:?}");
        let extracted = tree_of(&self.out);
        let mut offences = Vec::new();
        self.reset(image);
        let mounted = self
            .mount_and_walk(&mut offences)
            .expect("a sound volume is mounted");
        assert_eq!(offences, [""; 0]);
        (extracted, mounted)
    }

    /// Runs every command on a case, and returns each way in which one did what none may do.
    pub(crate) fn judge(&self, base: &Base, case: &Case) -> Vec<String> {
        let is_bearable = case
            .damaged
            .as_ref()
            .is_some_and(|damaged| damaged.len() <= base.spare);
        let mut offences = Vec::new();
        let no_other_is_mounted = base.mounted_once.read().unwrap();
        self.reset(&case.image);
        let before = Image::read(&self.members, true).unwrap();
        let mut around = self.surroundings();
        let to_look: [&[&str]; 5] = [
            &["status"],
            &["status", "--json"],
            &["events"],
            &["check"],
            &["check", "--deep"],
        ];
        for words in to_look {
            let ended = self.run(words, &self.directories());
            self.note(&ended, &mut around, Some(&before), &mut offences);
        }
        let ended = self.extract();
        self.note(&ended, &mut around, Some(&before), &mut offences);
        if is_bearable {
            self.compare_extracted("extract", &ended, base, &mut offences);
        }
        self.plant_traps();
        let ended = self.extract();
        self.note(&ended, &mut around, Some(&before), &mut offences);
        let mode = fs::metadata(&self.out).map(|metadata| metadata.permissions().mode() & 0o7777);
        if !matches!(mode, Ok(TRAPS_MODE)) {
            offences.push(format!("OUT: extract changed its mode to {mode:?}"));
        }
        let _ = fs::remove_dir_all(&self.out);
        for words in [&["check", "--repair"][..], &["check", "--repair", "--deep"]] {
            let ended = self.run(words, &self.directories());
            self.note(&ended, &mut around, None, &mut offences);
        }
        if is_bearable {
            let ended = self.extract();
            self.note(&ended, &mut around, None, &mut offences);
            self.compare_extracted("extract after a repair", &ended, base, &mut offences);
        }
        self.reset(&case.image);
        let mut around = self.surroundings();
        drop(no_other_is_mounted);
        let alone = base.mounted_once.write().unwrap();
        let walked = self.mount_and_walk(&mut offences);
        drop(alone);
        if is_bearable {
            match walked {
                Err(ended) => offences.push(format!("WRONG: it cannot be mounted: {}", ended.err)),
                Ok(walked) => {
                    let wrong = tree::differences(&base.mounted, &walked);
                    offences.extend(
                        wrong
                            .into_iter()
                            .map(|line| format!("WRONG: mounted: {line}")),
                    );
                }
            }
        }
        self.compare_surroundings("mount", &mut around, &mut offences);
        offences
    }

    /// Makes an OUT that exists already, with symlinks out of it in the places of files.
    fn plant_traps(&self) {
        let _ = fs::remove_dir_all(&self.out);
        fs::create_dir(&self.out).unwrap();
        fs::set_permissions(&self.out, Permissions::from_mode(TRAPS_MODE)).unwrap();
        let victims = victims_in(&self.outer);
        for (name, victim) in [
            ("a", "directory"),
            ("linked", "file"),
            ("twice", "directory"),
            ("journaled", "absent"),
        ] {
            std::os::unix::fs::symlink(victims.join(victim), self.out.join(name)).unwrap();
        }
    }

    /// Takes down what a command did wrong.
    fn note(
        &self,
        ended: &Ended,
        around: &mut Tree,
        before: Option<&Image>,
        offences: &mut Vec<String>,
    ) {
        offences.extend(ended.offences());
        self.compare_surroundings(&ended.what, around, offences);
        if let Some(before) = before
            && *before != Image::read(&self.members, true).unwrap()
        {
            offences.push(format!("WRITE: {} changed a member", ended.what));
        }
    }

    /// Takes down what has changed around the members and OUT, once.
    fn compare_surroundings(&self, what: &str, around: &mut Tree, offences: &mut Vec<String>) {
        let found = self.surroundings();
        let changed = tree::differences(around, &found);
        offences.extend(
            changed
                .iter()
                .map(|line| format!("OUTSIDE: {what}: {line}")),
        );
        *around = found;
    }

    fn compare_extracted(
        &self,
        what: &str,
        ended: &Ended,
        base: &Base,
        offences: &mut Vec<String>,
    ) {
        if !matches!(ended.code(), Some(0 | 3)) {
            offences.push(format!(
                "WRONG: {what}: exit code {:?}: {}",
                ended.code(),
                ended.err
            ));
        }
        let wrong = tree::differences(&base.extracted, &tree_of(&self.out));
        offences.extend(
            wrong
                .into_iter()
                .map(|line| format!("WRONG: {what}: {line}")),
        );
    }

    /// Mounts a volume, and returns its daemon.
    pub(crate) fn mount(&self, image: &Image) -> Result<Running, Ended> {
        self.reset(image);
        self.start_daemon()
    }

    /// Runs a command on the mount; `MOUNT` stands for the mountpoint, and `NEW` for a directory that is no member.
    pub(crate) fn command(&self, words: &[&str]) -> Ended {
        let path = |word: &&str| match *word {
            "MOUNT" => self.mountpoint.clone(),
            "NEW" => self.outer.join("new"),
            word => PathBuf::from(word),
        };
        let arguments: Vec<PathBuf> = words.iter().map(path).collect();
        cage::start(&cage::binary(), &arguments, &self.logs.join(words.concat())).wait()
    }

    /// Starts a daemon, and waits until it serves the mount.
    fn start_daemon(&self) -> Result<Running, Ended> {
        let words = [
            "mount",
            "--foreground",
            "--cache-size",
            "16MiB",
            "--member-timeout",
            MEMBER_TIMEOUT,
        ];
        let mut arguments = self.directories();
        arguments.push(&self.mountpoint);
        let daemon = self.start(&words, &arguments, "daemon");
        let start = Instant::now();
        while !self.is_mounted() {
            if let Some(ended) = daemon.try_wait() {
                return Err(ended);
            }
            if start.elapsed() > cage::PATIENCE {
                return Err(daemon.kill());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Mounts, walks over everything, writes a little, and unmounts. Returns what the walk saw, if it was mounted.
    fn mount_and_walk(&self, offences: &mut Vec<String>) -> Result<Tree, Ended> {
        let daemon = match self.start_daemon() {
            Ok(daemon) => daemon,
            Err(ended) => {
                offences.extend(ended.offences());
                return Err(ended);
            }
        };
        let walk = self.walk();
        offences.extend(walk.offences());
        for words in [&["status"][..], &["unmount"]] {
            let ended = self.run(words, &[&self.mountpoint]);
            offences.extend(ended.offences());
        }
        if self.is_mounted() {
            let _ = unmount(&self.mountpoint, UnmountFlags::DETACH);
            let _ = kill_process(daemon.pid, Signal::TERM);
        }
        offences.extend(daemon.wait().offences());
        Ok(tree::parse(&walk.out))
    }

    /// Has a child of its own look at everything: it can be killed if it hangs.
    fn walk(&self) -> Ended {
        let program = std::env::current_exe().unwrap();
        let mountpoint = self.mountpoint.to_str().unwrap();
        let variable = format!("{WALK}={mountpoint}");
        let arguments = [
            variable.as_str(),
            program.to_str().unwrap(),
            "a_walk_over_a_mount",
            "--exact",
            "--include-ignored",
            "--nocapture",
            "--quiet",
        ];
        let ended = cage::start("env".as_ref(), &arguments, &self.logs.join("walk"));
        ended.wait()
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mountpoint = self.mountpoint.to_str().unwrap();
        mounts
            .lines()
            .any(|line| line.split(' ').nth(4) == Some(mountpoint))
    }
}

fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names
        .filter(|name| name != "cauchyfs" && name != "mount")
        .collect();
    names.sort();
    names
}

/// Prints everything below a mountpoint, and then uses it as programs do. Errors are as good as success; only the
/// bytes of a file that was written and made durable must be right.
pub(crate) fn walk(root: &Path) {
    let tree = tree_of(root);
    print!("{}", tree::to_text(&tree));
    io::stdout().flush().unwrap();
    for (path, _) in tree.iter().take(300) {
        let path = root.join(path);
        let mut names = vec![0; 64 << 10];
        let _ = rustix::fs::llistxattr(&path, &mut names[..]);
        let _ = rustix::fs::lgetxattr(&path, "user.long", &mut names[..]);
        let _ = rustix::fs::statvfs(&path);
    }
    drop(use_it(root));
}

fn use_it(root: &Path) -> io::Result<()> {
    let path = root.join("fuzz-new");
    let bytes: Vec<u8> = (0..100_000u32).map(|number| (number % 251) as u8).collect();
    let mut file = fs::File::create(&path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    drop(fs::read(&path)?);
    fs::create_dir(root.join("fuzz-directory"))?;
    fs::rename(&path, root.join("fuzz-directory/moved"))?;
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(root.join("linked"))?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::remove_file(root.join("fuzz-directory/moved"))?;
    fs::remove_dir(root.join("fuzz-directory"))?;
    fs::remove_dir_all(root.join("many"))
}
