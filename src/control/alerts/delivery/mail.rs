//! Mail, over SMTP or by a program such as `sendmail`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::time::Duration;

use lettre::address::Envelope;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, SinglePart};
use lettre::transport::smtp::SmtpTransportBuilder;
#[cfg(feature = "tls")]
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::{Address, Message, SmtpTransport, Transport};
use serde::{Deserialize, Serialize};

use super::failure::DeliveryFailure;
use super::program;
use crate::control::alerts::config::{Encryption, Mail, MailWay};
use crate::control::alerts::notice::{Letter, Notice};
use crate::control::alerts::parts::same_program;

/// Argument that asks for a process which hands one mail to a server.
const WORD: &str = "--alerts-mail";

/// Code with which that process ends if the server refused the mail for good.
const REFUSED: u8 = 69;

/// Longest parcel, in bytes.
const LONGEST: u64 = 1 << 20;

/// A mail, and the server that is to take it.
#[derive(Serialize, Deserialize)]
struct Parcel {
    host: String,
    port: u16,
    encryption: Encryption,
    login: Option<(String, String)>,
    timeout: Duration,
    from: String,
    to: Vec<String>,
    message: String,
}

/// Sends a notice by mail.
pub(super) fn send(
    mail: &Mail,
    notice: &Notice,
    letter: &Letter,
    timeout: Duration,
) -> Result<(), DeliveryFailure> {
    let message = message(mail, notice, letter)?.formatted();
    match &mail.by {
        MailWay::Sendmail(path) => {
            let head = [path, "-i", "-f", &mail.from, "--"].map(str::to_owned);
            let command: Vec<String> = head.into_iter().chain(mail.to.iter().cloned()).collect();
            program::run(&command, &message, timeout)
        }
        MailWay::Smtp {
            host,
            port,
            encryption,
            login,
        } => {
            let login = login.as_ref();
            let parcel = Parcel {
                host: host.clone(),
                port: *port,
                encryption: *encryption,
                login: login.map(|(user, password)| (user.clone(), password.text().to_owned())),
                timeout,
                from: mail.from.clone(),
                to: mail.to.clone(),
                message: String::from_utf8(message).map_err(DeliveryFailure::new)?,
            };
            hand_over(&parcel)
        }
    }
}

/// Has a process of its own hand a mail to its server. The client limits each step, but not the
/// look-up of the server. The end of the process limits the whole delivery.
fn hand_over(parcel: &Parcel) -> Result<(), DeliveryFailure> {
    let mut command = same_program();
    command.arg(WORD);
    let input = serde_json::to_vec(parcel).map_err(DeliveryFailure::new)?;
    let server = format!("{}:{}", parcel.host, parcel.port);
    let ended = program::run_command(command, &server, &input, parcel.timeout)?;
    let said = ended.said.trim();
    let said = if said.is_empty() {
        "it was not sent"
    } else {
        said
    };
    let failure = DeliveryFailure::new(format_args!("{server}: {said}"));
    match ended.status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(REFUSED) => Err(failure.for_good()),
        _ => Err(failure),
    }
}

/// Returns whether the program was started to hand one mail to a server.
pub(crate) fn is_asked_for(given: &[OsString]) -> bool {
    matches!(given, [_, word] if word == WORD)
}

/// Hands the mail on standard input to its server. Returns the code with which to end; standard error has the reason.
pub(crate) fn run() -> u8 {
    match read_parcel().and_then(|parcel| submit(&parcel)) {
        Ok(()) => 0,
        Err(failure) => {
            // Without a reader, the code says enough.
            drop(writeln!(io::stderr(), "{failure}"));
            if failure.is_for_good { REFUSED } else { 1 }
        }
    }
}

fn read_parcel() -> Result<Parcel, DeliveryFailure> {
    let mut text = Vec::new();
    let read = io::stdin().take(LONGEST).read_to_end(&mut text);
    read.map_err(DeliveryFailure::new)?;
    serde_json::from_slice(&text).map_err(DeliveryFailure::new)
}

