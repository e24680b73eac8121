//! Volumes in memory, for the tests of this module.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::codec::{CodeId, Geometry};
use crate::format::superblock::{SLOT_BYTES, Superblock};
use crate::format::{Epoch, files};
use crate::store::{
    CutPolicy, ExecutorKind, FaultPlan, FaultStore, MemDisk, Op, Store, StoreError, StoreErrorKind,
};

mod cuts;
mod epochs;
mod joining;
mod journals;
mod liveness;
mod parts;
mod refusals;
mod release;
mod slow;
mod snapshots;
mod subsets;
mod succession;
mod superblocks;
mod superseded;

/// The directories of a volume of `data`+`parity` shards.
#[derive(Clone)]
struct Disks {
    directories: Vec<MemDisk>,
    data: usize,
    parity: usize,
}

impl Disks {
    /// Directories with nothing in them.
    fn blank(data: usize, parity: usize, count: usize) -> Self {
        let disk = |index| MemDisk::new(&format!("/d{index}"), 1 << 30);
        Self {
            directories: (0..count).map(disk).collect(),
            data,
            parity,
        }
    }

    /// A fresh volume.
    fn volume(data: usize, parity: usize, count: usize) -> Self {
        let disks = Self::blank(data, parity, count);
        disks.create().expect("blank disks make a volume");
        disks
    }

    fn options(&self) -> CreateOptions {
        CreateOptions::new(Geometry::new(self.data, self.parity).expect("a valid geometry"))
    }

    fn create(&self) -> Result<VolumeId, MembersError> {
        Members::create(&self.stores(self.all()), &self.options())
    }

    fn fork(&self) -> Self {
        Self {
            directories: self.directories.iter().map(MemDisk::fork).collect(),
            ..*self
        }
    }

    /// Cuts the power of all of them.
    fn cut(&self, policy: CutPolicy) {
        self.directories.iter().for_each(|disk| disk.cut(policy));
    }

    fn all(&self) -> BTreeSet<usize> {
        (0..self.directories.len()).collect()
    }

    fn stores(&self, which: impl IntoIterator<Item = usize>) -> Vec<StoreRef> {
        let open = |index: usize| Arc::new(self.directories[index].open()) as StoreRef;
        which.into_iter().map(open).collect()
    }

    fn faulty(&self, which: impl IntoIterator<Item = usize>, plan: &FaultPlan) -> Vec<StoreRef> {
        let wrap = |index: usize| {
            let store = Arc::new(self.directories[index].open());
            Arc::new(FaultStore::new(store, index, plan)) as StoreRef
        };
        which.into_iter().map(wrap).collect()
    }

    fn open(&self, which: impl IntoIterator<Item = usize>) -> Result<Arc<Members>, MembersError> {
        open(self.stores(which))
    }

    /// All sets of them.
    fn subsets(&self) -> impl Iterator<Item = BTreeSet<usize>> + use<> {
        let count = self.directories.len();
        (0_u32..1 << count).map(move |bits| (0..count).filter(|i| bits >> i & 1 == 1).collect())
    }

    /// Returns whether a set of members of a fresh volume is enough to open it.
    fn suffice(&self, set: &BTreeSet<usize>) -> bool {
        set.len() + self.parity >= self.directories.len()
    }

    /// The newest superblock of a member.
    fn block(&self, index: usize) -> Superblock {
        let store = self.directories[index].open();
        let slot = |slot: usize| {
            let mut bytes = vec![0; SLOT_BYTES];
            let offset = (slot * SLOT_BYTES) as u64;
            store.read_at(files::SUPERBLOCK, offset, &mut bytes).ok()?;
            Superblock::decode(&bytes).ok()
        };
        let newest = slot(0)
            .into_iter()
            .chain(slot(1))
            .max_by_key(|block| block.generation);
        newest.expect("a member has a superblock")
    }
}

fn inline() -> Arc<Executor> {
    Arc::new(Executor::new(ExecutorKind::Inline, Duration::from_secs(1)))
}

fn open(stores: Vec<StoreRef>) -> Result<Arc<Members>, MembersError> {
    let members = Members::open(stores, Access::ReadWrite, inline())?;
    members.epochs().begin()?;
    Ok(members)
}

fn indices(members: impl IntoIterator<Item = usize>) -> Vec<MemberIndex> {
    let index = |member| MemberIndex(u16::try_from(member).expect("a small index"));
    members.into_iter().map(index).collect()
}

/// Says whether the remedy is to give all directories, or to read what is on those that are left.
fn can_be_read(error: &MembersError) -> bool {
    matches!(
        error.remedy(),
        Some(Remedy::Choice(DirectoryChoice::All { readable: true, .. }))
    )
}

fn io_error() -> StoreError {
    let source = std::io::Error::other("injected");
    StoreError::new(StoreErrorKind::Io, "/d", "write", "f", source)
}

/// An operation that a member without the file `f` answers with `NotFound`, which is no failure.
fn sync_op() -> Op {
    Op::Sync { name: "f".into() }
}
