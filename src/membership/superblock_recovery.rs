//! Directories that have lost their superblocks, and the evidence left in them that tells which they are.
//!
//! The other superblocks hold all that a lost one said of the volume. The shards of the directory show which member it
//! is; the layers above know them, and say so by a *claim*, and the superblock is created again. No superblock notes
//! whether the directory is up to date. It is taken to be under two conditions:
//!
//! - The newest epoch says so of that member.
//! - Its journal ends where the journals of current members end, in an epoch that they know. Every acknowledged change
//!   is on all members of the epoch before its caller hears of it. So a member left out of the epoch lacks some
//!   changes, unless nothing was changed since. A crash may leave one record more on some members than on others. A
//!   member with that record is up to date, and so is one without. The latter may be a copy from just before, and is
//!   verified.
//!
//! Otherwise it counts as a stale copy: it is brought up to date, and all that it holds is verified before it counts.
//! If its journal or copy of the index goes beyond those of all current members, the superblocks are the stale ones. No
//! superblock is made from them then.
//!
//! With no more data shards than parity shards, a volume can have gone on as two branches. A member that was left out of
//! the epoch then looks like one that left out others. So a directory becomes a member only if it is up to date. One
//! that has lost its superblock and may know more keeps the others from going on without it. The order is clear in one
//! case: all members are online, and no remaining superblock is of an epoch without one of the members that lost
//! theirs. The directory that knows more has gone on then, with all others that know as much, and begins a new epoch.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::access::Access;
use super::error::MembersError;
use super::fields::nonce;
use super::journal_end::{age, newest_record};
use super::lineage::{FoundMember, Lineage, Origin, Standing, trace};
use super::reason::{AbsenceReason, RecoveryObstacle, Unusable};
use super::slots::{Look, chain, look};
use crate::format::frame::{HEAD_BYTES, Head};
use crate::format::journal::RecordHeader;
use crate::format::superblock::{EpochMark, LastSeen, MAX_HISTORY, Superblock};
use crate::format::{Epoch, Generation, MemberId, MemberIndex, VolumeId, files};
use crate::store::{Executor, Pool, Store, StoreError, StoreRef};

/// The members whose superblocks are to be recovered, by the paths of their directories.
pub type RecoveredMembers = BTreeMap<String, MemberIndex>;

/// Directories that have lost their superblocks.
#[derive(Clone, Debug, Default)]
pub struct MissingSuperblocks {
    /// Those that may be members.
    pub stores: Vec<StoreRef>,
    /// Of these, the ones in which nothing names the volume.
    pub nameless: Vec<String>,
    /// An assignment with which the index can be read, right or wrong.
    pub guess: RecoveredMembers,
    /// Of these, the ones with a copy of the index that may count, as one of `copies`.
    pub holders: BTreeSet<String>,
    /// The absent members whose copies of the index count.
    pub copies: BTreeSet<MemberIndex>,
    /// The members that are not there, and where they were last.
    pub absent: BTreeMap<MemberIndex, String>,
    /// Those that cannot be members, and why.
    pub others: Vec<Unusable>,
}

/// The evidence from files in a directory, beside the superblock.
#[derive(Debug)]
struct Traces {
    /// The newest record of its journal.
    record: Option<RecordHeader>,
    /// The newest head of its copy of the index.
    head: Option<Head>,
}

impl Traces {
    /// # Errors
    ///
    /// If an existing file cannot be read: its contents might change everything.
    fn of(store: &StoreRef, executor: &Executor) -> Result<Self, StoreError> {
        Ok(Self {
            record: newest_record(store, executor, u64::MAX)?,
            head: executor.call(store, "read the index", newest_head)?,
        })
    }

    /// Returns the volume that they name; none if they name none.
    fn volume(&self) -> Option<VolumeId> {
        let record = self.record.map(|record| record.volume);
        record.or(self.head.as_ref().map(|head| head.volume))
    }

    /// Returns those of one volume only.
    fn of_volume(self, volume: VolumeId) -> Self {
        Self {
            record: self.record.filter(|record| record.volume == volume),
            head: self.head.filter(|head| head.volume == volume),
        }
    }
}

