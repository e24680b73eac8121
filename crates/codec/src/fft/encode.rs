//! The steps of encoding.

use super::{Draft, Place, Places, Program};
use crate::subspace::Layout;

/// Returns the steps that compute all parity shards from all data shards, or `None` if transforms cannot.
pub(crate) fn encode_program(layout: Layout) -> Option<Program> {
    if !layout.has_transforms() || layout.span() < 2 {
        return None;
    }
    let mut draft = Draft::new(layout.data_shards(), layout.parity_shards());
    let sources = (0..layout.data_shards()).map(|shard| draft.source(shard));
    let sources: Places = sources.collect();
    let sums = draft.sum_chunks(layout, &sources);
    let mut targets = vec![Place::UNUSED; layout.span()];
    for (row, place) in (0..layout.parity_shards()).zip(&mut targets) {
        *place = draft.target(row);
    }
    draft.evaluate(0, &sums, &sums, &targets);
    Some(draft.program)
}

impl Draft {
    /// Adds the steps that turn each chunk of data shards into the coefficients of its polynomial, and add these up. A chunk
    /// has as many shards as the subspace of the parities has points. The values of the sum at the parities' points
    /// are the parities. Returns the slots of the sums.
    pub(super) fn sum_chunks(&mut self, layout: Layout, data: &[Place]) -> Places {
        let span = layout.span();
        let sums = self.new_slots(span);
        let work = self.new_work(span);
        let chunks = data.chunks(span).enumerate();
        let chunks = chunks.filter(|(_, chunk)| chunk.iter().any(|&place| place != Place::ZERO));
        for (number, (chunk, values)) in chunks.enumerate() {
            let mut values = values.to_vec();
            values.resize(span, Place::ZERO);
            self.invert((chunk + 1) * span, values, &work, &sums, number > 0);
        }
        sums
    }
}
