//! Taking a directory into a volume that is open: as another member, in the place of one that is gone,
//! or as a member that is back.
//!
//! 1. Look what the directory is, lock it, and look again. One for a new member has to be empty. One that is back must
//!    have been left out by the very epochs that this volume has come through. A superblock older than the last one
//!    written to it makes it a stale copy. All that a stale copy holds has to be verified. The caller has compared its
//!    journal before: [`MemberChanges::note_stale_copy`].
//! 2. Make the files of a member: a superblock that says that it is not up to date, and journals. For a returned
//!    member, remove its index and journal now, and files of segments that are not its own any more later.
//! 3. Begin an epoch in which it is listed, though not as one that is up to date, unless it is listed already. A crash
//!    before that leaves a directory that is no member. A crash after it leaves a stale one, whose shards count.
//! 4. From here on it takes part, as a stale member does. [`Epochs::admit_stale`] takes it into the epoch, once index
//!    and journal need nothing that it lacks.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use super::acknowledged::Acknowledged;
use super::content::DirectoryContent;
use super::create;
use super::directory_locks::DirectoryLocks;
use super::epoch_state::put_entry;
use super::epochs::Epochs;
use super::error::MembersError;
use super::fields::{noted_path, noted_shards};
use super::health::MemberState;
use super::member::Member;
use super::reason::AbsenceReason;
use super::shape::VolumeShape;
use super::slots::{Look, look, write_whole};
use super::snapshot::Membership;
use super::stale_copies::StaleCopies;
use super::zeros::write_zeros;
use crate::format::superblock::{MAX_MEMBERS, MemberEntry, Superblock};
use crate::format::{Generation, MemberId, MemberIndex, SegmentId, files};
use crate::store::{Executor, Hold, Store, StoreError, StoreErrorKind, StoreLock, StoreRef};

/// The place with which a directory joins the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinAs {
    /// A new place.
    New,
    /// A new place, with the remaining data of this member: [`Membership::heir_of`].
    HeirOf(MemberIndex),
    /// The place of this member, which is gone for good.
    InPlaceOf(MemberIndex),
    /// Its own place: it was away.
    Returning,
}

/// The files that the layers above keep on a member.
#[derive(Clone, Debug, Default)]
pub struct Belongings {
    /// Bytes of each journal file.
    pub journal_bytes: u64,
    /// The segments that name each member, with the lengths of their files.
    pub segments: BTreeMap<MemberIndex, BTreeMap<SegmentId, u64>>,
}

/// A call that prepares a directory.
type Preparation = Box<dyn FnOnce(&dyn Store) -> Result<(), StoreError> + Send>;

/// A directory that is about to take part.
struct Joining {
    index: MemberIndex,
    entry: MemberEntry,
    /// Its existing superblock, if it is back.
    found: Option<Superblock>,
    /// Set if that is older than the last one written to it.
    is_older: bool,
    /// The member that it comes for, if it is new.
    replaces: Option<MemberIndex>,
}

/// Changes of the set of members, one at a time: directories join, members are drained and removed.
#[derive(Debug)]
pub struct MemberChanges {
    pub(super) shape: Arc<VolumeShape>,
    pub(super) executor: Arc<Executor>,
    pub(super) membership: Arc<Membership>,
    pub(super) epochs: Arc<Epochs>,
    pub(super) stale_copies: Arc<StaleCopies>,
    pub(super) acknowledged: Arc<Acknowledged>,
    pub(super) locks: Arc<DirectoryLocks>,
    /// Held through a change, also through its I/O.
    pub(super) one_at_a_time: Mutex<()>,
    /// Directories that could not be taken in, since something hung on them.
    unprepared: Mutex<Vec<Weak<dyn Store>>>,
}

impl MemberChanges {
    /// Returns the changes of a volume that is open.
    pub(super) fn new(
        shape: Arc<VolumeShape>,
        executor: Arc<Executor>,
        membership: Arc<Membership>,
        epochs: Arc<Epochs>,
        stale_copies: Arc<StaleCopies>,
        acknowledged: Arc<Acknowledged>,
        locks: Arc<DirectoryLocks>,
    ) -> Self {
        Self {
            shape,
            executor,
            membership,
            epochs,
            stale_copies,
            acknowledged,
            locks,
            one_at_a_time: Mutex::default(),
            unprepared: Mutex::default(),
        }
    }

