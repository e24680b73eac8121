//! The membership of an open volume: the members, which of them are online with their directories, and the epoch.
//!
//! It is one immutable snapshot, which every change replaces as a whole. A reader takes no lock, and never waits for a
//! change.
//!
//! # Invariants
//!
//! - A reader of one snapshot sees the state before a change or the state after it, never half of the change.
//! - A member that fails is without its directory from the next snapshot on: [`Membership::mark_failed`]. The list of
//!   live members and the epoch change together, later: [`Membership::publish`]. The caller of `publish` has made the
//!   epoch durable before.
//! - A snapshot keeps the directories of its online members open. Its holder keeps it for a moment only, because the
//!   directory of a failed member is released once nothing refers to it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::health::MemberState;
use super::member::Member;
use super::reason::AbsenceReason;
use super::slots::chain;
use super::succession::Succession;
use crate::codec::{Geometry, Survival};
use crate::format::{Epoch, MemberIndex};
use crate::store::{StoreError, StoreErrorKind, StoreRef};

/// The membership at one moment.
#[derive(Clone, Debug)]
pub(super) struct MembershipSnapshot {
    /// All members by index: online ones, absent ones and vacant places.
    members: Vec<Arc<Member>>,
    live: Vec<MemberIndex>,
    draining: Vec<MemberIndex>,
    succession: Succession,
    epoch: Epoch,
    has_failed: bool,
    is_released: bool,
}

impl MembershipSnapshot {
    /// Returns the epoch.
    #[cfg(test)]
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the members that took part when the epoch was published.
    #[cfg(test)]
    pub(super) fn live(&self) -> &[MemberIndex] {
        &self.live
    }

    /// Returns whether a member is being drained.
    pub(super) fn is_draining(&self, index: MemberIndex) -> bool {
        self.draining.contains(&index)
    }

    fn staying(&self) -> Vec<MemberIndex> {
        let stays = |member: &&MemberIndex| !self.draining.contains(member);
        self.live.iter().filter(stays).copied().collect()
    }

    /// Returns those of some members that are to be replaced by others of them.
    fn replaced_among(&self, staying: &[MemberIndex]) -> Vec<MemberIndex> {
        let mut replaced = staying.to_vec();
        replaced.retain(|old| {
            let heir = self.succession.heir_of(*old);
            heir.is_some_and(|heir| staying.contains(&heir))
        });
        replaced
    }

    /// Returns all members by index, vacant places included.
    pub(super) fn members(&self) -> impl Iterator<Item = (MemberIndex, &Arc<Member>)> {
        (0..).map(MemberIndex).zip(&self.members)
    }

    fn member(&self, index: MemberIndex) -> Option<&Arc<Member>> {
        self.members.get(usize::from(index.0))
    }

    /// Returns the members that are online now, published or not.
    fn online(&self) -> impl Iterator<Item = MemberIndex> {
        let online = self.members().filter(|(_, member)| member.is_online());
        online.map(|(index, _)| index)
    }

    fn has_no_member(&self, index: MemberIndex) -> bool {
        self.member(index).is_none_or(|member| member.is_vacant())
    }

    fn at(&self, paths: &[String]) -> Option<MemberIndex> {
        let at_path = self.members().filter(|(_, it)| paths.contains(&it.path));
        let found = at_path.max_by_key(|(index, member)| (member.is_online(), *index));
        found.map(|(index, _)| index)
    }

    fn put(&mut self, index: MemberIndex, member: Arc<Member>) {
        match self.members.get_mut(usize::from(index.0)) {
            Some(place) => *place = member,
            None => self.members.push(member),
        }
    }

    fn publish(&mut self, published: Published) {
        self.live = self.online().collect();
        self.epoch = published.epoch;
        self.draining = published.draining;
        self.succession = published.succession;
    }
}

/// The parts of a snapshot that change with the epoch.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) epoch: Epoch,
    /// The members that are being drained.
    pub(super) draining: Vec<MemberIndex>,
    /// The fate of members that are gone.
    pub(super) succession: Succession,
}

/// The membership of an open volume.
pub struct Membership {
    geometry: Geometry,
    survival: Survival,
    /// The least number of losses that every stripe of some code survives, if stripes have several codes.
    least_survived: AtomicUsize,
    current: ArcSwap<MembershipSnapshot>,
    /// Held while a snapshot is replaced. No reader takes it.
    replacing: Mutex<()>,
}