fn submit(parcel: &Parcel) -> Result<(), DeliveryFailure> {
    let address = |text: &str| text.parse::<Address>().map_err(DeliveryFailure::new);
    let to: Result<Vec<Address>, _> = parcel.to.iter().map(|it| address(it)).collect();
    let envelope = Envelope::new(Some(address(&parcel.from)?), to?);
    let envelope = envelope.map_err(DeliveryFailure::new)?;
    let mut server = SmtpTransport::builder_dangerous(&parcel.host)
        .port(parcel.port)
        .timeout(Some(parcel.timeout));
    server = encrypted(server, &parcel.host, parcel.encryption)?;
    if let Some(login) = &parcel.login {
        server = server.credentials(login.clone().into());
    }
    let sent = server
        .build()
        .send_raw(&envelope, parcel.message.as_bytes());
    sent.map(drop).map_err(|error| {
        let failure = DeliveryFailure::new(chain(&error));
        if error.is_permanent() {
            failure.for_good()
        } else {
            failure
        }
    })
}

fn message(mail: &Mail, notice: &Notice, letter: &Letter) -> Result<Message, DeliveryFailure> {
    let mailbox = |address: &str| address.parse::<Mailbox>().map_err(DeliveryFailure::new);
    let (_, domain) = mail.from.rsplit_once('@').unwrap_or_default();
    let mut builder = Message::builder()
        .from(mailbox(&mail.from)?)
        .subject(letter.subject.clone())
        // The same notice has the same id, so mail programs recognise one that was sent twice.
        .message_id(Some(format!("<{}@{domain}>", notice.id)))
        // Programs that answer mail by themselves leave this one alone.
        .raw_header(HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        ));
    for address in &mail.to {
        builder = builder.to(mailbox(address)?);
    }
    builder
        .singlepart(SinglePart::plain(letter.text.clone()))
        .map_err(DeliveryFailure::new)
}

#[cfg(feature = "tls")]
fn encrypted(
    server: SmtpTransportBuilder,
    host: &str,
    encryption: Encryption,
) -> Result<SmtpTransportBuilder, DeliveryFailure> {
    let parameters = || TlsParameters::new_rustls(host.to_owned()).map_err(DeliveryFailure::new);
    Ok(server.tls(match encryption {
        Encryption::Off => Tls::None,
        Encryption::StartTls => Tls::Required(parameters()?),
        Encryption::Tls => Tls::Wrapper(parameters()?),
    }))
}

#[cfg(not(feature = "tls"))]
fn encrypted(
    server: SmtpTransportBuilder,
    _host: &str,
    encryption: Encryption,
) -> Result<SmtpTransportBuilder, DeliveryFailure> {
    match encryption {
        Encryption::Off => Ok(server),
        Encryption::StartTls | Encryption::Tls => Err(DeliveryFailure::new(
            "this build of cauchyfs cannot encrypt",
        )),
    }
}

/// Joins an error and its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::alerts::notice::{NoticeKind, NoticeVolume};

    #[test]
    fn a_message_has_the_id_of_its_notice_and_no_header_that_a_text_forged() {
        let mail = Mail {
            from: "cauchyfs@host.example.org".to_owned(),
            to: vec!["a@example.org".to_owned(), "b@example.org".to_owned()],
            by: MailWay::Sendmail("/usr/sbin/sendmail".to_owned()),
        };
        let notice = Notice::new(NoticeKind::Test, NoticeVolume::default(), Vec::new());
        let letter = Letter {
            subject: "Disk ü is missing\r\nBcc: c@example.org".to_owned(),
            text: "line\n.\nü\n".to_owned(),
        };
        let text = message(&mail, &notice, &letter).unwrap().formatted();
        let text = String::from_utf8(text).unwrap();
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("<{}@host.example.org>", notice.id)),
            "{head}"
        );
        assert!(
            head.contains("a@example.org") && head.contains("b@example.org"),
            "{head}"
        );
        for header in ["MIME-Version: 1.0", "Auto-Submitted: auto-generated"] {
            assert!(head.lines().any(|line| line == header), "{head}");
        }
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
    }
}
