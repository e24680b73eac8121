//! `cauchyfs alerts`, and the alerts of a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::failure::{Failure, Outcome, warn};
use super::terminal;
use crate::control::alerts::config::{AlertConfig, Receiver};
use crate::control::alerts::delivery::{DeliveryFailure, deliver};
use crate::control::alerts::link::{AlertFeed, AlertProcess};
use crate::control::alerts::notice::{Notice, NoticeKind, NoticeVolume};
use crate::control::alerts::places::AlertPlaces;
use crate::control::mounted::MountedVolume;

mod wording;

pub(super) use wording::wording;

/// Send alerts about events of volumes to people and programs.
///
/// A mount reads its receivers from /etc/cauchyfs/alerts.toml, or for an ordinary user from
/// ~/.config/cauchyfs/alerts.toml. Without such a file it sends none.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs alerts check
  cauchyfs alerts test
  cauchyfs alerts test --config ./alerts.toml --json

An example of the file, with all keys: contrib/alerts.toml. Each [[receiver]] has a `name`, a `kind` (program, webhook \
or mail), and a `severity`, the least that it wants: info, warning (as if not given) or critical. The end of a problem is \
sent to all that were told of it.

Programs get a JSON object on standard input, and webhooks the same as the body of a POST: `id` (the same if it is sent \
again), `time`, `kind` (problem, recovery, information, summary or test), `severity`, `volume`, `label`, \
`mountpoint`, `events` (as `cauchyfs events --json` has them), `events_left_out`, `notices_lost`, `holding_back`, \
`subject` and `text`. A program accepts it by ending with code 0, a server by a status of 200 to 299. With a secret, \
the header X-CauchyFS-Signature is sha256= and the HMAC-SHA256 of the body in hexadecimal digits.

Events of some seconds are one message. There are at most four in an hour about one member; then a summary follows. What \
cannot be delivered is tried again for a week, also after a restart. For one receiver 64 alerts wait; beyond that the \
least severe is dropped, and `notices_lost` of the next says how many were. An alert that the receiver refuses (a status \
of 400 to 499 but for 408, 425 and 429, or a permanent error of a mail server) lets the others go first.

A process beside the daemon sends alerts. If it ends before its time, it is started again after 1 s, then after 2 s, up \
to five minutes, and sends the alerts of all events in between that the log of events still has. Meanwhile, `cauchyfs \
status` says so. A change of the file takes effect within a minute, without another mount. A receiver with an error in the \
file gets the alerts of that time once the file is correct, as does one that was removed less than a week ago.

A program, the file, and files with secrets must belong to root or to the user of the mount, as must all directories \
above them. No other user may be able to write there.")]
pub(super) struct AlertsArguments {
    #[command(subcommand)]
    command: AlertsCommand,
}

#[derive(Debug, Subcommand)]
enum AlertsCommand {
    /// Send one alert to every receiver, and show what became of each. Exits with 3 if one was not delivered.
    Test(TestArguments),
    /// Read the file, and show the receivers and all errors. Exits with 3 if there are errors.
    Check(TestArguments),
}

#[derive(Debug, Args)]
struct TestArguments {
    /// The file with the receivers.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Tests or checks the receivers.
///
/// # Errors
///
/// If there is no file.
pub(super) fn run(arguments: &AlertsArguments) -> Result<Outcome, Failure> {
    let (AlertsCommand::Test(options) | AlertsCommand::Check(options)) = &arguments.command;
    let path = options.config.clone();
    let path = path.or_else(|| AlertPlaces::own().map(|places| places.config));
    let path = path.ok_or_else(|| Failure::environment("the home directory is unknown"))?;
    let config = AlertConfig::read(&path).ok_or_else(|| {
        let shown = path.display();
        Failure::environment(format!("there is no {shown}, so no alerts are sent"))
            .advise("write one; contrib/alerts.toml is an example")
    })?;
    config.problems.iter().for_each(warn);
    let is_test = matches!(arguments.command, AlertsCommand::Test(_));
    let tested = if is_test {
        test(&config.receivers)?
    } else {
        config.receivers.iter().map(|_| Ok(())).collect()
    };
    let word = if is_test { "delivered" } else { "sound" };
    let rows: Vec<ReceiverRow> = config
        .receivers
        .iter()
        .zip(&tested)
        .map(|(receiver, result)| ReceiverRow::of(receiver, result, word))
        .collect();
    show(&rows, options.json)?;
    let is_fine = config.problems.is_empty() && tested.iter().all(Result::is_ok);
    Ok(if is_fine {
        Outcome::Done
    } else {
        Outcome::Degraded
    })
}

/// The outcome of the alert to one receiver.
#[derive(Debug, Serialize)]
struct ReceiverRow<'a> {
    receiver: &'a str,
    kind: &'a str,
    result: &'a str,
    reason: Option<String>,
}

