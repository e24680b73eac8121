//! `cauchyfs dashboard`: what its page and its metrics show, and what they are refused.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use crate::alerts::Port;
use crate::support::dashboard::Dashboard;
use crate::support::http::{self, HOST, send};
use crate::support::{
    CAUCHYFS, PATIENCE, Shape, TestVolume, copy_program, eventually, must, run, said, skip_mounts,
    text,
};

mod between;
mod browser;
mod held_port;

const GET: &str = "GET /state HTTP/1.1";

#[test]
fn a_lost_member_a_dead_daemon_and_an_unmount_are_shown_with_what_to_do() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::with_large(Shape::FOUR_TWO_AND_ONE, 2048, 8 << 20);
    let dashboard = Dashboard::start(&[]);
    let shown = dashboard.wait_for(&volume, "healthy");
    assert_eq!(shown["sentence"], "test is healthy.");
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(7));
    assert_eq!(shown["next"], "nothing to do");
    assert_eq!(shown["redundancy"][0]["level"], "full");
    let (here, away) = (&volume.members[2], volume.members[2].with_file_name("away"));
    fs::rename(here, &away).expect("it can be renamed");
    let began = Instant::now();
    let shown = dashboard.wait_for(&volume, "degraded");
    println!("shown after {:?}", began.elapsed());
    assert_eq!(
        shown["sentence"],
        "test is degraded, 1 of 7 members are away."
    );
    assert_eq!(shown["members"][2]["state"], "missing");
    let rebuild = format!("cauchyfs rebuild '{}'", text(&volume.mountpoint));
    assert_eq!(shown["commands"][0], rebuild.as_str());
    eventually("the event is shown", || {
        let shown = dashboard.volume(&volume.mountpoint).unwrap_or_default();
        let events = shown["events"].as_array().cloned().unwrap_or_default();
        let mut texts = events.iter().filter_map(|event| event["text"].as_str());
        texts.any(|text| text.contains("member 2") && text.contains("is missing"))
    });
    fs::rename(&away, here).expect("it can be renamed");
    dashboard.wait_for(&volume, "healthy");
    // Reads that the page cache does not serve are counted.
    crate::support::drop_caches();
    eventually("the throughput is measured", || {
        fs::write(volume.path("f"), vec![7; 1 << 20]).expect("there is room");
        let shown = dashboard.volume(&volume.mountpoint).unwrap_or_default();
        let is_written = |activity: &Value| {
            let mut lines = activity.as_array().into_iter().flatten();
            lines.any(|line| {
                line.as_str()
                    .is_some_and(|line| line.contains(" written, "))
            })
        };
        let activities = shown["activities"].as_array().cloned().unwrap_or_default();
        shown["traffic"]["written_now"].as_u64() > Some(0) && activities.iter().any(is_written)
    });
    volume.kill();
    let shown = dashboard.wait_for(&volume, "gone");
    assert!(shown["silence"]["since"].is_u64(), "{shown}");
    assert!(shown["silence"]["advice"].is_string(), "{shown}");
    assert_eq!(
        shown["members"].as_array().map(Vec::len),
        Some(7),
        "{shown}"
    );
    let place = text(&volume.mountpoint);
    assert!(run(CAUCHYFS, &["unmount", place]).status.success());
    dashboard.wait_for(&volume, "ended");
    volume.mount();
    dashboard.wait_for(&volume, "healthy");
    volume.unmount();
}

#[test]
fn a_daemon_that_hangs_delays_the_display_of_no_other_volume() {
    if skip_mounts() {
        return;
    }
    let [hangs, works] = [1, 2].map(|_| TestVolume::create(Shape::FOUR_TWO, 1024));
    hangs.mount();
    works.mount();
    let dashboard = Dashboard::start(&[]);
    dashboard.wait_for(&hangs, "healthy");
    let daemon = hangs.daemon().expect("a daemon serves").to_string();
    must("kill", &["-STOP", &daemon]);
    let shown = dashboard.wait_for(&hangs, "silent");
    assert!(shown["silence"]["since"].is_u64(), "{shown}");
    let (here, away) = (&works.members[1], works.members[1].with_file_name("away"));
    fs::rename(here, &away).expect("it can be renamed");
    dashboard.wait_for(&works, "degraded");
    let _undisturbed = scrape_undisturbed();
    eventually("one of them is up", || {
        let page = dashboard.get("/metrics");
        let ups = [&hangs, &works].map(|it| value_of(&page, "cauchyfs_up", it));
        ups == [Some(0.0), Some(1.0)]
    });
    must("kill", &["-CONT", &daemon]);
    dashboard.wait_for(&hangs, "healthy");
    hangs.unmount();
    works.unmount();
}

