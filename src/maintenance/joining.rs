//! Directories that join a volume while it is open.
//!
//! A directory that joins takes part at once, but is stale: earlier changes are only in the journals of the others. It
//! enters the epoch once the index has all its copies, and its own journal has every record that the index may lack. A
//! checkpoint brings earlier records into the index; it may take two while others commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::reaper::Reaper;
use super::recheck::Recheck;
use super::stale_copies::StaleCopies;
use crate::format::MemberIndex;
use crate::membership::{Belongings, JoinAs, Members, MembersError};
use crate::metadata::{IndexReplicas, Meta};
use crate::store::StoreRef;
use crate::stripes::Stripes;
use crate::transaction::catalog::Catalog;
use crate::transaction::commits::Commits;
use crate::transaction::{CommitError, MAX_REFILLED_AT_CLOSE};

/// Joining of directories, new and returned.
pub struct Joining {
    pub(super) members: Arc<Members>,
    pub(super) meta: Arc<Meta>,
    pub(super) replicas: Arc<IndexReplicas>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) commits: Arc<Commits>,
    pub(super) reaper: Arc<Reaper>,
    pub(super) stale_copies: Arc<StaleCopies>,
    pub(super) recheck: Arc<Recheck>,
    /// The number of calls that add a member.
    pub(super) adding: AtomicUsize,
}

impl Joining {
    /// Takes a directory into the volume. It has no shards yet, or lacks some, which a rebuild brings. Succeeds also
    /// for the directory of a member that came back by itself meanwhile.
    ///
    /// # Errors
    ///
    /// [`CommitError::Members`] if the directory is not suitable, or the place is not free; [`CommitError::NoSpace`]
    /// while the index has no room for its own needs; else as for [`Commits::sync`].
    pub fn join(&self, seat: JoinAs, store: &StoreRef) -> Result<MemberIndex, CommitError> {
        let joined = self.take_in(seat, store);
        if let Err(CommitError::Members(error)) = &joined
            && let MembersError::OwnMember { index, .. } = **error
            && seat == JoinAs::InPlaceOf(index)
        {
            return Ok(index);
        }
        joined
    }

    fn take_in(&self, seat: JoinAs, store: &StoreRef) -> Result<MemberIndex, CommitError> {
        self.commits.check_writable()?;
        // A refused directory costs nothing, because it may come again and again.
        self.members.changes().check(seat, store)?;
        self.forget_gone_copies()?;
        let mut segments: BTreeMap<MemberIndex, BTreeMap<_, _>> = BTreeMap::new();
        for (id, segment) in self.stripes.segments().records() {
            for member in segment.slots.iter().flatten() {
                segments.entry(*member).or_default().insert(id, segment.len);
            }
        }
        let belongings = Belongings {
            journal_bytes: self.meta.journal_file_bytes()?,
            segments,
        };
        if seat == JoinAs::Returning {
            // Changes it has not made durable count as lost, and nothing tells so once it is back.
            self.commits.sync()?;
        }
        if self.members.changes().note_stale_copy(seat, store)? {
            // Before its journal, which proves this, is created again.
            self.stale_copies.note()?;
            self.commits.sync()?;
        }
        // Bytes that members were too few for stay where they are until then. One that replaces another adds no member.
        let adds_one = seat == JoinAs::New;
        let _kept = adds_one.then(|| self.catalog.keep_rewrite_orders());
        let _adding = adds_one.then(|| self.count_adding());
        if adds_one {
            // Others that are being added may come first, and a crash may follow.
            let adding = self.adding.load(Ordering::SeqCst);
            if self.order_rewrite_for(self.members.membership().count() + adding)? {
                self.commits.sync_if_there_is_space()?;
            }
        }
        let index = self
            .members
            .changes()
            .join(seat, store, &belongings, |index, strays| {
                if self
                    .members
                    .stale_copies()
                    .unverified()
                    .contains_key(&index)
                {
                    // Before its contents count for anything.
                    self.stale_copies.note()?;
                    self.commits.sync()?;
                }
                // Held until it takes part: a segment may move there from then on.
                let mut reaper = self.reaper.lock();
                for segment in strays {
                    reaper.abandon_file(self.commits.group.next(), segment, index);
                }
                // Before it takes part: a rebuild that misses it must start over. A refused one does not count.
                self.commits.arrivals.note();
                Ok::<_, CommitError>(reaper)
            })?;
        self.stripes.forget_member(index);
        self.stale_copies.may_verify_more();
        self.recheck.make_due();
        // Stripes that died while it was away still take space there.
        self.reaper.lock().audit_again();
        // A member that replaces it has no stale data.
        self.stale_copies.note()?;
        if adds_one {
            // A rebuild that looked before can end the first order only. A checkpoint may find no space although a sync does.
            if self.order_rewrite_for(self.members.membership().count())? {
                self.commits.sync_if_there_is_space()?;
            }
        }
        // The member takes part by now. Without space for a checkpoint, it is admitted later.
        match self.commits.checkpoint() {
            Ok(()) => drop(self.commits.refill_index(MAX_REFILLED_AT_CLOSE)?),
            Err(CommitError::NoSpace) => {
                tracing::warn!(journal.member = %index, "member {index} waits for space in the index");
            }
            Err(error) => return Err(error),
        }
        Ok(index)
    }

    /// Counts a call that adds a member until the guard is dropped.
    pub(super) fn count_adding(&self) -> impl Drop + '_ {
        self.adding.fetch_add(1, Ordering::SeqCst);
        scopeguard::guard((), |()| {
            self.adding.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Has files rewritten if so many members suffice for a code of directories. Returns whether they do.
    fn order_rewrite_for(&self, members: usize) -> Result<bool, CommitError> {
        let classes = self.stripes.classes();
        self.catalog.order_rewrite_up_to_width(classes, members)
    }

    /// Removes absent members from the holders of copies of the index. A member that takes the place of one must not be
    /// expected to have its copy.
    fn forget_gone_copies(&self) -> Result<(), CommitError> {
        let is_gone = |live: &[MemberIndex]| {
            let holders = self.replicas.holders();
            holders.iter().any(|holder| !live.contains(holder))
        };
        self.replicas.refill()?;
        if is_gone(&self.members.membership().live()) {
            // The member went during a write to the index: only a commit decides which state the others have.
            self.commits.checkpoint()?;
            self.replicas.refill()?;
        }
        if is_gone(&self.members.membership().live()) {
            return Err(CommitError::NoSpace);
        }
        Ok(())
    }
}
