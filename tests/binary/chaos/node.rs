//! The content of one file, and the contents that it may have after its daemon was killed.

/// The unit in which bytes that an outage took cannot be read.
pub(super) const BLOCK: usize = 4096;

/// A change that nothing has made durable yet.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Resize { len: usize },
    Zero { offset: usize, len: usize },
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
            Self::Resize { len } => content.resize(*len, 0),
            Self::Zero { offset, len } => {
                let end = (offset + len).min(content.len());
                content[(*offset).min(end)..end].fill(0);
            }
        }
    }

    /// Returns what it may have put at a place.
    fn value_at(&self, place: usize) -> Option<u8> {
        match self {
            Self::Write { offset, bytes } => {
                let at = place.checked_sub(*offset)?;
                bytes.get(at).copied()
            }
            Self::Resize { len } => (*len <= place).then_some(0),
            Self::Zero { offset, len } => (*offset..offset + len).contains(&place).then_some(0),
        }
    }
}

/// A regular file.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    durable: Vec<u8>,
    changes: Vec<Change>,
    now: Vec<u8>,
}

impl Node {
    /// Returns what is to be read.
    pub(super) fn content(&self) -> &[u8] {
        &self.now
    }

    /// Returns how many changes are not durable.
    pub(super) fn pending(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn write(&mut self, offset: usize, bytes: Vec<u8>) {
        self.change(Change::Write { offset, bytes });
    }

    pub(super) fn resize(&mut self, len: usize) {
        self.change(Change::Resize { len });
    }

    pub(super) fn zero(&mut self, offset: usize, len: usize) {
        self.change(Change::Zero { offset, len });
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.changes.push(change);
    }

    /// Takes what is there now for durable.
    pub(super) fn settle(&mut self) {
        if !self.changes.is_empty() {
            self.changes.clear();
            self.durable.clone_from(&self.now);
        }
    }

    /// Takes what was found for all that there is, and for durable.
    pub(super) fn replace(&mut self, found: Vec<u8>) {
        self.changes.clear();
        self.durable.clone_from(&found);
        self.now = found;
    }

    /// Says what is wrong with what a crash left, if anything: the first `certain` of the changes that
    /// are not durable must be in it, and of the others each byte may or may not. Blocks that an outage took, `lost`, have
    /// changes that are not durable.
    pub(super) fn judge(&self, found: &[u8], certain: usize, lost: &[usize]) -> Result<(), String> {
        let (certain, open) = self.changes.split_at(certain.min(self.changes.len()));
        let mut base = self.durable.clone();
        for change in certain {
            change.apply(&mut base);
        }
        if found == base && lost.is_empty() {
            return Ok(());
        }
        let (mut least, mut most) = (base.len(), base.len());
        let mut content = base.clone();
        for change in open {
            change.apply(&mut content);
            least = least.min(content.len());
            most = most.max(content.len());
        }
        if !(least..=most).contains(&found.len()) {
            return Err(format!(
                "{} bytes, not {least} to {most}; {} of {} changes are certain",
                found.len(),
                certain.len(),
                self.changes.len()
            ));
        }
        let is_lost = |place: usize| lost.binary_search(&(place / BLOCK)).is_ok();
        let is_changed = |place: usize| open.iter().any(|change| change.value_at(place).is_some());
        for block in lost {
            let mut places = block * BLOCK..((block + 1) * BLOCK).min(found.len());
            // Nor was anything durable behind the shortest end that the file had.
            if !places.any(|place| place >= least || is_changed(place)) {
                return Err(format!("block {block} is lost, and was durable"));
            }
        }
        for (place, byte) in found.iter().enumerate() {
            let agrees = is_lost(place)
                || content.get(place) == Some(byte)
                || base.get(place).copied().unwrap_or(0) == *byte
                || open
                    .iter()
                    .any(|change| change.value_at(place) == Some(*byte));
            if !agrees {
                return Err(format!(
                    "byte {place} of {} is {byte:#04x}, which nobody wrote there: {} changes are open",
                    found.len(),
                    open.len()
                ));
            }
        }
        Ok(())
    }
}

/// Says where two contents differ, if they do.
pub(super) fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let differs = expected.iter().zip(found).position(|(a, b)| a != b);
    let place = differs.unwrap_or(expected.len().min(found.len()));
    let wrong = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    let zeros = found
        .iter()
        .skip(place)
        .take_while(|byte| **byte == 0)
        .count();
    Some(format!(
        "{} bytes for {}, {wrong} wrong, the first at {place}, where {zeros} are zero",
        found.len(),
        expected.len()
    ))
}