impl MissingSuperblocks {
    /// Looks for directories that have lost their superblocks, where others of the volume have theirs.
    ///
    /// # Errors
    ///
    /// As for [`Members::survey`](super::Members::survey).
    pub fn find(
        stores: &[StoreRef],
        executor: &Executor,
    ) -> Result<MissingSuperblocks, MembersError> {
        let mut found = Vec::new();
        let mut lost = Vec::new();
        let mut unusable = Vec::new();
        for (store, look) in stores.iter().zip(look(stores, executor)?) {
            let store = StoreRef::clone(store);
            match look {
                Look::Member(block) => found.push(FoundMember::read(store, *block)),
                Look::Unusable(reason) if reason.is_missing_superblock() => lost.push(store),
                Look::Unusable(_) => {}
            }
        }
        if lost.is_empty() || found.is_empty() {
            return Ok(MissingSuperblocks::default());
        }
        let lineage = trace(found, &mut unusable)?;
        let entries = (0..).map(MemberIndex).zip(&lineage.tip.members);
        let away = entries
            .filter(|(index, entry)| !entry.is_vacant() && !lineage.present.contains_key(index));
        let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let mut missing = MissingSuperblocks {
            absent: away
                .map(|(index, entry)| (index, path(&entry.path)))
                .collect(),
            ..MissingSuperblocks::default()
        };
        let tip = &lineage.tip;
        let reference = Reference::of(lineage.present.values(), tip, executor);
        let look = |store: StoreRef| {
            let traces = Traces::of(&store, executor);
            (store, traces)
        };
        let lost: Vec<_> = lost.into_iter().map(look).collect();
        let of_lost = lost.iter().filter_map(|(_, traces)| traces.as_ref().ok());
        let leads = reference.leader(tip, &ids(lineage.present.values()), of_lost);
        let suffices = lineage.check_sufficient(Access::ReadWrite, &[], || false);
        let is_stray = |traces: &Traces| {
            suffices.is_ok() && !reference.may_be_parted && reference.is_behind(traces)
        };
        let mut candidates = Vec::with_capacity(lost.len());
        for (store, traces) in lost {
            let is_other = |traces: &Traces| traces.volume().is_some_and(|it| it != tip.volume);
            let candidate = match traces {
                Err(error) => Err(RecoveryObstacle::Unreadable {
                    detail: chain(&error),
                }),
                Ok(traces) if is_other(&traces) => Ok(traces),
                Ok(traces) if leads.is_none() && reference.is_doubtful(&traces) => {
                    Err(RecoveryObstacle::MayHaveGoneOn)
                }
                Ok(traces) if is_stray(&traces) => Err(RecoveryObstacle::WentOn),
                Ok(traces) => Ok(traces),
            };
            match candidate {
                Ok(traces) => candidates.push((store, traces)),
                Err(obstacle) => {
                    let path = store.label();
                    let other = Unusable::without_recovery(path, obstacle);
                    missing.others.push(other);
                }
            }
        }
        missing.guess(tip.volume, reference.head.as_ref(), candidates);
        Ok(missing)
    }

    /// Gives each directory a place. A directory with a copy of the index, the newest first, gets one of the places
    /// named by the newest head of all. No copy counts anywhere else. The others get their last place, or else any.
    fn guess(&mut self, volume: VolumeId, newest: Option<&Head>, lost: Vec<(StoreRef, Traces)>) {
        let mut with_index: Vec<(String, u64)> = Vec::new();
        let mut without = Vec::new();
        let mut heads = Vec::from_iter(newest.cloned());
        for (store, traces) in lost {
            let path = store.label();
            if traces.volume().is_some_and(|named| named != volume) {
                let reason = AbsenceReason::ContentOfOtherVolume;
                self.others.push(Unusable { path, reason });
                continue;
            }
            if traces.volume().is_none() {
                self.nameless.push(path.clone());
            }
            self.stores.push(store);
            match traces.of_volume(volume).head {
                Some(head) => {
                    with_index.push((path, head.sequence));
                    heads.push(head);
                }
                None => without.push(path),
            }
        }
        with_index.sort_by_key(|(_, sequence)| Reverse(*sequence));
        let newest = heads.iter().max_by_key(|head| head.sequence);
        let is_copy = |index: &MemberIndex| newest.is_some_and(|head| head.copies.contains(index));
        let absent = self.absent.clone().into_iter();
        let (mut of_copies, mut free): (BTreeMap<_, _>, BTreeMap<_, _>) =
            absent.partition(|(index, _)| is_copy(index));
        let mut with_index: Vec<_> = with_index.into_iter().map(|(path, _)| path).collect();
        let older = with_index.split_off(of_copies.len().min(with_index.len()));
        self.copies = of_copies.keys().copied().collect();
        self.holders = with_index.iter().cloned().collect();
        self.assign(with_index, &mut of_copies);
        free.append(&mut of_copies);
        self.assign([without, older].concat(), &mut free);
    }

