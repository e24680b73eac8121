//! The configuration of alerts: receivers, and what they want.
//!
//! Every receiver is read by itself, so an error in one leaves the others. An error names its file, line and key.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::format::event::Severity;

mod section;
mod trust;

use section::{Section, Wrong};

use trust::demand_trusted_directories;
pub(super) use trust::{demand_trusted, demand_trusted_command};

/// Most receivers of a configuration.
const MOST_RECEIVERS: usize = 16;

/// The longest configuration, in bytes, and the longest secret.
const LONGEST_FILE: u64 = 64 << 10;
const LONGEST_SECRET: u64 = 4 << 10;

/// The header of a receiver.
const HEADER: &str = "[[receiver]]";

/// The time that a delivery may take, unless a receiver says otherwise.
const USUAL_TIMEOUT: i64 = 20;

/// A secret, which no message shows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// Returns the text.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A receiver of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    pub(crate) name: String,
    /// The least severity that it wants.
    pub(crate) severity: Severity,
    /// The time that a delivery may take.
    pub(crate) timeout: Duration,
    pub(crate) way: Way,
}

/// The way to a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A program, which gets JSON on its standard input.
    Program { command: Vec<String> },
    /// A server that takes JSON over HTTP.
    Webhook { url: String, secret: Option<Secret> },
    /// A mailbox.
    Mail(Mail),
}

impl Way {
    /// Returns the kind as the configuration names it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Program { .. } => "program",
            Self::Webhook { .. } => "webhook",
            Self::Mail(_) => "mail",
        }
    }
}

/// Mail to some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mail {
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    pub(crate) by: MailWay,
}

/// The way of mail out of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MailWay {
    /// A program that takes a message on its standard input, and addresses as arguments.
    Sendmail(String),
    /// A server.
    Smtp {
        host: String,
        port: u16,
        encryption: Encryption,
        /// The user and the password.
        login: Option<(String, Secret)>,
    },
}

/// The encryption of a connection to a mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Encryption {
    /// None.
    Off,
    /// Begun by the command STARTTLS.
    StartTls,
    /// From the first byte.
    Tls,
}

/// An error of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigProblem {
    pub(crate) file: PathBuf,
    /// The line, from 1; none if the file as a whole is at fault.
    pub(crate) line: Option<usize>,
    pub(crate) key: Option<String>,
    pub(crate) message: String,
    /// The name of the receiver, if it has one.
    pub(crate) receiver: Option<String>,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A configuration, as far as it could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AlertConfig {
    pub(crate) receivers: Vec<Receiver>,
    /// The directory of the state, if one is named.
    pub(crate) state: Option<PathBuf>,
    pub(crate) problems: Vec<ConfigProblem>,
}

impl AlertConfig {
    /// Reads a configuration; returns none if there is no such file. A file that others may write is a problem, because
    /// it names programs to run.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        match read_trusted(path, LONGEST_FILE, 0o022) {
            // Neither the group nor others may do anything.
            Ok((text, mode)) => Some(Self::parse(path, &text, mode.trailing_zeros() >= 6)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Self {
                problems: vec![ConfigProblem {
                    file: path.to_owned(),
                    line: None,
                    key: None,
                    message: error.to_string(),
                    receiver: None,
                }],
                ..Self::default()
            }),
        }
    }

    /// Parses the text of a configuration, which may have secrets if it is private.
    fn parse(path: &Path, text: &str, is_private: bool) -> Self {
        let mut config = Self::default();
        for (first_line, part) in parts(text) {
            let mut name = None;
            let read = Section::parse(part, first_line, is_private).and_then(|section| {
                if section.is_receiver() {
                    name = section.name();
                    config.add_receiver(&section)
                } else {
                    config.state = preface(&section)?;
                    Ok(())
                }
            });
            if let Err(Wrong { line, key, message }) = read {
                config.problems.push(ConfigProblem {
                    file: path.to_owned(),
                    line: Some(line),
                    key,
                    message,
                    receiver: name,
                });
            }
        }
        config
    }

    fn add_receiver(&mut self, section: &Section<'_>) -> Result<(), Wrong> {
        let receiver = receiver(section)?;
        if self.receivers.iter().any(|it| it.name == receiver.name) {
            return Err(section.wrong("name", "another receiver has this name"));
        }
        if self.receivers.len() == MOST_RECEIVERS {
            let message = format!("this is one receiver too many: there may be {MOST_RECEIVERS}");
            return Err(section.wrong("name", message));
        }
        self.receivers.push(receiver);
        Ok(())
    }
}

