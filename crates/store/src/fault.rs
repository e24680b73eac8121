//! A store that fails on cue, for trying every failure after every call.
//!
//! All stores of a test volume are wrapped in [`FaultStore`]s that share one [`FaultPlan`]. The
//! plan counts their calls, and each [`Fault`] in it strikes at the n-th call of those that it is
//! about. With [`ExecutorKind::Inline`](super::ExecutorKind::Inline) the order of calls, and so
//! the outcome, is the same in every run:
//!
//! ```
//! use std::sync::Arc;
//! use cauchyfs_store::{Effect, Fault, FaultPlan, FaultStore, MemStore, Store};
//!
//! for call in 1.. {
//!     let plan = FaultPlan::new();
//!     plan.add(Fault::at(call, Effect::Eio));
//!     let store = FaultStore::new(Arc::new(MemStore::new("m")), 0, &plan);
//!     let failed = store.create("f", 8).is_err() || store.write_at("f", 0, b"x").is_err();
//!     assert_eq!(failed, plan.triggered() > 0);
//!     if plan.triggered() == 0 {
//!         break; // the work made fewer than `call` calls: every one of them was tried
//!     }
//! }
//! ```

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::{
    DirectoryIdentity, Hold, Space, Store, StoreError, StoreErrorKind, StoreLock, StoreRef, Visitor,
};

pub use plan::{Call, CallKind, Effect, Fault, FaultPlan, Scope};

mod plan;

/// A store whose calls are counted, and made to fail, by a [`FaultPlan`].
#[derive(Debug)]
pub struct FaultStore {
    inner: StoreRef,
    member: usize,
    plan: FaultPlan,
}

impl FaultStore {
    /// Wraps `inner` as the store number `member` of `plan`.
    #[must_use]
    pub fn new(inner: StoreRef, member: usize, plan: &FaultPlan) -> Self {
        Self {
            inner,
            member,
            plan: plan.clone(),
        }
    }

    /// Wraps every store of a volume, numbered in order, sharing `plan`.
    #[must_use]
    pub fn wrap_all(stores: Vec<StoreRef>, plan: &FaultPlan) -> Vec<StoreRef> {
        let wrap = |(member, inner)| Arc::new(Self::new(inner, member, plan)) as StoreRef;
        stores.into_iter().enumerate().map(wrap).collect()
    }

    /// Counts a call and returns what the plan has for it, after waiting out a hang.
    fn strike(&self, kind: CallKind, name: &str, offset: u64, len: u64) -> Option<Effect> {
        let call = Call {
            member: self.member,
            kind,
            name: name.to_owned(),
            offset,
            len,
        };
        let (effect, releases) = self.plan.next(call);
        if effect == Some(Effect::Hang) {
            self.plan.wait_for_release(releases);
            return None;
        }
        effect
    }

    fn error(&self, effect: Effect, action: &'static str, name: &str) -> StoreError {
        let (kind, source) = match effect {
            Effect::NoSpace => (StoreErrorKind::NoSpace, Errno::NOSPC.into()),
            Effect::NoDescriptors => (StoreErrorKind::Exhausted, Errno::MFILE.into()),
            Effect::PowerCut => (
                StoreErrorKind::PowerCut,
                io::Error::other("the power is off"),
            ),
            Effect::Eio | Effect::ShortWrite | Effect::WrongBytes | Effect::Hang => {
                (StoreErrorKind::Io, Errno::IO.into())
            }
        };
        StoreError::new(kind, self.inner.label(), action, name, source)
    }

    /// Counts a call that can only fail or go through.
    fn gate(&self, kind: CallKind, action: &'static str, name: &str) -> Result<(), StoreError> {
        self.gate_range(kind, action, name, 0, 0)
    }

    fn gate_range(
        &self,
        kind: CallKind,
        action: &'static str,
        name: &str,
        offset: u64,
        len: u64,
    ) -> Result<(), StoreError> {
        match self.strike(kind, name, offset, len) {
            None | Some(Effect::WrongBytes) => Ok(()),
            Some(effect) => Err(self.error(effect, action, name)),
        }
    }
}