    /// Gives directories places that are free, as far as there are any: their last ones, or else any.
    fn assign(&mut self, paths: Vec<String>, free: &mut BTreeMap<MemberIndex, String>) {
        let mut moved = Vec::new();
        for path in paths {
            let own = free.iter().find(|(_, last)| **last == path);
            match own.map(|(index, _)| *index) {
                Some(index) => {
                    free.remove(&index);
                    self.guess.insert(path, index);
                }
                None => moved.push(path),
            }
        }
        for path in moved {
            if let Some((index, _)) = free.pop_first() {
                self.guess.insert(path, index);
            }
        }
    }
}

/// The position of the members that are up to date.
#[derive(Debug)]
struct Reference {
    epoch: Epoch,
    record: Option<RecordHeader>,
    /// The newest head of all copies of the index.
    head: Option<Head>,
    may_be_parted: bool,
    /// The reason why none of them could be read, where that is so.
    unread: Option<String>,
    /// Set if all members are in the epoch: one that wrote no record in a later epoch did not go on without these.
    is_whole: bool,
}

impl Reference {
    fn of<'f>(
        found: impl Iterator<Item = &'f FoundMember>,
        tip: &Superblock,
        executor: &Executor,
    ) -> Self {
        let mut records = Vec::new();
        let mut heads = Vec::new();
        let mut unread = None;
        let mut is_read = false;
        for found in found.filter(|found| found.block.head() == tip.head()) {
            match Traces::of(&found.store, executor) {
                Ok(traces) => {
                    is_read = true;
                    let traces = traces.of_volume(tip.volume);
                    records.extend(traces.record);
                    heads.extend(traces.head);
                }
                // The others say as much, or fewer superblocks are created again.
                Err(error) => {
                    let reason = chain(&error);
                    tracing::warn!(path = %found.store.label(), "{reason}");
                    unread = Some(reason);
                }
            }
        }
        let mut members = tip.members.iter().filter(|entry| !entry.is_vacant());
        Self {
            epoch: tip.head().epoch,
            record: records.into_iter().max_by_key(|record| record.lsn),
            head: heads.into_iter().max_by_key(|head| head.sequence),
            may_be_parted: tip.data_shards <= tip.parity_shards,
            unread: unread.filter(|_| !is_read),
            is_whole: members.all(|entry| entry.current),
        }
    }

    /// Takes directories that went on for those that are up to date.
    fn follow<'a>(&mut self, leader: RecordHeader, all: impl Iterator<Item = &'a Traces>) {
        let heads = all.filter_map(|traces| traces.head.clone());
        self.epoch = self.epoch.max(leader.epoch);
        self.record = Some(leader);
        self.head = heads
            .chain(self.head.take())
            .max_by_key(|head| head.sequence);
    }

    /// Returns whether a directory has seen a change that no member with a superblock did.
    fn is_behind(&self, traces: &Traces) -> bool {
        let is_newer = |head: &Head| {
            let newest = self.head.as_ref().map(|newest| newest.sequence);
            let reference = newest.map(|sequence| sequence + IN_FLIGHT);
            reference.is_some_and(|last| head.sequence > last)
        };
        // A copy of the index may have been left long ago; a level directory has nothing that others lack.
        self.standing(traces) == Standing::Doubtful
            && (self.is_ahead(traces) || traces.head.as_ref().is_some_and(is_newer))
    }

    /// Returns whether a journal goes on beyond those of all others.
    fn is_ahead(&self, traces: &Traces) -> bool {
        traces.record.is_some_and(|record| {
            let is_beyond = self.record.is_some_and(|last| record.lsn > last.lsn);
            // A member of an epoch knows all that was written in earlier ones, be it in the index only.
            record.epoch > self.epoch || (record.epoch == self.epoch && is_beyond)
        })
    }

    /// Returns whether a directory went through the same changes as the current members. A record of an epoch that
    /// these do not know was written without them. With two branches, so was one of another journal generation, and one beyond theirs in an
    /// epoch that they may have begun without each other.
    fn standing(&self, traces: &Traces) -> Standing {
        let Some((one, other)) = self.record.zip(traces.record) else {
            return Standing::Doubtful;
        };
        let is_shared = |known: Epoch| other.epoch <= known && are_level(&one, &other);
        let is_level = if self.is_whole || !self.may_be_parted {
            is_shared(self.epoch)
        } else {
            one.generation == other.generation && is_shared(one.epoch)
        };
        if !is_level {
            Standing::Doubtful
        } else if other.lsn < one.lsn {
            Standing::Short
        } else {
            Standing::Level
        }
    }

    /// Returns the last record of the directories in which the volume went on. Requires that those that have `lost`
    /// their superblocks are ahead of those that were `found`, and that no other can be: all members are among them,
    /// and the ones that were found are in no epoch without the others. Those that are ahead went on from there
    /// together then.
    fn leader<'a>(
        &self,
        tip: &Superblock,
        found: &BTreeSet<MemberId>,
        lost: impl Iterator<Item = &'a Traces> + Clone,
    ) -> Option<RecordHeader> {
        let members = tip.members.iter().filter(|entry| !entry.is_vacant());
        let mut away = members.filter(|entry| !found.contains(&entry.id));
        let is_complete = away.clone().count() == lost.clone().count();
        if !self.may_be_parted || !is_complete || !away.all(|entry| entry.current) {
            return None;
        }
        let ahead = lost.filter(|traces| self.is_behind(traces));
        let records: Option<Vec<_>> = ahead.map(|traces| traces.record).collect();
        let records = records?;
        let leader = *records.iter().max_by_key(|record| age(record))?;
        let are_level = records
            .iter()
            .all(|record| record.generation == leader.generation && are_level(record, &leader));
        are_level.then_some(leader)
    }

    /// Returns whether a directory may be another branch of the volume.
    fn is_doubtful(&self, traces: &Traces) -> bool {
        self.may_be_parted && self.standing(traces) == Standing::Doubtful
    }
}

