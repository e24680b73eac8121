//! The redimensioned decoder: the message is split into parts, each of which is a message of shorter packets.
//!
//! Part p of a message is bytes p·L/γ to (p+1)·L/γ of each packet. The same rows code it, so it is decoded without the
//! other parts: by elimination on (G|X) in words, whose working set is smaller by the factor γ. Parts run side by side.
//! The price is that each part eliminates G again.

use parking_lot::Mutex;

use super::{RandomCode, RatelessError, columns::side_by_side, packets::Numbered, words};
use crate::WorkerPool;

/// Decodes one message in so many parts, or one for each byte if packets have fewer.
///
/// # Errors
///
/// [`RatelessError::NoParts`] if there are none, [`RatelessError::Rank`] if the packets do not determine the message.
pub(super) fn decode(
    code: RandomCode,
    parts: usize,
    workers: Option<&dyn WorkerPool>,
    received: &[Numbered<'_>],
    targets: &mut [&mut [u8]],
) -> Result<(), RatelessError> {
    if parts == 0 {
        return Err(RatelessError::NoParts);
    }
    let packets: Vec<&[u8]> = received.iter().map(|packet| packet.1).collect();
    let packet_bytes = packets.first().map_or(0, |packet| packet.len());
    let part_bytes = packet_bytes.div_ceil(parts).max(1);
    let outcome = Mutex::new(Ok(()));
    let work = |packets: &[&[u8]], targets: &mut [&mut [u8]]| {
        let numbers = received.iter().map(|packet| packet.0);
        let part: Vec<Numbered> = numbers.zip(packets.iter().copied()).collect();
        if let Err(error) = words::decode(code, &part, targets) {
            // All parts have the same rows, and hence the same error.
            *outcome.lock() = Err(error);
        }
    };
    side_by_side(
        workers,
        (packet_bytes, part_bytes),
        &packets,
        targets,
        &work,
    );
    outcome.into_inner()
}
