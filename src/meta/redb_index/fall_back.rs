//! Continuing with the copies of the index that are sound, after the database failed on its content.
//!
//! The copies are equal as long as no one changes them from outside. Checksums do not tell which of two different copies
//! is right, and a higher sequence does not either, since all of that can be made. The database's own checksums reach
//! from its header to every page, so a copy counts as sound if all of it can be read alone and these are right.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::{Contained, RedbIndex, carried_in, open_db, position_in};
use crate::format::MemberIndex;
use crate::meta::MetaError;
use crate::meta::index::{Index, Position};
use crate::meta::mirror::Mirror;

/// Memory for pages of a copy that is tried, in bytes.
const TRIAL_CACHE_BYTES: usize = 4 << 20;

impl RedbIndex {
    /// Reads a second time if the copies turn out to be different.
    pub(super) fn read_again<T>(
        &self,
        read: impl Fn(&Self) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        read(self).or_else(|error| {
            if !matches!(error, MetaError::Poisoned { .. }) {
                return Err(error);
            }
            self.suspect.store(true, Ordering::Release);
            self.settle_under(self.committing.lock())?;
            read(self)
        })
    }

    /// Continues with the sound copies if the content of the database is suspect. That is tried once.
    pub(super) fn settle_under(&self, _committing: MutexGuard<'_, ()>) -> Result<(), MetaError> {
        if !self.suspect.swap(false, Ordering::AcqRel)
            || self.has_fallen_back.swap(true, Ordering::AcqRel)
        {
            return Ok(());
        }
        self.fall_back()
    }

    /// Continues with the sound copies if intact frames differ that were written together.
    pub(super) fn settle_dispute(&self) {
        if self.mirror.is_disputed() {
            self.suspect.store(true, Ordering::Release);
            self.settle();
        }
    }

    fn fall_back(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        self.replace_view(None);
        if let Some(db) = db.take() {
            db.abandon();
        }
        self.mirror.go_back().map_err(MetaError::poisoned)?;
        let (mut sound, mut damaged) = (Vec::new(), Vec::new());
        for member in self.mirror.members() {
            match self.try_copy(member) {
                Ok(()) => sound.push(member),
                Err(error) => damaged.push((self.mirror.path(member), error)),
            }
        }
        for (path, error) in &damaged {
            log::warn!("{path}: this copy of the index is damaged: {error}");
        }
        if sound.is_empty() {
            // What it is not needed for can still be read.
            *db = self.open_again().ok();
            let copies = damaged
                .iter()
                .map(|(path, error)| format!("{path}: {error}"));
            let reason = copies.collect::<Vec<_>>().join("; ");
            return Err(MetaError::DamagedIndex { reason });
        }
        if damaged.is_empty() {
            // Each is sound alone, and they are not the same. The first has the newest head.
            for member in sound.split_off(1) {
                let path = self.mirror.path(member);
                log::warn!("{path}: this copy of the index is not used: it differs from another");
            }
        }
        self.mirror.keep_only(&sound).map_err(MetaError::poisoned)?;
        let opened = self.open_again()?;
        let position = position_in(Some(&opened))?;
        *self.position.lock() = position;
        *db = Some(opened);
        Ok(())
    }

    /// Reads all of one copy, and verifies it.
    fn try_copy(&self, member: MemberIndex) -> Result<(), MetaError> {
        let Some(mirror) = self.mirror.alone(member) else {
            return Err(MetaError::poisoned("it has no head"));
        };
        try_alone(&mirror)
    }
}

fn try_alone(mirror: &Arc<Mirror>) -> Result<(), MetaError> {
    let mut db: Contained = open_db(mirror, TRIAL_CACHE_BYTES)?;
    let verified = db.verify();
    verified.map_err(MetaError::poisoned)?;
    if position_in(Some(&db))? == Position::default() {
        return Err(MetaError::poisoned("it was never committed to"));
    }
    carried_in(Some(&db), mirror.stripe_bytes())?;
    super::walk_records(&db)?;
    db.close().map_err(MetaError::poisoned)
}
