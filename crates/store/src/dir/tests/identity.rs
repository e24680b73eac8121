//! Directories are told from copies of them.

use super::*;

fn identity(store: &DirStore) -> DirectoryIdentity {
    store.directory_identity().expect("it is a directory")
}

/// Returns whether the directory at the path is the one of an identity now.
fn is_there(path: &Path, identity: &DirectoryIdentity) -> bool {
    let store = open(path).expect("it is there");
    store.is_directory(identity).expect("a sound disk")
}

/// Copies a directory with a file in a subdirectory.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("chunks")).expect("a free name");
    fs::copy(from.join("chunks/01"), to.join("chunks/01")).expect("room");
}

#[test]
fn a_directory_that_is_renamed_stays_itself_and_a_copy_of_it_is_another() {
    let (parent, store) = temporary();
    store.create("chunks/01", 10).expect("a new file");
    let (path, aside) = (store.path().to_owned(), parent.path().join("aside"));
    let lost = identity(&store);
    assert!(is_there(&path, &lost));
    fs::rename(&path, &aside).expect("renamable");
    assert!(is_there(&aside, &lost));
    copy(&aside, &path);
    assert!(!is_there(&path, &lost));
    fs::remove_dir_all(&path).expect("removable");
    fs::rename(&aside, &path).expect("renamable");
    assert!(is_there(&path, &lost));
}

#[test]
fn a_directory_with_a_copy_of_a_subdirectory_is_another() {
    let (parent, store) = temporary();
    store.create("chunks/01", 10).expect("a new file");
    let lost = identity(&store);
    let (chunks, aside) = (store.path().join("chunks"), parent.path().join("aside"));
    fs::rename(&chunks, &aside).expect("renamable");
    assert!(is_there(store.path(), &lost), "one that is gone is no copy");
    fs::create_dir(&chunks).expect("a free name");
    assert!(!is_there(store.path(), &lost));
}
