//! Plain files in directories of the tests, and what lies in them.

use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::thread;

use super::*;

const UNIT: usize = 8192;

/// The bytes of a write that waits for others.
const SMALL: usize = 100;

const SHAPE: PlainShape = PlainShape {
    data: 4,
    parity: 2,
    unit_bytes: 8192,
    bytes: 1 << 20,
};

fn plain(home: &Path, shape: PlainShape) -> PlainFiles {
    let count = shape.data + shape.parity;
    let directories: Vec<PathBuf> = (0..count).map(|n| home.join(format!("d{n}"))).collect();
    for path in &directories {
        fs::create_dir(path).unwrap();
    }
    let files = PlainFiles::create(&directories, shape).unwrap();
    for path in &directories {
        assert_eq!(fs::read_dir(path).unwrap().count(), 0, "a name is left");
    }
    files
}

/// Returns the bytes of each file.
fn bytes(plain: &PlainFiles) -> Vec<Vec<u8>> {
    let files = plain.files.iter();
    let read =
        |file: &PlainFile| fs::read(format!("/proc/self/fd/{}", file.file.as_raw_fd())).unwrap();
    files.map(read).collect()
}

fn lengths(plain: &PlainFiles) -> Vec<usize> {
    bytes(plain).iter().map(Vec::len).collect()
}

/// Returns bytes that tell their place.
fn pattern(len: usize) -> Vec<u8> {
    let runs = (1..=251).cycle().flat_map(|byte| [byte; 100]);
    runs.take(len).collect()
}

#[test]
fn a_stripe_goes_out_at_once_in_equal_parts_and_half_as_much_again_to_the_parity_files() {
    let home = tempfile::tempdir().unwrap();
    let plain = plain(home.path(), SHAPE);
    let data = pattern(8 * UNIT);
    plain.write(&data).unwrap();
    let parts: Vec<&[u8]> = data.chunks(2 * UNIT).collect();
    let expected = [parts[0], parts[1], parts[2], parts[3], parts[0], parts[0]];
    assert_eq!(bytes(&plain), expected);
    assert_eq!(lengths(&plain).iter().sum::<usize>(), data.len() * 3 / 2);
    // It is followed by the next.
    plain.write(&data[..4 * UNIT]).unwrap();
    assert_eq!(lengths(&plain), [3 * UNIT; 6]);
    assert_eq!(bytes(&plain)[1][2 * UNIT..], data[UNIT..2 * UNIT]);
}

#[test]
fn a_read_takes_units_of_the_data_files_in_turn_and_zeros_behind_their_ends() {
    let home = tempfile::tempdir().unwrap();
    let plain = plain(home.path(), SHAPE);
    let data = pattern(8 * UNIT);
    // Each goes into a row of units of its own.
    data.chunks(4 * UNIT)
        .for_each(|stripe| plain.write(stripe).unwrap());
    let mut out = vec![9; data.len()];
    plain.read(0, &mut out).unwrap();
    assert!(out == data);
    for (offset, len) in [(0, 1), (UNIT - 1, 2), (100, 5 * UNIT), (4 * UNIT - 1, 4097)] {
        let mut out = vec![9; len];
        plain.read(offset as u64, &mut out).unwrap();
        assert!(out == data[offset..offset + len], "{offset}");
    }
    let mut out = vec![9; 2 * UNIT];
    plain.read(7 * UNIT as u64, &mut out).unwrap();
    assert!(out == [&data[7 * UNIT..], &[0; UNIT]].concat());
    // Far behind the bytes that programs have at once, it starts again.
    let (round, unit) = (SHAPE.reuse_bytes(), UNIT as u64);
    let mut out = vec![9; UNIT];
    plain.read(round / unit * 4 * unit, &mut out).unwrap();
    assert!(out == data[..UNIT]);
}

