//! Daemons that are found by their sockets alone.

use std::os::unix::net::UnixListener;

use super::{Home, LONG, limits};
use crate::cli::client::unlisted::{Unlisted, unlisted_in};

#[test]
fn a_daemon_is_found_without_a_mount_table_among_many_sockets_of_dead_ones() {
    let home = Home::new();
    home.serve();
    for number in 0..200 {
        let path = home.directory().join(format!("{number:016x}-dead.sock"));
        drop(UnixListener::bind(path).unwrap());
    }
    let found = unlisted_in(&home.places(), &[], &limits(), LONG);
    let mountpoints: Vec<_> = found.iter().map(Unlisted::mountpoint).collect();
    assert_eq!(mountpoints, [home.entry.mountpoint.as_path()]);
    let listed = [home.entry.mountpoint.clone()];
    assert!(unlisted_in(&home.places(), &listed, &limits(), LONG).is_empty());
}