/// Returns whether two journals end as a crash may leave them: one may lack the other's last record, also if that is
/// the first of a journal generation.
fn are_level(one: &RecordHeader, other: &RecordHeader) -> bool {
    let (older, newer) = if age(one) <= age(other) {
        (one, other)
    } else {
        (other, one)
    };
    if older.generation == newer.generation {
        newer.lsn.0 - older.lsn.0 <= IN_FLIGHT
    } else {
        older.generation.number < newer.generation.number && older.lsn.0 + IN_FLIGHT == newer.lsn.0
    }
}

/// Makes the superblocks of claimed directories from those that were found.
///
/// # Errors
///
/// [`MembersError::OldSuperblocks`] if the found superblocks are, or may be, from an earlier time;
/// [`MembersError::NoSuchMember`]; if one of them cannot be read.
pub(super) fn recover(
    found: &[FoundMember],
    lost: Vec<(StoreRef, MemberIndex)>,
    executor: &Executor,
) -> Result<Vec<FoundMember>, MembersError> {
    let newest = found.iter().max_by_key(|found| found.block.head().epoch);
    let Some(tip) = newest.map(|found| &found.block) else {
        return Ok(Vec::new());
    };
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    let mut claimed = Vec::with_capacity(lost.len());
    for (store, index) in lost {
        let traces = Traces::of(&store, executor)?.of_volume(tip.volume);
        claimed.push((store, index, traces));
    }
    let mut tip = tip.clone();
    let mut reference = Reference::of(found.iter(), &tip, executor);
    let of_lost = || claimed.iter().map(|(_, _, traces)| traces);
    let leader = reference.leader(&tip, &ids(found), of_lost());
    if let Some(leader) = leader {
        let is_ahead = |traces: &Traces| reference.is_behind(traces);
        let ahead = claimed.iter().filter(|(_, _, traces)| is_ahead(traces));
        let ahead: Vec<_> = ahead.map(|(_, index, _)| *index).collect();
        tip = gone_on(&tip, leader.epoch, &ahead, found);
        reference.follow(leader, of_lost());
    }
    let highest = found.iter().map(|found| found.block.generation.0).max();
    let highest = highest.unwrap_or_default();
    let generation = Generation(highest.saturating_add(GENERATIONS_APART));
    let recover_one = |(store, index, traces): (StoreRef, MemberIndex, Traces)| {
        let entry = tip.members.get(usize::from(index.0));
        let Some(entry) = entry.filter(|entry| !entry.is_vacant()) else {
            return Err(MembersError::NoSuchMember { index });
        };
        if reference.is_behind(&traces) || (leader.is_none() && reference.is_doubtful(&traces)) {
            let path = store.label();
            return Err(MembersError::OldSuperblocks { path });
        }
        let standing = if entry.current {
            reference.standing(&traces)
        } else {
            Standing::Doubtful
        };
        let block = Superblock {
            member: entry.id,
            index,
            generation,
            proposed: None,
            ..tip.clone()
        };
        Ok(FoundMember {
            store,
            block,
            origin: Origin::Recovered(standing),
        })
    };
    claimed.into_iter().map(recover_one).collect()
}