/// Dashboards of root ask the daemons of all tests that run. One whose daemons send too much keeps out scrapes of others.
static SCRAPES: RwLock<()> = RwLock::new(());

/// Has other tests send no more than fits, until the guard is dropped.
pub(crate) fn scrape_undisturbed() -> RwLockReadGuard<'static, ()> {
    SCRAPES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value of the first series of a volume on a page of metrics whose name begins so.
fn value_of(page: &str, name: &str, volume: &TestVolume) -> Option<f64> {
    let place = format!("mountpoint=\"{}\"", text(&volume.mountpoint));
    let mut lines = page.lines().filter(|line| line.starts_with(name));
    let line = lines.find(|line| line.contains(&place))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn the_metrics_of_all_volumes_are_one_page_with_the_labels_of_each() {
    if skip_mounts() {
        return;
    }
    let volumes = [1, 2].map(|_| TestVolume::create(Shape::FOUR_TWO, 1024));
    volumes.iter().for_each(TestVolume::mount);
    let dashboard = Dashboard::start(&[]);
    for volume in &volumes {
        dashboard.wait_for(volume, "healthy");
    }
    let _undisturbed = scrape_undisturbed();
    let page = dashboard.get("/metrics");
    for volume in &volumes {
        let place = format!("mountpoint=\"{}\"", text(&volume.mountpoint));
        let has = |name: &str| {
            let mut lines = page.lines();
            lines.any(|line| line.starts_with(name) && line.contains(&place))
        };
        for name in [
            "cauchyfs_up{",
            "cauchyfs_volume_state{",
            "cauchyfs_member_used_bytes{",
            "cauchyfs_operation_duration_seconds_bucket{",
            "process_resident_memory_bytes{",
        ] {
            assert!(has(name), "{name}\n{page}");
        }
    }
    let types = page.lines().filter(|line| line.starts_with("# TYPE "));
    let mut types: Vec<&str> = types.collect();
    let all = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), all, "each family comes once");
    let accept = "Host: localhost\r\nAccept: application/openmetrics-text\r\n";
    let open = dashboard.ask("GET /metrics HTTP/1.1", accept);
    assert!(open.contains("application/openmetrics-text; version=1.0.0"));
    assert!(open.ends_with("\n# EOF\n"));
    volumes.iter().for_each(TestVolume::unmount);
}

#[test]
fn other_hosts_origins_paths_and_methods_get_nothing() {
    let dashboard = Dashboard::start(&["--host", "status.example.org"]);
    for (line, fields, status) in [
        (GET, HOST, "200"),
        (GET, "Host: status.example.org\r\n", "200"),
        ("GET / HTTP/1.1", HOST, "200"),
        ("HEAD / HTTP/1.1", HOST, "200"),
        (GET, "Host: evil.example\r\n", "403"),
        (
            GET,
            "Host: localhost\r\nOrigin: http://evil.example\r\n",
            "403",
        ),
        (
            GET,
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
            "403",
        ),
        (GET, "", "400"),
        (GET, "Host: localhost\r\nHost: localhost\r\n", "400"),
        (GET, "Host: localhost\r\nContent-Length: 3\r\n", "400"),
        ("GET /state?a HTTP/1.1", HOST, "404"),
        ("GET /../etc/passwd HTTP/1.1", HOST, "404"),
        ("GET http://localhost/state HTTP/1.1", HOST, "404"),
        ("POST / HTTP/1.1", HOST, "405"),
        ("OPTIONS /state HTTP/1.1", HOST, "405"),
        ("CONNECT localhost:1 HTTP/1.1", HOST, "405"),
        ("GET", HOST, "400"),
    ] {
        let answer = http::ask_for_status(dashboard.address, line, fields, status);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(status == "200" || !body.contains("volumes\""), "{line}");
        if status == "200" || status == "403" {
            for field in [
                "content-security-policy: default-src 'none';",
                "x-content-type-options: nosniff",
                "referrer-policy: no-referrer",
                "x-frame-options: DENY",
                "cache-control: no-store",
            ] {
                assert!(head.contains(field), "{line}: {field}\n{head}");
            }
            assert!(head.contains("frame-ancestors 'none'") && !head.contains("unsafe"));
        }
        assert!(line != "HEAD / HTTP/1.1" || body.is_empty(), "{body}");
    }
    let page = dashboard.get("/");
    for foreign in ["http:", "https:", "//cdn", "@import", "url("] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(foreign), "the page refers to {foreign}");
    }
    assert!(!page.contains("innerHTML") && !page.contains("eval("));
}

