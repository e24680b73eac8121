//! Failures of deliveries.

use std::fmt;

/// The reason for which a delivery failed, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryFailure {
    pub(super) text: String,
    /// True if the receiver refused this notice, and will do so again.
    pub(in crate::control::alerts) is_for_good: bool,
}

impl DeliveryFailure {
    pub(super) fn new(text: impl fmt::Display) -> Self {
        Self {
            text: text.to_string(),
            is_for_good: false,
        }
    }

    /// Says that the receiver will refuse this notice again.
    pub(super) fn for_good(self) -> Self {
        Self {
            is_for_good: true,
            ..self
        }
    }
}

impl fmt::Display for DeliveryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
