//! Matching of directories without superblocks to the members that lack a directory.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::MemberIndex;
use crate::membership::{RecoveredMembers, RecoveryObstacle, Unusable};

/// Directories without superblocks, and the members that they may be.
pub(super) struct Matching {
    /// The members that lack a directory, and their last paths.
    vacant: BTreeMap<MemberIndex, String>,
    /// The members that each directory may be.
    candidates: BTreeMap<String, BTreeSet<MemberIndex>>,
    /// The directories without segments: each serves as any of its candidates.
    interchangeable: BTreeSet<String>,
    claims: RecoveredMembers,
    left_out: Vec<Unusable>,
}

impl Matching {
    /// Begins with the members that lack a directory, and the directories that are left out already.
    pub(super) fn new(vacant: BTreeMap<MemberIndex, String>, left_out: Vec<Unusable>) -> Self {
        Self {
            vacant,
            candidates: BTreeMap::new(),
            interchangeable: BTreeSet::new(),
            claims: RecoveredMembers::new(),
            left_out,
        }
    }

    /// Returns the members that lack a directory.
    pub(super) fn vacant(&self) -> BTreeSet<MemberIndex> {
        self.vacant.keys().copied().collect()
    }

    /// Returns the member that was last at a path, if it lacks a directory.
    pub(super) fn last_at(&self, path: &str) -> Option<MemberIndex> {
        let own = self.vacant.iter().find(|(_, last)| *last == path);
        own.map(|(member, _)| *member)
    }

    /// Leaves a directory out.
    pub(super) fn leave_out(&mut self, path: String, obstacle: RecoveryObstacle) {
        let unusable = Unusable::without_recovery(path, obstacle);
        self.left_out.push(unusable);
    }

    /// Adds a directory whose shards show that it is one of `candidates`.
    pub(super) fn add(&mut self, path: String, candidates: BTreeSet<MemberIndex>) {
        self.candidates.insert(path, candidates);
    }

    /// Adds a directory without segments, which serves as any of `candidates`.
    pub(super) fn add_interchangeable(&mut self, path: String, candidates: BTreeSet<MemberIndex>) {
        self.interchangeable.insert(path.clone());
        self.candidates.insert(path, candidates);
    }

    /// Decides which member each directory is. Returns also the directories left out, with reasons.
    pub(super) fn decide(mut self) -> (RecoveredMembers, Vec<Unusable>) {
        loop {
            self.widen();
            let Some((path, member)) = self.next_match() else {
                break;
            };
            self.assign(path, member);
        }
        for path in std::mem::take(&mut self.candidates).into_keys() {
            self.leave_out(path, RecoveryObstacle::Unidentified);
        }
        (self.claims, self.left_out)
    }

    /// Makes every vacant member a candidate of an interchangeable directory whose candidates are all taken.
    fn widen(&mut self) {
        for path in &self.interchangeable {
            let candidates = self.candidates.get_mut(path);
            if let Some(none) = candidates.filter(|candidates| candidates.is_empty()) {
                none.extend(self.vacant.keys());
            }
        }
    }

    /// Returns a directory and the member that it is. Prefers a directory with a single candidate, then one at the last
    /// path of a candidate. The last choice is an interchangeable directory, if there are members for all.
    fn next_match(&self) -> Option<(String, MemberIndex)> {
        let matters = |path: &String| !self.interchangeable.contains(path);
        let only = self.candidates.iter().find_map(|(path, candidates)| {
            let is_only = candidates.len() == 1 && matters(path);
            let only = candidates.first().filter(|_| is_only);
            only.map(|member| (path.clone(), *member))
        });
        let own = || {
            self.vacant.iter().find_map(|(member, path)| {
                let candidates = self.candidates.get(path);
                let is_here = candidates.is_some_and(|candidates| candidates.contains(member));
                is_here.then(|| (path.clone(), *member))
            })
        };
        let any = || {
            let mut rest = self.candidates.iter().filter(|(path, _)| !matters(path));
            rest.find_map(|(path, candidates)| Some((path.clone(), *candidates.first()?)))
                .filter(|_| self.candidates.len() <= self.vacant.len())
        };
        only.or_else(own).or_else(any)
    }

    /// Assigns a directory to a member. Leaves it out if another directory can be that member only, and so can this
    /// one.
    fn assign(&mut self, path: String, member: MemberIndex) {
        let rivals: Vec<String> = self
            .candidates
            .iter()
            .filter(|(_, candidates)| candidates.len() == 1 && candidates.contains(&member))
            .filter(|(rival, _)| **rival == path || !self.interchangeable.contains(*rival))
            .map(|(path, _)| path.clone())
            .collect();
        if rivals.len() > 1 {
            for rival in rivals {
                self.candidates.remove(&rival);
                self.leave_out(rival, RecoveryObstacle::Rival { member: member.0 });
            }
        } else {
            self.candidates.remove(&path);
            self.claims.insert(path, member);
        }
        self.vacant.remove(&member);
        for candidates in self.candidates.values_mut() {
            candidates.remove(&member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MemberIndex = MemberIndex(1);
    const TWO: MemberIndex = MemberIndex(2);

    fn matching() -> Matching {
        let vacant = [(ONE, "/one".to_owned()), (TWO, "/two".to_owned())];
        Matching::new(vacant.into(), Vec::new())
    }

    #[test]
    fn a_single_candidate_decides_for_the_other_directories() {
        let mut matching = matching();
        matching.add("/a".to_owned(), [ONE, TWO].into());
        matching.add("/b".to_owned(), [ONE].into());
        let (claims, left_out) = matching.decide();
        assert_eq!(
            claims,
            [("/a".to_owned(), TWO), ("/b".to_owned(), ONE)].into()
        );
        assert!(left_out.is_empty(), "{left_out:?}");
    }

    #[test]
    fn two_directories_with_the_same_single_candidate_are_both_left_out() {
        let mut matching = matching();
        matching.add("/a".to_owned(), [ONE].into());
        matching.add("/one".to_owned(), [ONE].into());
        let (claims, left_out) = matching.decide();
        assert!(claims.is_empty(), "{claims:?}");
        assert_eq!(left_out.len(), 2, "{left_out:?}");
    }

    #[test]
    fn a_directory_without_segments_gives_way_to_one_with_shards_of_its_only_candidate() {
        let mut matching = matching();
        matching.add_interchangeable("/one".to_owned(), [ONE].into());
        matching.add("/a".to_owned(), [ONE].into());
        let (claims, left_out) = matching.decide();
        assert_eq!(
            claims,
            [("/a".to_owned(), ONE), ("/one".to_owned(), TWO)].into()
        );
        assert!(left_out.is_empty(), "{left_out:?}");
    }
}
