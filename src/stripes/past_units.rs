//! Stripe units that a volume had before.
//!
//! Segment records do not tell the unit of their stripes. So the index notes, before the unit changes, below which segment
//! number it counted. That is true whether or not the change comes about: a crash or a failure on the way leaves nothing
//! wrong. Segments above all notes have the unit of the volume. Numbers only grow, so no new segment falls below a note.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::format::record::Counter;
use crate::format::{BLOCK_SIZE, FormatError, Record, SegmentId, key};
use crate::metadata::{Batch, Key, RecordError, RecordMap, Value};

/// A unit that a volume had, and the segments that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PastUnit {
    /// The first number above those of the segments. They begin where those of the note before end.
    below: SegmentId,
    unit_bytes: u32,
}

impl PastUnit {
    fn parse(key: &[u8], value: &[u8]) -> Result<Self, FormatError> {
        let below = key::parse_stripe_unit_below(key)?;
        let Counter(noted) = Counter::decode(value)?;
        let unit_bytes = u32::try_from(noted).ok();
        let unit_bytes =
            unit_bytes.filter(|it| *it > 0 && (*it as usize).is_multiple_of(BLOCK_SIZE));
        let unit_bytes = unit_bytes.ok_or(FormatError::Field {
            what: "counter",
            field: "stripe unit",
            value: noted,
        })?;
        Ok(Self { below, unit_bytes })
    }

    fn key(&self) -> Key {
        key::stripe_unit_below(self.below)
    }
}

/// The stripe units that a volume had before, as the index notes them.
pub(crate) struct PastUnits {
    map: Arc<dyn RecordMap>,
    /// The notes, in the order of their segments.
    noted: RwLock<Vec<PastUnit>>,
    /// Held by a thread that changes the notes. The keys of damaged ones.
    changing: Mutex<Vec<Key>>,
}

impl PastUnits {
    pub(super) fn new(map: Arc<dyn RecordMap>) -> Self {
        Self {
            map,
            noted: RwLock::default(),
            changing: Mutex::default(),
        }
    }

    /// Takes in the notes of the index. Without one of them, the units of the others may be wrong: then none counts, and all
    /// segments seem to have the unit of the volume.
    pub(crate) fn load(&self, found: &[(Key, Value)]) {
        let parsed = found.iter().map(|(key, value)| PastUnit::parse(key, value));
        match parsed.collect::<Result<Vec<_>, _>>() {
            Ok(mut noted) => {
                noted.sort_by_key(|it| it.below);
                *self.noted.write() = noted;
            }
            Err(error) => {
                tracing::warn!(
                    "a note on an earlier stripe unit is damaged, so none counts, and stripes of that unit stay: {error}"
                );
                let keys = found.iter().map(|(key, _)| key.clone());
                *self.changing.lock() = keys.collect();
            }
        }
    }

    /// Returns the unit of the stripes of a segment, if it is noted. All others have that of the volume.
    pub(crate) fn of(&self, segment: SegmentId) -> Option<u32> {
        let noted = self.noted.read();
        let at = noted.partition_point(|it| it.below <= segment);
        noted.get(at).map(|it| it.unit_bytes)
    }

    /// Notes the unit of a volume before it changes, for those of its `segments` that have it. All segments that
    /// there are have numbers less than `below`. Later ones have this number or greater ones.
    pub(crate) fn note(
        &self,
        below: SegmentId,
        unit_bytes: u32,
        segments: &[SegmentId],
    ) -> Result<(), RecordError> {
        self.change(segments, |noted| {
            let since = noted.last().map_or(SegmentId(0), |it| it.below);
            if segments.iter().all(|it| *it < since) {
                return;
            }
            noted.pop_if(|last| last.unit_bytes == unit_bytes);
            noted.push(PastUnit { below, unit_bytes });
        })
    }

    /// Forgets units that none of the segments has, which are all that there are, and notes that do not count because one is
    /// damaged.
    pub(crate) fn forget_unused(&self, segments: &[SegmentId]) -> Result<(), RecordError> {
        if self.noted.read().is_empty() && self.changing.lock().is_empty() {
            return Ok(());
        }
        self.change(segments, |_| ())
    }

