//! `mount --metrics`: what a scrape shows, and what it is refused.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::alerts::Port;
use crate::support::{Shape, TestVolume, eventually, http, said, skip_mounts};

/// Mounts with metrics on a free port, which no other program gets meanwhile. Returns its address.
#[track_caller]
fn mount(volume: &TestVolume) -> SocketAddr {
    mount_at(volume, &Port::take())
}

/// Mounts with metrics on a port. Returns its address.
#[track_caller]
pub(crate) fn mount_at(volume: &TestVolume, held: &Port) -> SocketAddr {
    let port = held.number.to_string();
    let mounted = volume.try_mount(&[0, 1, 2, 3, 4, 5], &["--metrics", &port]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    SocketAddr::from((Ipv4Addr::LOCALHOST, held.number))
}

/// Returns the page of metrics.
fn scrape(address: SocketAddr) -> String {
    http::get(address, "/metrics").expect("it is served")
}

/// Returns the value of a series.
#[track_caller]
fn value(page: &str, series: &str) -> f64 {
    http::value(page, series).unwrap_or_else(|| panic!("no {series}: {page}"))
}

#[test]
fn a_scrape_counts_operations_and_shows_a_member_that_vanishes_and_returns() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    let address = mount(&volume);
    let page = scrape(address);
    let writes = "cauchyfs_operation_duration_seconds_count{operation=\"write\"}";
    assert_eq!(value(&page, writes).to_bits(), 0f64.to_bits());
    let path = volume.path("f");
    fs::write(&path, vec![7; 1 << 20]).expect("there is room");
    let file = fs::File::open(&path).expect("it is there");
    file.sync_all().expect("it is durable");
    drop(file);
    // The last write is counted just after its answer.
    eventually("all writes are counted", || {
        let page = scrape(address);
        let bytes = value(&page, "cauchyfs_written_bytes_total");
        value(&page, writes) > 0.0 && bytes >= f64::from(1 << 20)
    });
    assert!(fs::read(volume.path("none")).is_err());
    let lookups = "cauchyfs_operation_duration_seconds_count{operation=\"lookup\"}";
    assert!(value(&scrape(address), lookups) > 0.0);
    // A sample serves some seconds.
    eventually("the commit is counted", || {
        value(&scrape(address), "cauchyfs_commits_total") > 0.0
    });
    let state = |state: &str| format!("cauchyfs_member_state{{member=\"2\",state=\"{state}\"}}");
    assert!(value(&scrape(address), &state("online")) > 0.0);
    let (here, away) = (&volume.members[2], volume.members[2].with_file_name("away"));
    fs::rename(here, &away).expect("it can be renamed");
    eventually("the member is missing", || {
        let page = scrape(address);
        value(&page, &state("missing")) > 0.0
            && value(&page, "cauchyfs_volume_state{state=\"degraded\"}") > 0.0
            && value(&page, "cauchyfs_repair_queue_stripes") > 0.0
    });
    fs::rename(&away, here).expect("it can be renamed");
    eventually("the member is back", || {
        let page = scrape(address);
        value(&page, &state("missing")) == 0.0
            && value(&page, "cauchyfs_volume_state{state=\"healthy\"}") > 0.0
    });
    let open = "Host: localhost\r\nAccept: application/openmetrics-text\r\n";
    let open = http::ask(address, "GET /metrics HTTP/1.1", open);
    assert!(open.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0"));
    assert!(open.ends_with("\n# EOF\n"));
    volume.unmount();
    assert!(TcpStream::connect(address).is_err(), "the daemon has ended");
}

#[test]
fn other_hosts_origins_paths_and_methods_are_refused_and_a_crowd_hurts_neither_files_nor_scrapes() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    let address = mount(&volume);
    let get = "GET /metrics HTTP/1.1";
    for (line, fields, status) in [
        (get, "Host: evil.example\r\n", "403"),
        (
            get,
            "Host: localhost\r\nOrigin: http://localhost\r\n",
            "403",
        ),
        (get, "", "400"),
        ("GET / HTTP/1.1", "Host: localhost\r\n", "404"),
        ("POST /metrics HTTP/1.1", "Host: localhost\r\n", "405"),
    ] {
        let answer = http::ask_for_status(address, line, fields, status);
        assert!(!answer.contains("cauchyfs_"), "{line} {fields}");
    }
    let long = format!("{get}\r\nHost: localhost\r\nA: {}", "a".repeat(8 << 10));
    // The refusal may come before all was sent.
    let answer = http::send(address, &long).unwrap_or_default();
    assert!(!answer.contains("cauchyfs_"), "{answer}");
    let crowd: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(address).expect("it is taken, and may be closed at once"))
        .collect();
    fs::write(volume.path("f"), [7; 4096]).expect("files are served meanwhile");
    assert_eq!(fs::read(volume.path("f")).expect("it is there"), [7; 4096]);
    eventually("a scrape is served although the crowd stays", || {
        http::get(address, "/metrics").is_some()
    });
    drop(crowd);
    volume.unmount();
}

#[test]
fn directories_are_opened_and_closed_without_requests() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    let address = mount(&volume);
    for round in 0..10 {
        fs::create_dir(volume.path(&format!("d{round}"))).expect("the mount is writable");
        let listed = fs::read_dir(&volume.mountpoint).expect("it is a directory");
        assert_eq!(listed.count(), round + 1);
        let directory = fs::File::open(&volume.mountpoint).expect("it is there");
        directory.sync_all().expect("it is durable");
    }
    let page = scrape(address);
    let series = "cauchyfs_operation_duration_seconds_count{operation=";
    let of = |name| value(&page, &format!("{series}\"{name}\"}}"));
    assert!(of("readdir") + of("readdirplus") >= 10.0, "{page}");
    // The first one tells the kernel.
    assert!(of("opendir") <= 1.0 && of("releasedir") < 1.0, "{page}");
    volume.unmount();
}

#[test]
fn requests_that_find_no_volume_count_as_errors() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    let address = mount(&volume);
    fs::write(volume.path("f"), [7; 4096]).expect("there is room");
    let errors = || {
        let page = scrape(address);
        let series = "cauchyfs_operation_errors_total{operation=";
        let of = |name| value(&page, &format!("{series}\"{name}\"}}"));
        of("open") + of("create") + of("lookup") + of("getattr")
    };
    let before = errors();
    for member in &volume.members[..3] {
        fs::rename(member, member.with_extension("away")).expect("it can be renamed");
    }
    eventually("nothing can be made", || {
        fs::File::create(volume.path("g")).is_err()
    });
    eventually("the errors are counted", || {
        // Each attempt fails, and counts.
        let failed = fs::File::create(volume.path("h")).is_err();
        assert!(failed, "the volume is away");
        errors() > before + 10.0
    });
    for member in &volume.members[..3] {
        fs::rename(member.with_extension("away"), member).expect("it can be renamed");
    }
    eventually("the volume is back", || {
        fs::File::create(volume.path("i")).is_ok()
    });
    volume.unmount();
}
