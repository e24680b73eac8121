//! Failures of deliveries.

use std::fmt;

/// The reason for which a delivery failed, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryFailure(pub(super) String);

impl DeliveryFailure {
    pub(super) fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}

impl fmt::Display for DeliveryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