/// Flips one bit in the middle: the smallest damage that a checksum must see.
fn damage(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x10;
    }
}

impl Store for FaultStore {
    fn label(&self) -> String {
        self.inner.label()
    }

    fn create(&self, name: &str, len: u64) -> Result<(), StoreError> {
        self.gate_range(CallKind::Create, "create", name, 0, len)?;
        self.inner.create(name, len)
    }

    fn open_len(&self, name: &str) -> Result<u64, StoreError> {
        self.gate(CallKind::OpenLen, "open", name)?;
        self.inner.open_len(name)
    }

    fn truncate(&self, name: &str, len: u64) -> Result<(), StoreError> {
        self.gate_range(CallKind::Truncate, "truncate", name, 0, len)?;
        self.inner.truncate(name, len)
    }

    fn reserve(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError> {
        self.gate_range(CallKind::Reserve, "reserve", name, offset, len)?;
        self.inner.reserve(name, offset, len)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        self.gate(CallKind::Remove, "remove", name)?;
        self.inner.remove(name)
    }

    fn remove_if_empty(&self, dir: &str) -> Result<(), StoreError> {
        self.gate(CallKind::Remove, "remove", dir)?;
        self.inner.remove_if_empty(dir)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.gate(CallKind::Rename, "rename", from)?;
        self.inner.rename(from, to)
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.gate(CallKind::List, "list", dir)?;
        self.inner.list(dir)
    }

    fn visit(&self, dir: &str, look: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.gate(CallKind::Visit, "list", dir)?;
        self.inner.visit(dir, look)
    }

    fn taken_by_file(&self, dir: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.gate(CallKind::List, "list", dir)?;
        self.inner.taken_by_file(dir)
    }

    fn taken(&self, dir: &str) -> Result<u64, StoreError> {
        self.gate(CallKind::List, "list", dir)?;
        self.inner.taken(dir)
    }

    fn punch(&self, name: &str, offset: u64, len: u64) -> Result<(), StoreError> {
        self.gate_range(CallKind::Punch, "punch", name, offset, len)?;
        self.inner.punch(name, offset, len)
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        match self.strike(CallKind::Read, name, offset, buf.len() as u64) {
            None => self.inner.read_at(name, offset, buf),
            Some(Effect::WrongBytes) => {
                self.inner.read_at(name, offset, buf)?;
                damage(buf);
                Ok(())
            }
            Some(effect) => Err(self.error(effect, "read", name)),
        }
    }

    fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        match self.strike(CallKind::Write, name, offset, data.len() as u64) {
            None => self.inner.write_at(name, offset, data),
            Some(Effect::WrongBytes) => {
                let mut data = data.to_vec();
                damage(&mut data);
                self.inner.write_at(name, offset, &data)
            }
            Some(effect @ Effect::ShortWrite) => {
                self.inner.write_at(name, offset, &data[..data.len() / 2])?;
                Err(self.error(effect, "write", name))
            }
            Some(effect) => Err(self.error(effect, "write", name)),
        }
    }

    fn sync(&self, name: &str) -> Result<(), StoreError> {
        self.gate(CallKind::Sync, "sync", name)?;
        self.inner.sync(name)
    }

    fn space(&self) -> Result<Space, StoreError> {
        self.gate(CallKind::Space, "measure", "directory")?;
        self.inner.space()
    }

    fn probe(&self) -> Result<(), StoreError> {
        self.gate(CallKind::Probe, "find", "directory")?;
        self.inner.probe()
    }

    fn refresh(&self, name: &str) -> Result<bool, StoreError> {
        self.inner.refresh(name)
    }

    fn directory_identity(&self) -> Option<DirectoryIdentity> {
        self.inner.directory_identity()
    }

    fn is_directory(&self, identity: &DirectoryIdentity) -> Result<bool, StoreError> {
        self.inner.is_directory(identity)
    }

    fn lock(&self, hold: Hold) -> Result<StoreLock, StoreError> {
        self.gate(CallKind::Lock, "lock", "directory")?;
        self.inner.lock(hold)
    }
}

#[cfg(test)]
mod tests;
