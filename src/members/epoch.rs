//! Beginning an epoch: the members that are left agree, durably, that they go on without the others.
//!
//! Two steps, so that a power cut between two superblocks is never taken for two halves mounted apart:
//!
//! 1. *propose*: every member of the coming epoch notes its mark next to the current one; written to
//!    all in parallel, **synced** on all.
//! 2. *begin*: the mark is the current epoch, with the new table of members; written to all in
//!    parallel, **synced** on all.
//!
//! A member that fails on the way is left out of a further attempt, under a further mark. Nothing else
//! is written in an epoch before its second step is through. FORMAT.md, "Epochs", says how a volume
//! that was cut off in between is read.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::lineage::{Found, Lineage, Origin};
use super::succession::Succession;
use super::{Members, MembersError, slots};
use crate::format::superblock::{
    self, EpochMark, Features, LastSeen, MAX_HISTORY, MemberEntry, Superblock,
};
use crate::format::{Epoch, Generation, MemberIndex};
use crate::store::{Op, Request, Store};

/// The contents of the superblocks, and the members of the current epoch.
#[derive(Debug)]
pub(super) struct Roster {
    /// The superblock that each member has that was found.
    blocks: BTreeMap<MemberIndex, Superblock>,
    /// The state of each member when it was last written to, as far as it is known.
    last_seen: BTreeMap<MemberIndex, LastSeen>,
    /// The members whose superblocks were lost, and have to be written again.
    made: BTreeSet<MemberIndex>,
    /// The members of the current epoch, as far as they were found.
    pub(super) admitted: BTreeSet<MemberIndex>,
    /// The members of the last epoch that is durable on all of them, and those of later epochs that may be durable on
    /// some.
    last_epochs: Vec<BTreeSet<MemberIndex>>,
    /// Epochs that led here; the last is the current one.
    history: Vec<EpochMark>,
    /// Marks that were proposed since, or elsewhere, and that the next history is to know.
    proposed: Vec<EpochMark>,
    /// Set if epochs may be begun: see [`Members::begin`].
    pub(super) begun: bool,
    /// All members, as of the current epoch.
    table: Vec<MemberEntry>,
    /// The features that the volume uses.
    features: Features,
    /// The fields of the newest superblock; those that this build does not know are kept.
    extension: Vec<u8>,
    /// The fate of members that are gone.
    pub(super) succession: Succession,
}

impl Roster {
    pub(super) fn new(lineage: &Lineage) -> Self {
        let present = lineage.present.iter();
        let is_made = |found: &Found| found.origin != Origin::Read;
        let made = present.clone().filter(|(_, found)| is_made(found));
        Self {
            made: made.map(|(index, _)| *index).collect(),
            blocks: present
                .map(|(index, found)| (*index, found.block.clone()))
                .collect(),
            last_seen: last_seen(lineage),
            admitted: lineage.current.clone(),
            last_epochs: vec![listed(&lineage.tip.members)],
            history: lineage.tip.history.clone(),
            proposed: lineage.proposed.clone(),
            begun: false,
            table: lineage.tip.members.clone(),
            features: lineage.tip.features,
            extension: others_fields(&lineage.tip),
            succession: Succession::of(&lineage.tip),
        }
    }

    /// Returns the superblocks that have to be written again, once: those of members that are up to date, and those of
    /// others. The next epoch knows that the latter are older than they should be, until they are written once more.
    pub(super) fn take_made(&mut self) -> (Vec<Superblock>, Vec<Superblock>) {
        let made = std::mem::take(&mut self.made);
        let blocks = made
            .iter()
            .filter_map(|index| self.blocks.get(index).cloned());
        let (current, doubtful): (Vec<_>, Vec<_>) =
            blocks.partition(|block| self.admitted.contains(&block.index));
        for block in &doubtful {
            let seen = self.last_seen.entry(block.index).or_default();
            seen.epoch = seen.epoch.max(block.head().epoch);
            seen.generation = seen.generation.max(Generation(block.generation.0 + 1));
        }
        (current, doubtful)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.head().map_or(Epoch(0), |mark| mark.epoch)
    }

    /// Returns the members, found or not, of each epoch that may be the newest known to an absent member.
    pub(super) fn last_epochs(&self) -> impl Iterator<Item = &BTreeSet<MemberIndex>> {
        self.last_epochs.iter()
    }

    /// The epoch that was begun last is durable on all its members.
    fn note_durable(&mut self) {
        let before = self.last_epochs.len().saturating_sub(1);
        self.last_epochs.drain(..before);
    }

    /// The current epoch.
    pub(super) fn head(&self) -> Option<EpochMark> {
        self.history.last().copied()
    }

    /// Says whether a mark was proposed that is in no history here.
    pub(super) fn has_proposed(&self, mark: EpochMark) -> bool {
        self.proposed.contains(&mark)
    }

    /// All members, as of the current epoch.
    pub(super) fn table(&self) -> &[MemberEntry] {
        &self.table
    }

    /// The same, to be changed before the next epoch is begun.
    pub(super) fn table_mut(&mut self) -> &mut Vec<MemberEntry> {
        &mut self.table
    }