    /// Takes a directory into the volume. On return it takes part, as a stale member does. Before that, `heed` hears of
    /// which segments it has files that are elsewhere by now; the value that it returns is held until then. If the
    /// member has to be verified first, [`StaleCopies::unverified`] names it by then.
    ///
    /// # Errors
    ///
    /// [`MembersError`] if the directory is not suitable, or the place is not free; its contents are still there then,
    /// if it was not empty. Also any error of `heed`.
    pub fn join<G, E: From<MembersError>>(
        &self,
        join_as: JoinAs,
        store: &StoreRef,
        belongings: &Belongings,
        heed: impl FnOnce(MemberIndex, Vec<SegmentId>) -> Result<G, E>,
    ) -> Result<MemberIndex, E> {
        let _one_at_a_time = self.one_at_a_time.lock();
        let may_write = self.epochs.may_write(&self.epochs.lock());
        if !may_write || self.membership.is_released() {
            return Err(MembersError::NotNow.into());
        }
        // First without a lock, which leaves a file: it may be a directory whose disk is not mounted.
        self.place_for(join_as, store)?;
        let lock = self.take(store)?;
        let joining = self.place_for(join_as, store)?;
        let index = joining.index;
        let block = self.first_block(&joining);
        let keep = belongings.segments.get(&index).cloned();
        let keep = keep.unwrap_or_default();
        let fresh = joining.found.is_none().then(|| block.clone());
        let strays = match self.prepare(store, fresh, belongings.journal_bytes, &keep) {
            Ok(strays) => strays,
            Err(error) => {
                self.put_off(store, lock);
                return Err(MembersError::from(error).into());
            }
        };
        if joining.is_older {
            self.stale_copies.note(index);
        } else if joining.found.is_some() {
            self.stale_copies.note_return(index);
        }
        let _until_it_takes_part = heed(index, strays)?;
        self.admit_joining(&joining, block, store, lock)?;
        tracing::info!("{} takes part as member {index}", store.label());
        Ok(index)
    }

    /// Makes the files of a member: a superblock, if it is new, and empty journals. Of a member that is back, only the
    /// segments that still name it stay. So do those in the return value, which the caller has to remove.
    ///
    /// Each call is short, also on a disk that takes long to free large files.
    fn prepare(
        &self,
        store: &StoreRef,
        fresh: Option<Superblock>,
        journal_bytes: u64,
        keep: &BTreeMap<SegmentId, u64>,
    ) -> Result<Vec<SegmentId>, StoreError> {
        let call = |action, work: Preparation| self.executor.call(store, action, work);
        if let Some(block) = fresh {
            // First of all: the remains of an interrupted attempt are known by it.
            let write = move |store: &dyn Store| write_whole(store, &block);
            call("write the superblock", Box::new(write))?;
        }
        for name in files::JOURNALS {
            let renew = move |store: &dyn Store| {
                store.remove(name)?;
                store.create(name, journal_bytes)
            };
            call("make the journal", Box::new(renew))?;
            let is_wanted = || !self.membership.is_released();
            write_zeros(&self.executor, store, name, journal_bytes, is_wanted)?;
        }
        for name in [files::INDEX, files::BALLAST, files::DATA_BALLAST] {
            call("remove", Box::new(move |store| store.remove(name)))?;
        }
        let list = |store: &dyn Store| store.list(files::SEGMENTS);
        let mut strays = Vec::new();
        for (name, len) in self.executor.call(store, "list", list)? {
            let Some(segment) = files::parse_segment(&name) else {
                continue;
            };
            match keep.get(&segment) {
                Some(&wanted) if len > wanted => {
                    call(
                        "truncate",
                        Box::new(move |store| store.truncate(&name, wanted)),
                    )?;
                }
                Some(_) => {}
                None => strays.push(segment),
            }
        }
        Ok(strays)
    }

    /// Notes that a directory could not be prepared. A hanging operation may still take effect, as by removing a
    /// journal. Until it has ended, the directory is not tried again, and no other process has the directory.
    fn put_off(&self, store: &StoreRef, lock: Option<StoreLock>) {
        if !self.executor.is_hanging(store) {
            return;
        }
        self.unprepared.lock().push(Arc::downgrade(store));
        if let Some(lock) = lock {
            self.locks.add(store, lock);
        }
    }

