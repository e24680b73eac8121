//! Values of a report that could not be counted.

use serde::{Deserialize, Serialize};

use super::{CapacityReport, MemberReport, StatusReport};

/// The parts of a report that the records of the volume tell. They are null in a report without these.
const OF_RECORDS: [&str; 5] = [
    "redundancy",
    "index",
    "unrecoverable_files",
    "capacity",
    "scrub",
];

/// A value that is null in a report, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UncountedReport {
    /// The field; `members.2` stands for the bytes of member 2.
    pub(crate) field: String,
    pub(crate) reason: String,
}

impl UncountedReport {
    /// Notes a field.
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// Notes all that the records would tell.
    pub(crate) fn of_records(reason: &str) -> Vec<Self> {
        let fields = OF_RECORDS.iter();
        fields.map(|field| Self::new(*field, reason)).collect()
    }

    /// Notes the bytes of a member, if they are not known.
    pub(crate) fn of_member(member: &MemberReport) -> Option<Self> {
        let reason = member.reason.as_ref();
        let reason = reason.map_or_else(|| "it did not answer".to_owned(), ToString::to_string);
        let field = format!("members.{}", member.index);
        member
            .bytes_used
            .is_none()
            .then(|| Self::new(field, reason))
    }
}

impl StatusReport {
    /// Leaves the capacity out, which was not measured for this reason.
    pub(crate) fn leave_out_capacity(&mut self, reason: &str) {
        self.capacity = CapacityReport::default();
        if self.why_uncounted("capacity").is_none() {
            self.uncounted
                .push(UncountedReport::new("capacity", reason));
        }
    }

    /// Returns the reason why a field was not counted, if it was not.
    pub(crate) fn why_uncounted(&self, field: &str) -> Option<&str> {
        let mut uncounted = self.uncounted.iter();
        let found = uncounted.find(|it| it.field == field)?;
        Some(&found.reason)
    }
}