    /// The members that are being emptied.
    pub(super) fn leaving(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        let entries = (0..).map(MemberIndex).zip(&self.table);
        entries
            .filter(|(_, entry)| entry.leaving)
            .map(|(index, _)| index)
    }

    pub(super) fn features(&self) -> Features {
        self.features
    }

    pub(super) fn extension(&self) -> &[u8] {
        &self.extension
    }

    /// Says whether the volume has come through an epoch.
    pub(super) fn knows(&self, mark: EpochMark) -> bool {
        self.history.contains(&mark)
    }

    /// Returns the epochs before the current one; that one, if there was none before.
    pub(super) fn earlier_history(&self) -> Vec<EpochMark> {
        let earlier = self.history.len().saturating_sub(1).max(1);
        self.history[..earlier.min(self.history.len())].to_vec()
    }

    /// Gives a place to a member that is not up to date; the one that had the place is no member any more.
    pub(super) fn list(&mut self, index: MemberIndex, entry: MemberEntry) {
        self.blocks.remove(&index);
        self.last_seen.remove(&index);
        self.admitted.remove(&index);
        self.succession.forget(index);
        put_entry(&mut self.table, index, entry);
    }

    /// Forgets a member that is removed.
    pub(super) fn vacate(&mut self, index: MemberIndex) {
        self.blocks.remove(&index);
        self.last_seen.remove(&index);
        self.admitted.remove(&index);
        self.succession.vacate(index);
        if let Some(entry) = self.table.get_mut(usize::from(index.0)) {
            *entry = MemberEntry::vacant();
        }
    }

    /// Notes the superblock of a member that joins the volume.
    pub(super) fn put_block(&mut self, index: MemberIndex, block: Superblock) {
        // The earlier knowledge of it counts: this one may be older.
        let seen = LastSeen::of(&block);
        self.last_seen.entry(index).or_insert(seen);
        self.blocks.insert(index, block);
    }

    /// A superblock was written to its member, durably.
    pub(super) fn note_written(&mut self, block: Superblock) {
        self.last_seen.insert(block.index, LastSeen::of(&block));
        self.blocks.insert(block.index, block);
    }

    /// Says whether a superblock is older than the one that was last written to its member.
    pub(super) fn is_older(&self, found: &Superblock) -> bool {
        let last = self.last_seen.get(&found.index);
        last.is_some_and(|last| last.is_after(found))
    }

    /// Says whether the members on disk are exactly those admitted, and all of them have begun the epoch.
    pub(super) fn is_settled(&self) -> bool {
        let listed = listed(&self.table).len();
        let begun = |index: &MemberIndex| {
            let block = self.blocks.get(index);
            block.is_some_and(|block| Some(&block.head()) == self.history.last())
        };
        listed == self.admitted.len() && self.admitted.iter().all(begun)
    }

    /// Returns a mark above all that were ever seen.
    fn next_mark(&self) -> EpochMark {
        let seen = self.history.iter().chain(&self.proposed);
        let highest = seen.map(|mark| mark.epoch.0).max().unwrap_or(0);
        EpochMark {
            epoch: Epoch(highest + 1),
            nonce: nonce(),
        }
    }

    /// Returns the superblock last written to a member.
    pub(super) fn block(&self, index: MemberIndex) -> Option<&Superblock> {
        self.blocks.get(&index)
    }

    /// Returns the superblock to write into the other slot of a member as well, with the fate of others by now.
    pub(super) fn renewed(&self, index: MemberIndex) -> Option<Superblock> {
        let mut block = self.next_block(index)?;
        self.succession.write_to(&mut block);
        Some(block)
    }

    fn next_block(&self, index: MemberIndex) -> Option<Superblock> {
        let mut block = self.blocks.get(&index)?.clone();
        block.generation = Generation(block.generation.0 + 1);
        Some(block)
    }

    /// Returns the superblocks that the first step writes.
    fn proposals(&mut self, mark: EpochMark, target: &BTreeSet<MemberIndex>) -> Vec<Superblock> {
        self.proposed.push(mark);
        let blocks = target.iter().filter_map(|index| self.next_block(*index));
        blocks
            .map(|block| Superblock {
                proposed: Some(mark),
                ..block
            })
            .collect()
    }

    /// Returns the superblocks that the second step writes.
    fn begin(&mut self, target: &BTreeSet<MemberIndex>, members: &Members) -> Vec<Superblock> {
        // The mark proposed last is the highest, and so ends the history.
        self.history.append(&mut self.proposed);
        let surplus = self.history.len().saturating_sub(MAX_HISTORY);
        self.history.drain(..surplus);
        self.admitted.clone_from(target);
        self.succession.admit(target);
        self.last_epochs.push(target.clone());
        for (index, entry) in (0..).map(MemberIndex).zip(&mut self.table) {
            entry.current = target.contains(&index);
            if self.blocks.contains_key(&index) {
                entry.path = noted_path(&members.path(index));
            }
        }
        let mut away = self.last_seen.clone();
        away.retain(|index, _| !target.contains(index));
        let blocks = target.iter().filter_map(|index| self.next_block(*index));
        blocks
            .map(|block| {
                let mut block = Superblock {
                    history: self.history.clone(),
                    proposed: None,
                    members: self.table.clone(),
                    features: self.features,
                    extension: self.extension.clone(),
                    ..block
                };
                // If there is no room for all of it, the most valuable entries stay.
                block.set_last_seen(&away);
                self.succession.write_to(&mut block);
                block
            })
            .collect()
    }
}