/// Divides a text into what stands before the first receiver, and the receivers. Each part comes with the number of its
/// first line.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let mut starts = vec![(1, 0)];
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let bare: String = line.chars().filter(|it| !it.is_whitespace()).collect();
        if bare.starts_with(HEADER) {
            starts.push((number + 1, offset));
        }
        offset += line.len();
    }
    let ends = starts.iter().skip(1).map(|(_, offset)| *offset);
    let ends: Vec<usize> = ends.chain([text.len()]).collect();
    let bounds = starts.into_iter().zip(ends);
    bounds
        .map(|((line, start), end)| (line, &text[start..end]))
        .collect()
}

/// Reads what stands before the receivers.
fn preface(section: &Section<'_>) -> Result<Option<PathBuf>, Wrong> {
    section.refuse_others(&["state-directory"])?;
    let path = section.text("state-directory")?.map(PathBuf::from);
    match path {
        Some(path) if !path.is_absolute() => {
            Err(section.wrong("state-directory", "the path must begin with /"))
        }
        path => Ok(path),
    }
}

fn receiver(section: &Section<'_>) -> Result<Receiver, Wrong> {
    let name = section.required("name")?;
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        let message = "a name has 1 to 64 letters, digits, dots, dashes or underscores";
        return Err(section.wrong("name", message));
    }
    let severity = match section.text("severity")?.unwrap_or("warning") {
        "info" => Severity::Info,
        "warning" => Severity::Warning,
        "critical" => Severity::Critical,
        other => return Err(section.choice("severity", other, "info, warning or critical")),
    };
    let seconds = section.integer("timeout-seconds")?.unwrap_or(USUAL_TIMEOUT);
    let seconds = u64::try_from(seconds).ok();
    let Some(seconds) = seconds.filter(|seconds| (1..=300).contains(seconds)) else {
        return Err(section.wrong("timeout-seconds", "it must be from 1 to 300"));
    };
    let way = match section.required("kind")? {
        "program" => program(section)?,
        "webhook" => webhook(section)?,
        "mail" => Way::Mail(mail(section)?),
        other => return Err(section.choice("kind", other, "program, webhook or mail")),
    };
    Ok(Receiver {
        name: name.to_owned(),
        severity,
        timeout: Duration::from_secs(seconds),
        way,
    })
}

/// The keys that every receiver may have.
const COMMON: [&str; 4] = ["name", "kind", "severity", "timeout-seconds"];

fn program(section: &Section<'_>) -> Result<Way, Wrong> {
    section.refuse_others(&[&COMMON[..], &["command"]].concat())?;
    let command = section.texts("command")?;
    if !command[0].starts_with('/') {
        let message = "the program must be a path that begins with /";
        return Err(section.wrong("command", message));
    }
    check_program(section, "command", &command)?;
    Ok(Way::Program { command })
}

/// Refuses a program that another user could change. One that is not there yet is looked at before it runs, as are all.
fn check_program(
    section: &Section<'_>,
    key: &'static str,
    command: &[String],
) -> Result<(), Wrong> {
    match demand_trusted_command(command) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(section.wrong(key, format!("{}: {error}", command[0])))
        }
        _ => Ok(()),
    }
}

fn webhook(section: &Section<'_>) -> Result<Way, Wrong> {
    section.refuse_others(&[&COMMON[..], &["url", "secret", "secret-file"]].concat())?;
    let url = section.required("url")?;
    let rest = url.strip_prefix("https://");
    if rest.is_some() && !cfg!(feature = "tls") {
        return Err(section.wrong("url", "this build of cauchyfs cannot encrypt"));
    }
    let rest = rest.or_else(|| url.strip_prefix("http://"));
    let is_sound = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    if !is_sound || ureq::http::Uri::try_from(url).is_err() {
        let message = "it must be a URL that begins with https:// or http://";
        return Err(section.wrong("url", message));
    }
    Ok(Way::Webhook {
        url: url.to_owned(),
        secret: secret(section, "secret", "secret-file")?,
    })
}

fn mail(section: &Section<'_>) -> Result<Mail, Wrong> {
    let keys = [
        "from",
        "to",
        "smtp",
        "sendmail",
        "tls",
        "user",
        "password",
        "password-file",
    ];
    section.refuse_others(&[&COMMON[..], &keys].concat())?;
    let check = |key, address: &str| match address.parse::<lettre::Address>() {
        Ok(_) => Ok(address.to_owned()),
        Err(_) => Err(section.wrong(key, format!("{address:?} is no mail address"))),
    };
    let from = check("from", section.required("from")?)?;
    let to = section.texts("to")?;
    let to = to.iter().map(|address| check("to", address));
    Ok(Mail {
        from,
        to: to.collect::<Result<_, _>>()?,
        by: mail_way(section)?,
    })
}

