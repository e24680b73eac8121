//! The members of one volume: superblocks, epochs, liveness, parallel I/O over all of them.
//!
//! A volume consists of directories, each with a superblock that says which member it is and what it knows of the
//! others. This module finds out which of the given directories belong together and are up to date. It keeps a record
//! of the members present, and routes operations to members by index. Except for the superblock and the lock, it knows
//! nothing of the contents of the files. It only looks how far a journal goes, where a superblock is lost and where a
//! member returns.
//!
//! [`Members`] composes the parts. [`Membership`] is the present state, [`Epochs`] makes it durable, and [`MemberIo`]
//! runs operations. [`MemberChanges`] takes directories in and removes members. [`StaleCopies`] and [`Acknowledged`] tell
//! which of them need verification.
//!
//! # Invariants
//!
//! - A member that fails is marked missing or faulted for good: no operation reaches it again. Before any caller hears
//!   of the failure, an epoch without the member is durable on all others (P7). A caller that sees an operation fail
//!   may go on as soon as the call returns.
//! - Once no request to such a member is under way any more, nothing of its directory stays open or locked.
//! - Members with an older epoch than others are stale: they take part, but nothing on them is taken for the newest
//!   until [`Epochs::admit_stale`].
//! - Opened with [`Access::ReadOnly`], nothing is written, not even a lock. Opened to be written to, only a lock is
//!   written before [`Epochs::begin`]: a volume that turns out not to be usable is left as it was.
//!
//! # Lock order
//!
//! The work lock of [`MemberChanges`], then the state of [`Epochs`], then the locks that are held for a few
//! instructions: a change of [`Membership`], [`StaleCopies`], [`Acknowledged`], the directory locks. Only the first two
//! are held across I/O. The clock of the volume, a commit without space and a rebuild take the second one too. Readers of
//! the membership take no lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::superblock::{LastRecord, Superblock};
use crate::format::{MemberIndex, VolumeId};
use crate::store::{Executor, StoreRef};

mod access;
mod acknowledged;
mod buffered_reader;
mod code_change;
mod content;
mod create;
pub mod directory;
mod directory_locks;
mod draining;
mod epoch_state;
mod epochs;
mod error;
mod fields;
mod fill;
mod health;
mod hedged;
mod io;
mod join;
mod journal_end;
mod lineage;
mod lock;
mod member;
mod open;
mod quorum;
mod reason;
mod remedy;
mod shape;
mod slots;
mod snapshot;
mod stale_copies;
mod status;
mod stripe_code;
mod succession;
mod superblock_recovery;
mod superblock_writer;
mod superblocks;
mod superseded;
mod zeros;

pub use access::Access;
pub use acknowledged::Acknowledged;
pub use create::CreateOptions;
pub use draining::clear;
pub use epochs::Epochs;
pub use error::{Absent, Branch, MembersError};
pub use health::{ErrorClass, ErrorCounts, MemberState, MemberStatus};
pub use hedged::Wait;
pub use io::MemberIo;
pub use join::{Belongings, JoinAs, MemberChanges};
pub use reason::{AbsenceReason, RecoveryObstacle, Unusable};
pub use remedy::{DirectoryChoice, DirectoryStep, Remedy, VolumeStep};
pub use shape::VolumeShape;
pub(crate) use slots::chain;
pub use snapshot::Membership;
pub use stale_copies::{StaleCopies, UnverifiedCopies};
pub use stripe_code::StripeCode;
pub use superblock_recovery::{MissingSuperblocks, RecoveredMembers};
pub use superblocks::VerifiedSuperblocks;

use directory_locks::DirectoryLocks;
use epoch_state::EpochState;
use open::Opening;
use superblocks::Superblocks;

/// The members of an open volume.
#[derive(Debug)]
pub struct Members {
    shape: Arc<VolumeShape>,
    access: Access,
    membership: Arc<Membership>,
    epochs: Arc<Epochs>,
    io: Arc<MemberIo>,
    changes: MemberChanges,
    superblocks: Superblocks,
    stale_copies: Arc<StaleCopies>,
    acknowledged: Arc<Acknowledged>,
    /// The directories that are open and locked; none after [`Members::release`] but those that hang.
    locks: Arc<DirectoryLocks>,
    current_at_open: Vec<MemberIndex>,
    unusable: Vec<Unusable>,
    recovered: BTreeMap<MemberIndex, bool>,
}

