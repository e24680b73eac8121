//! A real Prometheus server that scrapes a mount and a dashboard, with the alert rules that are shipped.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::alerts::Port;
use crate::dashboard::scrape_undisturbed;
use crate::metrics::mount_at;
use crate::support::dashboard::Dashboard;
use crate::support::{Shape, TestVolume, eventually, http, skip_mounts, text};

/// Names the program of the server.
const PROGRAM: &str = "CAUCHYFS_PROMETHEUS";

/// The program where `scripts/test.sh` unpacks it.
const UNPACKED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/prometheus/usr/bin/prometheus"
);

/// The alert rules as they are shipped.
const RULES: &str = include_str!("../../contrib/prometheus/alerts.yml");

/// The job that scrapes the mount. Its name selects it for the alert on targets that are down.
const OF_MOUNT: &str = "cauchyfs";

/// The job that scrapes the dashboard.
const OF_DASHBOARD: &str = "cauchyfs-dashboard";

/// A job: its name, its target, and the seconds from one scrape to the next, each of which may take as long.
type Job = (&'static str, SocketAddr, u32);

/// A Prometheus server that runs until it is dropped.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    home: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes jobs.
    #[track_caller]
    fn start(jobs: &[Job]) -> Self {
        let home = tempfile::Builder::new()
            .prefix("cauchyfs-test-")
            .tempdir()
            .expect("there is room");
        let path = |name: &str| home.path().join(name);
        fs::write(path("shipped.yml"), RULES).expect("there is room");
        fs::write(path("hurried.yml"), hurried(RULES)).expect("there is room");
        fs::write(path("prometheus.yml"), configuration(jobs)).expect("there is room");
        let port = Port::take();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number));
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let log = fs::File::create(path("log")).expect("there is room");
        let program = program();
        let started = Command::new(&program)
            .arg(option("config.file", text(&path("prometheus.yml"))))
            .arg(option("storage.tsdb.path", text(&path("data"))))
            .arg(option("web.listen-address", &address.to_string()))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = started.unwrap_or_else(|error| {
            panic!(
                "cannot run {}: {error}; `scripts/test.sh` fetches it, and `apt-get install prometheus` installs it",
                program.display()
            )
        });
        let server = Self {
            child,
            address,
            home,
        };
        eventually("Prometheus is ready", || {
            server.ask("/-/ready").is_some_and(|it| it.contains("eady"))
        });
        server
    }

    /// Returns the body of an answer. None unless it is one of success.
    fn ask(&self, path: &str) -> Option<String> {
        // Answers of the older version come in one piece, and end with the connection.
        let answer = http::send(self.address, &format!("GET {path} HTTP/1.0\r\n\r\n")).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.0 200 OK\r\n")
            .then(|| body.to_owned())
    }

    /// Returns the data of an answer of the API.
    #[track_caller]
    fn data(&self, path: &str) -> Value {
        let body = self.ask(path).expect("it answers");
        let mut answer: Value = serde_json::from_str(&body).expect("it is JSON");
        assert_eq!(answer["status"], "success", "{path}: {body}");
        answer["data"].take()
    }

    /// Returns the series that an expression selects: labels and value of each.
    #[track_caller]
    fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let path = format!("/api/v1/query?query={}", percent_encoded(expression));
        let data = self.data(&path);
        assert_eq!(data["resultType"], "vector", "{expression}: {data}");
        let found = data["result"].as_array().expect("it is a list");
        let series = found.iter().map(|series| {
            let value = series["value"][1].as_str().expect("it is text");
            let value = value.parse().expect("it is a number");
            (series["metric"].clone(), value)
        });
        series.collect()
    }

    /// Returns the value of the only series that an expression selects. None if it selects none.
    #[track_caller]
    fn value(&self, expression: &str) -> Option<f64> {
        let mut found = self.query(expression);
        assert!(found.len() < 2, "{expression}: {found:?}");
        found.pop().map(|(_, value)| value)
    }

    /// Waits until the only series that an expression selects has a value that fits.
    #[track_caller]
    fn wait_for(&self, expression: &str, fits: impl Fn(f64) -> bool) -> f64 {
        let mut last = None;
        eventually(expression, || {
            last = self.value(expression);
            last.is_some_and(&fits)
        });
        last.expect("it was there")
    }

    /// Returns the rules of a file.
    #[track_caller]
    fn rules(&self, file: &str) -> Vec<Value> {
        let data = self.data("/api/v1/rules?type=alert");
        let groups = data["groups"].as_array().expect("it is a list");
        let is_it = |group: &&Value| group["file"] == text(&self.home.path().join(file));
        let group = groups.iter().find(is_it).expect("the file is loaded");
        group["rules"].as_array().expect("it is a list").clone()
    }

    /// Returns the state of an alert of a file with these labels.
    #[track_caller]
    fn alert(&self, file: &str, name: &str, labels: &[(&str, &str)]) -> Option<String> {
        let rules = self.rules(file);
        let rule = rules.iter().find(|rule| rule["name"] == name);
        let rule = rule.unwrap_or_else(|| panic!("no rule {name}: {rules:?}"));
        let mut alerts = rule["alerts"].as_array().into_iter().flatten();
        let has = |alert: &Value, (label, value): &(&str, &str)| alert["labels"][*label] == *value;
        let alert = alerts.find(|alert| labels.iter().all(|it| has(alert, it)))?;
        alert["state"].as_str().map(str::to_owned)
    }

    /// Waits until an alert of a file with these labels has a state, or is gone.
    #[track_caller]
    fn wait_for_alert(&self, file: &str, name: &str, labels: &[(&str, &str)], state: Option<&str>) {
        eventually(&format!("{file}: {name} {labels:?} is {state:?}"), || {
            self.alert(file, name, labels).as_deref() == state
        });
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log: PathBuf = self.home.path().join("log");
            let log = fs::read_to_string(log).unwrap_or_default();
            eprintln!("--- the log of Prometheus\n{log}");
        }
    }
}