impl<'a> ReceiverRow<'a> {
    fn of(receiver: &'a Receiver, result: &Result<(), DeliveryFailure>, word: &'a str) -> Self {
        Self {
            receiver: &receiver.name,
            kind: receiver.way.kind(),
            result: if result.is_ok() { word } else { "failed" },
            reason: result.as_ref().err().map(ToString::to_string),
        }
    }
}

/// Sends one alert to every receiver, all at once.
fn test(receivers: &[Receiver]) -> Result<Vec<Result<(), DeliveryFailure>>, Failure> {
    let notice = Notice::new(NoticeKind::Test, NoticeVolume::default(), Vec::new());
    let letter = wording(&notice);
    let no_thread = |error| Failure::environment(format!("cannot start a thread: {error}"));
    thread::scope(|scope| {
        let (notice, letter) = (&notice, &letter);
        let start = |receiver| {
            let send = move || deliver(receiver, notice, letter);
            thread::Builder::new().spawn_scoped(scope, send)
        };
        let started: Result<Vec<_>, _> = receivers.iter().map(start).collect();
        let ended = started.map_err(no_thread)?.into_iter().map(|sender| {
            sender
                .join()
                .map_err(|_| Failure::environment("a delivery ended before its time"))
        });
        ended.collect()
    })
}

fn show(rows: &[ReceiverRow<'_>], json: bool) -> Result<(), Failure> {
    if json {
        return terminal::json(&rows).map_err(Failure::environment);
    }
    if rows.is_empty() {
        terminal::line("there are no receivers");
        return Ok(());
    }
    terminal::line(format_args!("{:<20}  {:<8}  result", "receiver", "kind"));
    for row in rows {
        let reason = row.reason.as_ref();
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        terminal::line(format_args!(
            "{:<20}  {:<8}  {}{reason}",
            row.receiver, row.kind, row.result
        ));
    }
    Ok(())
}

/// The receivers of the alerts of a mount.
#[derive(Debug, Default)]
pub(super) struct Alerts {
    /// The configuration, and the directory of the state.
    places: Option<(PathBuf, PathBuf)>,
    warnings: Vec<String>,
}

impl Alerts {
    /// Reads the file that was named, or the usual one.
    pub(super) fn configured(named: Option<&Path>) -> Self {
        let own = AlertPlaces::own();
        let usual = own.as_ref().map(|places| places.config.clone());
        let path = named
            .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
            .or(usual);
        let Some(path) = path else {
            return Self::default();
        };
        let Some(config) = AlertConfig::read(&path) else {
            let shown = path.display();
            let missing = named.map(|_| format!("no alerts are sent: there is no {shown}"));
            return Self {
                places: None,
                warnings: missing.into_iter().collect(),
            };
        };
        let problems = config
            .problems
            .iter()
            .map(|problem| match &problem.receiver {
                Some(name) => format!("no alerts are sent to {name}: {problem}"),
                None => format!("alerts: {problem}"),
            });
        let state = config
            .state
            .clone()
            .or_else(|| own.map(|places| places.state));
        // One with an error may be corrected while the volume is mounted.
        let is_wanted = !config.receivers.is_empty() || !config.problems.is_empty();
        Self {
            warnings: problems.collect(),
            places: state.filter(|_| is_wanted).map(|state| (path, state)),
        }
    }

    /// Starts the process that delivers alerts, if there are receivers. Call it before the daemon is confined.
    pub(super) fn start(&self) -> StartedAlerts {
        let mut warnings = self.warnings.clone();
        let started = self
            .places
            .as_ref()
            .map(|(config, state)| AlertProcess::start(config, state));
        let process = started.and_then(|started| {
            started
                .map_err(|error| warnings.push(format!("no alerts are sent: {error}")))
                .ok()
        });
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        StartedAlerts { process, warnings }
    }
}

/// The alerts of a daemon.
#[derive(Debug)]
pub(super) struct StartedAlerts {
    process: Option<AlertProcess>,
    /// The errors of the configuration, for those who mount.
    pub(super) warnings: Vec<String>,
}

impl StartedAlerts {
    /// Sends alerts about a volume from now on.
    pub(super) fn follow(
        &mut self,
        volume: &Arc<MountedVolume>,
        mountpoint: &Path,
    ) -> Option<AlertFeed> {
        let process = self.process.take()?;
        let label = volume.now().map(|open| {
            let members = Arc::clone(open.fs.transactions().members());
            members.shape().label().to_owned()
        });
        let about = NoticeVolume {
            volume: volume.events().volume().to_string(),
            label: label.unwrap_or_default(),
            mountpoint: mountpoint.to_string_lossy().into_owned(),
        };
        process
            .follow(volume, about)
            .map_err(|error| {
                tracing::error!("no alerts are sent: {error}");
                self.warnings.push(format!("no alerts are sent: {error}"));
            })
            .ok()
    }
}
