//! Mail, over SMTP or by a program such as `sendmail`.

use std::time::Duration;

use lettre::message::{Mailbox, header};
use lettre::transport::smtp::client::Tls;
#[cfg(feature = "tls")]
use lettre::transport::smtp::client::TlsParameters;
use lettre::{Message, SmtpTransport, Transport};

use super::failure::DeliveryFailure;
use super::program;
use crate::control::alerts::config::{Encryption, Mail, MailWay};
use crate::control::alerts::notice::{Letter, Notice};

/// Sends a notice by mail.
pub(super) fn send(
    mail: &Mail,
    notice: &Notice,
    letter: &Letter,
    timeout: Duration,
) -> Result<(), DeliveryFailure> {
    let message = message(mail, notice, letter)?;
    match &mail.by {
        MailWay::Sendmail(path) => {
            let head = [path, "-i", "-f", &mail.from, "--"].map(str::to_owned);
            let command: Vec<String> = head.into_iter().chain(mail.to.iter().cloned()).collect();
            program::run(&command, &message.formatted(), timeout)
        }
        MailWay::Smtp {
            host,
            port,
            encryption,
            login,
        } => {
            let mut server = SmtpTransport::builder_dangerous(host)
                .port(*port)
                .timeout(Some(timeout))
                .tls(tls(host, *encryption)?);
            if let Some((user, password)) = login {
                let login = (user.clone(), password.text().to_owned());
                server = server.credentials(login.into());
            }
            let sent = server.build().send(&message);
            sent.map(drop)
                .map_err(|error| DeliveryFailure::new(chain(&error)))
        }
    }
}

fn message(mail: &Mail, notice: &Notice, letter: &Letter) -> Result<Message, DeliveryFailure> {
    let mailbox = |address: &str| address.parse::<Mailbox>().map_err(DeliveryFailure::new);
    let (_, domain) = mail.from.rsplit_once('@').unwrap_or_default();
    let mut builder = Message::builder()
        .from(mailbox(&mail.from)?)
        .subject(letter.subject.clone())
        // The same notice has the same id, so mail programs recognise one that was sent twice.
        .message_id(Some(format!("<{}@{domain}>", notice.id)))
        .header(header::ContentType::TEXT_PLAIN);
    for address in &mail.to {
        builder = builder.to(mailbox(address)?);
    }
    builder
        .body(letter.text.clone())
        .map_err(DeliveryFailure::new)
}

#[cfg(feature = "tls")]
fn tls(host: &str, encryption: Encryption) -> Result<Tls, DeliveryFailure> {
    let parameters = || TlsParameters::new_rustls(host.to_owned()).map_err(DeliveryFailure::new);
    Ok(match encryption {
        Encryption::Off => Tls::None,
        Encryption::StartTls => Tls::Required(parameters()?),
        Encryption::Tls => Tls::Wrapper(parameters()?),
    })
}

#[cfg(not(feature = "tls"))]
fn tls(_host: &str, encryption: Encryption) -> Result<Tls, DeliveryFailure> {
    match encryption {
        Encryption::Off => Ok(Tls::None),
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
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
    }
}
