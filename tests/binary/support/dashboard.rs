//! A dashboard that runs, as its clients see it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::{CAUCHYFS, TestVolume, eventually, http, text};

/// A dashboard, until it is dropped.
pub(crate) struct Dashboard {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    /// It writes there, and would be told if nothing read it.
    _out: BufReader<ChildStdout>,
}

/// The connections of a dashboard, as the kernel tells of them.
#[derive(Default)]
struct Sockets {
    /// Those that wait to be taken.
    waiting: usize,
    /// Those that were taken and not closed. Others have no inode.
    served: usize,
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Dashboard {
    /// Starts one on a free port.
    #[track_caller]
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_as(Command::new(CAUCHYFS).arg("dashboard"), options)
    }

    /// Starts a command that becomes a dashboard, on a free port.
    #[track_caller]
    pub(crate) fn start_as(command: &mut Command, options: &[&str]) -> Self {
        Self::start_command(command.args(["--listen", "127.0.0.1:0"]).args(options))
    }

    /// Starts a command that becomes a dashboard, and waits until it says where it is.
    #[track_caller]
    pub(crate) fn start_command(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let out = child.stdout.take().expect("it is a pipe");
        let mut out = BufReader::new(out);
        let mut line = String::new();
        out.read_line(&mut line).expect("it says where it is");
        let address = line
            .trim()
            .strip_prefix("the dashboard is at http://")
            .and_then(|rest| rest.strip_suffix('/'))
            .and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address: {line:?}"));
        Self {
            child,
            address,
            _out: out,
        }
    }

    /// Sends a request, and returns its answer.
    pub(crate) fn ask(&self, line: &str, fields: &str) -> String {
        http::ask(self.address, line, fields)
    }

    /// Returns the body of an answer. A place is free again soon after a crowd has left.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> String {
        let mut body = None;
        eventually("it answers", || {
            body = http::get(self.address, path);
            body.is_some()
        });
        body.expect("it answered")
    }

    /// Returns what is shown of all volumes.
    pub(crate) fn state(&self) -> Value {
        serde_json::from_str(&self.get("/state")).expect("it is JSON")
    }

    /// Returns what is shown of a volume.
    pub(crate) fn volume(&self, mountpoint: &Path) -> Option<Value> {
        let state = self.state();
        let volumes = state["volumes"].as_array().expect("it is a list");
        let found = volumes
            .iter()
            .find(|it| it["mountpoint"] == text(mountpoint));
        found.cloned()
    }

    /// Waits until a volume is shown as being of a kind. Returns what is shown.
    #[track_caller]
    pub(crate) fn wait_for(&self, volume: &TestVolume, kind: &str) -> Value {
        let mut shown = Value::Null;
        eventually(&format!("the volume is shown as {kind}"), || {
            shown = self.volume(&volume.mountpoint).unwrap_or_default();
            shown["kind"] == kind
        });
        shown
    }

    /// Returns the number of connections that it has taken and not closed, once it has taken all that wait.
    ///
    /// The kernel tells of one connection after the other. So a table that was read while the dashboard took connections
    /// may have more of them than there ever were at once.
    #[track_caller]
    pub(crate) fn connections(&self) -> usize {
        let mut served = 0;
        eventually("all that wait are taken", || {
            let was_quiet = self.sockets().waiting == 0;
            let sockets = self.sockets();
            served = sockets.served;
            was_quiet && sockets.waiting == 0 && self.sockets().waiting == 0
        });
        served
    }

    fn sockets(&self) -> Sockets {
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.child.id()));
        let table = table.expect("it runs");
        let port = format!(":{:04X}", self.address.port());
        let mut sockets = Sockets::default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, queues, _, _, _, _, inode, ..] = fields[..] else {
                panic!("the kernel tells something else: {line}");
            };
            if !local.ends_with(&port) {
                continue;
            }
            if state == "0A" {
                let (_, waiting) = queues.split_once(':').expect("there are two queues");
                sockets.waiting += usize::from_str_radix(waiting, 16).expect("it is a number");
            } else if inode != "0" {
                sockets.served += 1;
            }
        }
        sockets
    }

    /// Returns the memory that it has.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.expect("the kernel tells")
    }
}
