//! Superblock recovery: identifies by its shards the member whose directory has lost its superblock.
//!
//! A segment's record names the member of each slot, and the checksums of a stripe tell its shards from one another. So
//! a directory is the member whose slots hold all shards recognised in the directory. Several members can match,
//! because mirrors are identical. Every member matches if the directory holds no segment. Nothing depends on the choice
//! then: it is the member that was there last, or one that is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Maintenance;
use crate::format::record::{SegmentStripe, ShardSums, Stripe};
use crate::format::{BLOCK_SIZE, MemberIndex, Record, SegmentId, StripeId, files, key};
use crate::membership::{
    Access, Members, MissingSuperblocks, RecoveredMembers, RecoveryObstacle, Unusable, chain,
};
use crate::metadata::Meta;
use crate::store::{Executor, Store, StoreError, StoreErrorKind, StoreRef};
use crate::stripes::{StripeRecords, Stripes};
use crate::transaction::{CommitError, OpenOptions};

use matching::Matching;

mod matching;

/// Recognised shards of a segment that suffice to identify their member. All segments are read, because an interrupted
/// rebuild leaves files of some that belong to another member by now.
const ENOUGH: u64 = 2;

/// Most stripes of a segment that are read.
const STRIPES_EACH: usize = 64;

/// Evidence from the shards in a directory.
#[derive(Clone, Debug, Default)]
struct Evidence {
    /// Set if it has files of segments that the volume knows.
    has_segments: bool,
    /// The members that may own all recognised shards; none if no shard was recognised.
    owners: Option<BTreeSet<MemberIndex>>,
    /// The reason why not all of them could be read.
    problem: Option<String>,
}

impl Evidence {
    /// Notes a shard that equals that of each of `owners`.
    fn note(&mut self, owners: BTreeSet<MemberIndex>) {
        self.owners = Some(match self.owners.take() {
            Some(before) => &before & &owners,
            None => owners,
        });
    }
}

/// Identifies the members whose directories have lost their superblocks, for [`Maintenance::open_recovering`]. Returns
/// also the directories that are left out, with reasons. Nothing is written.
///
/// # Errors
///
/// As for [`Maintenance::open`], to read only.
pub fn identify_members(
    stores: &[StoreRef],
    options: &OpenOptions,
    executor: &Arc<Executor>,
) -> Result<(RecoveredMembers, Vec<Unusable>), CommitError> {
    let missing = MissingSuperblocks::find(stores, executor)?;
    if missing.stores.is_empty() {
        return Ok((RecoveredMembers::new(), missing.others));
    }
    let options = OpenOptions {
        access: Access::ReadOnly,
        threads: 0,
        ..options.clone()
    };
    let guess = &missing.guess;
    // A hanging member would delay the open once more.
    let answering = stores.iter().filter(|store| !executor.is_hanging(store));
    let answering = answering.cloned().collect();
    let maintenance =
        Maintenance::open_recovering(answering, guess, &options, Arc::clone(executor))?;
    let transactions = maintenance.transactions();
    let reader = EvidenceReader {
        members: Arc::clone(&transactions.members),
        meta: Arc::clone(&transactions.meta),
        stripes: Arc::clone(&transactions.stripes),
        records: Arc::clone(&transactions.records),
    };
    let mut evidence = BTreeMap::new();
    for store in &missing.stores {
        evidence.insert(store.label(), reader.read(store)?);
    }
    maintenance.close()?;
    transactions.members.release();
    Ok(decide(missing, evidence))
}

/// Reader of the shards in directories without superblocks.
struct EvidenceReader {
    members: Arc<Members>,
    meta: Arc<Meta>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
}

impl EvidenceReader {
    /// Reads the shards in a directory.
    fn read(&self, store: &StoreRef) -> Result<Evidence, CommitError> {
        let list = |store: &dyn Store| store.list(files::SEGMENTS);
        let mut evidence = Evidence::default();
        let names = match self.members.io().executor().call(store, "list", list) {
            Ok(names) => names,
            Err(error) => {
                evidence.problem = Some(chain(&error));
                return Ok(evidence);
            }
        };
        let segments = names
            .iter()
            .filter_map(|(name, _)| files::parse_segment(name));
        for segment in segments.filter(|segment| self.stripes.segments().record(*segment).is_some())
        {
            evidence.has_segments = true;
            self.add_segment(store, segment, &mut evidence)?;
            if evidence.problem.is_some() {
                break;
            }
        }
        Ok(evidence)
    }