    /// Changes the notes. Those that none of the segments needs go with that.
    fn change(
        &self,
        segments: &[SegmentId],
        change: impl FnOnce(&mut Vec<PastUnit>),
    ) -> Result<(), RecordError> {
        let mut damaged = self.changing.lock();
        let before = self.noted.read().clone();
        let mut noted = before.clone();
        change(&mut noted);
        let mut since = SegmentId(0);
        noted.retain(|it| {
            let range = std::mem::replace(&mut since, it.below)..it.below;
            segments.iter().any(|segment| range.contains(segment))
        });
        if noted == before && damaged.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        let gone = before.iter().filter(|it| !noted.contains(it));
        for key in gone.map(PastUnit::key).chain(damaged.iter().cloned()) {
            batch.delete(key);
        }
        for it in noted.iter().filter(|it| !before.contains(it)) {
            batch.put(it.key(), Counter(it.unit_bytes.into()).encode());
        }
        self.map.apply_stripes(batch)?;
        damaged.clear();
        *self.noted.write() = noted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::MemoryMap;

    fn numbers(all: &[u64]) -> Vec<SegmentId> {
        all.iter().copied().map(SegmentId).collect()
    }

    fn stored(map: &MemoryMap) -> Vec<(Key, Value)> {
        let (from, end) = key::stripe_units();
        map.range(from, end)
    }

    fn loaded(map: &Arc<MemoryMap>) -> PastUnits {
        let units = PastUnits::new(Arc::clone(map) as _);
        units.load(&stored(map));
        units
    }

    fn units_of(units: &PastUnits, segments: &[u64]) -> Vec<Option<u32>> {
        let all = numbers(segments);
        all.into_iter().map(|segment| units.of(segment)).collect()
    }

    #[test]
    fn each_segment_has_the_unit_that_counted_when_it_was_made_also_after_a_return_to_that() {
        let map = Arc::new(MemoryMap::default());
        let units = loaded(&map);
        assert_eq!(units.of(SegmentId(1)), None);
        // Numbers are as strings in another order.
        units.note(SegmentId(9), 4096, &numbers(&[1, 8])).unwrap();
        units
            .note(SegmentId(100), 8192, &numbers(&[1, 8, 10, 99]))
            .unwrap();
        let some = [0, 8, 9, 99, 100, 5000];
        let expected = [Some(4096), Some(4096), Some(8192), Some(8192), None, None];
        assert_eq!(units_of(&units, &some), expected);
        assert_eq!(units_of(&loaded(&map), &some), expected);
        // A change that failed, and then one after more was written: one note tells both.
        for (below, last) in [(200, 150), (300, 250)] {
            units
                .note(SegmentId(below), 4096, &numbers(&[1, 99, 150, last]))
                .unwrap();
            assert_eq!(stored(&map).len(), 3);
        }
        let units = loaded(&map);
        assert_eq!(
            units_of(&units, &[8, 99, 100, 299, 300]),
            [Some(4096), Some(8192), Some(4096), Some(4096), None]
        );
        units.forget_unused(&numbers(&[1, 150])).unwrap();
        assert_eq!(stored(&map).len(), 2);
        assert_eq!(
            units_of(&loaded(&map), &[8, 150, 300]),
            [Some(4096), Some(4096), None]
        );
        units.forget_unused(&numbers(&[301])).unwrap();
        assert_eq!(stored(&map), []);
    }

    #[test]
    fn nothing_is_noted_of_a_unit_that_no_segment_has() {
        let map = Arc::new(MemoryMap::default());
        let units = loaded(&map);
        units.note(SegmentId(65), 4096, &[]).unwrap();
        assert_eq!(stored(&map), []);
        units.note(SegmentId(65), 8192, &numbers(&[3])).unwrap();
        let before = stored(&map);
        units.note(SegmentId(65), 4096, &numbers(&[3])).unwrap();
        assert_eq!(stored(&map), before);
        assert_eq!(units.of(SegmentId(3)), Some(8192));
    }

    #[test]
    fn a_damaged_note_makes_all_void_and_they_are_forgotten() {
        let counter = |number| Counter(number).encode();
        for (name, value) in [
            ("stripe-unit-below-20", Value::from(b"\x01\x00")),
            ("stripe-unit-below-20", counter(0)),
            ("stripe-unit-below-20", counter(5000)),
            ("stripe-unit-below-20", counter(1 << 33)),
            ("stripe-unit-below-", counter(4096)),
            ("stripe-unit-below-020", counter(4096)),
            ("stripe-unit-below-20x", counter(4096)),
            ("stripe-unit-below-99999999999999999999", counter(4096)),
        ] {
            let map = Arc::new(MemoryMap::default());
            loaded(&map)
                .note(SegmentId(65), 8192, &numbers(&[3]))
                .unwrap();
            let mut batch = Batch::default();
            batch.put(key::counter(name), value);
            map.apply_stripes(batch).unwrap();
            let units = loaded(&map);
            assert_eq!(units.of(SegmentId(3)), None, "{name}");
            assert_eq!(stored(&map).len(), 2, "{name}");
            let forgotten = Arc::new(MemoryMap::default());
            let mut batch = Batch::default();
            for (key, value) in stored(&map) {
                batch.put(key, value);
            }
            forgotten.apply_stripes(batch).unwrap();
            loaded(&forgotten).forget_unused(&numbers(&[3])).unwrap();
            assert_eq!(stored(&forgotten), [], "{name}");
            units
                .note(SegmentId(129), 4096, &numbers(&[3, 66]))
                .unwrap();
            let expected = [(key::stripe_unit_below(SegmentId(129)), counter(4096))];
            assert_eq!(stored(&map), expected, "{name}");
        }
    }
}