/// Returns the program of the server: the one that is named, the one that is unpacked, or the one in `PATH`.
fn program() -> OsString {
    let unpacked = || Path::new(UNPACKED).exists().then(|| UNPACKED.into());
    let named = std::env::var_os(PROGRAM).or_else(unpacked);
    named.unwrap_or_else(|| "prometheus".into())
}

/// Returns rules that wait no longer than a second before they fire.
fn hurried(rules: &str) -> String {
    let mut hurried = String::new();
    let mut waits = 0;
    for line in rules.lines() {
        let start = line.trim_start();
        if start.starts_with("for: ") {
            let indent = &line[..line.len() - start.len()];
            writeln!(hurried, "{indent}for: 1s").expect("it is memory");
            waits += 1;
        } else {
            writeln!(hurried, "{line}").expect("it is memory");
        }
    }
    assert!(waits > 0, "the rules wait");
    hurried
}

/// Returns the configuration of a server that reads both files of rules, and scrapes jobs.
fn configuration(jobs: &[Job]) -> String {
    let mut text = "global: {evaluation_interval: 1s}\n\
                    rule_files: [shipped.yml, hurried.yml]\n\
                    scrape_configs:\n"
        .to_owned();
    for (name, address, seconds) in jobs {
        writeln!(
            text,
            "  - {{job_name: {name}, scrape_interval: {seconds}s, scrape_timeout: {seconds}s, \
             static_configs: [{{targets: ['{address}']}}]}}"
        )
        .expect("it is memory");
    }
    text
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| format!("%{byte:02X}"));
    encoded.collect()
}

/// Returns what selects series from the mount.
fn of_mount(name: &str, labels: &str) -> String {
    format!("{name}{{job=\"{OF_MOUNT}\",{labels}}}")
}

/// Returns what selects series of a volume from the dashboard, whose labels tell volumes apart.
fn on_dashboard(name: &str, labels: &str, mountpoint: &Path) -> String {
    let place = text(mountpoint);
    format!("{name}{{job=\"{OF_DASHBOARD}\",mountpoint=\"{place}\",{labels}}}")
}