#[test]
fn small_writes_wait_until_they_are_a_stripe() {
    let home = tempfile::tempdir().unwrap();
    let plain = plain(home.path(), SHAPE);
    let data = pattern(4 * UNIT);
    let (others, last) = data.split_at(data.len() - 100);
    for part in others.chunks(5000) {
        plain.write(part).unwrap();
    }
    assert_eq!(lengths(&plain), [0; 6]);
    plain.write(last).unwrap();
    assert_eq!(lengths(&plain), [UNIT; 6]);
    let found = bytes(&plain);
    assert_eq!(found[..4].concat(), data);
    assert!(found[4..].iter().all(|parity| *parity == data[..UNIT]));
}

#[test]
fn a_sync_writes_what_waits_and_a_record_to_one_file_more_than_may_be_lost() {
    let home = tempfile::tempdir().unwrap();
    let plain = plain(home.path(), SHAPE);
    plain.sync().unwrap();
    assert_eq!(lengths(&plain), [0; 6], "there was nothing to sync");
    let data = pattern(5000);
    plain.write(&data).unwrap();
    plain.sync().unwrap();
    let (first, rest) = data.split_at(BLOCK);
    let with_record = [first, &[0; BLOCK]].concat();
    let (own, parity) = (with_record.as_slice(), with_record.as_slice());
    assert_eq!(bytes(&plain), [own, rest, &[], &[], parity, parity]);
    assert!(is_clean(&plain));
    // Nothing is new.
    plain.sync().unwrap();
    assert_eq!(
        lengths(&plain),
        [2 * BLOCK, 904, 0, 0, 2 * BLOCK, 2 * BLOCK]
    );
    // A stripe that is out already needs the record alone.
    plain.write(&pattern(4 * UNIT)).unwrap();
    plain.sync().unwrap();
    let end = 2 * BLOCK + UNIT;
    let record = end + BLOCK;
    assert_eq!(lengths(&plain), [record, end, end, end, record, record]);
}

#[test]
fn offsets_start_again_so_that_no_file_exceeds_its_bound() {
    let home = tempfile::tempdir().unwrap();
    let shape = PlainShape {
        bytes: 100_000,
        ..SHAPE
    };
    let plain = plain(home.path(), shape);
    assert_eq!(shape.reuse_bytes(), 28_672);
    let stripe = pattern(4 * UNIT);
    for round in 0..100 {
        plain.write(&stripe).unwrap();
        plain.sync().unwrap();
        let longest = lengths(&plain).into_iter().max().unwrap() as u64;
        assert!(longest < 28_672 + (UNIT + BLOCK) as u64, "{round}");
        assert!(longest <= shape.file_bytes());
    }
    // The largest write, at the largest offset.
    let plain = plain_of_one(home.path(), shape);
    let end = shape.bytes.next_multiple_of(BLOCK as u64) - BLOCK as u64;
    plain.next.store(end, Ordering::Relaxed);
    plain.write(&vec![1; MAX_DATA]).unwrap();
    plain.write(&[1]).unwrap();
    plain.sync().unwrap();
    let one = PlainShape { data: 1, ..shape };
    let longest = lengths(&plain)[0] as u64;
    assert!(longest > MAX_DATA as u64 && longest <= one.file_bytes());
}

fn plain_of_one(home: &Path, shape: PlainShape) -> PlainFiles {
    let (data, parity) = (1, 0);
    let shape = PlainShape {
        data,
        parity,
        ..shape
    };
    PlainFiles::create(&[home.to_owned()], shape).unwrap()
}

#[test]
fn threads_that_write_at_once_lose_no_byte() {
    let home = tempfile::tempdir().unwrap();
    let shape = PlainShape {
        bytes: 64 << 20,
        ..SHAPE
    };
    let plain = plain(home.path(), shape);
    thread::scope(|scope| {
        for thread in 1..=8 {
            let plain = &plain;
            scope.spawn(move || {
                for round in 0..20 {
                    let len = [4 * UNIT, 1000][round % 2];
                    plain.write(&vec![thread; len]).unwrap();
                    if round % 5 == 4 {
                        plain.sync().unwrap();
                    }
                }
            });
        }
    });
    plain.sync().unwrap();
    let found = bytes(&plain);
    let mut counts = [0; 9];
    for byte in found[..4].iter().flatten() {
        counts[usize::from(*byte)] += 1;
    }
    assert_eq!(counts[1..], [10 * (4 * UNIT + 1000); 8]);
}

