//! Rows of the redundancy as they are counted.

use serde::{Deserialize, Serialize};

/// Live data that survives the loss of so many more members; negative: is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RedundancyReport {
    pub(crate) losses_tolerated: i64,
    pub(crate) stripes: u64,
    pub(crate) bytes: u64,
    /// Bytes of these stripes that no file holds any more. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) dead_bytes: u64,
    /// The number of the stripes that survive as many losses as the code of the volume, or of their directory, promises.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) as_promised: u64,
    /// The number of the others that survive as many as their code promised when they were written, and get more parity.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) of_older_code: u64,
}

/// Returns whether a number is not worth telling.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl RedundancyReport {
    /// Returns how many of its stripes survive fewer losses than promised: `full` of those with the code of the volume, and
    /// what their code promised of those that are being brought to it.
    pub(crate) fn reduced_stripes(&self, full: i64) -> u64 {
        if self.losses_tolerated >= full {
            return 0;
        }
        let whole = self.as_promised.saturating_add(self.of_older_code);
        self.stripes.saturating_sub(whole)
    }
}