    /// Returns whether an earlier attempt to prepare the directory is still under way.
    fn is_being_prepared(&self, store: &StoreRef) -> bool {
        let mut unprepared = self.unprepared.lock();
        unprepared.retain(|store| {
            let store = store.upgrade();
            store.is_some_and(|store| self.executor.is_hanging(&store))
        });
        let mut under_way = unprepared.iter().filter_map(Weak::upgrade);
        under_way.any(|other| other.label() == store.label())
    }

    /// Notes that a directory which is about to be taken in may be a stale copy. It may be one if its journal ends before
    /// the last record that the member acknowledged. It also may if it is not the very directory that the member lost. Such a copy
    /// may hold the newest record and lack shards from before, because copying takes time. Returns whether it may be one.
    /// Call it before [`MemberChanges::join`], which replaces the journal, and make the note durable before that call.
    ///
    /// # Errors
    ///
    /// As for [`MemberChanges::join`].
    pub fn note_stale_copy(&self, join_as: JoinAs, store: &StoreRef) -> Result<bool, MembersError> {
        let joining = self.place_for(join_as, store)?;
        let Some(found) = joining.found else {
            return Ok(false);
        };
        let index = joining.index;
        let is_stale = self.is_another_directory(index, store)?
            || self
                .acknowledged
                .ends_early(&found, store, &self.executor)?;
        if is_stale {
            self.stale_copies.note(index);
        }
        Ok(is_stale)
    }

    /// Returns whether a directory is not the one that its member lost since the volume was opened.
    fn is_another_directory(
        &self,
        index: MemberIndex,
        store: &StoreRef,
    ) -> Result<bool, StoreError> {
        let member = self.membership.member(index);
        let Some(lost) = member.and_then(|member| member.lost().cloned()) else {
            return Ok(false);
        };
        let look = move |store: &dyn Store| store.is_directory(&lost);
        let is_same = self.executor.call(store, "look at", look)?;
        Ok(!is_same)
    }

    /// Looks whether a directory may have a place, and changes nothing.
    ///
    /// # Errors
    ///
    /// As for [`MemberChanges::join`].
    pub fn check(&self, join_as: JoinAs, store: &StoreRef) -> Result<(), MembersError> {
        self.place_for(join_as, store).map(drop)
    }

    /// Notes for status reports why a member's directory was not taken back, and its state now, independent of the
    /// first failure.
    pub fn note_refusal(&self, index: MemberIndex, error: &MembersError) {
        let (state, refusal) = match error {
            // It is busy with an earlier request, or the volume is: nothing is known of the directory.
            MembersError::InUse { .. } | MembersError::NotNow => return,
            MembersError::Store(error) if error.kind() == StoreErrorKind::NotFound => {
                (Some(MemberState::Missing), AbsenceReason::NoDirectory)
            }
            MembersError::Store(error) => (
                Some(MemberState::after(error)),
                AbsenceReason::of_failure(error),
            ),
            MembersError::Diverged { .. } => (None, AbsenceReason::MountedApart),
            MembersError::FormerMember { .. } => (None, AbsenceReason::FormerMember),
            MembersError::UnreadableMember { reason, .. } => (None, reason.clone()),
            MembersError::NotAMember { reason, .. } => (Some(MemberState::Missing), reason.clone()),
            error => (
                None,
                AbsenceReason::Refused {
                    detail: error.to_string(),
                },
            ),
        };
        if self.membership.refuse(index, state, &refusal) {
            let path = self.membership.path(index);
            tracing::info!(journal.member = %index, "member {index} is not back at {path}: {refusal}");
        }
    }

    /// The same for a directory that a caller brought for a member. Does nothing if its place is another than the
    /// member had. Nor if the member was left out on purpose, because only a caller brings such a directory.
    pub fn note_refused(&self, index: MemberIndex, store: &StoreRef, error: &MembersError) {
        let is_looked_for = self.membership.member(index).is_some_and(|member| {
            let reason = member.health().reason.as_ref();
            member.path == store.label() && reason != Some(&AbsenceReason::NotGiven)
        });
        if is_looked_for {
            self.note_refusal(index, error);
        }
    }

    /// Notes that a member's directory is not taken back for a while, because it came and went too often.
    pub fn note_flapping(&self, index: MemberIndex) {
        self.membership
            .refuse(index, None, &AbsenceReason::Flapping);
    }

