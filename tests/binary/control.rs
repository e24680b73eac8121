//! Commands of the superuser on the mount of another user, who does with the control socket what that user may.
//!
//! The mounts are those of a user by what the kernel's table says. They are made by this process, since not every
//! machine lets its users open `/dev/fuse`. Nothing answers on them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};

use crate::support::{
    CAUCHYFS, Shape, TestVolume, copy_program, must, run, said, skip_mounts, text,
};

/// In the place of an answer: the daemon is of a version that hangs up on a request it does not know.
const VERSION_1: &str = "version 1";

/// A user of whom nothing is known but the number, with a mount and a runtime directory.
struct UserMount {
    user: u32,
    mountpoint: PathBuf,
    session: PathBuf,
    home: tempfile::TempDir,
    fake: Option<Child>,
    device: Option<File>,
}

/// Returns a user for a test, with whom no other test, and no other run of the tests, has anything to do.
fn test_user(number: u32) -> u32 {
    assert!(number < 10);
    100_000 + std::process::id() * 10 + number
}

impl UserMount {
    /// Each test has a user of its own.
    fn new(user: u32) -> Self {
        Self::with_options(user, "")
    }

    /// The same with more options of the filesystem.
    fn with_options(user: u32, more: &str) -> Self {
        let home = tempfile::tempdir().expect("there is room");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755))
            .expect("it is there, and the superuser may");
        let mountpoint = fs::canonicalize(home.path())
            .expect("it is there, and the superuser may")
            .join("mnt");
        fs::create_dir(&mountpoint).expect("it is there, and the superuser may");
        chown(&mountpoint, Some(user), Some(user)).expect("it is there, and the superuser may");
        let session = PathBuf::from(format!("/run/user/{user}"));
        // A run that was killed can have had the same process number.
        drop(fs::remove_dir_all(&session));
        fs::create_dir_all(session.join("cauchyfs")).expect("it is there, and the superuser may");
        for directory in [&session, &session.join("cauchyfs")] {
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700))
                .expect("it is there, and the superuser may");
            chown(directory, Some(user), Some(user)).expect("it is there, and the superuser may");
        }
        let mut options = OpenOptions::new();
        let device = options
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .expect("it is there, and the superuser may");
        let data = format!(
            "fd={},rootmode=40000,user_id={user},group_id={user},default_permissions{more}",
            device.as_raw_fd()
        );
        let data = std::ffi::CString::new(data).expect("it is there, and the superuser may");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(
            "theirs",
            &mountpoint,
            "fuse.cauchyfs",
            flags,
            data.as_c_str(),
        )
        .expect("the superuser may mount");
        Self {
            user,
            mountpoint,
            session,
            home,
            fake: None,
            device: Some(device),
        }
    }

    /// Returns where the user's socket is looked for.
    fn socket(&self) -> PathBuf {
        let name = format!("{}.sock", stem(&self.mountpoint));
        self.session.join("cauchyfs").join(name)
    }

    fn line_of_the_table(&self) -> Option<String> {
        let table =
            fs::read_to_string("/proc/self/mountinfo").expect("it is there, and the superuser may");
        let place = format!(" {} ", self.mountpoint.display());
        let mut lines = table.lines().map(str::to_owned);
        lines.find(|line| line.contains(&place))
    }

    /// Starts a process of the user that says it is the daemon, and answers every request with `answer`. With
    /// [`VERSION_1`], it hangs up instead.
    fn fake_daemon(&mut self, answer: &str) {
        const SCRIPT: &str = "\
import json, socket, sys
path, device, mountpoint, answer = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print('ready', flush=True)
while True:
    client, _ = listener.accept()
    lines = client.makefile('rwb')
    try:
        for line in lines:
            if answer == 'version 1':
                client.shutdown(socket.SHUT_RDWR)
            elif b'identify' in line:
                mount = {'volume': 'v', 'device': device, 'mountpoint': mountpoint}
                said = {'identity': {'version': 3, 'mount': mount}}
                lines.write(json.dumps(said).encode() + b'\\n')
            else:
                lines.write(answer.encode() + b'\\n')
            lines.flush()
    except OSError:
        pass
";
        let line = self.line_of_the_table().expect("it is mounted");
        let device = line
            .split(' ')
            .nth(2)
            .expect("it is there, and the superuser may");
        let user = self.user;
        let mut fake = Command::new("setpriv")
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .args(["--clear-groups", "/usr/bin/python3", "-c", SCRIPT])
            .args([text(&self.socket()), device, text(&self.mountpoint), answer])
            .stdout(Stdio::piped())
            .spawn()
            .expect("setpriv runs");
        let mut ready = String::new();
        let out = fake
            .stdout
            .take()
            .expect("it is there, and the superuser may");
        BufReader::new(out)
            .read_line(&mut ready)
            .expect("it is there, and the superuser may");
        self.fake = Some(fake);
        assert_eq!(ready, "ready\n");
    }
}

