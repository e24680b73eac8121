//! The state of the current epoch: its members, and the superblock of each.
//!
//! It is the content of the superblocks and decides what the next ones hold; it writes none itself.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::{nonce, noted_path};
use super::lineage::{FoundMember, Lineage, Origin};
use super::snapshot::Published;
use super::stripe_code::NotedCode;
use super::succession::Succession;
use crate::format::superblock::{
    EpochMark, Features, LastRecord, LastSeen, MAX_HISTORY, MemberEntry, Superblock,
};
use crate::format::{Epoch, Generation, MemberIndex};

/// The state of the current epoch: its members, and the superblock of each.
#[derive(Debug)]
pub(super) struct EpochState {
    /// The superblock that each member has that was found.
    blocks: BTreeMap<MemberIndex, Superblock>,
    /// The state of each member when it was last written to, as far as it is known.
    last_seen: BTreeMap<MemberIndex, LastSeen>,
    /// The members whose superblocks were lost, and have to be written again.
    recovered: BTreeSet<MemberIndex>,
    /// The members of the current epoch, as far as they were found.
    pub(super) admitted: BTreeSet<MemberIndex>,
    /// The members of the last epoch that is durable on all of them, and those of later epochs that may be durable on
    /// some.
    last_epochs: Vec<BTreeSet<MemberIndex>>,
    /// Epochs that led here; the last is the current one.
    history: Vec<EpochMark>,
    /// Marks that were proposed since, or elsewhere, and that the next history is to know.
    proposed: Vec<EpochMark>,
    /// Set if epochs may be begun: the volume is written to.
    pub(super) begun: bool,
    /// All members, as of the current epoch.
    table: Vec<MemberEntry>,
    /// The features that the volume uses.
    features: Features,
    /// The code of new stripes.
    code: NotedCode,
    /// The fields of the newest superblock; those that this build does not know are kept.
    extension: Vec<u8>,
    /// The fate of members that are gone.
    pub(super) succession: Succession,
}

impl EpochState {
    pub(super) fn new(lineage: &Lineage) -> Self {
        let present = lineage.present.iter();
        let is_recovered = |found: &FoundMember| found.origin != Origin::Read;
        let recovered = present.clone().filter(|(_, found)| is_recovered(found));
        Self {
            recovered: recovered.map(|(index, _)| *index).collect(),
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
            code: NotedCode::of(&lineage.tip),
            extension: others_fields(&lineage.tip),
            succession: Succession::of(&lineage.tip),
        }
    }

    /// Returns the superblocks that have to be written again, once: those of members that are up to date, and those of
    /// others. The next epoch knows that the latter are older than they should be, until they are written once more.
    pub(super) fn take_recovered(&mut self) -> (Vec<Superblock>, Vec<Superblock>) {
        let recovered = std::mem::take(&mut self.recovered);
        let blocks = recovered
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

    /// Returns the members, found or not, of each epoch that may be the newest known to an absent member.
    pub(super) fn last_epochs(&self) -> impl Iterator<Item = &BTreeSet<MemberIndex>> {
        self.last_epochs.iter()
    }

    /// The epoch that was begun last is durable on all its members.
    pub(super) fn note_durable(&mut self) {
        let before = self.last_epochs.len().saturating_sub(1);
        self.last_epochs.drain(..before);
    }

    /// The current epoch.
    pub(super) fn head(&self) -> Option<EpochMark> {
        self.history.last().copied()
    }

    /// Returns whether a mark was proposed that is in no history here.
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

    /// Returns the parts that the membership publishes.
    pub(super) fn published(&self) -> Published {
        let entries = (0..).map(MemberIndex).zip(&self.table);
        let draining = entries.filter(|(_, entry)| entry.draining);
        Published {
            epoch: self.head().map_or(Epoch(0), |mark| mark.epoch),
            draining: draining.map(|(index, _)| index).collect(),
            succession: self.succession.clone(),
        }
    }

    /// Returns the members of the current epoch, found or not.
    pub(super) fn listed(&self) -> BTreeSet<MemberIndex> {
        listed(&self.table)
    }

    /// Returns the members that an epoch of `target` leaves out.
    pub(super) fn absent(&self, target: &BTreeSet<MemberIndex>) -> Vec<MemberIndex> {
        let entries = (0..).map(MemberIndex).zip(&self.table);
        let absent = entries.filter(|(index, entry)| !entry.is_vacant() && !target.contains(index));
        absent.map(|(index, _)| index).collect()
    }

    pub(super) fn features(&self) -> Features {
        self.features
    }

    /// Adds incompatible features, which the superblocks of the next epoch name.
    pub(super) fn add_features(&mut self, incompat: u64) {
        self.features.incompat |= incompat;
    }

    /// Changes the code of new stripes, which the superblocks of the next epoch name.
    pub(super) fn set_code(&mut self, code: NotedCode) {
        self.code = code;
    }

    pub(super) fn extension(&self) -> &[u8] {
        &self.extension
    }

    /// Returns whether the volume has come through an epoch.
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

    /// Returns the members whose superblocks are older than the last ones written to them.
    pub(super) fn older(&self) -> impl Iterator<Item = MemberIndex> {
        let older = self.blocks.iter().filter(|(_, block)| self.is_older(block));
        older.map(|(index, _)| *index)
    }

    /// Returns whether a superblock is older than the one that was last written to its member.
    pub(super) fn is_older(&self, found: &Superblock) -> bool {
        let last = self.last_seen.get(&found.index);
        last.is_some_and(|last| last.is_after(found))
    }

    /// Returns whether the members on disk are exactly those admitted, and all of them have begun the epoch.
    pub(super) fn is_settled(&self) -> bool {
        let listed = listed(&self.table).len();
        let begun = |index: &MemberIndex| {
            let block = self.blocks.get(index);
            block.is_some_and(|block| Some(&block.head()) == self.history.last())
        };
        listed == self.admitted.len() && self.admitted.iter().all(begun)
    }

    /// Returns a mark above all that were ever seen.
    pub(super) fn next_mark(&self) -> EpochMark {
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
    pub(super) fn proposals(
        &mut self,
        mark: EpochMark,
        target: &BTreeSet<MemberIndex>,
    ) -> Vec<Superblock> {
        self.proposed.push(mark);
        let blocks = target.iter().filter_map(|index| self.next_block(*index));
        blocks
            .map(|block| Superblock {
                proposed: Some(mark),
                ..block
            })
            .collect()
    }

    /// Returns the superblocks that the second step writes, with the last `records` of absent members, and the `path` of
    /// each member.
    pub(super) fn begin(
        &mut self,
        target: &BTreeSet<MemberIndex>,
        records: &BTreeMap<MemberIndex, LastRecord>,
        path: impl Fn(MemberIndex) -> String,
    ) -> Vec<Superblock> {
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
                entry.path = noted_path(&path(index));
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
                self.code.write_to(&mut block);
                // If there is no room for all of it, the most valuable entries stay.
                block.set_last_seen(&away);
                block.set_last_records(records);
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
    block.set_last_records(&BTreeMap::new());
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

/// Puts the entry of a member into a table of all of them; its place is there, or the next one.
pub(super) fn put_entry(table: &mut Vec<MemberEntry>, index: MemberIndex, entry: MemberEntry) {
    match table.get_mut(usize::from(index.0)) {
        Some(place) => *place = entry,
        None => table.push(entry),
    }
}
