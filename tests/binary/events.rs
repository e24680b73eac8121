//! Events of a volume: their record on the members, and their display by `cauchyfs events`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use cauchyfs::format::event::{EventFile, EventKind, read_file};
use serde_json::Value;

use crate::support::{
    CAUCHYFS, PATIENCE, Shape, TestVolume, eventually, must, run, said, skip_mounts, text,
};

/// Returns the events that a command shows, which must succeed.
#[track_caller]
fn shown(arguments: &[&str]) -> Vec<Value> {
    let out = must(CAUCHYFS, &[&["events", "--json"], arguments].concat());
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    out.lines().map(parse).collect()
}

#[track_caller]
fn of_mount(volume: &TestVolume) -> Vec<Value> {
    shown(&[text(&volume.mountpoint)])
}

#[track_caller]
fn of_directories(volume: &TestVolume, members: &[usize]) -> Vec<Value> {
    let paths: Vec<&str> = members
        .iter()
        .map(|it| text(&volume.members[*it]))
        .collect();
    shown(&paths)
}

fn names(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["event"].as_str().expect("it has a name"))
        .collect()
}

#[track_caller]
fn named<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let mut found = events.iter().filter(|event| event["event"] == name);
    found
        .next()
        .unwrap_or_else(|| panic!("no {name}: {events:#?}"))
}

/// Mounts, and waits until each of these members has the event of that. A mount does not wait for it.
fn mount_with_events(volume: &TestVolume, members: &[usize]) {
    volume.mount();
    for member in members {
        eventually("the member has the first event", || {
            names(&of_directories(volume, &[*member])).contains(&"daemon_started")
        });
    }
}

fn wait_for(volume: &TestVolume, name: &str) {
    eventually(&format!("there is the event {name}"), || {
        names(&of_mount(volume)).contains(&name)
    });
}

/// Returns what lies in the file `events` of a member.
fn on_disk(member: &Path) -> EventFile {
    read_file(&fs::read(member.join("events")).expect("the member has events"))
}

fn write_some(volume: &TestVolume, name: &str) {
    let path = volume.path(name);
    fs::write(&path, vec![7; 3 << 20]).expect("there is room");
    let file = fs::File::open(path).expect("it is there");
    file.sync_all().expect("it is durable");
}

#[test]
fn the_loss_of_a_member_is_on_all_others_and_told_while_mounted_and_afterwards() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    write_some(&volume, "f");
    volume.delete_member(2);
    wait_for(&volume, "member_missing");
    wait_for(&volume, "redundancy_reduced");
    let live = of_mount(&volume);
    let missing = named(&live, "member_missing");
    assert_eq!(missing["member"], 2);
    assert_eq!(missing["severity"], "critical");
    assert_eq!(missing["path"], text(&volume.members[2]));
    assert!(
        missing["reason"]
            .as_str()
            .is_some_and(|reason| !reason.is_empty()),
        "{missing}"
    );
    let reduced = named(&live, "redundancy_reduced");
    assert_eq!(
        (&reduced["losses_tolerated"], &reduced["losses_promised"]),
        (&1.into(), &2.into())
    );
    let started = &live[0];
    assert_eq!(
        (started["event"].as_str(), &started["online"]),
        (Some("daemon_started"), &6.into())
    );
    volume.unmount();
    let kept = [0, 1, 3, 4, 5];
    let after = of_directories(&volume, &kept);
    assert_eq!(
        after[..live.len()],
        live,
        "the same events in the same order"
    );
    assert_eq!(after.last().unwrap()["event"], "daemon_stopped");
    assert_eq!(after.last().unwrap()["durable"], true);
    for index in kept {
        let file = on_disk(&volume.members[index]);
        assert_eq!(file.damaged, 0, "member {index}");
        assert_eq!(file.events.len(), after.len(), "member {index}");
    }
    let told = must(CAUCHYFS, &["events", text(&volume.members[0])]);
    let told = told.lines().find(|line| line.contains("is missing"));
    let told = told.expect("a line tells it");
    assert!(told.contains("  critical    2  member 2 ("), "{told}");
}

