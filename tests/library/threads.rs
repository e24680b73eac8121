//! Calls from many threads at once, each seen wholly or not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use cauchyfs::format::Ino;
use cauchyfs::fs::{Changes, Fs, FsError, FsOptions, OpenFlags, RenameMode};
use cauchyfs::store::{CallKind, Effect, Fault, FaultPlan, FaultStore, Scope};

use crate::calls::{ROOT, create, fs, read, sound, write};

use crate::volume;
#[test]
fn appends_from_many_threads_are_all_there_and_whole() {
    let fs = fs();
    let (ino, _) = create(&fs, "log");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let fs = &fs;
            scope.spawn(move || {
                let flags = OpenFlags {
                    append: true,
                    ..OpenFlags::read_write()
                };
                let handle = fs.open_files().open(ROOT, ino, flags).unwrap();
                for _ in 0..100 {
                    write(fs, handle, 0, &[b'0' + thread; 100]).unwrap();
                }
                fs.open_files().release(handle).unwrap();
            });
        }
    });
    let handle = fs
        .open_files()
        .open(ROOT, ino, OpenFlags::read_only())
        .unwrap();
    let bytes = read(&fs, handle, 0, 1 << 20);
    assert_eq!(bytes.len(), 4 * 100 * 100);
    for record in bytes.chunks(100) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
    sound(&fs);
}

#[test]
fn a_read_sees_a_concurrent_write_wholly_or_not_at_all() {
    let fs = fs();
    let (ino, handle) = create(&fs, "flips");
    write(&fs, handle, 0, &vec![0; 70_000]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..200_u8 {
                write(&fs, handle, 0, &vec![round; 70_000]).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let reader = fs
            .open_files()
            .open(ROOT, ino, OpenFlags::read_only())
            .unwrap();
        while !done.load(Ordering::SeqCst) {
            let bytes = read(&fs, reader, 0, 70_000);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn read");
        }
    });
    sound(&fs);
}

#[test]
fn directories_moved_from_many_threads_stay_a_tree() {
    let fs = fs();
    let dirs: Vec<Ino> = (0..6)
        .map(|index| {
            let name = format!("d{index}");
            fs.names()
                .mkdir(ROOT, Ino::ROOT, name.as_bytes(), 0o755)
                .unwrap()
                .ino
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (fs, dirs) = (&fs, &dirs);
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut pick = || {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    random >> 33
                };
                for _ in 0..3_000 {
                    let place = |pick: &mut dyn FnMut() -> usize| match pick() % 7 {
                        6 => Ino::ROOT,
                        index => dirs[index],
                    };
                    let (from, to) = (place(&mut pick), place(&mut pick));
                    let names = [format!("d{}", pick() % 6), format!("d{}", pick() % 6)];
                    let modes = [
                        RenameMode::Replace,
                        RenameMode::Exchange,
                        RenameMode::Whiteout,
                    ];
                    let mode = modes[pick() % 3];
                    // Most of these are refused; what matters is what the others leave.
                    let (name, new_name) = (names[0].as_bytes(), names[1].as_bytes());
                    if let Err(FsError::Corrupt { .. } | FsError::Format(_) | FsError::Storage(_)) =
                        fs.names().rename(ROOT, from, name, to, new_name, mode)
                    {
                        panic!("rename broke something");
                    }
                }
            });
        }
    });
    sound(&fs);
}

#[test]
fn threads_that_make_and_remove_files_in_shared_directories_leave_sound_counts() {
    let fs = fs();
    let dir = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"dir", 0o755)
        .unwrap()
        .ino;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                for index in 0..300 {
                    let name = format!("{}", (index * 7 + thread) % 20);
                    let name = name.as_bytes();
                    match index % 3 {
                        0 => {
                            if let Ok((attr, handle)) =
                                fs.names()
                                    .create(ROOT, dir, name, 0o644, OpenFlags::read_write())
                            {
                                write(fs, handle, 0, &[1; 3_000]).unwrap();
                                fs.open_files().release(handle).unwrap();
                                fs.open_files().forget(attr.ino, 1);
                            }
                        }
                        1 => drop(fs.names().unlink(dir, name)),
                        _ => {
                            if let Ok(attr) = fs.names().lookup(dir, name) {
                                let linked = fs.names().link(attr.ino, Ino::ROOT, name);
                                let counted = 1 + u64::from(linked.is_ok());
                                fs.open_files().forget(attr.ino, counted);
                                drop(fs.names().unlink(Ino::ROOT, name));
                            }
                        }
                    }
                }
            });
        }
    });
    sound(&fs);
}

/// All stripe buffers are on their way to members that do not answer, and a file that little is written
/// to is not locked meanwhile: nor are those whose locks it shares.
#[test]
fn a_file_can_be_used_while_writes_to_it_wait_for_a_member() {
    for len in [1_500, 5_000] {
        let disks = volume::disks(3, 2, 1);
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(volume::stores(&disks), &plan);
        let fs = Fs::open(volume::try_open(stores, 2).unwrap(), FsOptions::default()).unwrap();
        let (ino, handle) = create(&fs, "little");
        // In its record, from where it has to move, or in a stripe.
        write(&fs, handle, 0, &vec![1; len]).unwrap();
        let (_, big) = create(&fs, "big");
        fs.syncfs().unwrap();
        let writes = Scope::Kind(CallKind::Write);
        plan.add(Fault::at(1, Effect::Hang).of(writes).lasting());
        let (sender, answer) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| write(&fs, big, 0, &vec![2; 16 << 20]).unwrap());
            let wait = || std::thread::sleep(Duration::from_millis(300));
            wait();
            scope.spawn(|| write(&fs, handle, 1_400, &[3; 1_000]).unwrap());
            wait();
            scope.spawn(|| {
                let changes = Changes {
                    permissions: Some(0o600),
                    ..Changes::default()
                };
                sender
                    .send(fs.attributes().set(ROOT, ino, changes))
                    .unwrap();
            });
            let answer = answer.recv_timeout(Duration::from_secs(20));
            plan.clear();
            plan.release();
            answer.expect("the file is locked").unwrap();
        });
        let bytes = read(&fs, handle, 0, 1 << 20);
        assert_eq!(bytes.len(), len.max(2_400));
        assert!(bytes[..1_400].iter().all(|byte| *byte == 1));
        assert!(bytes[1_400..2_400].iter().all(|byte| *byte == 3));
        sound(&fs);
    }
}
