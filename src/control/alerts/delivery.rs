//! Delivery of a notice to a receiver.
//!
//! A whole delivery has a limit of time, of every kind. Mail goes to a server from a process of its own, which is killed at
//! that limit. All read a bounded answer, but for the lines of a mail server.

use serde::Serialize;

use super::config::{Receiver, Way};
use super::notice::{Letter, Notice};

mod failure;
pub(crate) mod mail;
mod program;
mod webhook;

pub(crate) use failure::DeliveryFailure;

/// The JSON that programs and webhooks get. Its shape is a contract.
#[derive(Debug, Serialize)]
struct AlertDocument<'a> {
    #[serde(flatten)]
    notice: &'a Notice,
    subject: &'a str,
    text: &'a str,
}

/// Hands a notice to a receiver, and waits until it has accepted it.
///
/// # Errors
///
/// If it did not accept it in time.
pub(crate) fn deliver(
    receiver: &Receiver,
    notice: &Notice,
    letter: &Letter,
) -> Result<(), DeliveryFailure> {
    let document = AlertDocument {
        notice,
        subject: &letter.subject,
        text: &letter.text,
    };
    let json = || serde_json::to_vec(&document).map_err(DeliveryFailure::new);
    match &receiver.way {
        Way::Program { command } => program::run(command, &json()?, receiver.timeout),
        Way::Webhook { url, secret } => {
            webhook::post(url, secret.as_ref(), &json()?, receiver.timeout)
        }
        Way::Mail(mail) => mail::send(mail, notice, letter, receiver.timeout),
    }
}
