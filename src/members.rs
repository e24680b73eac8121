//! The members of one volume: superblocks, epochs, liveness, parallel I/O over all of them.
//!
//! A volume consists of directories, each with a superblock that says which member it is and what it knows of the
//! others. This module finds out which of the given directories belong together and are up to date. It keeps a record
//! of the members present, and routes operations to members by index. Except for the superblock and the lock, it knows
//! nothing of the contents of the files. It only looks how far a journal goes, where a superblock is lost and where a
//! member returns.
//!
//! # Invariants
//!
//! - A member that fails is marked missing or faulted for good: no operation reaches it again. Before any caller hears
//!   of the failure, an epoch without the member is durable on all others (P7). A caller that sees an operation fail
//!   may go on as soon as the call returns.
//! - Once no request to such a member is under way any more, nothing of its directory stays open or locked.
//! - Members with an older epoch than others are stale: they take part, but nothing on them is taken for the newest
//!   until [`Members::admit_stale`].
//! - Opened with [`Access::ReadOnly`], nothing is written, not even a lock. Opened to be written to, only a lock is
//!   written before [`Members::begin`]: a volume that turns out not to be usable is left as it was.
//!
//! # Lock order
//!
//! `joining`, `roster`, then one member's health, `all`, `live`, `leaving`, `succession` or `acknowledged`; `holds` and
//! `last_known` by themselves. No lock but the first two is held across I/O; only callers that handle a failing or a
//! joining member wait for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use crate::codec::{CodeId, Geometry};
use crate::format::record::greatest_height;
use crate::format::{Epoch, MemberIndex, VolumeId};
use crate::store::{Executor, Store, StoreRef};

mod acknowledged;
mod buffered_reader;
mod content;
mod create;
pub mod directory;
mod directory_locks;
mod draining;
mod epoch;
mod error;
mod health;
mod hedged;
mod io;
mod join;
mod lineage;
mod lock;
mod open;
mod reason;
mod remedy;
mod slots;
mod stale_copies;
mod succession;
mod superblock_recovery;
mod superseded;
mod verify;

pub use create::CreateOptions;
pub use draining::clear;
pub use error::{Absent, Half, MembersError};
pub use health::{ErrorClass, ErrorCounts, MemberState, MemberStatus};
pub use hedged::Patience;
pub use join::{Belongings, Seat};
pub use reason::{AbsenceReason, RecoveryObstacle, Unusable};
pub use remedy::{DirectoryChoice, DirectoryStep, Remedy, VolumeStep};
pub(crate) use slots::chain;
pub use stale_copies::PutBack;
pub use superblock_recovery::{Bereft, Claims};
pub use verify::VerifiedSuperblocks;

use acknowledged::Acknowledged;
use directory_locks::Holds;
use epoch::Roster;
use health::Member;
use hedged::LastKnown;
use stale_copies::Unverified;
use succession::Succession;

/// The access for which a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written to any member; writers are locked out.
    ReadOnly,
    /// Members are locked; superblocks are written when membership changes.
    ReadWrite,
}

/// The properties that never change while a volume is open.
#[derive(Debug)]
struct Shape {
    volume: VolumeId,
    label: String,
    geometry: Geometry,
    code: CodeId,
    unit_bytes: u32,
    segment_bytes: u64,
}