#[test]
fn a_member_that_returns_lacks_the_events_of_its_absence_and_gets_all_later_ones() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    write_some(&volume, "f");
    let (here, away) = (&volume.members[1], volume.members[1].with_file_name("away"));
    fs::rename(here, &away).unwrap();
    wait_for(&volume, "member_missing");
    wait_for(&volume, "redundancy_reduced");
    fs::rename(&away, here).unwrap();
    wait_for(&volume, "member_back");
    wait_for(&volume, "redundancy_restored");
    volume.unmount();
    let of_one = |index: usize| -> Vec<String> {
        let events = on_disk(&volume.members[index]).events.into_iter();
        let named = events.map(|event| serde_json::to_value(event.kind).unwrap());
        named
            .map(|kind| kind["event"].as_str().unwrap().to_owned())
            .collect()
    };
    let (whole, part) = (of_one(0), of_one(1));
    assert!(
        whole.iter().any(|name| name == "member_missing"),
        "{whole:?}"
    );
    assert!(part.iter().all(|name| name != "member_missing"), "{part:?}");
    assert_eq!(part.last().map(String::as_str), Some("daemon_stopped"));
    let merged = of_directories(&volume, &[1, 0]);
    assert_eq!(names(&merged), whole, "each event counts once");
}

#[test]
fn a_daemon_that_was_killed_is_told_at_the_next_mount_and_one_that_stopped_is_not() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    eventually("it is written that it started", || {
        volume
            .members
            .iter()
            .all(|member| member.join("events").exists() && !on_disk(member).events.is_empty())
    });
    volume.crash();
    volume.mount();
    wait_for(&volume, "daemon_crashed");
    volume.remount();
    volume.unmount();
    let events = of_directories(&volume, &[3]);
    let expected = [
        "daemon_started",
        "daemon_crashed",
        "daemon_started",
        "daemon_stopped",
        "daemon_started",
        "daemon_stopped",
    ];
    assert_eq!(names(&events), expected);
    let sequences: Vec<u64> = events
        .iter()
        .filter_map(|event| event["sequence"].as_u64())
        .collect();
    assert_eq!(sequences, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_scrub_and_a_rebuild_are_told_with_their_numbers() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 2048);
    volume.mount();
    write_some(&volume, "f");
    assert_eq!(volume.command(&["scrub"], &[]).0, Some(0));
    wait_for(&volume, "scrub_finished");
    volume.delete_member(2);
    wait_for(&volume, "redundancy_reduced");
    volume.command(&["rebuild"], &[]);
    wait_for(&volume, "rebuild_finished");
    wait_for(&volume, "redundancy_restored");
    let events = of_mount(&volume);
    let order = |name: &str| names(&events).iter().position(|it| *it == name);
    assert!(
        order("scrub_started") < order("scrub_finished"),
        "{events:#?}"
    );
    assert!(
        order("rebuild_started") < order("rebuild_finished"),
        "{events:#?}"
    );
    assert!(named(&events, "scrub_finished")["bytes"].as_u64() > Some(3 << 20));
    assert!(named(&events, "rebuild_finished")["bytes"].as_u64() > Some(0));
    volume.unmount();
}

#[test]
fn wrong_bytes_are_counted_in_one_event_of_their_member() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    write_some(&volume, "f");
    volume.remount();
    let segments = fs::read_dir(volume.members[4].join("segments")).unwrap();
    for segment in segments {
        let path = segment.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        for block in bytes.chunks_mut(4096) {
            block[9] ^= 1;
        }
        fs::write(path, bytes).unwrap();
    }
    volume.command(&["scrub"], &[]);
    wait_for(&volume, "checksum_errors");
    wait_for(&volume, "scrub_finished");
    let events = of_mount(&volume);
    let wrong = named(&events, "checksum_errors");
    assert_eq!(wrong["member"], 4);
    assert!(wrong["errors"].as_u64() > Some(0), "{wrong}");
    let count = names(&events)
        .iter()
        .filter(|name| **name == "checksum_errors")
        .count();
    assert!(count <= 2, "{events:#?}");
    volume.unmount();
}