fn ids<'f>(found: impl IntoIterator<Item = &'f FoundMember>) -> BTreeSet<MemberId> {
    let found = found.into_iter();
    found.map(|found| found.block.member).collect()
}

/// Returns a superblock for the epoch in which `ahead` went on without those that were found. Only the data written in
/// that epoch is left of it. The superblock has a mark of its own, because the original one is lost.
fn gone_on(
    tip: &Superblock,
    at_least: Epoch,
    ahead: &[MemberIndex],
    found: &[FoundMember],
) -> Superblock {
    let marks = tip.history.iter().chain(&tip.proposed);
    let last = marks.map(|mark| mark.epoch).chain([at_least]).max();
    let mut gone_on = tip.clone();
    gone_on.history.push(EpochMark {
        epoch: Epoch(last.unwrap_or_default().0 + 1),
        nonce: nonce(),
    });
    let surplus = gone_on.history.len().saturating_sub(MAX_HISTORY);
    gone_on.history.drain(..surplus);
    for (index, entry) in (0..).map(MemberIndex).zip(&mut gone_on.members) {
        entry.current = ahead.contains(&index);
    }
    let found = found.iter().map(|found| &found.block).filter(|block| {
        let entry = tip.members.get(usize::from(block.index.0));
        entry.is_some_and(|entry| entry.id == block.member)
    });
    let mut away = tip.last_seen();
    away.extend(found.map(|block| (block.index, LastSeen::of(block))));
    gone_on.set_last_seen(&away);
    gone_on
}

/// Refuses to go on without directories that have lost their superblocks and have seen changes that no other has. Does
/// so only where the volume can have gone on as branches.
///
/// # Errors
///
/// [`MembersError::OldSuperblocks`]; [`MembersError::MayBeAhead`] if that cannot be told, because their contents or
/// those of the others cannot be read.
pub(super) fn check_not_behind(
    lineage: &Lineage,
    without_superblock: &[StoreRef],
    executor: &Executor,
) -> Result<(), MembersError> {
    let tip = &lineage.tip;
    if without_superblock.is_empty() || tip.data_shards > tip.parity_shards {
        return Ok(());
    }
    let reference = Reference::of(lineage.present.values(), tip, executor);
    for store in without_superblock {
        let path = store.label();
        let unknown = |reason| {
            let path = path.clone();
            MembersError::MayBeAhead { path, reason }
        };
        let traces = Traces::of(store, executor).map_err(|error| unknown(chain(&error)))?;
        if let Some(reason) = &reference.unread {
            return Err(unknown(reason.clone()));
        }
        let traces = traces.of_volume(tip.volume);
        // One record more may be all that was acknowledged since: a member without it may have been left out of the
        // epoch.
        if reference.is_behind(&traces) || reference.is_ahead(&traces) {
            return Err(MembersError::OldSuperblocks { path });
        }
    }
    Ok(())
}

/// Records that a crash may leave on some members only.
const IN_FLIGHT: u64 = 1;

/// The distance of a new superblock's generation from those of the others. It has to be newer than any that the member
/// had, and the number of their writes is not known.
const GENERATIONS_APART: u64 = 1 << 32;

/// Returns the newest head of a copy of the index.
fn newest_head(store: &dyn Store) -> Result<Option<Head>, StoreError> {
    if len_of(store, files::INDEX)?.is_none_or(|len| len < 2 * HEAD_BYTES as u64) {
        return Ok(None);
    }
    let mut heads = Pool::new(0).buffer(2 * HEAD_BYTES);
    store.read_at(files::INDEX, 0, &mut heads)?;
    let (slots, _) = heads.as_chunks::<HEAD_BYTES>();
    let intact = slots.iter().filter_map(|slot| Head::decode(slot).ok());
    Ok(intact.max_by_key(|head| head.sequence))
}

fn len_of(store: &dyn Store, name: &str) -> Result<Option<u64>, StoreError> {
    match store.open_len(name) {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind().lacks_file() => Ok(None),
        Err(error) => Err(error),
    }
}
