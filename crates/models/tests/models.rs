//! The concurrent parts of the filesystem keep their promises under every schedule that is tried.

use cauchyfs_models::{buffers, explore, group_commit, pins};

#[test]
fn a_commit_that_contains_its_change_answers_every_caller_and_none_waits_forever() {
    explore(group_commit::callers_share_commits);
}

#[test]
fn what_is_pinned_is_not_freed_and_all_else_is_freed_in_the_end() {
    explore(pins::readers_pin_what_others_remove);
}

#[test]
fn no_write_is_lost_between_its_buffer_and_its_record_and_one_thread_flushes_it() {
    explore(buffers::threads_flush_stripes);
}

#[test]
fn no_write_is_lost_while_a_thread_takes_stripes_out_of_the_queue_to_encode_them() {
    explore(buffers::threads_flush_stripes_in_batches);
}

#[test]
fn no_write_is_lost_while_its_stripe_waits_for_space() {
    explore(buffers::stripes_without_space_are_flushed_later);
}

#[test]
fn no_write_is_lost_and_no_thread_waits_forever_while_two_classes_share_few_buffers() {
    explore(buffers::threads_flush_stripes_of_two_classes);
}

#[test]
fn no_thread_waits_forever_while_there_are_fewer_buffers_than_classes() {
    explore(buffers::threads_flush_stripes_of_more_classes_than_there_are_buffers);
}

#[test]
fn no_write_is_lost_while_stripes_of_two_classes_wait_for_space() {
    explore(buffers::stripes_of_two_classes_without_space_are_flushed_later);
}

#[test]
fn every_answer_that_is_left_is_given_once_by_a_commit_that_contains_its_change() {
    explore(group_commit::callers_leave_answers);
}