    /// Locks a directory for this volume alone. Returns no lock if an earlier one holds the directory already.
    fn take(&self, store: &StoreRef) -> Result<Option<StoreLock>, MembersError> {
        let path = store.label();
        let is_ours = || self.locks.has(&path);
        if self.is_being_prepared(store) || (is_ours() && self.is_in_use(store)) {
            let holder = None;
            return Err(MembersError::InUse { path, holder });
        }
        let locked = self
            .executor
            .call(store, "lock", |store| store.lock(Hold::Exclusive));
        match locked {
            Ok(lock) => Ok(Some(lock)),
            // The very directory may be locked by this process, since it was a member.
            Err(error) if error.kind() == StoreErrorKind::InUse => {
                if self.locks.add_again(store) {
                    Ok(None)
                } else {
                    let holder = error.holder().cloned();
                    Err(MembersError::InUse { path, holder })
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_in_use(&self, store: &StoreRef) -> bool {
        let (path, snapshot) = (store.label(), self.membership.snapshot());
        let mut members = snapshot.members();
        members.any(|(_, member)| member.is_online() && member.path == path)
    }

    /// Looks at a directory. Returns its superblock, or why it has none.
    fn look_at(
        &self,
        join_as: JoinAs,
        store: &StoreRef,
    ) -> Result<(Option<Superblock>, Option<AbsenceReason>), MembersError> {
        match look(std::slice::from_ref(store), &self.executor) {
            Err(MembersError::Foreign { path, found }) if join_as == JoinAs::Returning => {
                let reason = AbsenceReason::ForeignContent { found };
                Err(MembersError::NotAMember { path, reason })
            }
            Err(MembersError::Foreign { path, found }) => {
                Err(MembersError::NotEmpty { path, found })
            }
            looks => Ok(match looks?.pop() {
                Some(Look::Member(block)) => (Some(*block), None),
                Some(Look::Unusable(reason)) => (None, Some(reason)),
                None => (None, None),
            }),
        }
    }

    /// Finds out which place a directory is to have, and whether it may have it.
    fn place_for(&self, join_as: JoinAs, store: &StoreRef) -> Result<Joining, MembersError> {
        let (found, problem) = self.look_at(join_as, store)?;
        // A directory that no table of members names any more, or not yet, has nothing that is needed.
        let ours = found.as_ref();
        let ours = ours.filter(|found| found.volume == self.shape.volume_id());
        let former = ours.map(|found| found.index);
        let other = found.as_ref().map(|found| AbsenceReason::OtherVolume {
            volume: found.volume.0,
        });
        let state = self.epochs.lock();
        if let Some(found) = found
            && found.volume == self.shape.volume_id()
            && let Some(entry) = state.table().get(usize::from(found.index.0))
            && entry.id == found.member
        {
            let index = found.index;
            let is_own = match join_as {
                JoinAs::New | JoinAs::HeirOf(_) => false,
                JoinAs::InPlaceOf(wanted) => wanted == index,
                JoinAs::Returning => true,
            };
            if !is_own || self.membership.is_online(index) {
                let path = store.label();
                return Err(MembersError::OwnMember { path, index });
            }
            if !state.knows(found.head()) {
                let path = store.label();
                return Err(MembersError::Diverged { path });
            }
            return Ok(Joining {
                index,
                entry: entry.clone(),
                is_older: state.is_older(&found),
                found: Some(found),
                replaces: None,
            });
        }
        let index = match join_as {
            JoinAs::Returning => {
                let reason = other.or(problem).unwrap_or(AbsenceReason::Empty);
                return Err(not_back(store.label(), former, reason));
            }
            JoinAs::InPlaceOf(index) => {
                self.check_gone(index)?;
                index
            }
            JoinAs::New | JoinAs::HeirOf(_) => vacant_place(state.table())?,
        };
        drop(state);
        self.refuse_content(store, former, problem)?;
        let entry = MemberEntry {
            id: MemberId(Uuid::new_v4()),
            current: false,
            draining: false,
            path: noted_path(&store.label()),
        };
        Ok(Joining {
            index,
            entry,
            found: None,
            is_older: false,
            replaces: match join_as {
                JoinAs::InPlaceOf(old) | JoinAs::HeirOf(old) => Some(old),
                JoinAs::New | JoinAs::Returning => None,
            },
        })
    }

    /// Refuses a directory for a new member that has something in it. Files of one that is no member any more, or not
    /// yet, may stay, unless they are segments.
    fn refuse_content(
        &self,
        store: &StoreRef,
        former: Option<MemberIndex>,
        problem: Option<AbsenceReason>,
    ) -> Result<(), MembersError> {
        let content = self.executor.call(store, "list", DirectoryContent::of)?;
        let found = if former.is_some() && !content.has_segments {
            content.foreign
        } else {
            content.any()
        };
        if let Some(found) = found {
            let path = store.label();
            return Err(match (create::refusal(path, found), former, problem) {
                (MembersError::AlreadyMember { path }, Some(index), _) => {
                    MembersError::FormerMember { path, index }
                }
                (MembersError::AlreadyMember { path }, None, Some(reason)) => {
                    MembersError::UnreadableMember { path, reason }
                }
                (MembersError::NotEmpty { path, .. }, None, Some(reason))
                    if reason.is_missing_superblock() =>
                {
                    MembersError::UnreadableMember { path, reason }
                }
                (refusal, ..) => refusal,
            });
        }
        Ok(())
    }

    fn check_gone(&self, index: MemberIndex) -> Result<(), MembersError> {
        match self.membership.member(index) {
            Some(member) if member.is_online() => Err(MembersError::StillThere {
                index,
                path: member.path.clone(),
            }),
            Some(member) if !member.is_vacant() => Ok(()),
            _ => Err(MembersError::NoSuchMember { index }),
        }
    }

    /// Returns the superblock that a directory begins with: one of a member that is not up to date.
    fn first_block(&self, joining: &Joining) -> Superblock {
        if let Some(found) = &joining.found {
            return found.clone();
        }
        let state = self.epochs.lock();
        let mut members = state.table().to_vec();
        put_entry(&mut members, joining.index, joining.entry.clone());
        Superblock {
            volume: self.shape.volume_id(),
            member: joining.entry.id,
            index: joining.index,
            data_shards: noted_shards(self.shape.geometry().data_shards()),
            parity_shards: noted_shards(self.shape.geometry().parity_shards()),
            code: self.shape.code().0,
            unit_bytes: self.shape.unit_bytes(),
            segment_bytes: self.shape.segment_bytes(),
            label: self.shape.label().to_owned(),
            features: state.features(),
            generation: Generation(0),
            history: state.earlier_history(),
            proposed: None,
            members,
            extension: state.extension().to_vec(),
        }
    }

    /// Lets a directory take part, after all others know of it: writes to it count from here on, also after a crash.
    fn admit_joining(
        &self,
        joining: &Joining,
        block: Superblock,
        store: &StoreRef,
        lock: Option<StoreLock>,
    ) -> Result<(), MembersError> {
        let index = joining.index;
        let mut state = self.epochs.lock();
        if joining.found.is_none() {
            let old = joining.replaces.map(|old| (old, self.membership.path(old)));
            state.list(index, joining.entry.clone());
            if let Some((old, path)) = old {
                state.succession.note(old, index, &path);
            }
            self.stale_copies.forget(index);
            self.acknowledged.forget(index);
            let target = state.admitted.clone();
            let raised = self.epochs.raise(&mut state, target);
            self.epochs.publish(&state);
            raised?;
        }
        self.acknowledged.note_new_journal(index);
        state.admitted.remove(&index);
        state.put_block(index, block);
        if let Some(lock) = lock {
            self.locks.add(store, lock);
        }
        let member = Member::present(joining.entry.id, Arc::clone(store));
        self.membership
            .publish_member(index, member, state.published());
        Ok(())
    }
}

/// Returns the refusal of a directory in a member's place that is not the member: it was removed, or for `reason`.
fn not_back(path: String, former: Option<MemberIndex>, reason: AbsenceReason) -> MembersError {
    match former {
        Some(index) => MembersError::FormerMember { path, index },
        None if reason.is_missing_superblock() => MembersError::UnreadableMember { path, reason },
        None => MembersError::NotAMember { path, reason },
    }
}

/// Returns a place in the table of members that no member has.
fn vacant_place(table: &[MemberEntry]) -> Result<MemberIndex, MembersError> {
    let vacant = table.iter().position(MemberEntry::is_vacant);
    let given = vacant.unwrap_or(table.len());
    if given >= MAX_MEMBERS {
        let most = MAX_MEMBERS;
        return Err(MembersError::TooManyDirectories { given, most });
    }
    Ok(MemberIndex(
        u16::try_from(given).expect("there are fewer members"),
    ))
}