#[test]
fn a_thousand_connections_and_slow_readers_take_neither_the_page_nor_memory() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).expect("up to the hard limit is allowed");
    let dashboard = Dashboard::start(&[]);
    dashboard.get("/");
    let before = dashboard.resident_kib();
    let mut crowd = Vec::new();
    for number in 0..1000 {
        let Ok(mut client) = TcpStream::connect(dashboard.address) else {
            continue;
        };
        // Those beyond the limit may be closed already. Every third sends nothing, and every third half of a request.
        let sent: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nHost: loc",
            _ => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        let _ = client.write_all(sent);
        crowd.push(client);
        // Between these, many wait at once.
        if number % 20 == 19 {
            let served = dashboard.connections();
            // Those that lost their places to the last 20 may not be closed yet.
            assert!(served <= 84, "{served} are served at once");
        }
    }
    assert!(crowd.len() > 900, "{}", crowd.len());
    // All of the crowd stays, and reads nothing.
    dashboard.get("/state");
    let after = dashboard.resident_kib();
    assert!(
        after < before + (32 << 10),
        "{before} KiB, then {after} KiB"
    );
    let long = format!("{GET}\r\n{HOST}A: {}", "a".repeat(64 << 10));
    // The refusal may come before all was sent.
    let answer = send(dashboard.address, &long).unwrap_or_default();
    assert!(!answer.contains("volumes"), "{answer}");
    let many = format!("{GET}\r\n{HOST}{}\r\n", "A: b\r\n".repeat(200));
    let answer = send(dashboard.address, &many).unwrap_or_default();
    assert!(!answer.contains("volumes"), "{answer}");
    drop(crowd);
    dashboard.get("/state");
}

