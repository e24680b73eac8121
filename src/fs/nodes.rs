//! Counts of the references to inodes.
//!
//! A kernel remembers inodes that it looked up, and says later how many of its look-ups it forgets. An inode whose last
//! name is gone lives on while a look-up or a handle is out. The call that returns the last of them removes it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::format::Ino;

/// Independent parts of the table, a power of two.
const SHARDS: usize = 64;

/// The references to one inode.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    lookups: u64,
    handles: u32,
    /// Those of the handles through which it may be written.
    writers: u32,
    unlinked: bool,
    linkable: bool,
}

impl Node {
    fn is_idle(self) -> bool {
        self.lookups == 0 && self.handles == 0
    }
}

/// A part of the table.
type Shard = Mutex<HashMap<Ino, Node>>;

/// Counts look-ups and handles; inodes with neither take no memory.
pub(super) struct Nodes {
    /// Threads that make inodes at the same time get neighbouring numbers, and so neighbouring parts.
    shards: Box<[CachePadded<Shard>]>,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Counts a look-up that goes out.
    pub(super) fn look_up(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        shard.entry(ino).or_default().lookups += 1;
    }

    /// Counts a handle that goes out, and whether it writes.
    pub(super) fn hold(&self, ino: Ino, writes: bool) {
        let mut shard = self.shard(ino).lock();
        let node = shard.entry(ino).or_default();
        node.handles += 1;
        node.writers += u32::from(writes);
    }

    /// Returns the inodes that a look-up or a handle refers to.
    pub(super) fn referenced(&self) -> Vec<Ino> {
        let shards = self.shards.iter();
        let inodes = shards.map(|shard| shard.lock().keys().copied().collect::<Vec<Ino>>());
        inodes.flatten().collect()
    }

    /// Returns whether a look-up or a handle refers to an inode.
    pub(super) fn is_referenced(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Returns whether a handle is out through which the inode may be written.
    pub(super) fn has_writer(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.get(&ino).is_some_and(|node| node.writers > 0)
    }

    /// Takes back `lookups` look-ups. Returns whether the caller is to remove the inode.
    #[must_use]
    pub(super) fn forget(&self, ino: Ino, lookups: u64) -> bool {
        self.give_back(ino, |node| {
            node.lookups = node.lookups.saturating_sub(lookups);
        })
    }

    /// Takes back a handle that was counted with the same `writes`. Returns whether the caller is to
    /// remove the inode.
    #[must_use]
    pub(super) fn release(&self, ino: Ino, writes: bool) -> bool {
        self.give_back(ino, |node| {
            node.handles = node.handles.saturating_sub(1);
            node.writers = node.writers.saturating_sub(u32::from(writes));
        })
    }

    /// Notes that the inode's last name is gone. Returns whether the caller is to remove it at once,
    /// since nothing of it is out.
    #[must_use]
    pub(super) fn unlinked(&self, ino: Ino) -> bool {
        match self.shard(ino).lock().get_mut(&ino) {
            Some(node) => {
                node.unlinked = true;
                false
            }
            None => true,
        }
    }

    /// Notes that the inode never had a name, and whether it may get one. A handle must be out.
    pub(super) fn nameless(&self, ino: Ino, linkable: bool) {
        let mut shard = self.shard(ino).lock();
        let node = shard.entry(ino).or_default();
        node.unlinked = true;
        node.linkable = linkable;
    }

    /// Returns whether a nameless inode may get a name.
    pub(super) fn is_linkable(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.get(&ino).is_some_and(|node| node.linkable)
    }

    /// Notes that a nameless inode has got a name.
    pub(super) fn named(&self, ino: Ino) {
        if let Some(node) = self.shard(ino).lock().get_mut(&ino) {
            node.unlinked = false;
            node.linkable = false;
        }
    }

    /// Returns the inodes without a name of which something is still out, and forgets all about them.
    pub(super) fn drain_unlinked(&self) -> Vec<Ino> {
        let mut unlinked = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|ino, node| {
                if node.unlinked {
                    unlinked.push(*ino);
                }
                !node.unlinked
            });
        }
        unlinked
    }

    fn give_back(&self, ino: Ino, take: impl FnOnce(&mut Node)) -> bool {
        match self.shard(ino).lock().entry(ino) {
            Entry::Occupied(mut entry) => {
                take(entry.get_mut());
                let node = *entry.get();
                if node.is_idle() {
                    entry.remove();
                }
                node.is_idle() && node.unlinked
            }
            Entry::Vacant(_) => false,
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        let index = usize::try_from(ino.0 % SHARDS as u64).expect("below 64");
        &self.shards[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_look_ups_and_handles_removes_an_unlinked_inode_once() {
        let nodes = Nodes::new();
        let ino = Ino(9);
        nodes.look_up(ino);
        nodes.look_up(ino);
        nodes.hold(ino, false);
        assert!(!nodes.unlinked(ino));
        assert!(!nodes.forget(ino, 1));
        assert!(!nodes.release(ino, false));
        assert!(nodes.forget(ino, 1));
        assert!(!nodes.forget(ino, 1), "nothing is left of it");
    }

    #[test]
    fn an_inode_is_referenced_until_its_last_look_up_and_handle_are_back() {
        let nodes = Nodes::new();
        nodes.look_up(Ino(9));
        nodes.hold(Ino(9), true);
        nodes.hold(Ino(70), false);
        let referenced = || {
            let mut inodes = nodes.referenced();
            inodes.sort_unstable();
            inodes
        };
        assert_eq!(referenced(), [Ino(9), Ino(70)]);
        assert!(!nodes.forget(Ino(9), 1));
        assert_eq!(referenced(), [Ino(9), Ino(70)]);
        assert!(!nodes.release(Ino(9), true));
        assert_eq!(referenced(), [Ino(70)]);
    }

    #[test]
    fn an_inode_without_references_is_removed_by_the_caller_that_unlinks_it() {
        let nodes = Nodes::new();
        assert!(nodes.unlinked(Ino(9)));
        nodes.look_up(Ino(9));
        assert!(!nodes.forget(Ino(9), 1), "it still has a name");
        assert!(nodes.unlinked(Ino(9)));
    }

    #[test]
    fn an_inode_that_got_a_name_is_not_removed() {
        let nodes = Nodes::new();
        nodes.hold(Ino(9), true);
        nodes.nameless(Ino(9), true);
        assert!(nodes.is_linkable(Ino(9)));
        nodes.named(Ino(9));
        assert!(!nodes.is_linkable(Ino(9)));
        assert!(!nodes.release(Ino(9), true));
    }

    #[test]
    fn an_inode_has_a_writer_until_the_last_handle_that_writes_is_back() {
        let nodes = Nodes::new();
        nodes.hold(Ino(9), false);
        assert!(!nodes.has_writer(Ino(9)));
        nodes.hold(Ino(9), true);
        nodes.hold(Ino(9), true);
        assert!(!nodes.release(Ino(9), true));
        assert!(nodes.has_writer(Ino(9)));
        assert!(!nodes.release(Ino(9), true));
        assert!(!nodes.has_writer(Ino(9)));
    }
}