#[test]
fn damage_of_a_log_costs_nothing_that_another_member_has() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    volume.remount();
    volume.unmount();
    let whole = of_directories(&volume, &[0, 1]);
    assert_eq!(whole.len(), 4);
    let file = volume.members[0].join("events");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2 - 3;
    bytes[middle] ^= 0x10;
    fs::write(&file, &bytes).unwrap();
    let alone = run(CAUCHYFS, &["events", "--json", text(&volume.members[0])]);
    assert!(alone.status.success(), "{alone:?}");
    assert_eq!(String::from_utf8_lossy(&alone.stdout).lines().count(), 3);
    assert!(said(&alone).contains("are damaged at 1 place"), "{alone:?}");
    // A torn end, and a directory that is not there.
    let file = volume.members[1].join("events");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    volume.delete_member(2);
    assert_eq!(of_directories(&volume, &[0, 1, 2, 3]), whole);
    volume.mount_degraded(&[0, 1, 3, 4, 5]);
    volume.unmount();
    let events = of_directories(&volume, &[0]);
    assert_eq!(
        names(&events).last(),
        Some(&"daemon_stopped"),
        "it goes on behind the damage"
    );
}

#[test]
fn since_leaves_out_what_is_older_and_refuses_what_is_no_time() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    volume.remount();
    let all = of_mount(&volume);
    let last = all.last().unwrap()["time"].as_str().unwrap().to_owned();
    let mountpoint = text(&volume.mountpoint).to_owned();
    volume.unmount();
    let directory = text(&volume.members[5]).to_owned();
    volume.mount();
    for place in [&mountpoint, &directory] {
        assert!(shown(&["--since", "2h", place]).len() > all.len());
        assert_eq!(shown(&["--since", "2099-01-01", place]), [] as [Value; 0]);
        let newer = shown(&["--since", &last, place]);
        assert_eq!(newer[0]["time"], last, "{newer:#?}");
        assert!(newer.len() < all.len() + 2, "{newer:#?}");
        let refused = run(CAUCHYFS, &["events", "--since", "yesterday", place]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            told.lines().next().unwrap().contains("write it like 2h"),
            "{told}"
        );
    }
    volume.unmount();
}

#[test]
fn a_log_that_cannot_be_written_hinders_nothing_and_is_told_once() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    for member in &volume.members {
        // It is not empty, so no file can take the name.
        fs::create_dir_all(member.join("events/in the way")).unwrap();
    }
    volume.mount();
    write_some(&volume, "f");
    assert_eq!(volume.command(&["scrub"], &[]).0, Some(0));
    wait_for(&volume, "scrub_finished");
    volume.assert_healthy();
    volume.unmount();
    let log = volume.log();
    for index in 0..6 {
        let line = format!("member {index} takes no events");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    for member in &volume.members {
        assert!(member.join("events/in the way").is_dir());
        fs::remove_dir_all(member.join("events")).unwrap();
    }
    volume.mount();
    volume.assert_healthy();
    volume.unmount();
    assert_eq!(
        names(&of_directories(&volume, &[0])),
        ["daemon_started", "daemon_stopped"]
    );
}

#[test]
fn a_mount_for_reading_writes_no_event() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    volume.unmount();
    let before: Vec<_> = volume
        .members
        .iter()
        .map(|member| on_disk(member))
        .collect();
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["-o", "ro"]);
    assert!(output.status.success(), "{output:?}");
    let live = of_mount(&volume);
    assert_eq!(live.last().unwrap()["read_only"], true, "{live:#?}");
    volume.unmount();
    let after: Vec<_> = volume
        .members
        .iter()
        .map(|member| on_disk(member))
        .collect();
    assert_eq!(before, after);
}

/// A command that follows events.
struct Following {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

/// Returns the lines of a pipe as they come.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.all(|line| sender.send(line).is_ok())
    });
    lines
}

impl Following {
    fn start(paths: &[&str]) -> Self {
        let mut child = Command::new(CAUCHYFS)
            .args(["events", "--follow", "--json"])
            .args(paths)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        Self {
            lines: lines_of(child.stdout.take().expect("it is a pipe")),
            errors: lines_of(child.stderr.take().expect("it is a pipe")),
            child,
        }
    }