#[test]
fn idle_connections_keep_out_no_other() {
    let dashboard = Dashboard::start(&[]);
    let connect = || TcpStream::connect(dashboard.address).expect("it listens");
    let mut idle: Vec<TcpStream> = (0..64).map(|_| connect()).collect();
    eventually("all are taken", || dashboard.connections() == 64);
    // Those that came just now keep their places.
    std::thread::sleep(Duration::from_millis(300));
    let request = format!("{GET}\r\n{HOST}\r\n");
    let answer = send(dashboard.address, &request).expect("there is an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let oldest = &mut idle[0];
    oldest
        .set_read_timeout(Some(PATIENCE))
        .expect("it takes a time");
    // It may be told so by a reset.
    assert!(!matches!(oldest.read(&mut [0]), Ok(1)));
}

/// Changed copies of a request get a refusal, or an answer if they still name our host, and the dashboard goes on.
#[test]
fn changed_requests_end_nothing_and_get_nothing_without_our_host() {
    let seed = std::env::var("CAUCHYFS_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand::random);
    println!("CAUCHYFS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let dashboard = Dashboard::start(&[]);
    let whole = format!("{GET}\r\nHost: localhost\r\nAccept: */*\r\nX-A: b\r\n\r\n");
    let pieces: [&[u8]; 8] = [
        b"\r\n",
        b"\0",
        b"Host: evil.example\r\n",
        b"Content-Length: 18446744073709551616\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\xff\xfe",
        b" HTTP/1.1",
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for case in 0..400 {
        let mut request = whole.clone().into_bytes();
        for _ in 0..random.random_range(1..4) {
            if request.is_empty() {
                break;
            }
            let at = random.random_range(0..request.len());
            match random.random_range(0..4) {
                0 => request[at] = random.random(),
                1 => {
                    let piece = pieces[random.random_range(0..pieces.len())];
                    request.splice(at..at, piece.iter().copied());
                }
                2 => drop(request.remove(at)),
                _ => request.truncate(at.max(1)),
            }
        }
        let Ok(mut client) = TcpStream::connect(dashboard.address) else {
            panic!("case {case}: it takes no connection");
        };
        client
            .set_read_timeout(Some(PATIENCE))
            .expect("it takes a time");
        // It may be refused before all is sent.
        let _ = client.write_all(&request);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        if answer.starts_with(b"HTTP/1.1 200") {
            let sent = String::from_utf8_lossy(&request).to_lowercase();
            // The server reads nothing after the head.
            let ends = ["\n\r\n", "\n\n"]
                .into_iter()
                .filter_map(|end| sent.find(end));
            let head = &sent[..ends.min().unwrap_or(sent.len())];
            assert!(head.contains("localhost"), "case {case}: {sent:?}");
            assert!(!head.contains("\nhost: evil"), "case {case}: {sent:?}");
        }
    }
    dashboard.get("/state");
}

#[test]
fn beyond_the_loopback_there_is_a_token_and_the_page_does_not_have_it() {
    let home = tempfile::tempdir().expect("there is room");
    let file = home.path().join("token");
    let secret = "d5aebbfcd24d1ab3fbe0fd6a6ffe11d9";
    fs::write(&file, format!("{secret}\n")).expect("there is room");
    let refused = |arguments: &[&str]| {
        let output = run(CAUCHYFS, &[&["dashboard"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    let open = refused(&["--listen", "0.0.0.0:0"]);
    assert!(open.contains("--token-file FILE"), "{open}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let readable = refused(&["--token-file", text(&file)]);
    assert!(readable.contains("chmod 600") && !readable.contains(secret));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let url = |file: &Path, address: SocketAddr| {
        let at = address.to_string();
        let arguments = ["dashboard", "--url", "--listen", &at, "--token-file"];
        let output = run(CAUCHYFS, &[&arguments[..], &[text(file)]].concat());
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).expect("it is text")
    };
    let free = Port::take();
    let at = format!("0.0.0.0:{}", free.number);
    let unused = ["dashboard", "--url", "--listen", &at, "--token-file"];
    let unused = run(CAUCHYFS, &[&unused[..], &[text(&file)]].concat());
    let unused = said(&unused);
    assert!(unused.contains("no process listens") && !unused.contains(secret));
    if !Path::new("/var/lib/cauchyfs-dashboard").exists() {
        let never_ran = said(&run(CAUCHYFS, &["dashboard", "--url"]));
        let advice = "systemctl enable --now cauchyfs-dashboard";
        assert!(never_ran.contains(advice), "{never_ran}");
    }
    let dashboard = Dashboard::start(&["--token-file", text(&file)]);
    let printed = url(&file, dashboard.address);
    let expected = format!("http://cauchyfs:{secret}@{}/\n", dashboard.address);
    assert_eq!(printed, expected);
    let bearer = format!("{HOST}Authorization: Bearer {secret}\r\n");
    for path in ["/", "/state", "/metrics"] {
        let line = format!("GET {path} HTTP/1.1");
        let answer = dashboard.ask(&line, HOST);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("\r\nwww-authenticate: Basic "), "{answer}");
        let wrong = dashboard.ask(&line, &bearer.replace(secret, "wrong"));
        assert!(wrong.starts_with("HTTP/1.1 401 "), "{wrong}");
        let answer = dashboard.ask(&line, &bearer);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(!answer.contains(secret), "{answer}");
    }
    // As the service does.
    let file = home.path().join("made");
    let dashboard = Dashboard::start(&["--make-token", "--token-file", text(&file)]);
    let made = url(&file, dashboard.address);
    let made = made.strip_prefix("http://cauchyfs:").unwrap_or_default();
    let made = made.split_once('@').unwrap_or_default().0;
    assert_eq!(made.len(), 32, "{made}");
    for (token, status) in [(made, "200"), (secret, "401")] {
        let bearer = bearer.replace(secret, token);
        http::ask_for_status(dashboard.address, GET, &bearer, status);
    }
}

/// Puts a table of groups with the group of the dashboard over that of the system, until it is dropped.
///
/// Tests that mount run in a mount namespace of their own, and so does the bind mount here. Other tests of the same run see
/// the table, too: daemons that they start meanwhile open a second socket, which changes nothing for them.
struct GroupTable {
    _home: tempfile::TempDir,
}

const GROUP: u32 = 54_321;

impl GroupTable {
    fn put() -> Self {
        let home = tempfile::tempdir().expect("there is room");
        let table = home.path().join("group");
        let known = fs::read_to_string("/etc/group").expect("it can be read");
        let others = known.lines().filter(|line| !line.starts_with("cauchyfs:"));
        let mut lines: Vec<String> = others.map(str::to_owned).collect();
        lines.push(format!("cauchyfs:x:{GROUP}:"));
        fs::write(&table, lines.join("\n") + "\n").expect("there is room");
        fs::set_permissions(&table, fs::Permissions::from_mode(0o644)).expect("it is ours");
        must("mount", &["--bind", text(&table), "/etc/group"]);
        Self { _home: home }
    }
}

impl Drop for GroupTable {
    fn drop(&mut self) {
        run("umount", &["/etc/group"]);
        // As the daemons of others expect it.
        run("chown", &["0:0", "/run/cauchyfs"]);
        run("chmod", &["700", "/run/cauchyfs"]);
    }
}

/// Starts the program as an ordinary user, with or without the group.
fn as_user(program: &Path, group: u32) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "54321", "--regid", &group.to_string()])
        .args(["--clear-groups", "--"])
        .arg(program)
        .arg("dashboard");
    command
}

#[test]
fn an_ordinary_user_sees_its_own_volumes_and_members_of_the_group_those_of_root() {
    if skip_mounts() {
        return;
    }
    let table = GroupTable::put();
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    volume.mount();
    let home = tempfile::Builder::new()
        .prefix("cauchyfs-test-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .expect("there is room");
    let program = copy_program(home.path());
    let stranger = Dashboard::start_as(&mut as_user(&program, 54_322), &[]);
    let volumes = &stranger.state()["volumes"];
    assert_eq!(volumes.as_array().map(Vec::len), Some(0), "{volumes}");
    // A browser would give it the token of another.
    let token = home.path().join("token");
    fs::write(&token, "d5aebbfcd24d1ab3fbe0fd6a6ffe11d9").expect("there is room");
    let at = stranger.address.to_string();
    let url = ["dashboard", "--url", "--listen", &at, "--token-file"];
    let url = run(CAUCHYFS, &[&url[..], &[text(&token)]].concat());
    assert_eq!(url.status.code(), Some(2), "{}", said(&url));
    let url = said(&url);
    assert!(url.contains("a process of user 54321 listens"), "{url}");
    assert!(!url.contains("d5aebb"), "{url}");
    let member = Dashboard::start_as(&mut as_user(&program, GROUP), &[]);
    let shown = member.wait_for(&volume, "healthy");
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(6));
    let _undisturbed = scrape_undisturbed();
    assert!(member.get("/metrics").contains("cauchyfs_volume_state{"));
    // The group asks, and gives no orders.
    let place = text(&volume.mountpoint);
    let order = run(
        "setpriv",
        &[
            "--reuid=54321",
            &format!("--regid={GROUP}"),
            "--clear-groups",
            "--",
            text(&program),
            "pause",
            place,
        ],
    );
    assert!(!order.status.success(), "{}", said(&order));
    let sockets = fs::read_dir("/run/cauchyfs").expect("it is there");
    let sockets = sockets.map(|entry| entry.expect("it can be listed").path());
    let questions = sockets.filter(|path| path.extension().is_some_and(|it| it == "questions"));
    let mut orders = 0;
    for socket in questions {
        let mode = fs::metadata(&socket).map(|it| it.permissions().mode() & 0o777);
        // Daemons of other tests may just have ended.
        let Ok(mode) = mode else { continue };
        assert_eq!(mode, 0o660, "{}", socket.display());
        orders += usize::from(refuses_orders(&socket, place));
    }
    assert_eq!(orders, 1, "one socket is of this mount, and refuses orders");
    volume.kill();
    let shown = member.wait_for(&volume, "gone");
    assert!(shown["silence"]["advice"].is_string(), "{shown}");
    drop((stranger, member));
    assert!(run(CAUCHYFS, &["unmount", place]).status.success());
    drop(table);
}

/// Orders a pause over a socket for questions. Returns whether it is of the mount at `place`, and refuses.
fn refuses_orders(socket: &Path, place: &str) -> bool {
    use std::os::unix::net::UnixStream;
    let Ok(mut daemon) = UnixStream::connect(socket) else {
        return false;
    };
    daemon
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("it takes a time");
    let mut answers = BufReader::new(daemon.try_clone().expect("there are descriptors"));
    let mut exchange = |request: Value| {
        let mut line = String::new();
        writeln!(daemon, "{request}").ok()?;
        answers.read_line(&mut line).ok()?;
        serde_json::from_str::<Value>(&line).ok()
    };
    let first = serde_json::json!({"version": 3, "mount": null, "request": "identify"});
    let Some(answer) = exchange(first) else {
        return false;
    };
    let mount = &answer["identity"]["mount"];
    if mount["mountpoint"] != place {
        return false;
    }
    let order = serde_json::json!({"version": 3, "mount": mount, "request": "pause"});
    let answer = exchange(order).expect("it is refused");
    assert_eq!(answer["refused"], "questionsonly", "{answer}");
    true
}