impl Membership {
    /// Returns the membership of these members in this epoch.
    pub(super) fn new(
        (geometry, survival): (Geometry, Survival),
        members: Vec<Member>,
        published: Published,
    ) -> Self {
        let mut snapshot = MembershipSnapshot {
            members: members.into_iter().map(Arc::new).collect(),
            live: Vec::new(),
            draining: Vec::new(),
            succession: Succession::default(),
            epoch: published.epoch,
            has_failed: false,
            is_released: false,
        };
        snapshot.publish(published);
        Self {
            geometry,
            survival,
            least_survived: AtomicUsize::new(usize::MAX),
            current: ArcSwap::from_pointee(snapshot),
            replacing: Mutex::default(),
        }
    }

    /// Returns the present snapshot, to read several facts that belong together. The caller keeps it for a moment only.
    pub(super) fn snapshot(&self) -> Arc<MembershipSnapshot> {
        self.current.load_full()
    }

    /// Returns the current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.current.load().epoch
    }

    /// Returns the members that take part as of the last epoch, stale ones included.
    #[must_use]
    pub fn live(&self) -> Vec<MemberIndex> {
        self.current.load().live.clone()
    }

    /// Returns whether a member takes part as of the last epoch.
    #[must_use]
    pub fn is_live(&self, member: MemberIndex) -> bool {
        self.current.load().live.contains(&member)
    }

    /// Returns the members that are being drained.
    #[must_use]
    pub fn draining(&self) -> Vec<MemberIndex> {
        self.current.load().draining.clone()
    }

    /// Returns whether so many members failed that the volume cannot go on.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.current.load().has_failed
    }

    /// Returns how many members the volume has, absent ones included.
    #[must_use]
    pub fn count(&self) -> usize {
        let snapshot = self.current.load();
        let members = snapshot.members().filter(|(_, it)| !it.is_vacant());
        members.count()
    }

    /// Returns a member's directory, or `None` if the member is not online.
    #[must_use]
    pub fn store(&self, member: MemberIndex) -> Option<StoreRef> {
        let snapshot = self.current.load();
        let member = snapshot.member(member).filter(|_| !snapshot.is_released)?;
        member.store().cloned()
    }

    /// Lends a member's directory to `work`, which does not wait. Returns `None` if the member is not online.
    pub(super) fn with_store<T>(
        &self,
        member: MemberIndex,
        work: impl FnOnce(&StoreRef) -> T,
    ) -> Option<T> {
        let snapshot = self.current.load();
        let member = snapshot.member(member).filter(|_| !snapshot.is_released)?;
        member.store().map(work)
    }

    /// Returns the path of a member, or where it was last seen; empty if that is not known, or there is no such member.
    #[must_use]
    pub fn path(&self, member: MemberIndex) -> String {
        let snapshot = self.current.load();
        let member = snapshot.member(member);
        member.map_or_else(String::new, |member| member.path.clone())
    }

    /// Returns the online members that are not being drained.
    #[must_use]
    pub fn staying(&self) -> Vec<MemberIndex> {
        self.current.load().staying()
    }

    /// Returns how many members stay in the end, if one of them goes besides the draining ones. Where one has come to replace
    /// another that is yet to be drained for it, only one of the two stays.
    #[must_use]
    pub fn count_lasting(&self, without: Option<MemberIndex>) -> usize {
        let snapshot = self.current.load();
        let mut staying = snapshot.staying();
        staying.retain(|member| Some(*member) != without);
        staying.len() - snapshot.replaced_among(&staying).len()
    }

    /// Returns a member for which another has come that has its place once it is drained, which is yet to begin.
    #[must_use]
    pub fn yet_to_be_replaced(&self, without: Option<MemberIndex>) -> Option<MemberIndex> {
        let snapshot = self.current.load();
        let mut staying = snapshot.staying();
        staying.retain(|member| Some(*member) != without);
        snapshot.replaced_among(&staying).first().copied()
    }

    /// Returns the members to which new segments go whose stripes have so many shards: the online ones that are not being
    /// drained or, if these are too few, all online ones.
    #[must_use]
    pub fn homes(&self, shards: usize) -> Vec<MemberIndex> {
        let snapshot = self.current.load();
        let staying = snapshot.staying();
        if staying.len() >= shards {
            staying
        } else {
            snapshot.live.clone()
        }
    }

    /// Returns the member whose directory has one of these paths. If there is none, returns the one last seen there:
    /// another may have been put where one died.
    #[must_use]
    pub fn at(&self, paths: &[String]) -> Option<MemberIndex> {
        self.current.load().at(paths)
    }

    /// Returns the absent members and their last paths: those whose directories are gone, and those that failed.
    #[must_use]
    pub fn away(&self) -> Vec<(MemberIndex, String)> {
        let snapshot = self.current.load();
        let is_away = |member: &Member| !member.is_vacant() && !member.is_online();
        let away = snapshot.members().filter(|(_, member)| is_away(member));
        away.map(|(index, member)| (index, member.path.clone()))
            .collect()
    }

    /// Returns whether a member has been online since the volume was opened.
    #[must_use]
    pub fn was_online(&self, index: MemberIndex) -> bool {
        let snapshot = self.current.load();
        snapshot.member(index).is_some_and(|it| it.was_online)
    }

    /// Returns the member that gets the data of another, or has got it: it has replaced the other, or is doing so.
    #[must_use]
    pub fn heir_of(&self, index: MemberIndex) -> Option<MemberIndex> {
        self.current.load().succession.heir_of(index)
    }

    /// Returns the member that has the data of a former one, by the index of the latter.
    #[must_use]
    pub fn successor_of(&self, index: MemberIndex) -> Option<MemberIndex> {
        let snapshot = self.current.load();
        let heir = snapshot.succession.heir_of(index);
        heir.filter(|_| snapshot.has_no_member(index))
    }

    /// Returns the member that has the data of a former one, by the paths of the latter; none while a member is there.
    #[must_use]
    pub fn successor_at(&self, paths: &[String]) -> Option<MemberIndex> {
        let snapshot = self.current.load();
        let heir = snapshot.succession.heir_at(paths);
        heir.filter(|_| snapshot.at(paths).is_none())
    }

    /// Returns the absent members that are not waited for: their data is being rebuilt on others.
    #[must_use]
    pub fn given_up(&self) -> BTreeSet<MemberIndex> {
        self.current.load().succession.given_up().clone()
    }

    /// Returns the absent members that are waited for, as [`Membership::away`] does.
    #[must_use]
    pub fn awaited(&self) -> Vec<(MemberIndex, String)> {
        let given_up = self.given_up();
        let mut awaited = self.away();
        awaited.retain(|(member, _)| !given_up.contains(member));
        awaited
    }

    pub(super) fn is_released(&self) -> bool {
        self.current.load().is_released
    }

    pub(super) fn member(&self, index: MemberIndex) -> Option<Arc<Member>> {
        self.current.load().member(index).cloned()
    }

    /// Returns whether a member is online now: an operation on it is attempted.
    pub(super) fn is_online(&self, index: MemberIndex) -> bool {
        let snapshot = self.current.load();
        snapshot.member(index).is_some_and(|it| it.is_online())
    }

    /// Returns whether another directory was seen in the place of a member, which is absent since then.
    pub(super) fn is_displaced(&self, index: MemberIndex) -> bool {
        let reason = self.member(index).and_then(|it| it.health().reason.clone());
        let displaced = StoreErrorKind::Displaced;
        matches!(reason, Some(AbsenceReason::Failed { error, .. }) if error == displaced)
    }

    /// Returns whether an index is that of no member.
    pub(super) fn has_no_member(&self, index: MemberIndex) -> bool {
        self.current.load().has_no_member(index)
    }

    /// Returns the members that are online now, published or not.
    pub(super) fn online(&self) -> BTreeSet<MemberIndex> {
        self.current.load().online().collect()
    }

    /// Returns whether any member is absent, or any place vacant.
    pub(super) fn has_absent(&self) -> bool {
        let snapshot = self.current.load();
        snapshot.members().any(|(_, member)| !member.is_online())
    }

    /// Returns how many members can be given up at once: no stripe then loses more shards than it can, and the volume has
    /// not failed.
    pub(super) fn spare(&self) -> usize {
        let online = self.current.load().online().count();
        let least = self.least_survived.load(Ordering::Relaxed);
        let most = self.survival.guaranteed().min(least);
        let needed = self.geometry.total_shards().saturating_sub(most);
        online.saturating_sub(needed).min(most)
    }

    /// Sets the least number of losses that every stripe survives, where stripes have other codes than new ones.
    pub fn set_least_survived(&self, losses: usize) {
        self.least_survived.store(losses, Ordering::Relaxed);
    }

    /// Returns a member that is online, and its directory. An answer of the directory concerns this member alone, also
    /// if another has its place by then.
    pub(super) fn asked(&self, index: MemberIndex) -> Option<(Arc<Member>, StoreRef)> {
        let snapshot = self.current.load();
        let member = snapshot.member(index).filter(|_| !snapshot.is_released)?;
        Some((Arc::clone(member), member.store().cloned()?))
    }

    /// Marks the member of this index missing or faulted, and drops its directory.
    pub(super) fn mark_failed(&self, index: MemberIndex, error: &StoreError) {
        if let Some(member) = self.member(index) {
            self.mark_asked_failed(index, &member, error);
        }
    }

    /// Marks a member missing or faulted, and drops its directory. Does nothing if it is absent already, or another has
    /// its place.
    pub(super) fn mark_asked_failed(
        &self,
        index: MemberIndex,
        asked: &Arc<Member>,
        error: &StoreError,
    ) {
        let failed = asked.failed(error);
        let is_asked = |now: &MembershipSnapshot| {
            let member = now.member(index);
            member.is_some_and(|member| member.is_online() && Arc::ptr_eq(member, asked))
        };
        let state = failed.health().state;
        if self.replace_if(is_asked, |next| next.put(index, Arc::new(failed))) {
            let state = match state {
                MemberState::Missing => "missing",
                _ => "faulted",
            };
            tracing::warn!(journal.member = %index, "member {index} is marked {state}: {}", chain(error));
        }
    }

    /// Notes why the directory of an absent member is not taken back, and the member's state now, if that is known.
    /// Returns whether the reason is new. Does nothing if the member is online.
    pub(super) fn refuse(
        &self,
        index: MemberIndex,
        state: Option<MemberState>,
        refusal: &AbsenceReason,
    ) -> bool {
        let mut is_new = false;
        self.replace_if(
            |now| now.member(index).is_some_and(|it| !it.is_online()),
            |next| {
                let Some(member) = next.member(index) else {
                    return;
                };
                is_new = member.health().refusal.as_ref() != Some(refusal);
                let refused = Arc::new(member.refused(state, refusal.clone()));
                next.put(index, refused);
            },
        );
        is_new
    }

    /// Publishes an epoch: the live members are those that are online now.
    pub(super) fn publish(&self, published: Published) {
        self.replace(|next| next.publish(published));
    }

    /// Gives a place to a member, and publishes it.
    pub(super) fn publish_member(&self, index: MemberIndex, member: Member, published: Published) {
        self.replace(|next| {
            next.put(index, Arc::new(member));
            next.publish(published);
        });
    }

    /// Notes the fate of members that are gone.
    pub(super) fn set_succession(&self, succession: Succession) {
        self.replace(|next| next.succession = succession);
    }

    /// Notes that so many members failed that the volume cannot go on.
    pub(super) fn set_failed(&self) {
        self.replace(|next| next.has_failed = true);
    }

    /// Notes that the directories are released: nothing reaches them from now on.
    pub(super) fn set_released(&self) {
        self.replace(|next| next.is_released = true);
    }

    fn replace(&self, change: impl FnOnce(&mut MembershipSnapshot)) {
        self.replace_if(|_| true, change);
    }

    /// Replaces the snapshot by a changed one, if the present one `is_right`; returns whether it did.
    fn replace_if(
        &self,
        is_right: impl FnOnce(&MembershipSnapshot) -> bool,
        change: impl FnOnce(&mut MembershipSnapshot),
    ) -> bool {
        let replacing = self.replacing.lock();
        let present = self.snapshot();
        if !is_right(&present) {
            return false;
        }
        let mut next = MembershipSnapshot::clone(&present);
        change(&mut next);
        self.current.store(Arc::new(next));
        drop(replacing);
        // The last reference to a directory may go here, and closing its files may take a moment.
        drop(present);
        true
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.current.load();
        f.debug_struct("Membership")
            .field("geometry", &self.geometry)
            .field("epoch", &snapshot.epoch)
            .field("live", &snapshot.live)
            .field("has_failed", &snapshot.has_failed)
            .finish_non_exhaustive()
    }
}
