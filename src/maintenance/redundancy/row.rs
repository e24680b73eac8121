//! Rows of the count of redundancy.

/// Stripes that can bear the same number of further losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedundancyRow {
    /// The number of further shards of each that can be lost; negative if some of the bytes that files hold are lost
    /// already.
    pub losses_tolerated: i16,
    /// The number of stripes.
    pub stripes: u64,
    /// Bytes in them that files hold; those that several share count once.
    pub bytes: u64,
    /// Bytes in them that no file holds any more. Stripes without any others do not count: they are freed soon.
    pub dead: u64,
    /// Shards of them that no online file has.
    pub missing: u64,
    /// The number of those stripes that can bear as many losses as the code of the volume, or of their directory, promises.
    pub as_promised: u64,
    /// The number of the others that bear as many losses as the code promises with which they were written. They are being
    /// brought to more parity.
    pub of_older_code: u64,
}

impl RedundancyRow {
    /// Returns whether all of its stripes bear as many losses as their code promises.
    #[must_use]
    pub fn is_as_promised(&self) -> bool {
        self.as_promised >= self.stripes
    }

    /// Returns how many of its stripes lack shards that the code with which they were written promises.
    #[must_use]
    pub fn reduced(&self) -> u64 {
        let whole = self.as_promised + self.of_older_code;
        self.stripes.saturating_sub(whole)
    }

    /// Returns a row without stripes.
    pub(in crate::maintenance) fn empty(losses_tolerated: i16) -> Self {
        Self {
            losses_tolerated,
            stripes: 0,
            bytes: 0,
            dead: 0,
            missing: 0,
            as_promised: 0,
            of_older_code: 0,
        }
    }
}
