//! The number of members without which a volume is not written to.

/// Returns how many of the `in_epoch` members of the newest epoch are needed to open the volume to be written to. So
/// many members can begin the next epoch.
pub(super) fn needed_to_write(in_epoch: usize, data: usize, parity: usize) -> usize {
    in_epoch
        .saturating_sub(parity)
        .max(data.min(in_epoch / 2 + 1))
}

/// Returns how many members of the newest epoch, which has `in_epoch`, an open volume needs to go on: with more data
/// than parity shards so many that all others are too few to be opened without them. With fewer the volume may have
/// gone on as two branches anyway, and one is enough.
pub(super) fn needed_to_go_on(in_epoch: usize, data: usize, parity: usize) -> usize {
    if data <= parity {
        return 1;
    }
    (in_epoch + 1).saturating_sub(needed_to_write(in_epoch, data, parity))
}
