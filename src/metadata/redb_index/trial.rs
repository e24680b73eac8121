//! Trial of each copy of the index by itself.
//!
//! The copies are equal as long as no one changes them from outside. Checksums do not tell which of two different
//! copies is right. A higher sequence does not either, because all of that can be forged. The database's own checksums
//! reach from its header to every page. So a copy counts as sound if all of it can be read by itself and these are right.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::contained::Contained;
use super::snapshots::RecordsSnapshot;
use super::tables::{position_in, records_in, unflushed_in};
use crate::format::MemberIndex;
use crate::metadata::error::MetaError;
use crate::metadata::index::{KeyRange, Position, Snapshot};
use crate::metadata::mirror::Mirror;
use crate::metadata::replay::count_continuing_records;

/// Memory for pages of a copy that is tried, in bytes.
const TRIAL_CACHE_BYTES: usize = 4 << 20;

/// The result of trying all copies.
#[derive(Default)]
pub(super) struct Trial {
    /// Copies that are sound by themselves, and the position of each.
    sound: Vec<(MemberIndex, Position)>,
    /// Paths of the copies that are not, and why.
    pub(super) damaged: Vec<(String, MetaError)>,
}

impl Trial {
    /// Tries every copy of a mirror by itself.
    pub(super) fn of_all(mirror: &Mirror) -> Self {
        let mut trial = Self::default();
        for member in mirror.members() {
            let tried = match mirror.open_single(member) {
                Some(single) => try_single(&single),
                None => Err(MetaError::poisoned("it has no head")),
            };
            match tried {
                Ok(position) => trial.sound.push((member, position)),
                Err(error) => trial.damaged.push((mirror.path(member), error)),
            }
        }
        trial.remove_contradicted(mirror);
        trial
    }

    /// Removes the copies whose positions the journal contradicts, unless it contradicts all.
    ///
    /// If the journal continues several, it counts the copies from which on it has the most records. Making changes
    /// again that a copy already has does no harm; a position that is too high would lose acknowledged changes. Among
    /// copies of one position the first counts, whose head is the newest: nothing tells a forged one then.
    fn remove_contradicted(&mut self, mirror: &Mirror) {
        let is_one = |pair: &[(_, Position)]| pair[0].1 == pair[1].1;
        // Later on, the journal is that of this mount.
        if mirror.has_begun() || self.sound.windows(2).all(is_one) {
            return;
        }
        let continued: Vec<_> = self
            .sound
            .iter()
            .map(|(_, position)| count_continuing_records(mirror.disk(), *position))
            .collect();
        let Some(most) = continued.iter().flatten().max().copied() else {
            return;
        };
        let mut continued = continued.into_iter();
        let damaged = &mut self.damaged;
        self.sound.retain(|(member, _)| {
            let is_right = continued.next().flatten() == Some(most);
            if !is_right {
                let error = MetaError::poisoned("the journal does not continue it");
                damaged.push((mirror.path(*member), error));
            }
            is_right
        });
    }

    /// Returns the members whose copies are sound, the one with the newest head first.
    pub(super) fn sound(&self) -> Vec<MemberIndex> {
        self.sound.iter().map(|(member, _)| *member).collect()
    }

    /// Returns what is wrong of each damaged copy, in one text.
    pub(super) fn reasons(&self) -> String {
        let damaged = self.damaged.iter();
        let reasons = damaged.map(|(path, error)| format!("{path}: {error}"));
        reasons.collect::<Vec<_>>().join("; ")
    }
}

/// Opens the database of a mirror, whose structure is verified before.
pub(super) fn open_db(mirror: &Arc<Mirror>, cache_bytes: usize) -> Result<Contained, MetaError> {
    mirror.check_structure().map_err(MetaError::poisoned)?;
    Contained::open(mirror.backend(), cache_bytes).map_err(|failure| {
        if mirror.is_out_of_space() {
            MetaError::NoSpace
        } else {
            MetaError::poisoned(failure)
        }
    })
}

/// Reads all of a mirror's only copy, and verifies it. Returns its position.
fn try_single(mirror: &Arc<Mirror>) -> Result<Position, MetaError> {
    let mut db: Contained = open_db(mirror, TRIAL_CACHE_BYTES)?;
    let verified = db.verify();
    verified.map_err(MetaError::poisoned)?;
    let position = position_in(Some(&db))?;
    if position == Position::default() {
        return Err(MetaError::poisoned("it was never committed to"));
    }
    unflushed_in(
        Some(&db),
        mirror.disk().members().shape().most_stripe_bytes(),
    )?;
    read_records(&db)?;
    db.close().map_err(MetaError::poisoned)?;
    Ok(position)
}

/// Reads every record.
fn read_records(db: &Contained) -> Result<(), MetaError> {
    let records = RecordsSnapshot::new(records_in(Some(db))?, &Arc::default());
    let whole = KeyRange {
        from: Bound::Unbounded,
        end: Bound::Unbounded,
    };
    records.visit(whole, &mut |_, _| ControlFlow::Continue(()))
}