/// Returns the fields of a superblock, except for those that are written again each time.
fn others_fields(block: &Superblock) -> Vec<u8> {
    let mut block = block.clone();
    block.set_last_seen(&BTreeMap::new());
    Succession::default().write_to(&mut block);
    block.extension
}

/// Returns the members that a table has in the current epoch.
fn listed(table: &[MemberEntry]) -> BTreeSet<MemberIndex> {
    let entries = (0..).map(MemberIndex).zip(table);
    let current = entries.filter(|(_, entry)| entry.current);
    current.map(|(index, _)| index).collect()
}

/// Returns the last state of each member. Those of the newest epoch are in it, and its superblocks tell the state of
/// the others. For a member without such a note, only its own superblock is known.
fn last_seen(lineage: &Lineage) -> BTreeMap<MemberIndex, LastSeen> {
    let tip = &lineage.tip;
    let mut last_seen = tip.last_seen();
    for (index, entry) in (0..).map(MemberIndex).zip(&tip.members) {
        let found = lineage.present.get(&index).map(|found| &found.block);
        if entry.current {
            let up_to_date = found.filter(|_| lineage.current.contains(&index));
            let seen = LastSeen {
                epoch: tip.head().epoch,
                generation: up_to_date.map_or(Generation(0), |block| block.generation),
            };
            last_seen.insert(index, seen);
        } else if entry.is_vacant() {
            last_seen.remove(&index);
        } else if let Some(block) = found {
            last_seen.entry(index).or_insert(LastSeen::of(block));
        }
    }
    last_seen
}

impl Members {
    /// Begins an epoch with those of `target` that are up, and with fewer as they fail on the way.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if too few are left; the volume is then failed for good.
    pub(super) fn raise_epoch(
        &self,
        roster: &mut Roster,
        mut target: BTreeSet<MemberIndex>,
    ) -> Result<(), MembersError> {
        loop {
            target.retain(|index| self.is_up(*index));
            self.check_alive(roster, &target)?;
            let mark = roster.next_mark();
            let proposals = roster.proposals(mark, &target);
            if !self.write_superblocks(roster, proposals) {
                continue;
            }
            let beginnings = roster.begin(&target, self);
            if self.write_superblocks(roster, beginnings) {
                roster.note_durable();
                log::info!("epoch {} with {} members", mark.epoch, target.len());
                return Ok(());
            }
        }
    }

    /// Writes superblocks where there were none, in both slots.
    pub(super) fn write_made(&self, blocks: &[Superblock]) {
        for block in blocks {
            let Some(store) = self.store(block.index) else {
                continue;
            };
            let whole = block.clone();
            let write = move |store: &dyn Store| slots::write_whole(store, &whole);
            if let Err(error) = self.executor.call(&store, "write the superblock", write) {
                self.mark_down(block.index, &error);
            }
        }
    }

    /// Writes superblocks in parallel, then syncs them in parallel; returns false if a member failed,
    /// which is then down.
    pub(super) fn write_superblocks(&self, roster: &mut Roster, blocks: Vec<Superblock>) -> bool {
        let write = self.run_on_each(&blocks, slots::write_op);
        let sync = self.run_on_each(&blocks, |_| slots::sync_op());
        for block in blocks {
            // A failed member may have this superblock or the one before.
            if self.is_up(block.index) {
                roster.note_written(block);
            }
        }
        write && sync
    }

    /// Runs one operation for each superblock's member that is up; returns whether all of them were up, and still are.
    fn run_on_each(&self, blocks: &[Superblock], op: impl Fn(&Superblock) -> Op) -> bool {
        let (indices, requests): (Vec<_>, Vec<_>) = blocks
            .iter()
            .filter_map(|block| {
                let store = self.store(block.index)?;
                Some((
                    block.index,
                    Request {
                        store,
                        op: op(block),
                    },
                ))
            })
            .unzip();
        let mut all = indices.len() == blocks.len();
        for (index, outcome) in indices.into_iter().zip(self.executor.run(requests)) {
            if let Err(error) = outcome {
                self.mark_down(index, &error);
                all = false;
            }
        }
        all
    }
}

/// Puts the entry of a member into a table of all of them; its place is there, or the next one.
pub(super) fn put_entry(table: &mut Vec<MemberEntry>, index: MemberIndex, entry: MemberEntry) {
    match table.get_mut(usize::from(index.0)) {
        Some(place) => *place = entry,
        None => table.push(entry),
    }
}

/// Draws a nonce. Both halves of a random UUID have a few fixed bits, but not in the same places.
pub(super) fn nonce() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}

/// Returns a path as superblocks note it.
pub(super) fn noted_path(path: &str) -> Vec<u8> {
    superblock::noted_path(path.as_bytes())
}
