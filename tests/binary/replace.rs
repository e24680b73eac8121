//! Directories that take the place of others, or must not.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::support::{CAUCHYFS, Shape, TestVolume, eventually, run, said, skip_mounts, text};

/// What is put into a directory, under a name.
type Put = fn(&Path);

fn beside(volume: &TestVolume, name: &str) -> PathBuf {
    volume.members[0].with_file_name(name)
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.expect("it can be listed").file_name();
        name.to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

fn replace(volume: &TestVolume, old: &str, new: &Path) -> (Option<i32>, String) {
    volume.command(&["member", "replace"], &[old, text(new)])
}

#[test]
fn a_directory_that_holds_no_files_but_something_else_is_refused_and_left_as_it_is() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 512);
    volume.mount();
    volume.delete_member(3);
    eventually("the loss is seen", || volume.members_in("missing") == 1);
    let somebody_elses: [(&str, Put); 3] = [
        ("photos", |path| fs::create_dir(path).unwrap()),
        ("link", |path| symlink("/srv", path).unwrap()),
        ("socket", |path| drop(UnixListener::bind(path).unwrap())),
    ];
    for (name, put) in somebody_elses {
        let directory = beside(&volume, &format!("with-{name}"));
        fs::create_dir(&directory).unwrap();
        put(&directory.join(name));
        let shown = text(&directory);
        let found = format!("{shown} is not empty: it has {name}");
        for (change, rest) in [("add", &[shown][..]), ("replace", &["3", shown])] {
            let (code, said) = volume.command(&["member", change], rest);
            assert_eq!(code, Some(2), "{change}: {said}");
            assert!(said.contains(&found), "{change}: {said}");
        }
        let other = beside(&volume, "other");
        let create = ["create", "--data", "1", "--parity", "1"];
        let output = run(CAUCHYFS, &[&create[..], &[shown, text(&other)]].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("is not empty"), "{output:?}");
        assert_eq!(entries(&directory), [name]);
        assert!(!other.exists());
    }
    let fresh = beside(&volume, "fresh");
    fs::create_dir_all(fresh.join("lost+found")).unwrap();
    let (code, said) = replace(&volume, "3", &fresh);
    assert_eq!(code, Some(0), "mkfs leaves that: {said}");
    assert_eq!(volume.status().1, 0);
    volume.unmount();
}
