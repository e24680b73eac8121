//! Walks over the records of stripes, of segments, and of the extents that refer to them.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::CommitError;
use super::live::LiveBytes;
use crate::format::record::{Backref, Counter, FileKind, Inode, SegmentStripe, Stripe};
use crate::format::{Ino, MemberIndex, Record, SegmentId, StripeClass, StripeId, key};
use crate::metadata::{Batch, Key, Meta, Value};
use crate::stripes::{ClassCode, Classes, StripeRecords};

/// Records read at once.
const RECORDS_AT_ONCE: usize = 1024;

/// The stripes that the index lists for a segment.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Those whose own records lie there. One may be listed twice if the records do not agree.
    pub(crate) stripes: Vec<(StripeId, Stripe)>,
    /// Set if all records agree on where stripes lie, and none overlap.
    pub(crate) is_consistent: bool,
}

/// The catalog of the stripes of a volume: which lie in a segment, and which bytes of them files hold.
pub(crate) struct Catalog {
    meta: Arc<Meta>,
    records: Arc<StripeRecords>,
    /// Work lock: held while a class of stripes is added, and while orders to rewrite files come or go. Counts the calls
    /// that are giving files other classes, or add members.
    classes: Mutex<usize>,
}

impl Catalog {
    pub(crate) fn new(meta: Arc<Meta>, records: Arc<StripeRecords>) -> Self {
        Self {
            meta,
            records,
            classes: Mutex::default(),
        }
    }

    /// Returns whether an extent refers to a stripe. A change that moves the reference to another key meanwhile hides it
    /// from no view.
    pub(crate) fn has_backref(&self, stripe: StripeId) -> Result<bool, CommitError> {
        let (from, end) = key::backrefs(stripe);
        Ok(self.meta.has_any(&from, &end)?)
    }