/// The callers that sync at once, by the byte that each of them writes.
const CALLERS: std::ops::RangeInclusive<u8> = 1..=8;

/// Has callers write, and sync once all have called. Each runs `check` after that. Returns the outcomes of the syncs.
fn sync_at_once(plain: &PlainFiles, check: &(dyn Fn(u8) + Sync)) -> Vec<Result<(), FsError>> {
    let all_called = Barrier::new(CALLERS.len());
    let call = |caller| {
        let written = plain.write(&[caller; SMALL]);
        let begun_before = plain.begun.load(Ordering::Acquire);
        all_called.wait();
        written.unwrap();
        let outcome = plain.sync_since(begun_before);
        check(caller);
        outcome
    };
    thread::scope(|scope| {
        let call = &call;
        let callers: Vec<_> = CALLERS
            .map(|caller| scope.spawn(move || call(caller)))
            .collect();
        let outcomes = callers.into_iter().map(|caller| caller.join().unwrap());
        outcomes.collect()
    })
}

/// Returns how many bytes of this value the data files have.
fn count(plain: &PlainFiles, value: u8) -> usize {
    let data = bytes(plain).into_iter().take(plain.data).flatten();
    data.filter(|byte| *byte == value).count()
}

fn is_clean(plain: &PlainFiles) -> bool {
    let is_dirty = |file: &PlainFile| file.is_dirty.load(Ordering::Acquire);
    plain.gathered.lock().is_empty() && !plain.files.iter().any(is_dirty)
}

#[test]
fn callers_of_a_sync_that_has_not_begun_share_it_and_none_returns_before_its_bytes_are_out() {
    let home = tempfile::tempdir().unwrap();
    let plain = plain(home.path(), SHAPE);
    // All files have new bytes.
    plain.write(&vec![u8::MAX; 4 * UNIT]).unwrap();
    let outcomes = sync_at_once(&plain, &|caller| {
        assert!(is_clean(&plain), "caller {caller}");
        assert_eq!(count(&plain, caller), SMALL, "caller {caller}");
    });
    assert_eq!(outcomes.len(), CALLERS.len());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert_eq!(plain.begun.load(Ordering::Acquire), 1);
    // There is one record.
    let end = UNIT + CALLERS.len() * SMALL + BLOCK;
    assert_eq!(lengths(&plain), [end, UNIT, UNIT, UNIT, end, end]);
}

#[test]
fn a_sync_that_has_begun_is_waited_for_by_callers_before_it_and_serves_none_after_it() {
    let home = tempfile::tempdir().unwrap();
    let plain = plain(home.path(), SHAPE);
    let begun = || plain.begun.load(Ordering::Acquire);
    plain.write(&[1; SMALL]).unwrap();
    let before = begun();
    let (has_called, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let running = plain.syncing.lock();
    plain.begin_sync().unwrap();
    plain.write(&[2; SMALL]).unwrap();
    let after = begun();
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            has_called.store(true, Ordering::Release);
            plain.sync_since(before).unwrap();
            assert!(has_ended.load(Ordering::Acquire));
        });
        while !has_called.load(Ordering::Acquire) {
            thread::yield_now();
        }
        // A caller that did not wait would return meanwhile.
        for _ in 0..1000 {
            if caller.is_finished() {
                break;
            }
            thread::yield_now();
        }
        plain.sync_files().unwrap();
        has_ended.store(true, Ordering::Release);
        drop(running);
    });
    assert_eq!((begun(), count(&plain, 1)), (1, SMALL));
    assert_eq!(count(&plain, 2), 0, "the sync came before these");
    plain.sync_since(after).unwrap();
    assert_eq!((begun(), count(&plain, 2)), (2, SMALL));
    assert!(is_clean(&plain));
}

