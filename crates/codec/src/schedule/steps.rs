//! The steps of a schedule.

/// Steps that compute all outputs. Slots are numbered: inputs first, then one per step.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(super) inputs: usize,
    /// The slots that each step adds up. Every slot is computed before it is used.
    pub(super) steps: Vec<Vec<u16>>,
    /// The place of each step's result.
    pub(super) places: Vec<StepPlace>,
    pub(super) scratch_count: usize,
}

/// The place of a step's result. Steps may share a place: a later step overwrites a result that no
/// other step still needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StepPlace {
    /// In a packet of the targets: it is that packet at last.
    Output(u16),
    /// In memory of its own.
    Scratch(u16),
}

impl Schedule {
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns how many scratch places there are.
    pub(crate) fn scratch_count(&self) -> usize {
        self.scratch_count
    }

    /// Returns the steps in order: the slots that each adds up, and where it puts the sum.
    pub(crate) fn steps(&self) -> impl ExactSizeIterator<Item = (&[u16], StepPlace)> {
        self.steps
            .iter()
            .map(Vec::as_slice)
            .zip(self.places.iter().copied())
    }

    /// Returns how many XORs and copies of packets there are, counted as the literature does: a sum
    /// of t packets is a copy and t−1 XORs, or only those if one of the packets is in place already.
    pub(crate) fn operations(&self) -> usize {
        let is_in_place = |&term: &u16, place: StepPlace| {
            let step = usize::from(term).checked_sub(self.inputs);
            step.is_some_and(|step| self.places[step] == place)
        };
        self.steps()
            .map(|(terms, place)| {
                let in_place = terms.iter().any(|term| is_in_place(term, place));
                terms.len() - usize::from(in_place)
            })
            .sum()
    }
}
