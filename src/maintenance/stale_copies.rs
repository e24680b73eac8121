//! Stale copies among the members, and which of them a scrub verifies.
//!
//! A scrub verifies the stale copies that were known when it began and took part until its end. It must have been able
//! to read all that they should hold. A member that comes, or comes back, has another number from then on. The record
//! of the scrub names all members that are not verified yet; a scrub that does not cover them all is begun again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::format::record::Scrub;
use crate::format::{MemberIndex, Record, SegmentId, key};
use crate::membership::{Members, UnverifiedCopies};
use crate::metadata::{Batch, Meta};
use crate::stripes::Stripes;
use crate::transaction::CommitError;
use crate::transaction::commits::Commits;

/// The pause before a scrub is begun again by itself after it could not verify a member.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);

/// The shards that a scrub could not verify.
#[derive(Debug)]
pub(super) struct Unread {
    /// The number of shards by the online member that holds them.
    pub(super) by_member: BTreeMap<MemberIndex, u64>,
    /// The number of further shards, whose members are not known.
    pub(super) of_unknown: u64,
}

/// The stale copies among the members, and the record of the scrub that verifies them.
pub struct StaleCopies {
    members: Arc<Members>,
    meta: Arc<Meta>,
    stripes: Arc<Stripes>,
    commits: Arc<Commits>,
    /// The stale copies known before the begin of the scrub that is not through. Held while its record changes.
    covered: Mutex<UnverifiedCopies>,
    /// Those of them that the last scrub which went through could not verify.
    left: Mutex<UnverifiedCopies>,
}