    /// Waits for an event, and returns all up to it.
    #[track_caller]
    fn until(&self, name: &str) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no {name}: {error}: {seen:#?}"));
            let event: Value = serde_json::from_str(&line).expect("each line is an object");
            let is_last = event["event"] == name;
            seen.push(event);
            if is_last {
                return seen;
            }
        }
    }

    /// Waits for a line on standard error.
    #[track_caller]
    fn until_told(&self, part: &str) {
        loop {
            let line = self.errors.recv_timeout(PATIENCE);
            if line.expect("it is told").contains(part) {
                return;
            }
        }
    }

    /// Ends it; returns what else it said on standard error. Ctrl-C ends it too, unless a shell runs the tests in the
    /// background.
    fn end(mut self) -> Vec<String> {
        must("kill", &["-TERM", &self.child.id().to_string()]);
        self.child.wait().expect("it ends");
        self.errors.iter().collect()
    }
}

#[test]
fn events_are_followed_over_the_end_of_the_daemon_and_in_directories() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    mount_with_events(&volume, &[0, 1]);
    let mount = Following::start(&[text(&volume.mountpoint)]);
    let directories = Following::start(&[text(&volume.members[0]), text(&volume.members[1])]);
    for following in [&mount, &directories] {
        assert_eq!(following.until("daemon_started").len(), 1);
    }
    assert_eq!(volume.command(&["scrub"], &[]).0, Some(0));
    for following in [&mount, &directories] {
        following.until("scrub_finished");
    }
    volume.remount();
    for following in [&mount, &directories] {
        let seen = following.until("daemon_started");
        assert_eq!(names(&seen), ["daemon_stopped", "daemon_started"]);
    }
    // A daemon that is killed leaves its mount for a moment.
    volume.crash();
    volume.mount();
    for following in [&mount, &directories] {
        let seen = following.until("daemon_started");
        assert_eq!(names(&seen), ["daemon_crashed", "daemon_started"]);
    }
    volume.unmount();
    directories.until("daemon_stopped");
    mount.until_told("new events are shown once it is mounted again");
    assert_eq!(mount.end(), [""; 0]);
    assert_eq!(directories.end(), [""; 0]);
}

#[test]
fn a_follower_whose_reader_is_gone_ends_quietly() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    mount_with_events(&volume, &[0, 1]);
    for paths in [
        vec![&volume.mountpoint],
        vec![&volume.members[0], &volume.members[1]],
    ] {
        let mut child = Command::new(CAUCHYFS)
            .args(["events", "--follow"])
            .args(paths)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it shows the start");
        assert!(line.contains("mounted with 6 of 6 members"), "{line}");
        drop(out);
        cauchyfs_testkit::eventually("it ends", Duration::from_secs(60), || {
            child.try_wait().expect("it can be asked").is_some()
        });
        let mut told = String::new();
        let mut errors = child.stderr.take().expect("it is a pipe");
        errors.read_to_string(&mut told).expect("it is text");
        assert_eq!(told, "");
    }
    volume.unmount();
}

#[test]
fn the_files_of_a_removed_member_are_removed() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 2048);
    volume.mount();
    write_some(&volume, "f");
    let removed = &volume.members[6];
    eventually("it has events", || removed.join("events").exists());
    let (code, told) = volume.command(&["member", "remove"], &["6"]);
    assert_eq!(code, Some(0), "{told}");
    wait_for(&volume, "member_removed");
    assert_eq!(named(&of_mount(&volume), "member_removed")["members"], 6);
    assert!(!removed.join("events").exists());
    volume.unmount();
    let kinds = on_disk(&volume.members[0])
        .events
        .into_iter()
        .map(|event| event.kind);
    assert!(
        kinds
            .into_iter()
            .any(|kind| kind == EventKind::MemberRemoved { members: 6 })
    );
}

