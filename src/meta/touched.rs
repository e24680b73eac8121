//! The groups of keys that were changed since the last query.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::Batch;

/// Groups that are remembered; if there are more, all count as changed.
const MOST_GROUPS: usize = 1 << 17;

/// Says to which group a key belongs, if to any.
pub type GroupOf = fn(&[u8]) -> Option<u64>;

/// Remembers which groups were changed. It remembers nothing until it is told how keys form groups.
#[derive(Debug, Default)]
pub(super) struct Touched {
    group_of: OnceLock<GroupOf>,
    /// Since they were asked for; `None` if too many were.
    groups: Mutex<Option<BTreeSet<u64>>>,
}

impl Touched {
    /// Remembers changes of groups from now on.
    pub(super) fn follow(&self, group_of: GroupOf) {
        if self.group_of.set(group_of).is_ok() {
            *self.groups.lock() = None;
        }
    }

    /// Returns the groups that a batch changes.
    pub(super) fn groups_in(&self, batch: &Batch) -> Vec<u64> {
        let Some(group_of) = self.group_of.get() else {
            return Vec::new();
        };
        let mut groups: Vec<u64> = batch.iter().filter_map(|(key, _)| group_of(key)).collect();
        groups.dedup();
        groups
    }

    /// Notes that groups were changed, after that has become visible: a query in between learns of it later.
    pub(super) fn note(&self, groups: &[u64]) {
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

    fn first_byte(key: &[u8]) -> Option<u64> {
        key.first()
            .filter(|byte| **byte != b'x')
            .map(|byte| u64::from(*byte))
    }

    fn change(touched: &Touched, keys: &[&'static str]) {
        let mut batch = Batch::default();
        for key in keys {
            batch.put(*key, "");
        }
        touched.note(&touched.groups_in(&batch));
    }

    #[test]
    fn groups_are_named_once_after_each_change_and_keys_without_one_never() {
        let touched = Touched::default();
        change(&touched, &["a"]);
        touched.follow(first_byte);
        assert_eq!(touched.take(), None, "what was before is not known");
        change(&touched, &["a1", "a2", "b", "x"]);
        change(&touched, &["a3"]);
        let groups = |named: &str| Some(named.bytes().map(u64::from).collect());
        assert_eq!(touched.take(), groups("ab"));
        assert_eq!(touched.take(), groups(""));
        change(&touched, &["c"]);
        assert_eq!(touched.take(), groups("c"));
    }

    #[test]
    fn of_too_many_groups_none_is_named() {
        let touched = Touched::default();
        touched.follow(first_byte);
        touched.take();
        touched.note(&(0..=MOST_GROUPS as u64).collect::<Vec<_>>());
        assert_eq!(touched.take(), None);
        assert_eq!(touched.take(), Some(BTreeSet::new()));
    }
}
