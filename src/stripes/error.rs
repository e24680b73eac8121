//! The failures of operations on stripes.

use crate::codec::CodecError;
use crate::format::{SegmentId, StripeClass, StripeId};
use crate::metadata::RecordError;
use crate::store::StoreError;

/// The failure of an operation on stripes.
///
/// Cheap to clone, so that one failure can be handed to every caller that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StripeError {
    /// No segment can take another stripe, and no members have room for another segment. Nothing
    /// that was accepted before is at risk.
    #[error("no {needed} members have room for another segment")]
    NoSpace {
        /// Members that a segment is placed on.
        needed: usize,
    },

    /// Fewer members are left than a stripe has data shards; the volume can do nothing more.
    #[error("{live} members are left, {needed} needed to write a stripe")]
    Failed {
        /// Members that are left.
        live: usize,
        /// Data shards of a stripe.
        needed: usize,
    },

    /// Bytes that move would survive fewer losses than they have to, as members are now.
    #[error(
        "{homes} members take shards of a new stripe, {needed} needed to survive as many losses"
    )]
    LessProtected {
        /// Members that take a shard.
        homes: usize,
        /// The fewest with which the stripe survives as many losses as it has to.
        needed: usize,
    },

    /// More shards are lost than parity can replace. The data is readable again once enough members
    /// return.
    #[error("stripe {stripe}: {present} shards present, {needed} needed to read it")]
    TooFewShards {
        /// The stripe.
        stripe: StripeId,
        /// Shards that were read and verified.
        present: usize,
        /// Shards that decoding needs.
        needed: usize,
    },

    /// Members failed before the bytes of a stripe were durable, and more than its code survives.
    #[error("stripe {stripe} was lost before it was durable")]
    LostUnsynced {
        /// The stripe.
        stripe: StripeId,
    },

    /// A stripe was asked for that is neither in a buffer nor in the index.
    #[error("stripe {stripe} is not in the index")]
    UnknownStripe {
        /// The stripe.
        stripe: StripeId,
    },

    /// Bytes are for a class of stripes without a record, or with one that cannot be read.
    #[error("no code is known for class {class} of stripes")]
    UnknownClass {
        /// The class.
        class: StripeClass,
    },

    /// The records of a stripe contradict each other or the call.
    #[error("stripe {stripe}: {what}")]
    BadRecord {
        /// The stripe.
        stripe: StripeId,
        /// The contradiction.
        what: &'static str,
    },

    /// Too few shards of a stripe could be written, so that its bytes exist in memory only.
    #[error("stripe {stripe}: {written} shards written, {needed} needed to read it")]
    NotWritten {
        /// The stripe.
        stripe: StripeId,
        /// Shards that were written.
        written: usize,
        /// Shards that decoding needs.
        needed: usize,
        /// The answer of the last member that failed.
        #[source]
        source: Option<StoreError>,
    },

    /// The volume was opened for reading.
    #[error("the volume is open for reading only")]
    ReadOnly,

    /// The volume was closed.
    #[error("the volume is closed")]
    Closed,

    /// A stripe that was flushed could not be recorded.
    #[error("cannot record stripe {stripe}")]
    NotRecorded {
        /// The stripe.
        stripe: StripeId,
        /// The failure of the index.
        source: RecordError,
    },

    /// A segment could not be recorded.
    #[error("cannot record segment {segment}")]
    SegmentNotRecorded {
        /// The segment.
        segment: SegmentId,
        /// The failure of the index.
        source: RecordError,
    },

    /// Writing a stripe panicked, which is logged, so that its bytes exist in memory only.
    #[error("stripe {stripe}: writing it panicked")]
    Panicked {
        /// The stripe.
        stripe: StripeId,
    },

    /// No further number could be had for a stripe or a segment.
    #[error("cannot count on")]
    NoNumber(#[source] RecordError),

    /// The record of a stripe could not be read.
    #[error("cannot look up stripe {stripe}")]
    Lookup {
        /// The stripe.
        stripe: StripeId,
        /// The failure of the index.
        source: RecordError,
    },

    /// The codec refused the shards.
    #[error("stripe {stripe}: cannot code")]
    Codec {
        /// The stripe.
        stripe: StripeId,
        /// The reason.
        source: CodecError,
    },
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::format::FormatError;
    use crate::metadata::MetaError;

    /// Returns the texts of an error and of what caused it.
    fn texts(error: &StripeError) -> Vec<String> {
        let mut texts = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(error) = cause {
            texts.push(error.to_string());
            cause = error.source();
        }
        texts
    }

    #[test]
    fn a_failure_of_the_index_adds_one_text_to_that_of_the_stripe() {
        let stripe = StripeId(5);
        let damaged = FormatError::Version {
            what: "stripe",
            found: 9,
            known: 1,
        };
        let text = damaged.to_string();
        let source = RecordError::from(damaged);
        let error = StripeError::Lookup { stripe, source };
        assert_eq!(texts(&error), ["cannot look up stripe 5", &text]);
        let source = RecordError::from(MetaError::NoSpace);
        let error = StripeError::NotRecorded { stripe, source };
        let expected = ["cannot record stripe 5", "no space for metadata"];
        assert_eq!(texts(&error), expected);
    }
}