#[test]
fn an_error_of_a_shared_sync_is_told_to_all_its_callers() {
    let shape = PlainShape {
        data: 1,
        parity: 0,
        ..SHAPE
    };
    // One takes no bytes. The other takes them, and cannot be synced.
    for (path, errno) in [("/dev/full", libc::ENOSPC), ("/dev/null", libc::EINVAL)] {
        let file = File::options().write(true).open(path).unwrap();
        let plain = PlainFiles::over(vec![file], shape).unwrap();
        let outcomes = sync_at_once(&plain, &|_| ());
        let errno_of = |outcome: Result<(), FsError>| match outcome.unwrap_err() {
            FsError::NoSpace => Some(libc::ENOSPC),
            FsError::Io(error) => error.raw_os_error(),
            other => panic!("{path}: {other}"),
        };
        // The caller that ran the sync has its error. The others learn that it failed.
        let known: Vec<i32> = outcomes.into_iter().filter_map(errno_of).collect();
        assert_eq!(known, [errno], "{path}");
        assert_eq!(plain.begun.load(Ordering::Acquire), 1, "{path}");
    }
}

#[test]
fn a_write_that_fails_is_told_to_its_caller_and_so_is_every_later_call() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let read_only = || File::open("/dev/null").unwrap();
    let shape = PlainShape {
        parity: 0,
        data: 1,
        ..SHAPE
    };
    let plain = |file| PlainFiles::over(vec![file], shape).unwrap();
    let large = [1; UNIT];
    assert!(matches!(plain(full()).write(&large), Err(FsError::NoSpace)));
    let refused = plain(read_only());
    let Err(FsError::Io(error)) = refused.write(&large) else {
        panic!("a file that is open for reading was written");
    };
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    assert!(matches!(refused.write(b"small"), Err(FsError::Io(_))));
    assert!(matches!(refused.sync(), Err(FsError::Io(_))));
    // Bytes that wait fail with the sync that writes them, or with the write that makes them enough.
    let waiting = plain(full());
    waiting.write(&large[1..]).unwrap();
    assert!(matches!(waiting.sync(), Err(FsError::NoSpace)));
    let waiting = plain(full());
    waiting.write(&large[1..]).unwrap();
    assert!(matches!(waiting.write(&large[1..]), Err(FsError::NoSpace)));
    // A pipe cannot be synced; a file that was written is.
    let (_reader, pipe) = io::pipe().unwrap();
    let unsynced = plain(File::from(std::os::fd::OwnedFd::from(pipe)));
    unsynced.files[0].is_dirty.store(true, Ordering::Release);
    assert!(unsynced.sync_files().is_err());
}

#[test]
fn a_request_of_the_kernel_is_enough_for_a_stripe_unless_it_has_too_few_blocks() {
    for (data, unit_bytes, expected) in [
        (4, 4096, 4 * 4096),
        (4, 1 << 20, 4 * MOST_GATHERED),
        (16, 1 << 20, MAX_DATA),
        (20, 1 << 20, 20 * 12 * BLOCK),
        (255, 1 << 20, 255 * BLOCK),
        (400, 1 << 20, 400 * BLOCK),
    ] {
        let shape = PlainShape {
            data,
            unit_bytes,
            ..SHAPE
        };
        assert_eq!(shape.stripe_bytes(), expected, "{data} of {unit_bytes}");
    }
}

#[test]
fn other_numbers_of_directories_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let directories = vec![home.path().to_owned(); 6];
    for (data, parity) in [(0, 6), (4, 1), (usize::MAX, 7)] {
        let shape = PlainShape {
            data,
            parity,
            ..SHAPE
        };
        assert!(PlainFiles::create(&directories, shape).is_err());
        assert!(shape.file_bytes() > 0);
    }
    let absent = vec![home.path().join("gone"); 6];
    let refused = PlainFiles::create(&absent, SHAPE).unwrap_err().to_string();
    assert!(refused.contains("gone/cauchyfs-bench-plain-"), "{refused}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}
