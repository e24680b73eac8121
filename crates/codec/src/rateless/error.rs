//! The reasons why the random code refuses a call.

/// The reason why packets could not be encoded or decoded. Retrying the same call changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RatelessError {
    /// No code has so few or so many source packets.
    #[error("{seen} source packets given; a message has {least} to {most}")]
    SourcePackets {
        /// The number given.
        seen: usize,
        /// The fewest that a message has.
        least: usize,
        /// The most that a message has.
        most: usize,
    },

    /// A call passed too many or too few packets of one kind.
    #[error("{seen} {kind} packets given, {needed} needed")]
    PacketCount {
        /// The kind of packets that were counted: `source` or `coded`.
        kind: &'static str,
        /// The number that was given.
        seen: usize,
        /// The number that the call needs.
        needed: usize,
    },

    /// Packets of one call differ in length.
    #[error("a packet of {seen} bytes among packets of {needed} bytes")]
    PacketLength {
        /// Bytes of the packet that differs.
        seen: usize,
        /// Bytes of the first packet of the call.
        needed: usize,
    },

    /// A buffer of a bulk call does not hold what its messages need.
    #[error("{seen} {unit} of {kind} given, {needed} needed")]
    BulkLength {
        /// The kind of content: `packets`, `numbers` or `targets`.
        kind: &'static str,
        /// The unit that was counted: `bytes` or `entries`.
        unit: &'static str,
        /// The length given.
        seen: usize,
        /// The length needed.
        needed: usize,
    },

    /// A message cannot be split into no parts.
    #[error("0 parts asked for, at least 1 needed")]
    NoParts,

    /// The rows of the given packets do not determine the message. More packets help.
    #[error("the packets given have rank {rank}, {needed} needed")]
    Rank {
        /// The rank of the rows of all packets given.
        rank: usize,
        /// The number of source packets.
        needed: usize,
    },
}
