//! The time of birth of files, as programs see it.

use std::fs::{self, OpenOptions};
use std::time::{Duration, SystemTime};

use crate::support::{Shape, TestVolume, must, run, said, skip_mounts, text};

#[test]
fn a_file_keeps_the_time_of_its_birth() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    volume.mount();
    let before = SystemTime::now() - Duration::from_secs(1);
    fs::write(volume.path("file"), "bytes").unwrap();
    fs::create_dir(volume.path("directory")).unwrap();
    std::os::unix::fs::symlink("file", volume.path("symlink")).unwrap();
    let births = || {
        ["file", "directory", "symlink"].map(|name| {
            let attributes = fs::symlink_metadata(volume.path(name)).unwrap();
            attributes.created().expect("there is a time of birth")
        })
    };
    let born = births();
    assert!(
        born.iter()
            .all(|birth| (before..=SystemTime::now()).contains(birth)),
        "{born:?}"
    );
    must("touch", &["-d", "@1000000000", text(&volume.path("file"))]);
    fs::write(volume.path("other"), "other").unwrap();
    fs::rename(volume.path("file"), volume.path("moved")).unwrap();
    fs::rename(volume.path("moved"), volume.path("file")).unwrap();
    assert_eq!(births(), born);
    volume.remount();
    assert_eq!(births(), born);
    // An open file that is only written to as well, and by the program that people use.
    let file = OpenOptions::new().write(true).open(volume.path("file"));
    assert_eq!(
        file.unwrap().metadata().unwrap().created().unwrap(),
        born[0]
    );
    let seconds = born[0].duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let shown = run("stat", &["-c", "%W", text(&volume.path("file"))]);
    assert_eq!(said(&shown).trim(), seconds.as_secs().to_string());
    volume.unmount();
}