    /// Adds the members whose shards of a segment a directory holds.
    fn add_segment(
        &self,
        store: &StoreRef,
        segment: SegmentId,
        evidence: &mut Evidence,
    ) -> Result<(), CommitError> {
        let (from, end) = key::segment_stripes(segment);
        let mut unambiguous = 0;
        for (_, value) in self.meta.scan(&from, &end, STRIPES_EACH)? {
            let SegmentStripe(id) = SegmentStripe::decode(&value)?;
            let Some(stripe) = self.records.stripe(id)? else {
                continue;
            };
            let block = match self.first_block(store, &stripe) {
                Ok(Some(block)) => block,
                Ok(None) => continue,
                Err(error) => {
                    evidence.problem = Some(chain(&error));
                    break;
                }
            };
            let owners = self.owners_of_block(&block, id, &stripe)?;
            if !owners.is_empty() {
                unambiguous += u64::from(owners.len() == 1);
                evidence.note(owners);
            }
            if unambiguous == ENOUGH {
                break;
            }
        }
        Ok(())
    }

    /// Reads the first block of a directory's shard of a stripe. Returns `None` if the file does not reach so far.
    fn first_block(
        &self,
        store: &StoreRef,
        stripe: &Stripe,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (name, offset) = (files::segment(stripe.segment), stripe.offset);
        let read = move |store: &dyn Store| {
            let mut block = vec![0; BLOCK_SIZE];
            store.read_at(&name, offset, &mut block).map(|()| block)
        };
        match self.members.io().executor().call(store, "read", read) {
            Ok(block) => Ok(Some(block)),
            Err(error) if error.kind().lacks_file() => Ok(None),
            Err(error) if error.kind() == StoreErrorKind::ShortRead => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the members whose shard of a stripe starts with this block.
    fn owners_of_block(
        &self,
        block: &[u8],
        id: StripeId,
        stripe: &Stripe,
    ) -> Result<BTreeSet<MemberIndex>, CommitError> {
        let Some(segment) = self.stripes.segments().record(stripe.segment) else {
            return Ok(BTreeSet::new());
        };
        // Space that was reserved and never written looks like any block of zeros.
        if block.iter().all(|byte| *byte == 0) {
            return Ok(BTreeSet::new());
        }
        let found = crc32c::crc32c(block);
        let mut owners = BTreeSet::new();
        for (slot, member) in segment.slots.iter().enumerate() {
            let Some(shard) = segment.shard_in(slot, stripe.rotation) else {
                continue;
            };
            let sums = self.meta.get(&key::sums(id, shard))?;
            let sums = sums.map(|sums| ShardSums::decode(&sums)).transpose()?;
            if sums.is_some_and(|sums| sums.0.first() == Some(&found)) {
                owners.extend(*member);
            }
        }
        Ok(owners)
    }
}

/// Decides by the evidence which member each directory is. Returns also the directories left out, with reasons.
fn decide(
    missing: MissingSuperblocks,
    evidence: BTreeMap<String, Evidence>,
) -> (RecoveredMembers, Vec<Unusable>) {
    let MissingSuperblocks {
        nameless,
        holders,
        copies,
        absent,
        others,
        ..
    } = missing;
    let mut matching = Matching::new(absent, others);
    for (path, evidence) in evidence {
        if let Some(detail) = evidence.problem {
            matching.leave_out(path, RecoveryObstacle::Unreadable { detail });
            continue;
        }
        let vacant = matching.vacant();
        let candidates: BTreeSet<MemberIndex> = match &evidence.owners {
            Some(owners) => owners & &vacant,
            None if holders.contains(&path) => &vacant & &copies,
            None => &vacant - &copies,
        };
        match evidence.owners.as_ref().and_then(BTreeSet::first) {
            Some(member) if candidates.is_empty() => {
                let member = member.0;
                matching.leave_out(path, RecoveryObstacle::SameAsOnline { member });
            }
            None if evidence.owners.is_some() || nameless.contains(&path) => {
                matching.leave_out(path, RecoveryObstacle::Unidentified);
            }
            None if evidence.has_segments => {
                // No stripe that is left has a shard in it.
                match matching.last_at(&path) {
                    Some(member) => matching.add(path, BTreeSet::from([member])),
                    None => matching.leave_out(path, RecoveryObstacle::Unidentified),
                }
            }
            None => matching.add_interchangeable(path, candidates),
            Some(_) => matching.add(path, candidates),
        }
    }
    matching.decide()
}