#[test]
fn an_outage_is_told_from_its_beginning_to_its_end() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    volume.mount();
    write_some(&volume, "f");
    let away: Vec<_> = (0..3)
        .map(|index| volume.members[index].with_extension("away"))
        .collect();
    for (here, away) in volume.members.iter().zip(&away) {
        fs::rename(here, away).unwrap();
    }
    wait_for(&volume, "read_only");
    for (here, away) in volume.members.iter().zip(&away) {
        fs::rename(away, here).unwrap();
    }
    wait_for(&volume, "writable");
    volume.unmount();
    let events = of_directories(&volume, &[0, 5]);
    let count = |name: &str| names(&events).iter().filter(|it| **it == name).count();
    assert_eq!(
        (count("member_missing"), count("member_back")),
        (3, 3),
        "{events:#?}"
    );
    assert_eq!(named(&events, "read_only")["needed"], 4);
}

#[test]
fn a_paused_volume_rebuilds_and_scrubs_nothing_until_it_goes_on() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO_AND_ONE, 2048);
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5, 6], &["--rebuild-after", "1s"]);
    assert!(output.status.success(), "{output:?}");
    write_some(&volume, "f");
    let (code, told) = volume.command(&["pause"], &[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("resume"), "{told}");
    assert_eq!(volume.status().0["paused"], true);
    for (words, rest) in [
        (&["scrub"][..], &[][..]),
        (&["rebuild"], &[]),
        (&["balance"], &[]),
        (&["member", "remove"], &["6"]),
        (&["set"], &["--parity", "1"]),
    ] {
        let (code, told) = volume.command(words, rest);
        assert_eq!(code, Some(2), "{words:?}: {told}");
        assert!(
            told.contains("background work is paused"),
            "{words:?}: {told}"
        );
        assert!(told.contains("cauchyfs resume "), "{words:?}: {told}");
    }
    volume.delete_member(2);
    wait_for(&volume, "member_missing");
    wait_for(&volume, "redundancy_reduced");
    // Much longer than the rebuild waits for.
    std::thread::sleep(Duration::from_secs(8));
    let (status, _) = volume.status();
    assert_eq!(status["rebuild"]["state"], "idle", "{status}");
    write_some(&volume, "g");
    assert!(
        volume
            .command(&["pause"], &[])
            .1
            .contains("was paused already")
    );
    assert_eq!(volume.command(&["resume"], &[]).0, Some(0));
    assert!(
        volume
            .command(&["resume"], &[])
            .1
            .contains("was not paused")
    );
    assert_eq!(volume.status().0["paused"], false);
    wait_for(&volume, "redundancy_restored");
    let events = of_mount(&volume);
    let order = |name: &str| {
        let position = names(&events).iter().position(|it| *it == name);
        position.unwrap_or_else(|| panic!("no {name}: {events:#?}"))
    };
    assert!(order("paused") < order("member_missing"));
    assert!(order("resumed") < order("rebuild_started"), "{events:#?}");
    assert!(named(&events, "resumed")["seconds"].as_u64() >= Some(8));
    volume.unmount();
}

#[test]
fn a_rebuild_that_is_under_way_pauses_and_goes_on() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 3072, 96 << 20);
    volume.delete_member(2);
    wait_for(&volume, "member_missing");
    let mut rebuild = Command::new(CAUCHYFS)
        .args(["rebuild", "--rate", "1MiB", text(&volume.mountpoint)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let done = || volume.status().0["rebuild"]["bytes_done"].as_u64().unwrap();
    eventually("some of it is rebuilt", || done() > 0);
    assert_eq!(volume.command(&["pause"], &[]).0, Some(0));
    // The step that is under way ends.
    let mut last = done();
    eventually("it pauses", || {
        std::thread::sleep(Duration::from_secs(3));
        let now = done();
        last == std::mem::replace(&mut last, now)
    });
    assert_eq!(volume.status().0["rebuild"]["state"], "running");
    assert!(rebuild.try_wait().expect("it can be asked").is_none());
    assert_eq!(named(&of_mount(&volume), "paused")["had_work"], true);
    assert_eq!(volume.command(&["resume"], &[]).0, Some(0));
    eventually("it goes on", || done() > last);
    // Without the limit.
    assert!(volume.command(&["rebuild"], &[]).0.is_some());
    eventually("the command ends", || {
        rebuild.try_wait().expect("it can be asked").is_some()
    });
    wait_for(&volume, "rebuild_finished");
    // An unmount does not wait for what is paused.
    assert_eq!(volume.command(&["pause"], &[]).0, Some(0));
    volume.unmount();
}