impl Drop for UserMount {
    fn drop(&mut self) {
        if let Some(fake) = &mut self.fake {
            drop(fake.kill());
            drop(fake.wait());
        }
        // It may be unmounted by now.
        let _ = rustix::mount::unmount(&self.mountpoint, UnmountFlags::DETACH);
        drop(fs::remove_dir_all(&self.session));
        // Before the directory itself goes.
        assert!(self.home.path().exists());
    }
}

/// Returns what the names of sockets begin with: the hash of the mountpoint, by FNV-1a.
fn stem(mountpoint: &Path) -> String {
    let hash = text(mountpoint)
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}

#[test]
fn a_users_link_to_a_socket_of_the_superuser_leads_no_command_there() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    fs::write(volume.path("f"), "as it was").unwrap();
    let theirs = UserMount::new(test_user(1));
    symlink(volume.control_socket(), theirs.socket()).unwrap();
    for arguments in [
        &["status", text(&theirs.mountpoint)] as &[&str],
        &["rebuild", text(&theirs.mountpoint)],
        &["member", "remove", text(&theirs.mountpoint), "1"],
    ] {
        let output = run(CAUCHYFS, arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said(&output).contains("is gone"), "{output:?}");
    }
    let output = run(CAUCHYFS, &["unmount", text(&theirs.mountpoint)]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(theirs.line_of_the_table(), None);
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"as it was");
    assert_eq!(volume.status().1, 0);
    // The user's own file there stays.
    assert!(fs::symlink_metadata(theirs.socket()).is_ok());
    volume.unmount();
}