    /// Keeps others from adding classes of stripes.
    pub(crate) fn hold_classes(&self) -> MutexGuard<'_, usize> {
        self.classes.lock()
    }

    /// Returns the number of the last order to rewrite files, if it is not carried out.
    pub(crate) fn rewrite_order(&self) -> Result<Option<u64>, CommitError> {
        Ok(self.records.rewrites().order()?)
    }

    /// Returns how many orders to rewrite files were given since the volume was opened, without those that stripes gave.
    pub(crate) fn rewrites_given(&self) -> u64 {
        self.records.rewrites().given()
    }

    /// Notes that stripes may hold bytes of files of other classes, and are to be rewritten.
    pub(crate) fn order_rewrite(&self) -> Result<(), CommitError> {
        Ok(self.records.rewrites().give()?)
    }

    /// Notes that stripes are to be rewritten, if so many members suffice for a code of directories. A volume has them by now,
    /// and may have had fewer when bytes of such files were written. Those of narrower codes count as well: several members
    /// may have come since, without an order for one that replaces another. Returns whether they do.
    pub(crate) fn order_rewrite_up_to_width(
        &self,
        classes: &Classes,
        members: usize,
    ) -> Result<bool, CommitError> {
        let mut codes = classes.of_directories().into_iter();
        let is_wanted = codes.any(|code| code.geometry().total_shards() <= members);
        if is_wanted {
            self.order_rewrite()?;
        }
        Ok(is_wanted)
    }

    /// Runs `work`, which gives files other classes, and notes before and after it that they are to be rewritten. No order
    /// goes meanwhile: a rebuild may have looked before the last of these files got its class.
    pub(crate) fn ordering_rewrite<T, E: From<CommitError>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let _kept = self.keep_rewrite_orders();
        self.order_rewrite()?;
        let outcome = work();
        // Some files may have got it also if that failed. A rebuild that read the first order does not end this one.
        let ordered = self.order_rewrite();
        let done = outcome?;
        ordered?;
        Ok(done)
    }

    /// Keeps orders to rewrite files open until the guard is dropped.
    pub(crate) fn keep_rewrite_orders(&self) -> impl Drop + '_ {
        *self.classes.lock() += 1;
        scopeguard::guard((), |()| *self.classes.lock() -= 1)
    }

    /// Notes that all orders up to this one are carried out but for so many stripes. Does nothing while files are being given
    /// other classes, or members are being added. What was done must be durable. Returns whether this ended the order.
    pub(crate) fn finish_rewrite(&self, order: u64, left: u64) -> Result<bool, CommitError> {
        let under_way = self.classes.lock();
        if *under_way > 0 {
            return Ok(false);
        }
        Ok(self.records.rewrites().finish(order, left)?)
    }

    /// Returns how many stripes the last order to rewrite files could not move.
    pub(crate) fn left_by_rewrite(&self) -> Result<u64, CommitError> {
        Ok(self.records.rewrites().left()?)
    }

    /// Returns the stripe unit of a segment if it is noted, because that of the volume changed since. All others count as
    /// having that of the volume.
    pub(crate) fn past_unit_of(&self, segment: SegmentId) -> Option<u32> {
        self.records.past_units().of(segment)
    }

    /// Returns the limit of ordered rebuilds that is noted, in bytes per second. A damaged one is none: the work goes on.
    pub(crate) fn rebuild_limit(&self) -> Result<Option<u64>, CommitError> {
        let Some(stored) = self.meta.get(&key::counter(key::REBUILD_LIMIT))? else {
            return Ok(None);
        };
        match Counter::decode(&stored) {
            Ok(Counter(limit)) => Ok((limit > 0).then_some(limit)),
            Err(error) => {
                tracing::warn!(
                    "the limit of ordered rebuilds is damaged, and counts as none: {error}"
                );
                Ok(None)
            }
        }
    }

    /// Notes the limit of ordered rebuilds, in bytes per second, or that there is none. Returns whether that is another one.
    pub(crate) fn note_rebuild_limit(&self, limit: Option<u64>) -> Result<bool, CommitError> {
        let name = key::counter(key::REBUILD_LIMIT);
        let stored = self.meta.get(&name)?;
        let wanted = limit.map(|limit| Counter(limit).encode());
        if stored.as_deref() == wanted.as_deref() {
            return Ok(false);
        }
        let mut batch = Batch::default();
        match wanted {
            Some(value) => batch.put(name, value),
            None => batch.delete(name),
        }
        self.meta.apply_stripes(batch)?;
        Ok(true)
    }

    /// Returns the members whose shards an order has rebuilt on others, and that is not complete.
    pub(crate) fn rebuilt_elsewhere(&self) -> Result<BTreeSet<MemberIndex>, CommitError> {
        let mut found = BTreeSet::new();
        for member in (0..=u8::MAX).map(|member| MemberIndex(member.into())) {
            let name = key::rebuilt_elsewhere(member);
            if self.meta.get(&key::counter(&name))?.is_some() {
                found.insert(member);
            }
        }
        Ok(found)
    }

    /// Returns whether shards are to be moved to members that have fewer, for an order.
    pub(crate) fn awaits_balance(&self) -> Result<bool, CommitError> {
        Ok(self.meta.get(&key::counter(key::BALANCE))?.is_some())
    }

    /// Notes that the shards of these absent members are rebuilt on others. With `balance`, also notes that shards are to be
    /// moved to members that have fewer.
    pub(crate) fn note_orders(
        &self,
        elsewhere: &BTreeSet<MemberIndex>,
        balance: bool,
    ) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        for counter in counters(elsewhere, balance) {
            batch.put(counter, Counter(1).encode());
        }
        self.apply_counters(batch)
    }

    /// Notes that neither is to be done any more.
    pub(crate) fn forget_orders(
        &self,
        elsewhere: &BTreeSet<MemberIndex>,
        balance: bool,
    ) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        for counter in counters(elsewhere, balance) {
            batch.delete(counter);
        }
        self.apply_counters(batch)
    }

    /// Applies changes of counters in the order in which they come.
    fn apply_counters(&self, batch: Batch) -> Result<(), CommitError> {
        if batch.is_empty() {
            return Ok(());
        }
        Ok(self.meta.apply_stripes(batch)?)
    }

    /// Returns the class of stripes for new bytes of an inode. One that is gone has that of the volume.
    pub(crate) fn class_of(&self, classes: &Classes, ino: Ino) -> Result<StripeClass, CommitError> {
        if classes.is_plain() {
            return Ok(StripeClass::VOLUME);
        }
        let record = self.meta.get(&key::inode(ino))?;
        let inode = record.map(|value| Inode::decode(&value)).transpose()?;
        Ok(inode.map_or(StripeClass::VOLUME, |inode| inode.class))
    }

    /// Returns those of some classes that directories name for what is made in them. Reads inodes until each was found.
    pub(crate) fn named_by_directories(
        &self,
        classes: &BTreeSet<StripeClass>,
    ) -> Result<BTreeSet<StripeClass>, CommitError> {
        self.named(classes, |inode| {
            inode.kind == FileKind::Directory && inode.links > 0
        })
    }

    /// Returns those of some classes that inodes name. Reads inodes until each was found.
    pub(crate) fn named_by_inodes(
        &self,
        classes: &BTreeSet<StripeClass>,
    ) -> Result<BTreeSet<StripeClass>, CommitError> {
        self.named(classes, |_| true)
    }

    /// Returns those of some classes that inodes name for which `counts` holds. Damaged records are passed over, since
    /// nothing can be written for them.
    fn named(
        &self,
        classes: &BTreeSet<StripeClass>,
        counts: impl Fn(&Inode) -> bool,
    ) -> Result<BTreeSet<StripeClass>, CommitError> {
        let mut named = BTreeSet::new();
        if classes.is_empty() {
            return Ok(named);
        }
        let (from, end) = key::inodes();
        self.visit(&from, &end, |_, value| {
            if let Ok(inode) = Inode::decode(value)
                && classes.contains(&inode.class)
                && counts(&inode)
            {
                named.insert(inode.class);
            }
            Ok::<_, CommitError>(if named.len() == classes.len() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        Ok(named)
    }

    /// Returns the code of stripes for bytes of an inode that are moved. That is the volume's if the class of the inode has
    /// none that is known.
    pub(crate) fn code_of(
        &self,
        classes: &Classes,
        ino: Ino,
    ) -> Result<Arc<ClassCode>, CommitError> {
        let code = classes.get(self.class_of(classes, ino)?);
        Ok(code.unwrap_or_else(|| Arc::clone(classes.volume())))
    }

    /// Returns the stripes of a segment in disk order. Returns `None` if their records overlap or do not agree on where
    /// they lie. Moving or freeing a part of such a segment could lose bytes that reads still serve.
    pub(crate) fn stripes_in(
        &self,
        segment: SegmentId,
    ) -> Result<Option<Vec<(StripeId, Stripe)>>, CommitError> {
        let listed = self.listed_in(segment)?;
        Ok(listed.is_consistent.then_some(listed.stripes))
    }

    /// Reads which stripes a segment has, whether or not their records agree.
    pub(crate) fn listed_in(&self, segment: SegmentId) -> Result<Listed, CommitError> {
        let (mut from, end) = key::segment_stripes(segment);
        let mut listed = Listed {
            stripes: Vec::new(),
            is_consistent: true,
        };
        let mut filled = 0;
        loop {
            let found = self.meta.scan(&from, &end, RECORDS_AT_ONCE)?;
            for (key, value) in &found {
                let place = key::parse_segment_stripe(key)?;
                let SegmentStripe(stripe) = SegmentStripe::decode(value)?;
                let Some(record) = self.records.stripe(stripe)? else {
                    continue;
                };
                if place != (record.segment, record.offset) || record.offset < filled {
                    listed.is_consistent = false;
                }
                if record.segment == segment {
                    filled = filled.max(record.offset.saturating_add(record.height.into()));
                    listed.stripes.push((stripe, record));
                }
            }
            match found.last() {
                Some((last, _)) if found.len() == RECORDS_AT_ONCE => from = successor(last),
                _ => return Ok(listed),
            }
        }
    }

    /// Calls `visit` with the newest records from `from` on and before `end`, in order, until it breaks
    /// or fails. Nothing is copied.
    pub(crate) fn visit<E: From<CommitError>>(
        &self,
        from: &[u8],
        end: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E> {
        let mut outcome = Ok(());
        let visited = self.meta.visit(from, end, &mut |key, value| {
            visit(key, value).unwrap_or_else(|error| {
                outcome = Err(error);
                ControlFlow::Break(())
            })
        });
        visited.map_err(CommitError::from)?;
        outcome
    }

    /// Returns how many bytes of a stripe files hold; those that several share count once.
    pub(crate) fn live_in(&self, stripe: StripeId) -> Result<u64, CommitError> {
        self.count_live(stripe, LiveBytes::add)
    }

    /// Returns how many bytes in some ranges of a stripe files hold, in the same way.
    pub(crate) fn live_within(
        &self,
        stripe: StripeId,
        ranges: &[Range<u32>],
    ) -> Result<u64, CommitError> {
        if ranges.is_empty() {
            return Ok(0);
        }
        self.count_live(stripe, |live, backref| live.add_within(backref, ranges))
    }

    fn count_live(
        &self,
        stripe: StripeId,
        add: impl Fn(&mut LiveBytes, &Backref),
    ) -> Result<u64, CommitError> {
        let (from, end) = key::backrefs(stripe);
        let mut live = LiveBytes::default();
        self.visit(&from, &end, |_, value| {
            add(&mut live, &Backref::decode(value)?);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        Ok(live.take())
    }

    /// Calls `visit` with every stripe that has a record, in the order of their numbers.
    pub(crate) fn for_each_stripe(
        &self,
        mut visit: impl FnMut(StripeId, Stripe),
    ) -> Result<(), CommitError> {
        let (from, end) = key::stripes();
        self.visit(&from, &end, |key, value| {
            visit(key::parse_stripe(key)?, Stripe::decode(value)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Calls `visit` like [`Self::for_each_stripe`], also with the runs of each stripe's bytes that files hold: start and
    /// end of each, in order and apart.
    pub(crate) fn for_each_stripe_with_live(
        &self,
        mut visit: impl FnMut(&Stripe, &[(u64, u64)]),
    ) -> Result<(), CommitError> {
        let (mut from, end) = key::stripes();
        loop {
            let stripes = self.stripes_from(&from, &end)?;
            let (Some((first, _)), Some((last, _))) = (stripes.first(), stripes.last()) else {
                return Ok(());
            };
            from = successor(&key::stripe(*last));
            let (backrefs, backrefs_end) = (key::backrefs(*first).0, key::backrefs(*last).1);
            let mut left = stripes.iter().peekable();
            let mut live = LiveBytes::default();
            self.visit(&backrefs, &backrefs_end, |key, value| {
                let (stripe, _, _) = key::parse_backref(key)?;
                while let Some((_, before)) = left.next_if(|(id, _)| *id < stripe) {
                    visit(before, &live.take_runs());
                }
                // One without a record is in memory.
                if left.peek().is_some_and(|(id, _)| *id == stripe) {
                    live.add(&Backref::decode(value)?);
                }
                Ok::<_, CommitError>(ControlFlow::Continue(()))
            })?;
            for (_, stripe) in left {
                visit(stripe, &live.take_runs());
            }
        }
    }

    /// Returns the first stripes of a range of their keys.
    fn stripes_from(
        &self,
        from: &[u8],
        end: &[u8],
    ) -> Result<Vec<(StripeId, Stripe)>, CommitError> {
        let found = self.meta.scan(from, end, RECORDS_AT_ONCE)?;
        let parse =
            |(key, value): &(Key, Value)| Ok((key::parse_stripe(key)?, Stripe::decode(value)?));
        found.iter().map(parse).collect()
    }
}

/// Returns the keys of the counters of orders that outlast the daemon.
fn counters(elsewhere: &BTreeSet<MemberIndex>, balance: bool) -> impl Iterator<Item = Key> {
    let members = elsewhere.iter().map(|it| key::rebuilt_elsewhere(*it));
    let balance = balance.then(|| key::BALANCE.to_owned());
    let names = members.chain(balance);
    names.map(|name| key::counter(&name))
}

/// Returns the first key after `key`.
pub(crate) fn successor(key: &[u8]) -> Key {
    Key::concat(&[key, &[0]])
}
