//! Draining of members: their shards move to others, and then they are removed.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::reaper::Reaper;
use crate::codec::{CodeId, Geometry};
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId, StripeClass};
use crate::membership::{Members, MembersError};
use crate::metadata::IndexReplicas;
use crate::stripes::Stripes;
use crate::transaction::catalog::Catalog;
use crate::transaction::commits::Commits;
use crate::transaction::{CommitError, MAX_REFILLED_AT_CLOSE};

/// Draining and removal of members.
pub struct Draining {
    members: Arc<Members>,
    replicas: Arc<IndexReplicas>,
    stripes: Arc<Stripes>,
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    reaper: Arc<Reaper>,
    /// Work lock: held while a draining begins, and while a directory is given a code.
    beginning: Mutex<()>,
}

impl Draining {
    pub(super) fn new(
        members: Arc<Members>,
        replicas: Arc<IndexReplicas>,
        stripes: Arc<Stripes>,
        catalog: Arc<Catalog>,
        commits: Arc<Commits>,
        reaper: Arc<Reaper>,
    ) -> Self {
        Self {
            members,
            replicas,
            stripes,
            catalog,
            commits,
            reaper,
            beginning: Mutex::default(),
        }
    }

    /// Keeps others from beginning to drain a member, while a directory is given a code that may need it.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.beginning.lock()
    }

    /// Returns whether others are kept from beginning to drain a member.
    #[cfg(test)]
    pub(crate) fn is_held(&self) -> bool {
        self.beginning.is_locked()
    }

    /// Marks a member as draining, so that it can be removed. A rebuild of everything must follow, which moves its
    /// shards and removes it.
    ///
    /// # Errors
    ///
    /// The member stays, as far as `Membership::draining` does not say otherwise. [`CommitError::Members`] if the
    /// others would be too few; [`CommitError::NoSpace`] if they have too little room; else as for [`Commits::sync`].
    pub fn drain(&self, member: MemberIndex) -> Result<(), CommitError> {
        self.begin(member, None)
    }

    /// Marks a member as draining like [`Self::drain`]. Its shards move to the member `new`, as far as that has room,
    /// also after a restart. As many members stay as before the other came, so codes of directories are no obstacle.
    ///
    /// # Errors
    ///
    /// As for [`Self::drain`].
    pub fn drain_to(&self, old: MemberIndex, new: MemberIndex) -> Result<(), CommitError> {
        self.begin(old, Some(new))
    }

    fn begin(&self, member: MemberIndex, heir: Option<MemberIndex>) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        // A replacement waits for no directory that is given a code.
        let _one_at_a_time = heir.is_none().then(|| self.hold());
        let membership = self.members.membership();
        if heir.is_some() {
            let others = membership.staying().into_iter();
            let staying = others.filter(|other| *other != member).count();
            self.check_staying(member, staying, None)?;
        } else {
            // One that came to replace another takes its place, and that of no third one.
            let staying = membership.count_lasting(Some(member));
            let replaced = membership.yet_to_be_replaced(Some(member));
            self.check_staying(member, staying, replaced)?;
            self.check_directories(member, staying)?;
        }
        if !self.has_room_without(member) {
            self.reaper.free_dead()?;
            if !self.has_room_without(member) {
                return Err(CommitError::NoSpace);
            }
        }
        let was_draining = self.members.membership().draining().contains(&member);
        match heir {
            Some(heir) => self.members.changes().set_draining_to(member, heir)?,
            None => self.members.changes().set_draining(member, true)?,
        }
        let retired = self
            .stripes
            .writer()
            .retire_segments()
            .map_err(CommitError::from);
        let begun = retired.and_then(|()| self.commits.sync());
        if begun.is_err()
            && !was_draining
            // One that came to replace it stays its heir: the same command goes on, or `keep` gives the order.
            && let Err(error) = self.members.changes().undo_draining(member)
        {
            tracing::warn!(
                journal.member = %member, "member {member} stays draining although that was to be undone: {error}"
            );
        }
        begun
    }

    /// Returns whether a member replaces another, or came to do so, and is not being drained itself.
    #[must_use]
    pub fn is_replaced_by(&self, old: MemberIndex, new: MemberIndex) -> bool {
        let is_draining = self.members.membership().draining().contains(&new);
        self.members.membership().heir_of(old) == Some(new) && !is_draining
    }

    /// Returns whether there is anything to keep a member from: it is drained or, if `alone`, another has come to replace it.
    /// That its draining never began makes no difference.
    #[must_use]
    pub fn can_be_kept(&self, member: MemberIndex, alone: bool) -> bool {
        let membership = self.members.membership();
        membership.draining().contains(&member) || alone && membership.heir_of(member).is_some()
    }

    /// Keeps a draining member. Moved shards stay where they are, and nothing else moves as a rule. If another has come to
    /// replace this one, members may suffice for a code of directories again.
    ///
    /// # Errors
    ///
    /// [`CommitError::Members`] if there is no such member, or no epoch can be begun; else as for [`Commits::sync`].
    pub fn keep(&self, member: MemberIndex) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        let membership = self.members.membership();
        let is_replaced = membership.heir_of(member).is_some();
        let order = || {
            let classes = self.stripes.classes();
            self.catalog
                .order_rewrite_up_to_width(classes, membership.count())
        };
        let _kept = is_replaced.then(|| self.catalog.keep_rewrite_orders());
        // The other stays as well. That is forgotten once the member is kept, and nothing would give the order later.
        if is_replaced && order()? {
            self.commits.sync_if_there_is_space()?;
        }
        self.members.changes().set_draining(member, false)?;
        if is_replaced {
            // A rebuild that looked before can end the first order only. Each is durable at once if there is space for it.
            order()?;
            self.commits.sync_if_there_is_space()?;
        }
        Ok(())
    }

    /// Checks whether a member that is there can be drained once another has come in its place. As many stay then as
    /// before. Members that are too few for a code of directories already do not keep one that fails from being replaced.
    ///
    /// # Errors
    ///
    /// [`CommitError::Members`] if the members would be too few for the code of the volume.
    pub fn check_replaceable(&self, index: MemberIndex) -> Result<(), CommitError> {
        // The new one makes up for the old.
        let staying = self.members.membership().staying().len();
        self.check_staying(index, staying, None)
    }

    /// Refuses to drain a member if so many others are too few for stripes of the volume. `replaced` is not among them, because
    /// another has come to replace it.
    fn check_staying(
        &self,
        index: MemberIndex,
        staying: usize,
        replaced: Option<MemberIndex>,
    ) -> Result<(), CommitError> {
        let needed = self.members.shape().geometry().total_shards();
        if staying < needed {
            return Err(MembersError::TooFewLeft {
                index,
                staying,
                needed,
                replaced,
            }
            .into());
        }
        Ok(())
    }

    /// Refuses to drain a member if so many others are too few for a code of directories, or for stripes of one. Frees
    /// those that are dead before.
    fn check_directories(&self, index: MemberIndex, staying: usize) -> Result<(), CommitError> {
        self.check_width(index, staying, self.widest_named(staying)?)?;
        let written = self.check_width(index, staying, self.widest_written()?);
        if written.is_ok() {
            return Ok(());
        }
        self.stripes.writer().retire_segments()?;
        // Segments without stripes go with the second call, once it is durable that the stripes are gone.
        for _ in 0..2 {
            self.commits.sync()?;
            self.reaper.free_dead()?;
        }
        self.check_width(index, staying, self.widest_written()?)
    }

    /// Refuses to drain a member if so many others are too few for stripes of a code of directories.
    fn check_width(
        &self,
        index: MemberIndex,
        staying: usize,
        widest: Option<Wide>,
    ) -> Result<(), CommitError> {
        match widest {
            Some((geometry, code)) if staying < geometry.total_shards() => {
                let mut away = self.members.membership().away().into_iter();
                Err(MembersError::TooFewLeftForDirectories {
                    index,
                    staying,
                    geometry,
                    code,
                    away: away.next().map(|(member, _)| member),
                    replaced: self.members.membership().yet_to_be_replaced(Some(index)),
                }
                .into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the code of the widest stripes that were written for directories.
    fn widest_written(&self) -> Result<Option<Wide>, CommitError> {
        let records = self.stripes.segments().records().into_iter();
        let of_directories = records.filter(|(_, it)| it.class != StripeClass::VOLUME);
        let widest = of_directories.max_by_key(|(_, it)| it.total_shards());
        let code = |(_, it): (SegmentId, Segment)| -> Result<Wide, CommitError> {
            let geometry = Geometry::new(it.data_shards.into(), it.parity_shards.into())?;
            Ok((geometry, CodeId(it.code)))
        };
        widest.map(code).transpose()
    }

    /// Returns the widest code that a directory names for what is made in it, if it needs more members than these.
    fn widest_named(&self, members: usize) -> Result<Option<Wide>, CommitError> {
        let mut wide = self.stripes.classes().of_directories();
        wide.retain(|code| code.geometry().total_shards() > members);
        if wide.is_empty() {
            return Ok(None);
        }
        let classes: BTreeSet<_> = wide.iter().map(|code| code.class()).collect();
        let named = self.catalog.named_by_directories(&classes)?;
        let codes = wide.iter().filter(|code| named.contains(&code.class()));
        let codes = codes.map(|code| (code.geometry(), code.code()));
        Ok(codes.max_by_key(|(geometry, _)| geometry.total_shards()))
    }

    /// Returns whether the other members have room for the data of one.
    fn has_room_without(&self, member: MemberIndex) -> bool {
        let loads = self.stripes.space().loads();
        let taken = loads.get(&member).map_or(0, |load| load.taken);
        let others = loads.iter().filter(|(other, _)| **other != member);
        let room: u64 = others.map(|(_, load)| load.available).sum();
        room >= taken
    }

    /// Removes the draining members that are empty by now.
    pub(super) fn remove_empty_members(&self) -> Result<(), CommitError> {
        for member in self.members.membership().draining() {
            let names_it =
                |(_, segment): &(SegmentId, Segment)| segment.slots.contains(&Some(member));
            if self.stripes.segments().records().iter().any(names_it) {
                continue;
            }
            // Its copy of the index is needed until another member has one in its place.
            self.commits.refill_index(MAX_REFILLED_AT_CLOSE)?;
            if self.replicas.holders().contains(&member) {
                tracing::warn!(
                    journal.member = %member, "member {member} stays: no other has room for the copy of the index that it has"
                );
                continue;
            }
            let store = self.members.membership().store(member);
            if !self.members.changes().remove_drained(member)? {
                // The member is kept after all, and it may have something new already.
                continue;
            }
            self.stripes.forget_member(member);
            if let Some(store) = store {
                self.members.changes().clear(&store);
            }
            tracing::info!(journal.member = %member, "member {member} is removed");
        }
        Ok(())
    }
}

/// The code of the widest stripes that a draining must leave members for.
type Wide = (Geometry, CodeId);
