//! Places of sockets, and their names.

use std::slice;

use super::*;
use crate::cli::client::unlisted::{Unlisted, unlisted_in};

#[test]
fn a_name_that_another_user_took_in_the_shared_directory_is_in_no_ones_way() {
    let shared = tempfile::tempdir().unwrap();
    let own = own_user();
    let places = Places {
        user: own,
        spots: vec![Spot {
            base: shared.path().join("no home"),
            below: "cauchyfs",
        }],
        home: |_| None,
        shared: Some(shared.path().to_owned()),
    };
    let squatted = shared.path().join(format!("cauchyfs-{own}"));
    fs::create_dir(&squatted).unwrap();
    set_mode(&squatted, 0o777);
    fs::write(shared.path().join(format!("cauchyfs-{own}-file")), "").unwrap();
    symlink("/etc", shared.path().join(format!("cauchyfs-{own}-link"))).unwrap();
    let mountpoint = Path::new("/mnt/x");
    let made = places.open_or_make(mountpoint, LONG).unwrap();
    assert!(made.path().starts_with(shared.path()));
    let bits = fs::metadata(made.path()).unwrap().permissions().mode();
    assert_eq!(bits & 0o7777, 0o700);
    let again = places.open_or_make(mountpoint, LONG).unwrap();
    assert_eq!(again.path(), made.path(), "one is enough");
    let existing: Vec<_> = places.existing().collect();
    assert_eq!(existing.len(), 1, "{existing:?}");
    assert_eq!(fs::read_dir(&squatted).unwrap().count(), 0);
}

/// A home can lie on a server that is down, and its path be known to another that is.
#[test]
fn a_hanging_home_blocks_no_user_whose_socket_is_elsewhere() {
    let home = Home::new();
    home.serve();
    let places = Places {
        home: |_| panic!("the home is looked at"),
        ..home.places()
    };
    let found = search(&places, &home.target(), &limits());
    assert!(matches!(found, Ok(Peer::Daemon(_))), "{found:?}");
    let made = places.open_or_make(Path::new("/mnt/x"), LONG).unwrap();
    assert_eq!(made.path(), home.directory());
    // A daemon that has no better place, and clears what others left, gives up on it.
    let shared = tempfile::tempdir().unwrap();
    let hanging = Places {
        user: own_user(),
        spots: Vec::new(),
        home: |_| loop {
            thread::park();
        },
        shared: Some(shared.path().to_owned()),
    };
    let (mountpoint, volume) = (Path::new("/mnt/x"), "volume".to_owned());
    let opened = open_in(&hanging, mountpoint, volume, Duration::from_millis(50));
    let (_socket, _file) = opened.unwrap();
    let directory = fs::read_dir(shared.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_directory_below_the_home_is_made_unless_the_mount_would_hide_it() {
    let home = tempfile::tempdir().unwrap();
    let base = fs::canonicalize(home.path()).unwrap();
    let places = Places {
        user: own_user(),
        spots: vec![Spot {
            base: base.clone(),
            below: ".local/state/cauchyfs",
        }],
        home: |_| None,
        shared: None,
    };
    for hiding in [&base, &base.join(".local")] {
        let refused = places.open_or_make(hiding, LONG).expect_err("it is hidden");
        assert!(refused.to_string().contains("hide"), "{refused}");
    }
    let made = places.open_or_make(&base.join("mnt"), LONG).unwrap();
    assert_eq!(made.path(), base.join(".local/state/cauchyfs"));
    // A link in the place of a part of the path is not followed, not even by its owner.
    fs::rename(base.join(".local"), base.join("moved")).unwrap();
    symlink("moved", base.join(".local")).unwrap();
    assert!(places.open_or_make(Path::new("/mnt/x"), LONG).is_err());
    assert!(places.existing().next().is_none());
}

#[test]
fn the_names_of_two_sockets_differ_and_the_socket_of_a_dead_daemon_goes_with_the_next_mount() {
    let home = Home::new();
    let mountpoint = &home.entry.mountpoint;
    let names = || {
        let entries = fs::read_dir(home.directory()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<String>>()
    };
    let (dead, file) = open_in(&home.places(), mountpoint, "volume".to_owned(), LONG).unwrap();
    let first = names();
    assert_eq!(first.len(), 1);
    assert!(first[0].starts_with(&file_stem(mountpoint)), "{first:?}");
    // It dies without removing its name.
    drop(dead);
    std::mem::forget(file);
    let bystander = home.directory().join("0123456789abcdef-other.sock");
    drop(UnixListener::bind(&bystander).unwrap());
    let (alive, file) = open_in(&home.places(), mountpoint, "volume".to_owned(), LONG).unwrap();
    let second = names();
    assert_eq!(second.len(), 2, "{second:?}");
    assert!(!second.contains(&first[0]), "{second:?}");
    // One that lives stays, also if another is mounted above it.
    let (_above, above) = open_in(&home.places(), mountpoint, "volume".to_owned(), LONG).unwrap();
    assert_eq!(names().len(), 3);
    drop((above, file, alive));
    assert_eq!(names().len(), 1);
    assert!(bystander.exists());
}

/// An address takes less than 108 bytes. A longer path is opened by way of a descriptor.
#[test]
fn a_socket_is_reached_whatever_the_length_of_its_path() {
    let name_bytes = "/cauchyfs/.sock".len() + 16 + 1 + 32;
    for bytes in (105_usize..111).chain([200]) {
        let home = Home::new();
        let base = home.directory().as_os_str().len() + "/".len();
        let long = home
            .directory()
            .join("d".repeat(bytes.saturating_sub(name_bytes + base).max(1)));
        fs::create_dir(&long).unwrap();
        set_mode(&long, 0o700);
        let places = Places {
            spots: vec![Spot {
                base: long,
                below: "cauchyfs",
            }],
            ..home.places()
        };
        let (socket, _file) =
            open_in(&places, &home.entry.mountpoint, "volume".to_owned(), LONG).unwrap();
        socket
            .announced()
            .announce(&Mount::of(&home.entry), Transport::Classic);
        answer_all(socket);
        let found = search(&places, &home.target(), &limits());
        assert!(matches!(found, Ok(Peer::Daemon(_))), "{bytes}: {found:?}");
    }
}

#[test]
fn names_of_files_are_short_and_differ_with_the_mountpoint() {
    let (one, other) = (
        file_stem(Path::new("/mnt/a")),
        file_stem(Path::new("/mnt/b")),
    );
    assert_ne!(one, other);
    assert_eq!(one.len(), 16);
    // Stable over builds: commands of a newer version find older daemons.
    assert_eq!(file_stem(Path::new("")), "cbf29ce484222325");
}

#[test]
fn a_daemon_is_unlisted_unless_something_is_mounted_at_its_place() {
    let home = Home::new();
    home.serve();
    let unlisted = |listed: &[PathBuf]| unlisted_in(&home.places(), listed, &limits(), LONG);
    let found = unlisted(&["/mnt/other".into()]);
    let places: Vec<&Path> = found.iter().map(Unlisted::mountpoint).collect();
    assert_eq!(places, [home.entry.mountpoint.as_path()]);
    assert!(unlisted(slice::from_ref(&home.entry.mountpoint)).is_empty());
}