fn mail_way(section: &Section<'_>) -> Result<MailWay, Wrong> {
    let Some(server) = section.text("smtp")? else {
        for key in ["tls", "user", "password", "password-file"] {
            if section.has(key) {
                return Err(section.wrong(key, "it needs `smtp`"));
            }
        }
        let program = section.text("sendmail")?.unwrap_or("/usr/sbin/sendmail");
        if !program.starts_with('/') {
            return Err(section.wrong("sendmail", "it must be a path that begins with /"));
        }
        check_program(section, "sendmail", &[program.to_owned()])?;
        return Ok(MailWay::Sendmail(program.to_owned()));
    };
    if section.has("sendmail") {
        return Err(section.wrong("sendmail", "there may be `smtp` or `sendmail`, not both"));
    }
    let split = server.rsplit_once(':');
    let split = split.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let Some((host, port)) = split.filter(|(host, port)| !host.is_empty() && *port > 0) else {
        let message = "it must be a server and a port, such as mail.example.org:587";
        return Err(section.wrong("smtp", message));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let usual = match port {
        465 => "tls",
        587 => "starttls",
        _ => "off",
    };
    let encryption = match section.text("tls")?.unwrap_or(usual) {
        "off" => Encryption::Off,
        "starttls" => Encryption::StartTls,
        "tls" => Encryption::Tls,
        other => return Err(section.choice("tls", other, "starttls, tls or off")),
    };
    if encryption != Encryption::Off && !cfg!(feature = "tls") {
        let key = if section.has("tls") { "tls" } else { "smtp" };
        return Err(section.wrong(key, "this build of cauchyfs cannot encrypt"));
    }
    let login = login(section)?;
    let is_local = ["localhost", "127.0.0.1", "::1"].contains(&host);
    if login.is_some() && encryption == Encryption::Off && !is_local {
        let message = "a password needs `tls = \"starttls\"` or `tls = \"tls\"`";
        return Err(section.wrong("user", message));
    }
    Ok(MailWay::Smtp {
        host: host.to_owned(),
        port,
        encryption,
        login,
    })
}

fn login(section: &Section<'_>) -> Result<Option<(String, Secret)>, Wrong> {
    let password = secret(section, "password", "password-file")?;
    match (section.text("user")?, password) {
        (Some(user), Some(password)) => Ok(Some((user.to_owned(), password))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(section.wrong("user", "it needs `password` or `password-file`")),
        (None, Some(_)) => Err(section.wrong("password", "it needs `user`")),
    }
}

/// Returns a secret that is in the configuration, or in a file of its own. Others may not read that file.
fn secret(
    section: &Section<'_>,
    inline: &'static str,
    by_file: &'static str,
) -> Result<Option<Secret>, Wrong> {
    let text = match (section.text(inline)?, section.text(by_file)?) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let message = format!("there may be `{inline}` or `{by_file}`, not both");
            return Err(section.wrong(by_file, message));
        }
        (Some(_), None) if !section.is_private() => {
            let message =
                format!("other users can read this file; `chmod 600` it, or use `{by_file}`");
            return Err(section.wrong(inline, message));
        }
        (Some(text), None) => text.to_owned(),
        (None, Some(path)) => {
            let read = read_trusted(Path::new(path), LONGEST_SECRET, 0o027);
            let read = read.map_err(|error| section.wrong(by_file, format!("{path}: {error}")));
            let (text, _) = read?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    if text.is_empty() {
        let key = if section.has(inline) { inline } else { by_file };
        return Err(section.wrong(key, "it is empty"));
    }
    Ok(Some(Secret(text)))
}

/// Reads a file of our own or of the superuser that others have none of the `forbidden` rights to. Returns its
/// rights as well.
fn read_trusted(path: &Path, longest: u64, forbidden: u32) -> io::Result<(String, u32)> {
    // A FIFO would keep the mount waiting.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no ordinary file"));
    }
    demand_trusted_directories(path)?;
    let file = File::open(path)?;
    let found = file.metadata()?;
    demand_trusted(found.uid(), found.mode(), forbidden)?;
    let mut text = String::new();
    let read = file.take(longest + 1).read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > longest {
        return Err(io::Error::other(format!(
            "it is longer than {longest} bytes"
        )));
    }
    Ok((text, found.mode()))
}

#[cfg(test)]
mod tests;
