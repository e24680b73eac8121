//! Delivery of a notice to a receiver.
//!
//! Every way has a time limit, and reads a bounded answer.

use serde::Serialize;

use super::config::{Receiver, Way};
use super::notice::{Letter, Notice};

mod failure;
mod mail;
mod program;
mod webhook;

pub(crate) use failure::DeliveryFailure;

/// The JSON that programs and webhooks get. Its shape is a contract.
#[derive(Debug, Serialize)]
struct Document<'a> {
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
    let document = Document {
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