/// The members of an open volume.
pub struct Members {
    shape: Shape,
    access: Access,
    executor: Arc<Executor>,
    /// All members, by index, whether they are there or not.
    all: RwLock<Vec<Arc<Member>>>,
    /// Held while a directory is taken into the volume.
    joining: Mutex<()>,
    /// Directories that could not be taken in, since something hung on them.
    unprepared: Mutex<Vec<Weak<dyn Store>>>,
    /// Held while an epoch is begun.
    roster: Mutex<Roster>,
    /// The members that are up, as of the last epoch that was begun.
    live: RwLock<Arc<[MemberIndex]>>,
    /// The members that are being emptied.
    leaving: RwLock<Arc<[MemberIndex]>>,
    /// The fate of members that are gone.
    succession: RwLock<Succession>,
    epoch: AtomicU64,
    failed: AtomicBool,
    current_at_open: Vec<MemberIndex>,
    unusable: Vec<Unusable>,
    /// See [`Members::claimed`].
    claimed: BTreeMap<MemberIndex, bool>,
    /// The directories that are open and locked; none after [`Members::release`] but those that hang.
    holds: Holds,
    released: AtomicBool,
    /// The stale copies that are not verified yet.
    unverified: Unverified,
    /// The last record that each member acknowledged.
    acknowledged: Acknowledged,
    /// The last known values of each member.
    last_known: Mutex<BTreeMap<MemberIndex, LastKnown>>,
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
    /// damaged count as missing ([`Members::unusable`]). No superblock is written yet: see [`Members::begin`].
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
        Self::open_claiming(stores, &Claims::new(), access, executor)
    }

    /// Opens the volume like [`Members::open`], with directories that have lost their superblocks as the members that
    /// `claims` say they are. [`Members::begin`] writes these superblocks again. Those that are not known to be up to
    /// date count as [stale copies](PutBack). They are also stale if they lack more than a crash may leave on some
    /// members only.
    ///
    /// # Errors
    ///
    /// As for [`Members::open`], and if the remaining superblocks are from an earlier time than the claimed
    /// directories.
    pub fn open_claiming(
        stores: Vec<StoreRef>,
        claims: &Claims,
        access: Access,
        executor: Arc<Executor>,
    ) -> Result<Arc<Self>, MembersError> {
        open::open(stores, claims, access, executor).map(Arc::new)
    }

    /// Begins to write. If other members are there than the superblocks say, those that are up to date begin a new
    /// epoch, durable on return. Call it once it is known that the volume can be used with the online members, because
    /// the absent ones are stale from here on. Until then a member that fails is set aside for as long as the volume is
    /// open, and no superblock knows of it. Lost superblocks are there again on return.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members failed since the volume was opened that it cannot go on.
    pub fn begin(&self) -> Result<(), MembersError> {
        let mut roster = self.roster.lock();
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        roster.begun = true;
        let (current, doubtful) = roster.take_made();
        self.write_made(&current);
        let all_up = roster.admitted.iter().all(|index| self.is_up(*index));
        if all_up && doubtful.is_empty() && roster.is_settled() {
            return Ok(());
        }
        let target = roster.admitted.clone();
        let raised = self.raise_epoch(&mut roster, target);
        if raised.is_ok() {
            // Now that all others know that these are not up to date.
            self.write_made(&doubtful);
        }
        self.publish(&roster);
        raised
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
        open::survey(stores, executor).map(Arc::new)
    }

    /// Takes stale members into the epoch; durable on return. Call it once the index knows all that they missed, except
    /// for journal and superblock, and their journals were written again. Does nothing if there are none, or nothing
    /// may be written.
    ///
    /// # Errors
    ///
    /// [`MembersError::Failed`] if so many members fail on the way that the volume cannot go on.
    pub fn admit_stale(&self) -> Result<(), MembersError> {
        let mut roster = self.roster.lock();
        let up: Vec<_> = self.indices().filter(|index| self.is_up(*index)).collect();
        if self.access == Access::ReadOnly || up.iter().all(|index| roster.admitted.contains(index))
        {
            return Ok(());
        }
        for index in up.iter().filter(|index| !roster.admitted.contains(index)) {
            log::info!("member {index} has the index and the journal again, and counts");
        }
        let raised = self.raise_epoch(&mut roster, up.into_iter().collect());
        if raised.is_ok() {
            self.acknowledged.note_admitted(&roster.admitted);
        }
        self.publish(&roster);
        raised
    }

    /// Releases the directories: nothing reaches them from now on, and others may use them. A directory on which an
    /// operation hangs stays locked until this process ends, because the operation may still take effect. The process
    /// cannot end before the operation does. Returns the paths of these.
    pub fn release(&self) -> Vec<String> {
        self.released.store(true, Ordering::Release);
        self.holds.free_all(&self.executor)
    }

    /// Returns the volume's identity.
    #[must_use]
    pub fn volume_id(&self) -> VolumeId {
        self.shape.volume
    }

    /// Returns the volume's name for people; may be empty.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.shape.label
    }

    /// Returns the geometry of new stripes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.shape.geometry
    }

    /// Returns the code of new stripes.
    #[must_use]
    pub fn code(&self) -> CodeId {
        self.shape.code
    }

    /// Returns the most bytes of one shard of a new stripe.
    #[must_use]
    pub fn unit_bytes(&self) -> u32 {
        self.shape.unit_bytes
    }

    /// Returns the greatest height of a stripe, in bytes.
    #[must_use]
    pub fn greatest_height(&self) -> u32 {
        let data_shards = self.shape.geometry.data_shards();
        // A geometry has at most 255 shards; a lower stripe is the safe answer for any other.
        let data_shards = u8::try_from(data_shards).unwrap_or(u8::MAX);
        greatest_height(self.shape.unit_bytes, data_shards)
    }

    /// Returns the most bytes of data that a stripe has.
    #[must_use]
    pub fn stripe_bytes(&self) -> u32 {
        let data_shards = self.shape.geometry.data_shards();
        let data_shards = u32::try_from(data_shards).unwrap_or(u32::MAX);
        self.greatest_height().saturating_mul(data_shards)
    }

    /// Returns the length of a full-sized segment's files in bytes.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.shape.segment_bytes
    }

    /// Returns the current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// Returns the access for which the volume was opened.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the executor that runs the members' operations.
    #[must_use]
    pub fn executor(&self) -> &Arc<Executor> {
        &self.executor
    }

    /// Returns how many members the volume has, missing ones included.
    #[must_use]
    pub fn count(&self) -> usize {
        let all = self.all.read();
        all.iter().filter(|member| !member.is_vacant()).count()
    }

    /// Returns the members that take part, stale ones included.
    #[must_use]
    pub fn live(&self) -> Vec<MemberIndex> {
        self.live.read().to_vec()
    }

    /// Returns the members that were up to date when the volume was opened: recovery may trust them to have the newest
    /// index and journal.
    #[must_use]
    pub fn current_at_open(&self) -> Vec<MemberIndex> {
        self.current_at_open.clone()
    }

    /// Returns the members that take part, but wait for [`Members::admit_stale`].
    #[must_use]
    pub fn stale(&self) -> Vec<MemberIndex> {
        let roster = self.roster.lock();
        let live = self.live();
        live.into_iter()
            .filter(|index| !roster.admitted.contains(index))
            .collect()
    }

    /// Returns a member's directory, or `None` if the member is not up.
    #[must_use]
    pub fn store(&self, member: MemberIndex) -> Option<StoreRef> {
        if self.is_released() {
            return None;
        }
        self.member(member)?.store()
    }

    /// Returns where a member is, or was last seen; empty if that is not known, or there is no such
    /// member.
    #[must_use]
    pub fn path(&self, member: MemberIndex) -> String {
        self.member(member)
            .map_or(String::new(), |member| member.path.clone())
    }

    /// Returns the directories that were given to [`Members::open`], but are left out.
    #[must_use]
    pub fn unusable(&self) -> &[Unusable] {
        &self.unusable
    }

    /// Says whether so many members failed that the volume cannot go on.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    fn member(&self, index: MemberIndex) -> Option<Arc<Member>> {
        self.all.read().get(usize::from(index.0)).cloned()
    }

    fn everyone(&self) -> Vec<Arc<Member>> {
        self.all.read().clone()
    }

    fn is_up(&self, index: MemberIndex) -> bool {
        self.member(index).is_some_and(|member| member.is_up())
    }

    fn indices(&self) -> impl Iterator<Item = MemberIndex> + use<> {
        (0..).map(MemberIndex).take(self.all.read().len())
    }

    /// Publishes which members are up, which are being drained, and which epoch it is.
    fn publish(&self, roster: &Roster) {
        let live = self.indices().filter(|index| self.is_up(*index)).collect();
        *self.live.write() = live;
        *self.leaving.write() = roster.leaving().collect();
        *self.succession.write() = roster.succession.clone();
        self.epoch.store(roster.epoch().0, Ordering::Release);
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members")
            .field("shape", &self.shape)
            .field("access", &self.access)
            .field("epoch", &self.epoch())
            .field("live", &self.live())
            .field("failed", &self.is_failed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
