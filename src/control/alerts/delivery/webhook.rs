//! Webhooks: JSON over HTTP, signed.

use std::fmt::Write as _;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use ureq::Agent;
use ureq::config::Config;

use super::failure::DeliveryFailure;
use crate::control::alerts::config::Secret;

/// The header with the signature: HMAC-SHA256 of the body, in hexadecimal digits.
const SIGNATURE: &str = "X-CauchyFS-Signature";

/// Most bytes of the headers of an answer.
const MOST_HEADERS: usize = 16 << 10;

/// Posts a document. Follows no redirection, because the receiver is the one that the administrator named. The body of
/// the answer is not read.
pub(super) fn post(
    url: &str,
    secret: Option<&Secret>,
    body: &[u8],
    timeout: Duration,
) -> Result<(), DeliveryFailure> {
    let config = Agent::config_builder()
        .timeout_global(Some(timeout))
        .max_redirects(0)
        .http_status_as_error(false)
        .max_response_header_size(MOST_HEADERS)
        .max_idle_connections(0)
        .proxy(None)
        .user_agent(concat!("cauchyfs/", env!("CARGO_PKG_VERSION")));
    let config: Config = encryption(config)?.build();
    let mut request = config
        .new_agent()
        .post(url)
        .header("Content-Type", "application/json");
    if let Some(secret) = secret {
        request = request.header(SIGNATURE, signature(secret.text().as_bytes(), body)?);
    }
    let answer = request.send(body).map_err(DeliveryFailure::new)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let note = if status.is_redirection() {
        ", and redirections are not followed"
    } else {
        ""
    };
    Err(DeliveryFailure::new(format_args!(
        "the server answered {status}{note}"
    )))
}

/// Computes the value of the header with the signature.
fn signature(key: &[u8], body: &[u8]) -> Result<String, DeliveryFailure> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(DeliveryFailure::new)?;
    mac.update(body);
    let mut text = "sha256=".to_owned();
    for byte in mac.finalize().into_bytes() {
        write!(text, "{byte:02x}").map_err(DeliveryFailure::new)?;
    }
    Ok(text)
}

type Builder = ureq::config::ConfigBuilder<ureq::typestate::AgentScope>;

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "the other build can fail")]
fn encryption(config: Builder) -> Result<Builder, DeliveryFailure> {
    Ok(config)
}

/// Has servers prove themselves by the certificates that this system trusts.
#[cfg(feature = "tls")]
fn encryption(config: Builder) -> Result<Builder, DeliveryFailure> {
    use std::sync::Arc;
    use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty()
        && let Some(error) = found.errors.first()
    {
        let text = format_args!("cannot read the certificates of this system: {error}");
        return Err(DeliveryFailure::new(text));
    }
    let certificates = found.certs.iter();
    let certificates = certificates.map(|it| Certificate::from_der(it.as_ref()).to_owned());
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::Specific(Arc::new(certificates.collect())))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    Ok(config.tls_config(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second case of RFC 4231.
    #[test]
    fn the_signature_is_that_of_the_standard() {
        assert_eq!(
            signature(b"Jefe", b"what do ya want for nothing?").unwrap(),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
