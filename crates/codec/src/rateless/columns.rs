//! Columns of packets, which are worked on side by side.

use parking_lot::Mutex;

use crate::WorkerPool;

/// A range of bytes of all packets that a call reads and writes.
type Columns<'a, 't> = (Vec<&'a [u8]>, Vec<&'t mut [u8]>);

/// The work on columns: from sources to targets.
type Work<'w> = dyn Fn(&[&[u8]], &mut [&mut [u8]]) + Sync + 'w;

/// Columns that one thread takes.
type Piece<'a, 't> = Mutex<Option<Columns<'a, 't>>>;

/// Splits packets of `packet_bytes` bytes into columns of at most `piece_bytes`, and calls `work` with each: side by
/// side, if there is a pool. Packets without bytes are one piece.
///
/// # Panics
///
/// If `piece_bytes` is 0, or a packet is shorter.
pub(super) fn side_by_side(
    workers: Option<&dyn WorkerPool>,
    (packet_bytes, piece_bytes): (usize, usize),
    sources: &[&[u8]],
    targets: &mut [&mut [u8]],
    work: &Work<'_>,
) {
    let pieces = packet_bytes.div_ceil(piece_bytes).max(1);
    if pieces == 1 {
        work(sources, targets);
        return;
    }
    let mut rest: Vec<&mut [u8]> = targets.iter_mut().map(|target| &mut **target).collect();
    let mut columns: Vec<Piece<'_, '_>> = Vec::with_capacity(pieces);
    for start in (0..packet_bytes).step_by(piece_bytes) {
        let bytes = piece_bytes.min(packet_bytes - start);
        let sources = sources.iter().map(|source| &source[start..start + bytes]);
        let split = rest.into_iter().map(|target| target.split_at_mut(bytes));
        let (targets, behind): (Vec<_>, Vec<_>) = split.unzip();
        columns.push(Mutex::new(Some((sources.collect(), targets))));
        rest = behind;
    }
    run(workers, pieces, &|piece| {
        // Each piece is run once, so the lock is never waited for.
        if let Some((sources, mut targets)) = columns[piece].lock().take() {
            work(&sources, &mut targets);
        }
    });
}

/// Calls `work` with every number below `pieces`: side by side, if there is a pool.
pub(super) fn run(workers: Option<&dyn WorkerPool>, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
    match workers {
        Some(workers) if pieces > 1 => workers.run(pieces, work),
        _ => (0..pieces).for_each(work),
    }
}
