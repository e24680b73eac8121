//! The groups of keys that were changed since the last query.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::batch::Batch;

/// The most groups that are remembered. If there are more, all count as changed.
const MOST_GROUPS: usize = 1 << 17;

/// Division of keys into groups.
pub trait Grouping: std::fmt::Debug + Send + Sync {
    /// Returns the group of a key, if it belongs to any.
    fn group_of(&self, key: &[u8]) -> Option<u64>;
}

/// Set of the groups that were changed. It stays unknown until [`DirtyGroups::track`] says how keys form groups.
#[derive(Debug, Default)]
pub(super) struct DirtyGroups {
    grouping: OnceLock<Box<dyn Grouping>>,
    /// Groups changed since the last query; `None` if these are too many.
    groups: Mutex<Option<BTreeSet<u64>>>,
}

impl DirtyGroups {
    /// Remembers changes of groups from now on.
    pub(super) fn track(&self, grouping: Box<dyn Grouping>) {
        if self.grouping.set(grouping).is_ok() {
            *self.groups.lock() = None;
        }
    }

    /// Returns the groups that a batch changes; `None` while it is not known how keys form groups.
    pub(super) fn groups_in(&self, batch: &Batch) -> Option<Vec<u64>> {
        let grouping = self.grouping.get()?;
        let changed = batch.iter();
        let groups = changed.filter_map(|(key, _)| grouping.group_of(key));
        let mut groups: Vec<u64> = groups.collect();
        groups.dedup();
        Some(groups)
    }

    /// Notes that groups were changed, after that has become visible: a query in between learns of it later. A change
    /// that began before the tracking may be of any group, even if the first query came in between.
    pub(super) fn note(&self, groups: Option<&[u64]>) {
        let Some(groups) = groups else {
            *self.groups.lock() = None;
            return;
        };
        if groups.is_empty() {
            return;
        }
        let mut noted = self.groups.lock();
        if let Some(noted_groups) = noted.as_mut() {
            noted_groups.extend(groups);
            if noted_groups.len() > MOST_GROUPS {
                *noted = None;
            }
        }
    }

    /// Returns the groups that were changed since this was called before; `None` if it may be any.
    pub(super) fn take(&self) -> Option<BTreeSet<u64>> {
        self.groups.lock().replace(BTreeSet::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct FirstByte;

    impl Grouping for FirstByte {
        fn group_of(&self, key: &[u8]) -> Option<u64> {
            let byte = key.first().filter(|byte| **byte != b'x');
            byte.map(|byte| u64::from(*byte))
        }
    }

    fn change(dirty: &DirtyGroups, keys: &[&'static str]) {
        let mut batch = Batch::default();
        for key in keys {
            batch.put(*key, "");
        }
        dirty.note(dirty.groups_in(&batch).as_deref());
    }

    #[test]
    fn a_group_is_dirty_once_after_each_change_and_keys_without_a_group_never() {
        let dirty = DirtyGroups::default();
        change(&dirty, &["a"]);
        dirty.track(Box::new(FirstByte));
        assert_eq!(dirty.take(), None, "what was before is not known");
        change(&dirty, &["a1", "a2", "b", "x"]);
        change(&dirty, &["a3"]);
        let groups = |named: &str| Some(named.bytes().map(u64::from).collect());
        assert_eq!(dirty.take(), groups("ab"));
        assert_eq!(dirty.take(), groups(""));
        change(&dirty, &["c"]);
        assert_eq!(dirty.take(), groups("c"));
    }

    /// Stripes are flushed, and so change records, before the count of redundancy asks for the tracking.
    #[test]
    fn a_change_that_began_before_the_tracking_counts_as_all_groups() {
        let dirty = DirtyGroups::default();
        let mut batch = Batch::default();
        batch.put("a", "");
        let groups = dirty.groups_in(&batch);
        dirty.track(Box::new(FirstByte));
        assert_eq!(dirty.take(), None, "what was before is not known");
        dirty.note(groups.as_deref());
        assert_eq!(dirty.take(), None, "the first query came before the change");
        assert_eq!(dirty.take(), Some(BTreeSet::new()));
    }

    #[test]
    fn too_many_dirty_groups_count_as_all() {
        let dirty = DirtyGroups::default();
        dirty.track(Box::new(FirstByte));
        dirty.take();
        dirty.note(Some(&(0..=MOST_GROUPS as u64).collect::<Vec<_>>()));
        assert_eq!(dirty.take(), None);
        assert_eq!(dirty.take(), Some(BTreeSet::new()));
    }
}