impl StaleCopies {
    pub(super) fn new(
        members: Arc<Members>,
        meta: Arc<Meta>,
        stripes: Arc<Stripes>,
        commits: Arc<Commits>,
    ) -> Self {
        Self {
            members,
            meta,
            stripes,
            commits,
            covered: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Returns the record of the scrub that runs, or ran last.
    pub(super) fn last_scrub(&self) -> Result<Option<Scrub>, CommitError> {
        let found = self.meta.get(&key::scrub())?;
        Ok(found.map(|value| Scrub::decode(&value)).transpose()?)
    }

    /// Restores the stale copies known before the volume was opened, from the last scrub's record. Call it once the
    /// volume is open, and before stale members are taken into the epoch. Notes also the stale copies found since,
    /// which the next commit makes durable.
    pub(super) fn restore(&self) -> Result<(), CommitError> {
        let Some(last) = self.last_scrub()? else {
            return self.note();
        };
        let new = self.members.stale_copies().unverified();
        self.members.stale_copies().restore(last.named());
        // A stale member was absent for some time.
        let stale = self.members.epochs().stale();
        let mut covered = self.members.stale_copies().unverified();
        covered.retain(|member, _| !new.contains_key(member) && !stale.contains(member));
        *self.covered.lock() = covered;
        self.note()
    }

    /// Notes the members that are not verified, if they differ from those in the last scrub's record. The next commit
    /// makes the note durable.
    pub(super) fn note(&self) -> Result<(), CommitError> {
        if self.commits.is_read_only() {
            return Ok(());
        }
        let covered = self.covered.lock();
        let unverified = self.members.stale_copies().unverified();
        let last = self.last_scrub()?.unwrap_or_default();
        if covers(&covered, &unverified) && last.named().eq(unverified.keys().copied()) {
            return Ok(());
        }
        self.put_scrub(&last, &covered, &unverified)
    }

    /// Asks every member whether its directory is there and its journal holds what it acknowledged. Takes members
    /// without their directory out of the epoch, and those without their records as well; the latter have to be
    /// verified.
    ///
    /// # Errors
    ///
    /// If it cannot be noted which members are to be verified. They leave the epoch all the same.
    pub fn probe(&self) -> Result<(), CommitError> {
        self.members.probe();
        let doubtful = self.meta.members_without_records();
        if doubtful.is_empty() {
            return Ok(());
        }
        for member in &doubtful {
            self.members.stale_copies().note(*member);
        }
        // Before an epoch without them is durable, because their journals are not compared any more after that.
        let noted = self.note().and_then(|()| self.commits.sync());
        for member in &doubtful {
            self.members.io().fail_stale_copy(*member);
        }
        noted
    }

    /// Returns the scrub to continue: the last one, unless that went through or has just begun. It begins again if a
    /// stale copy came since, because its verification may not hold any more. `take_cut_off` returns the position of a scrub
    /// that ended with an error. Calls `begin` if the scrub begins again.
    pub(super) fn scrub_to_continue(
        &self,
        take_cut_off: impl FnOnce() -> Option<Scrub>,
        begin: impl FnOnce(),
    ) -> Result<Scrub, CommitError> {
        let mut covered = self.covered.lock();
        let unverified = self.members.stale_copies().unverified();
        let last = self.last_scrub()?;
        let cut_off = take_cut_off();
        let goes_on = |last: &Scrub| {
            let has_begun = (last.segment, last.offset) > (SegmentId(0), 0);
            !last.is_finished && has_begun && covers(&covered, &unverified)
        };
        let further = |last: Scrub| {
            let cut_off = cut_off.filter(|scrub| scrub.began == last.began);
            cut_off.unwrap_or(last)
        };
        if let Some(last) = last.filter(goes_on).map(further).filter(goes_on) {
            return Ok(last);
        }
        let scrub = self.new_scrub(&last.unwrap_or_default());
        self.put_scrub(&scrub, &unverified, &unverified)?;
        begin();
        *covered = unverified;
        Ok(scrub)
    }

    /// Notes the position of a scrub. Notes that it has to begin again if it does not cover all members that have to be
    /// verified.
    pub(super) fn note_scrub(&self, scrub: &Scrub) -> Result<(), CommitError> {
        let covered = self.covered.lock();
        self.put_scrub(scrub, &covered, &self.members.stale_copies().unverified())
    }

    /// Marks the members verified that took part in a whole scrub. Leaves out those that could not be read in full, and
    /// all of them if an unread shard has no known member.
    ///
    /// `left_unread` is asked after the online members are. So a member that comes online in between is not taken for
    /// one that was read in full.
    pub(super) fn set_verified(&self, left_unread: impl FnOnce() -> Unread) {
        let live = self.members.membership().live();
        let mut verified = self.covered.lock().clone();
        verified.retain(|member, _| live.contains(member));
        if verified.is_empty() {
            return;
        }
        let Unread {
            by_member: unread,
            of_unknown,
        } = left_unread();
        let is_left = |member: &MemberIndex| of_unknown > 0 || unread.contains_key(member);
        let (left, verified): (UnverifiedCopies, UnverifiedCopies) = verified
            .into_iter()
            .partition(|(member, _)| is_left(member));
        for member in left.keys() {
            let shards = unread
                .get(member)
                .copied()
                .unwrap_or_default()
                .max(of_unknown);
            let path = self.members.membership().path(*member);
            tracing::warn!(
                journal.member = %member, "member {member} ({path}) is not verified: {shards} shards could not be read, or not be held against any \
                 checksum; what it holds counts once a further scrub could do that"
            );
        }
        self.members.stale_copies().set_verified(&verified);
        // The next scrub knows the members of all shards that it cannot read.
        *self.left.lock() = left
            .into_iter()
            .filter(|(member, _)| unread.contains_key(member))
            .collect();
    }

    /// Forgets what a scrub could not verify: it may succeed now, because a member is back, or its shards were rebuilt.
    pub(super) fn may_verify_more(&self) {
        self.left.lock().clear();
    }

    /// Returns whether a scrub has to verify an online stale copy. If the last scrub could not verify it, the next try
    /// waits for a while, or until a member is back or was rebuilt.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn is_verification_due(&self) -> Result<bool, CommitError> {
        let live = self.members.membership().live();
        let mut due = self.members.stale_copies().unverified();
        due.retain(|member, _| live.contains(member));
        let left = self.left.lock().clone();
        if due.is_empty() || !covers(&left, &due) {
            return Ok(!due.is_empty());
        }
        let last = self.last_scrub()?.unwrap_or_default().last_finished;
        Ok(now().saturating_sub(last) >= TRY_AGAIN_AFTER.as_secs())
    }

    fn put_scrub(
        &self,
        scrub: &Scrub,
        covered: &UnverifiedCopies,
        unverified: &UnverifiedCopies,
    ) -> Result<(), CommitError> {
        let noted = if scrub.is_finished || covers(covered, unverified) {
            *scrub
        } else {
            self.new_scrub(scrub)
        };
        let noted = noted.naming(unverified.keys().copied());
        let mut batch = Batch::default();
        batch.put(key::scrub(), noted.encode());
        Ok(self.meta.apply(batch)?)
    }

    /// Returns a scrub of all that there is now.
    fn new_scrub(&self, last: &Scrub) -> Scrub {
        let newest = self
            .stripes
            .segments()
            .records()
            .into_iter()
            .map(|(id, _)| id.0)
            .max();
        Scrub {
            end: SegmentId(newest.map_or(0, |newest| newest.saturating_add(1))),
            began: now(),
            last_finished: last.last_finished,
            ..Scrub::default()
        }
    }
}

/// Returns whether a scrub that covers some verifies all of `unverified`, unless they go meanwhile.
fn covers(covered: &UnverifiedCopies, unverified: &UnverifiedCopies) -> bool {
    unverified
        .iter()
        .all(|(member, number)| covered.get(member) == Some(number))
}

/// Returns the seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