#[test]
fn a_prometheus_server_scrapes_a_mount_and_a_dashboard_and_the_shipped_alerts_fire() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 1024);
    // Held until the end: no other test serves at the port of a mount that is gone.
    let held = Port::take();
    let at_mount = mount_at(&volume, &held);
    let dashboard = Dashboard::start(&[]);
    dashboard.wait_for(&volume, "healthy");
    // The dashboard waits 4 s for daemons of other tests that do not answer.
    let prometheus = Prometheus::start(&[
        (OF_MOUNT, at_mount, 2),
        (OF_DASHBOARD, dashboard.address, 5),
    ]);
    for file in ["shipped.yml", "hurried.yml"] {
        eventually(&format!("all rules of {file} work"), || {
            let rules = prometheus.rules(file);
            rules.iter().all(|rule| rule["health"] == "ok")
        });
    }
    let away = "CauchyfsMemberAway";
    let mount_job = [("job", OF_MOUNT)];
    // Other volumes are on the dashboard, too.
    let place = ("mountpoint", text(&volume.mountpoint));
    let dashboard_job = [("job", OF_DASHBOARD), place];
    {
        let _undisturbed = scrape_undisturbed();
        for job in [OF_MOUNT, OF_DASHBOARD] {
            prometheus.wait_for(&format!("up{{job=\"{job}\"}}"), |up| up > 0.0);
        }
        check_labels(&prometheus, &volume, at_mount);
        check_counters(&prometheus, &volume);
        for labels in [&mount_job[..], &dashboard_job] {
            prometheus.wait_for_alert("hurried.yml", away, labels, None);
        }
    }
    volume.delete_member(2);
    let missing = "member=\"2\",state=\"missing\"";
    let state = "cauchyfs_member_state";
    prometheus.wait_for(&of_mount(state, missing), |is_missing| is_missing > 0.0);
    prometheus.wait_for_alert("hurried.yml", away, &mount_job, Some("firing"));
    // As shipped, it waits for a minute, which may be over.
    eventually("the shipped rule sees it", || {
        prometheus.alert("shipped.yml", away, &mount_job).is_some()
    });
    let shipped = prometheus.rules("shipped.yml");
    let shipped = shipped.iter().find(|rule| rule["name"] == away);
    assert_eq!(shipped.expect("it is loaded")["duration"], 60);
    {
        let _undisturbed = scrape_undisturbed();
        let series = on_dashboard(state, missing, &volume.mountpoint);
        prometheus.wait_for(&series, |is_missing| is_missing > 0.0);
        prometheus.wait_for_alert("hurried.yml", away, &dashboard_job, Some("firing"));
    }

    volume.unmount();
    let down = "CauchyfsDown";
    prometheus.wait_for(&format!("up{{job=\"{OF_MOUNT}\"}}"), |up| up == 0.0);
    prometheus.wait_for_alert("hurried.yml", down, &mount_job, Some("firing"));
    prometheus.wait_for_alert("hurried.yml", away, &mount_job, None);
    // One scrape may come too late on a busy machine.
    prometheus.wait_for_alert("hurried.yml", down, &dashboard_job[..1], None);
}

/// Waits until series have the labels that tell members, operations and volumes apart.
#[track_caller]
fn check_labels(prometheus: &Prometheus, volume: &TestVolume, at_mount: SocketAddr) {
    let online = of_mount("cauchyfs_member_state", "state=\"online\"") + " == 1";
    let at_mount = at_mount.to_string();
    eventually(&online, || {
        let members = prometheus.query(&online);
        let mut indices: Vec<&str> = members
            .iter()
            .filter(|(labels, _)| labels["instance"] == at_mount)
            .map(|(labels, _)| labels["member"].as_str().expect("it has one"))
            .collect();
        indices.sort_unstable();
        indices == ["0", "1", "2", "3", "4", "5"]
    });
    let (status, _) = volume.status();
    let id = status["volume"].as_str().expect("it is text");
    let labels = format!("operation=\"read\",le=\"+Inf\",volume=\"{id}\"");
    let series = "cauchyfs_operation_duration_seconds_bucket";
    let series = on_dashboard(series, &labels, &volume.mountpoint);
    prometheus.wait_for(&series, |_| true);
}

/// Writes, and waits until counters have grown.
#[track_caller]
fn check_counters(prometheus: &Prometheus, volume: &TestVolume) {
    let writes = "operation=\"write\"";
    let count = "cauchyfs_operation_duration_seconds_count";
    let both = [
        of_mount(count, writes),
        on_dashboard(count, writes, &volume.mountpoint),
    ];
    let before = both.each_ref().map(|it| prometheus.wait_for(it, |_| true));
    fs::write(volume.path("f"), vec![7; 1 << 20]).expect("there is room");
    for (series, before) in both.iter().zip(before) {
        prometheus.wait_for(series, |count| count > before);
    }
    let written = of_mount("cauchyfs_written_bytes_total", "");
    prometheus.wait_for(&format!("increase({written}[10m])"), |bytes| bytes > 0.0);
}
