//! The concurrent parts of the filesystem keep their promises under every schedule that is tried.

use cauchyfs_models::{explore, group_commit};

#[test]
fn a_commit_that_contains_its_change_answers_every_caller_and_none_waits_forever() {
    explore(group_commit::callers_share_commits);
}