impl Members {
    /// Makes a volume of empty directories; `stores[i]` becomes member `i`. It is durable on return.
    ///
    /// Each store gets a superblock and nothing else.
    ///
    /// # Errors
    ///
    /// [`MembersError`] if the options or the directories are not suitable; they are left as they were found, as far as
    /// that is still possible.
    pub fn create(stores: &[StoreRef], options: &CreateOptions) -> Result<VolumeId, MembersError> {
        create::create(stores, options)
    }

    /// Opens the volume that `stores` are members of, in any order.
    ///
    /// Members may be missing, as long as enough are there: `data_shards` of any age and, of those in the newest epoch,
    /// all but `parity_shards` and more than half (or `data_shards`, if that is fewer). For reading only, one of the
    /// newest epoch is enough. Data written while others were away may then be lost. Directories that are empty or
    /// damaged count as missing ([`Members::unusable`]). No superblock is written yet: see [`Epochs::begin`].
    ///
    /// # Errors
    ///
    /// [`MembersError`] if members of several volumes are mixed, or if a directory is given twice, in use, newer than
    /// this build, or not from CauchyFS. The same if too few are left, or if members were mounted apart.
    /// [`MembersError::PartlyInUse`] if the volume can be opened without those that are in use.
    pub fn open(
        stores: Vec<StoreRef>,
        access: Access,
        executor: Arc<Executor>,
    ) -> Result<Arc<Self>, MembersError> {
        Self::open_recovering(stores, &RecoveredMembers::new(), access, executor)
    }

    /// Opens the volume like [`Members::open`], with directories that have lost their superblocks as the members that
    /// `recovered` says they are. [`Epochs::begin`] writes these superblocks again. Those that are not known to be up
    /// to date count as [stale copies](StaleCopies). They are also stale if they lack more than a crash may leave on
    /// some members only.
    ///
    /// # Errors
    ///
    /// As for [`Members::open`], and if the remaining superblocks are from an earlier time than the claimed
    /// directories.
    pub fn open_recovering(
        stores: Vec<StoreRef>,
        recovered: &RecoveredMembers,
        access: Access,
        executor: Arc<Executor>,
    ) -> Result<Arc<Self>, MembersError> {
        let opening = open::open(stores, recovered, access, &executor)?;
        let mut members = Self::compose(opening, access, executor)?;
        let state = members.epochs.lock();
        for member in state.older() {
            members.stale_copies.note(member);
        }
        members.stale_copies.note_recovered(&members.recovered);
        members.note_short_journals(&state);
        let current = state.admitted.iter().copied().collect();
        drop(state);
        members.current_at_open = current;
        Ok(Arc::new(members))
    }

    /// Notes the members behind the newest epoch whose journals end before the last record that they acknowledged.
    fn note_short_journals(&self, state: &EpochState) {
        let mut behind = self.membership.online();
        behind.retain(|index| !state.admitted.contains(index));
        for index in behind {
            let (Some(block), Some(store)) = (state.block(index), self.membership.store(index))
            else {
                continue;
            };
            let executor = self.io.executor();
            match self.acknowledged.ends_early(block, &store, executor) {
                Ok(true) => self.stale_copies.note(index),
                Ok(false) => {}
                Err(error) => tracing::debug!("{error}: its journal is not compared"),
            }
        }
    }

    /// Looks at the members however few they are, to say how they are: [`Members::status`]. There may be
    /// too few to read anything from them.
    ///
    /// # Errors
    ///
    /// As [`Members::open`], but for too few.
    pub fn survey(
        stores: Vec<StoreRef>,
        executor: Arc<Executor>,
    ) -> Result<Arc<Self>, MembersError> {
        let opening = open::survey(stores, &executor)?;
        Self::compose(opening, Access::ReadOnly, executor).map(Arc::new)
    }

