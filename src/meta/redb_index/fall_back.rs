//! Continuing with the copies of the index that are sound, after the database failed on its content.
//!
//! The copies are equal as long as no one changes them from outside. Checksums do not tell which of two different
//! copies is right. A higher sequence does not either, because all of that can be forged. The database's own checksums
//! reach from its header to every page. So a copy counts as sound if all of it can be read alone and these are right.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::{Contained, RedbIndex, open_db, position_in, unflushed_in};
use crate::format::MemberIndex;
use crate::format::journal::StripeData;
use crate::meta::error::MetaError;
use crate::meta::index::Position;
use crate::meta::mirror::Mirror;
use crate::meta::replay::continues;

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
            self.recover_if_suspect(self.committing.lock())?;
            read(self)
        })
    }

    /// Continues with the sound copies if the content of the database is suspect. Tries this once.
    pub(super) fn recover_if_suspect(
        &self,
        _committing: MutexGuard<'_, ()>,
    ) -> Result<(), MetaError> {
        if !self.suspect.swap(false, Ordering::AcqRel)
            || self.has_fallen_back.swap(true, Ordering::AcqRel)
        {
            return Ok(());
        }
        self.fall_back()
    }

    /// Continues with the sound copies if intact frames differ that were written together.
    pub(in crate::meta) fn resolve_dispute(&self) {
        if self.mirror.is_disputed() {
            self.suspect.store(true, Ordering::Release);
            self.wait_for_commit();
        }
    }

    /// Reads the unflushed stripe data. Copies that differ in that or in their position are tried one
    /// by one before: the result is what the journal continues.
    pub(super) fn read_unflushed(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        self.read_again(|index| {
            unflushed_in(index.db.read().as_ref(), stripe_bytes)
                .map_err(|failure| index.failed(failure))
        })
    }

    fn fall_back(&self) -> Result<(), MetaError> {
        let mut db = self.db.write();
        self.replace_snapshot(None);
        if let Some(db) = db.take() {
            db.abandon();
        }
        self.mirror.go_back().map_err(MetaError::poisoned)?;
        let (mut sound, mut damaged) = (Vec::new(), Vec::new());
        for member in self.mirror.members() {
            match self.try_copy(member) {
                Ok(position) => sound.push((member, position)),
                Err(error) => damaged.push((self.mirror.path(member), error)),
            }
        }
        let contradicted = self.remove_contradicted(&mut sound);
        damaged.extend(contradicted.into_iter().map(|member| {
            let error = MetaError::poisoned("the journal does not continue it");
            (self.mirror.path(member), error)
        }));
        let mut sound: Vec<MemberIndex> = sound.into_iter().map(|(member, _)| member).collect();
        for (path, error) in &damaged {
            log::warn!("{path}: this copy of the index is damaged: {error}");
        }
        if sound.is_empty() {
            // Operations that do not need it can still read.
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

    /// Takes those copies out whose positions the journal contradicts, unless it contradicts all.
    ///
    /// If the journal continues several, it counts the copies from which on it has the most records. Making changes
    /// again that a copy already has does no harm; a position that is too high would lose acknowledged changes. Among
    /// copies of one position the first counts, whose head is the newest: nothing tells a forged one then.
    fn remove_contradicted(&self, sound: &mut Vec<(MemberIndex, Position)>) -> Vec<MemberIndex> {
        let is_one = |pair: &[(_, Position)]| pair[0].1 == pair[1].1;
        // Later on, the journal is that of this mount.
        if self.mirror.has_begun() || sound.windows(2).all(is_one) {
            return Vec::new();
        }
        let continued: Vec<_> = sound
            .iter()
            .map(|(_, position)| continues(self.mirror.disk(), *position))
            .collect();
        let Some(most) = continued.iter().flatten().max().copied() else {
            return Vec::new();
        };
        let mut contradicted = Vec::new();
        let mut continued = continued.into_iter();
        sound.retain(|(member, _)| {
            let is_right = continued.next().flatten() == Some(most);
            if !is_right {
                contradicted.push(*member);
            }
            is_right
        });
        contradicted
    }

    /// Reads all of one copy, and verifies it. Returns its position.
    fn try_copy(&self, member: MemberIndex) -> Result<Position, MetaError> {
        let Some(mirror) = self.mirror.open_single(member) else {
            return Err(MetaError::poisoned("it has no head"));
        };
        try_alone(&mirror)
    }
}

fn try_alone(mirror: &Arc<Mirror>) -> Result<Position, MetaError> {
    let mut db: Contained = open_db(mirror, TRIAL_CACHE_BYTES)?;
    let verified = db.verify();
    verified.map_err(MetaError::poisoned)?;
    let position = position_in(Some(&db))?;
    if position == Position::default() {
        return Err(MetaError::poisoned("it was never committed to"));
    }
    unflushed_in(Some(&db), mirror.disk().members().stripe_bytes())?;
    super::walk_records(&db)?;
    db.close().map_err(MetaError::poisoned)?;
    Ok(position)
}