#[test]
fn the_superuser_removes_nothing_from_the_directory_of_a_user_whose_daemon_is_dead() {
    if skip_mounts() {
        return;
    }
    let mut theirs = UserMount::with_options(test_user(2), ",allow_other");
    // Nothing serves it any more, and the superuser may see that.
    theirs.device = None;
    drop(std::os::unix::net::UnixListener::bind(theirs.socket()).unwrap());
    chown(theirs.socket(), Some(theirs.user), None).unwrap();
    let output = run(CAUCHYFS, &["unmount", text(&theirs.mountpoint)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said(&output).contains("was gone"), "{output:?}");
    assert_eq!(theirs.line_of_the_table(), None);
    assert!(fs::symlink_metadata(theirs.socket()).is_ok());
}

#[test]
fn a_daemon_that_another_user_fakes_reaches_neither_the_terminal_nor_another_mount() {
    if skip_mounts() {
        return;
    }
    let mut theirs = UserMount::new(test_user(3));
    let forged = r#"{"failed":{"kind":"volume","failure":{
        "error":"a\u001b[2J\ncauchyfs: forged","fault":"environment",
        "remedy":{"directory":{"path":"\u202eb\n","step":"leave_out"}}}}}"#;
    let forged = &forged.replace("\n        ", "");
    theirs.fake_daemon(forged);
    let output = run(CAUCHYFS, &["status", text(&theirs.mountpoint)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let expected = "cauchyfs: a\\u{1b}[2J\\ncauchyfs: forged\n  \
                    leave \\u{202e}b\\n out, or give the directory that is a member\n";
    assert_eq!(said(&output), expected);
    // Its answer is a lie.
    let mut liar = UserMount::new(test_user(4));
    liar.fake_daemon(r#""unmounted""#);
    let output = run(CAUCHYFS, &["unmount", text(&liar.mountpoint)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        said(&output).contains("still in the mount table"),
        "{output:?}"
    );
    // Neither is a daemon of another mount one of this.
    let other = UserMount::new(test_user(5));
    symlink(liar.socket(), other.socket()).unwrap();
    let output = run(CAUCHYFS, &["status", text(&other.mountpoint)]);
    assert!(said(&output).contains("is gone"), "{output:?}");
}

#[test]
fn a_daemon_of_another_user_cannot_claim_directories_of_which_it_has_no_lock() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let member = &volume.members[0];
    let mut theirs = UserMount::new(test_user(7));
    theirs.fake_daemon(&serde_json::json!({ "directories": [member] }).to_string());
    // Some process has the lock, of which no mount is there to be asked.
    let locked = File::open(member).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let output = run(CAUCHYFS, &["status", text(member)]);
    let words = said(&output);
    assert!(!words.contains(text(&theirs.mountpoint)), "{words}");
    assert!(words.contains("in use"), "{words}");
    drop(locked);
    // The daemon that has them is found beside it.
    volume.mount();
    let (report, code) = volume.status_of(&[member]);
    assert_eq!((&report["mounted"], code), (&true.into(), 0), "{report}");
    volume.unmount();
}

#[test]
fn a_daemon_of_another_user_cannot_prevent_a_mount_by_a_claim_to_the_volume() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let all: Vec<_> = volume.members.iter().collect();
    let (report, _) = volume.status_of(&all);
    let mut theirs = UserMount::new(test_user(8));
    let away = serde_json::json!({ "index": 0, "id": report["members"][0]["id"] });
    let claim = serde_json::json!({
        "membership": { "volume": report["volume"], "writable": true, "away": [away] }
    });
    theirs.fake_daemon(&claim.to_string());
    volume.mount();
    volume.unmount();
    // The owner of a directory may have mounted the rest of the volume.
    chown(&volume.members[0], Some(theirs.user), None).unwrap();
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["--trust-members"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("without member 0"), "{output:?}");
}

#[test]
fn a_mount_whose_daemon_is_of_another_version_can_be_taken_away() {
    if skip_mounts() {
        return;
    }
    for options in [&[] as &[&str], &["--lazy"]] {
        let mut theirs = UserMount::new(test_user(9));
        theirs.fake_daemon(VERSION_1);
        let arguments = [&["unmount"], options, &[text(&theirs.mountpoint)]].concat();
        let output = run(CAUCHYFS, &arguments);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(said(&output).contains("another version"), "{output:?}");
        assert_eq!(theirs.line_of_the_table(), None);
    }
}

#[test]
fn a_daemon_answers_no_request_that_names_another_mount() {
    const SCRIPT: &str = "\
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
lines = client.makefile('rwb')
for request in sys.argv[2:]:
    lines.write(request.encode() + b'\\n')
    lines.flush()
    print(lines.readline().decode(), end='')
";
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    let socket = volume.control_socket();
    let ask = |requests: &[&str]| {
        let arguments = [&["-c", SCRIPT, text(&socket)], requests].concat();
        must("/usr/bin/python3", &arguments)
    };
    let identity = ask(&[r#"{"version":3,"request":"identify"}"#]);
    let identity: serde_json::Value = serde_json::from_str(&identity).unwrap();
    let mount = &identity["identity"]["mount"];
    assert_eq!(mount["mountpoint"], text(&volume.mountpoint));
    for (field, wrong) in [
        ("device", "0:99999"),
        ("mountpoint", "/elsewhere"),
        ("volume", "another"),
    ] {
        let mut named = mount.clone();
        named[field] = wrong.into();
        let request = serde_json::json!({
            "version": 3, "mount": named, "request": {"unmount": {"lazy": true}}
        });
        let answer = ask(&[&request.to_string()]);
        assert!(answer.starts_with(r#"{"refused":{"mount":"#), "{answer}");
    }
    // A command of the version before this one.
    let answer = ask(&[r#"{"unmount":{"lazy":true}}"#]);
    assert!(answer.starts_with(r#"{"failed":{"#), "{answer}");
    let answer = ask(&[r#"{"version":99}"#]);
    assert_eq!(answer, "{\"refused\":{\"version\":{\"spoken\":3}}}\n");
    assert_eq!(volume.status().1, 0);
    volume.unmount();
    assert!(!socket.exists());
}

/// The name that daemons used where there was no runtime directory is easy to guess.
#[test]
fn a_name_that_another_user_took_in_tmp_does_not_block_a_mount() {
    if skip_mounts() {
        return;
    }
    let user = test_user(6);
    let squatted = PathBuf::from(format!("/tmp/cauchyfs-{user}"));
    let made = || {
        let own = format!("cauchyfs-{user}-");
        let entries = fs::read_dir("/tmp").unwrap().filter_map(Result::ok);
        let names = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own));
        names.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let clean = || {
        drop(fs::remove_dir_all(&squatted));
        for directory in made() {
            drop(fs::remove_dir_all(directory));
        }
    };
    // A run that was killed can have had the same process number.
    clean();
    let _clean = scopeguard::guard((), |()| clean());
    fs::create_dir(&squatted).unwrap();
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    copy_program(home.path());
    fs::create_dir(at("mnt")).unwrap();
    for directory in [home.path(), &at("mnt")] {
        chown(directory, Some(user), Some(user)).unwrap();
    }
    let as_user = |words: &[&str], paths: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .args(["--clear-groups", text(&at("cauchyfs"))])
            .args(words)
            .args(paths.iter().map(|path| at(path)));
        command.output().expect("setpriv runs")
    };
    let created = as_user(&["create", "--data", "1", "--parity", "1"], &["d0", "d1"]);
    assert!(created.status.success(), "{created:?}");
    let log = at("log");
    let mounted = as_user(&["mount", "--log-file", text(&log)], &["d0", "d1", "mnt"]);
    let words = said(&mounted);
    if mounted.status.success() {
        let unmounted = as_user(&["unmount"], &["mnt"]);
        assert!(unmounted.status.success(), "{unmounted:?}");
    } else {
        // Where users may not mount, `fusermount3` says so, which comes after the socket.
        assert!(words.contains("fusermount3"), "{words}");
    }
    assert!(!words.contains("control socket"), "{words}");
    let made = made();
    assert_eq!(made.len(), 1, "{made:?}");
    let bits = fs::metadata(&made[0]).unwrap().permissions().mode();
    assert_eq!(bits & 0o7777, 0o700);
    assert_eq!(fs::read_dir(&squatted).unwrap().count(), 0);
    assert_eq!(
        fs::read_dir(&made[0]).unwrap().count(),
        0,
        "the socket is gone"
    );
}

/// A log of one line for each message is what its reader relies on.
#[test]
fn a_path_with_controls_forges_nothing_on_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("d\u{1b}[31m\ncauchyfs: forged");
    let output = run(CAUCHYFS, &["status", text(&path)]);
    let words = said(&output);
    assert!(!words.contains('\u{1b}'), "{words:?}");
    assert!(words.contains(r"d\u{1b}[31m\ncauchyfs: forged"), "{words}");
    let forged = words.lines().any(|line| line == "cauchyfs: forged");
    assert!(!forged, "{words}");
}