    fn compose(
        opening: Opening,
        access: Access,
        executor: Arc<Executor>,
    ) -> Result<Self, MembersError> {
        let shape = Arc::new(VolumeShape::of(&opening.lineage.tip)?);
        let (members, recovered) = (opening.members(), opening.recovered());
        let state = EpochState::new(&opening.lineage);
        let membership = Membership::new(
            (shape.geometry(), shape.survival()),
            members,
            state.published(),
        );
        let membership = Arc::new(membership);
        let acknowledged = Arc::new(Acknowledged::default());
        acknowledged.restore(absent_records(&opening.lineage.tip));
        let stale_copies = Arc::new(StaleCopies::new(access, Arc::clone(&membership)));
        let locks = Arc::new(opening.locks);
        let epochs = Arc::new(Epochs::new(
            Arc::clone(&shape),
            access,
            Arc::clone(&membership),
            Arc::clone(&acknowledged),
            Arc::clone(&executor),
            state,
        ));
        let io = Arc::new(MemberIo::new(
            Arc::clone(&membership),
            Arc::clone(&epochs),
            Arc::clone(&executor),
        ));
        let superblocks = Superblocks::new(
            access,
            Arc::clone(&membership),
            Arc::clone(&epochs),
            Arc::clone(&io),
            Arc::clone(&locks),
        );
        let changes = MemberChanges::new(
            Arc::clone(&shape),
            executor,
            Arc::clone(&membership),
            Arc::clone(&epochs),
            Arc::clone(&stale_copies),
            Arc::clone(&acknowledged),
            Arc::clone(&locks),
        );
        Ok(Self {
            shape,
            access,
            membership,
            epochs,
            io,
            changes,
            superblocks,
            stale_copies,
            acknowledged,
            locks,
            current_at_open: Vec::new(),
            unusable: opening.unusable,
            recovered,
        })
    }

    /// Asks every live member whether its directory is still there. Marks those absent whose directory is gone, and
    /// those that owe an answer for too long. Releases the directories of members that are absent.
    pub fn probe(&self) {
        self.io.probe();
        self.superblocks.note_deleted();
        self.release_absent();
    }

    /// Releases the directories of failed and replaced members, if no request to them is under way any more.
    fn release_absent(&self) {
        let state = self.epochs.lock();
        let may_go = || self.epochs.is_loss_durable(&state);
        let unused = self.locks.take_unused(self.io.executor(), may_go);
        drop(state);
        // This may take a moment.
        drop(unused);
    }

    /// Reads both slots of the superblock of every member in the epoch, and rewrites those that are wrong. One slot of
    /// each is right at any moment, unless another program deleted it. Then it is created again from the last one
    /// written to it.
    pub fn verify_superblocks(&self) -> VerifiedSuperblocks {
        // A member whose directory was deleted still answers as long as it is open.
        self.probe();
        self.superblocks.verify()
    }

    /// Keeps everything from the directories from now on. They stay locked until [`Self::release`].
    pub fn sever(&self) {
        self.membership.set_released();
    }

    /// Releases the directories: nothing reaches them from now on, and others may use them. A directory on which an
    /// operation hangs stays locked until this process ends, because the operation may still take effect. The process
    /// cannot end before the operation does. Returns the paths of these.
    pub fn release(&self) -> Vec<String> {
        self.membership.set_released();
        self.locks.release_all(self.io.executor())
    }

    /// Returns the properties of the volume that never change.
    #[must_use]
    pub fn shape(&self) -> &VolumeShape {
        &self.shape
    }

    /// Returns the access for which the volume was opened.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the present membership: the members, and which of them are online.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the epochs, which make changes of the membership durable.
    #[must_use]
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Returns the operations on members.
    #[must_use]
    pub fn io(&self) -> &MemberIo {
        &self.io
    }

    /// Returns the changes of the set of members: joining, draining and removal.
    #[must_use]
    pub fn changes(&self) -> &MemberChanges {
        &self.changes
    }

    /// Returns the stale copies among the members.
    #[must_use]
    pub fn stale_copies(&self) -> &StaleCopies {
        &self.stale_copies
    }

    /// Returns the journal records that each member acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> &Acknowledged {
        &self.acknowledged
    }

    /// Returns the members that were up to date when the volume was opened: recovery may trust them to have the newest
    /// index and journal.
    #[must_use]
    pub fn current_at_open(&self) -> Vec<MemberIndex> {
        self.current_at_open.clone()
    }

    /// Returns the directories that were given to [`Members::open`], but are left out.
    #[must_use]
    pub fn unusable(&self) -> &[Unusable] {
        &self.unusable
    }

    /// Returns the members whose superblocks were recovered, and whether each is known to be up to date.
    #[must_use]
    pub fn recovered(&self) -> &BTreeMap<MemberIndex, bool> {
        &self.recovered
    }
}

/// Returns the last record that each member acknowledged which the newest epoch does not have.
fn absent_records(tip: &Superblock) -> BTreeMap<MemberIndex, LastRecord> {
    let is_absent = |index: &MemberIndex| {
        let entry = tip.members.get(usize::from(index.0));
        entry.is_some_and(|entry| !entry.current && !entry.is_vacant())
    };
    let mut records = tip.last_records();
    records.retain(|index, _| is_absent(index));
    records
}

#[cfg(test)]
mod tests;
