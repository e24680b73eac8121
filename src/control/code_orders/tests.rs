use std::time::{Duration, Instant};

use cauchyfs_testkit::{disks, executor, stores};

use super::*;
use crate::format::record::{Inode, Marker};
use crate::format::{MemberIndex, Record, key};
use crate::fs::{Caller, Fs, FsOptions, OpenFlags, WriteFlags};
use crate::maintenance::Maintenance;
use crate::membership::MembersError;
use crate::metadata::Batch;
use crate::store::{MemDisk, StoreErrorKind};
use crate::transaction::{CreateOptions, OpenOptions, Transactions};

/// The time after which an operation counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// Opens a new volume of 2+2 shards with six members.
fn open() -> OpenVolume {
    open_on(&disks(6, 64 << 20))
}

fn open_on(disks: &[MemDisk]) -> OpenVolume {
    let options = CreateOptions::new(Geometry::new(2, 2).unwrap());
    Transactions::create(&stores(disks), &options, executor(HANG)).unwrap();
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    let maintenance = Maintenance::open(stores(disks), &options, executor(HANG)).unwrap();
    OpenVolume {
        fs: Fs::open(std::sync::Arc::clone(&maintenance), FsOptions::default()).unwrap(),
        maintenance,
        notes: Vec::new(),
        orders: None,
        pause_switch: None,
        left_out: Vec::new(),
    }
}

fn mkdir(volume: &OpenVolume, parent: Ino, name: &str) -> Ino {
    let names = volume.fs.names();
    let made = names.mkdir(&Caller::ROOT, parent, name.as_bytes(), 0o755);
    made.unwrap().ino
}

/// Has a directory name a class that no record is about.
fn lose_class(volume: &OpenVolume, directory: Ino, class: StripeClass) {
    let transactions = volume.fs.transactions();
    let key = key::inode(directory);
    let mut inode = Inode::decode(&transactions.get(&key).unwrap().unwrap()).unwrap();
    inode.class = class;
    let mut batch = Batch::default();
    batch.put(key, inode.encode());
    transactions.apply(batch).unwrap();
}

#[test]
fn directories_with_codes_of_their_own_are_listed_by_path_and_unknown_codes_are_told() {
    let volume = open();
    let listed = |volume: &OpenVolume| match list(volume).unwrap() {
        Answer::DirectoryCodes {
            directories,
            has_more: false,
        } => directories,
        other => panic!("{other:?}"),
    };
    assert_eq!(listed(&volume), []);
    let (second, first) = (
        mkdir(&volume, Ino::ROOT, "second"),
        mkdir(&volume, Ino::ROOT, "first"),
    );
    let (below, inherits) = (
        mkdir(&volume, second, "below"),
        mkdir(&volume, second, "inherits"),
    );
    let class = |data, parity| {
        let geometry = Geometry::new(data, parity).unwrap();
        let class = volume
            .fs
            .transactions()
            .class_for(geometry, CodeId::RS_CAUCHY);
        class.unwrap()
    };
    let (thin, wide) = (class(5, 1), class(4, 2));
    let codes = volume.fs.directory_codes();
    codes.set(second, thin, false).unwrap();
    codes.set(below, wide, false).unwrap();
    lose_class(&volume, first, StripeClass(9));
    let shown: Vec<_> = listed(&volume)
        .into_iter()
        .map(|entry| {
            let shards = entry.geometry.map(|it| (it.data, it.parity));
            (entry.path.unwrap(), entry.directory, entry.class, shards)
        })
        .collect();
    let expected = [
        ("first", first, 9, None),
        ("second", second, thin.0, Some((5, 1))),
        ("second/below", below, wide.0, Some((4, 2))),
    ];
    let expected =
        expected.map(|(path, Ino(ino), class, shards)| (path.into(), ino, class, shards));
    assert_eq!(shown, expected);
    let answered = show(&volume, inherits).unwrap();
    assert!(
        matches!(&answered, Answer::DirectoryCode(code) if (code.data, code.parity) == (5, 1)),
        "{answered:?}"
    );
    let unknown = DaemonFailure::UnknownDirectoryCode { class: 9 };
    assert_eq!(show(&volume, first).unwrap_err(), unknown);
    // A change that leaves something as it is needs to know how it is.
    let partial = CodeChange {
        parity: Some(1),
        ..CodeChange::default()
    };
    let refused = code_to_change(&volume, first, &partial);
    assert_eq!(refused.unwrap_err(), unknown);
    let whole = CodeChange {
        data: Some(5),
        ..partial
    };
    let changed = wanted(code_to_change(&volume, first, &whole).unwrap(), &whole).unwrap();
    assert_eq!(changed.geometry, Geometry::new(5, 1).unwrap());
    codes.set(first, thin, false).unwrap();
    assert!(show(&volume, first).is_ok());
    let gone = show(&volume, Ino(999)).unwrap_err();
    let is_told = matches!(
        gone,
        DaemonFailure::DirectoryCode {
            step: CodeStep::OtherDirectory,
            ..
        }
    );
    assert!(is_told, "{gone:?}");
}

fn list_of(volume: &OpenVolume) -> (Vec<DirectoryCodeEntry>, bool) {
    match list(volume).unwrap() {
        Answer::DirectoryCodes {
            directories,
            has_more,
        } => (directories, has_more),
        other => panic!("{other:?}"),
    }
}

#[test]
fn directories_are_listed_past_damaged_records_and_not_all_if_they_are_many() {
    let volume = open();
    let transactions = volume.fs.transactions();
    let made = mkdir(&volume, Ino::ROOT, "made");
    lose_class(&volume, made, StripeClass(9));
    assert_eq!(
        list_of(&volume),
        (Vec::new(), false),
        "a volume without codes of directories is not searched"
    );
    let class = transactions.class_for(Geometry::new(5, 1).unwrap(), CodeId::RS_CAUCHY);
    let class = class.unwrap();
    lose_class(&volume, made, class);
    let record = transactions.get(&key::inode(made)).unwrap().unwrap();
    let put = |numbers: std::ops::Range<u64>, parent: Ino, class: StripeClass| {
        let mut batch = Batch::default();
        for ino in numbers {
            let mut inode = Inode::decode(&record).unwrap();
            (inode.parent, inode.class) = (parent, class);
            batch.put(key::inode(Ino(ino)), inode.encode());
        }
        transactions.apply(batch).unwrap();
    };
    // These lie in one that comes long after them.
    put(2_000..4_500, Ino(10_000), class);
    put(10_000..10_001, Ino::ROOT, class);
    let mut batch = Batch::default();
    batch.put(key::inode(Ino(1_000)), Marker.encode());
    transactions.apply(batch).unwrap();
    let (listed, has_more) = list_of(&volume);
    let found: Vec<_> = listed.iter().map(|it| it.directory).collect();
    // Without a path first.
    assert_eq!((found, has_more), (vec![10_000, made.0], false));
    // Those below one that has the code of the volume have one of their own.
    put(10_000..10_001, Ino::ROOT, StripeClass::VOLUME);
    let (listed, has_more) = list_of(&volume);
    assert_eq!((listed.len(), has_more), (MOST_DIRECTORIES, true));
}

/// Each refusal says itself what helps. The list of codes helps with a code that does not exist.
#[test]
fn every_refusal_of_a_code_has_a_step_of_its_own() {
    let geometry = Geometry::new(5, 1).unwrap();
    let known = vec![(geometry, CodeId::RS_CAUCHY)];
    let (losses, most, data_shards) = (2, 1, 9);
    let steps = [
        (
            DirectoryCodeError::TooMuchParity { losses, most },
            CodeStep::RaiseVolume { losses, most },
        ),
        (DirectoryCodeError::NoParity { most }, CodeStep::MoreParity),
        (
            DirectoryCodeError::TooWide { data_shards, most },
            CodeStep::FewerDataShards { most },
        ),
        (
            DirectoryCodeError::TooMany { known },
            CodeStep::KnownCode {
                codes: vec!["5+1 rs-cauchy".to_owned()],
            },
        ),
        (
            DirectoryCodeError::DirectoryHasMore { losses, most },
            CodeStep::ChangeDirectories,
        ),
        (
            DirectoryCodeError::DirectoryTooWide { data_shards, most },
            CodeStep::ChangeDirectories,
        ),
    ];
    for (error, step) in steps {
        let problem = error.to_string();
        let expected = DaemonFailure::DirectoryCode { problem, step };
        assert_eq!(refusal(error), expected);
    }
    let unknown = CodeId::from_name("raid6").unwrap_err();
    assert!(matches!(
        refusal(unknown.into()),
        DaemonFailure::BadCode { .. }
    ));
    for failure in [
        refusal(CommitError::NoSpace.into()),
        directory_failure(FsError::NoSpace),
    ] {
        let DaemonFailure::Volume { failure } = failure else {
            panic!("{failure:?}");
        };
        assert!(failure.remedy.is_some(), "{failure:?}");
    }
    let read_only = directory_failure(FsError::ReadOnly);
    assert_eq!(read_only, DaemonFailure::MountedReadOnly);
}

/// The members online have no room for a stripe of all shards, and the one that is away may come back with it.
#[test]
fn an_order_without_room_tells_how_much_it_lacks_and_which_member_is_away() {
    let disks = disks(4, 64 << 20);
    let volume = open_on(&disks);
    let directory = mkdir(&volume, Ino::ROOT, "scratch");
    let transactions = volume.fs.transactions();
    let geometry = Geometry::new(3, 1).unwrap();
    let class = transactions.class_for(geometry, CodeId::RS_CAUCHY).unwrap();
    let codes = volume.fs.directory_codes();
    codes.set(directory, class, false).unwrap();
    let flags = OpenFlags::read_write();
    let made = volume
        .fs
        .names()
        .create(&Caller::ROOT, directory, b"file", 0o644, flags);
    let (_, handle) = made.unwrap();
    let written = volume
        .fs
        .writer()
        .write(handle, 0, &vec![7; 300_000], WriteFlags::default());
    assert_eq!(written.unwrap(), 300_000);
    transactions.sync().unwrap();
    let whole = transactions.members().shape().stripe_code();
    check_room_to_rewrite(&volume, directory, whole).unwrap();
    disks[3].fail(Some(StoreErrorKind::Gone));
    transactions.members().probe();
    let refused = check_room_to_rewrite(&volume, directory, whole).unwrap_err();
    let DaemonFailure::TooLittleRoomToRewrite { lacking, away } = &refused else {
        panic!("{refused:?}");
    };
    assert!(*lacking >= 300_000, "{lacking}");
    assert_eq!(*away, [3]);
}

/// The command holds the lock from before it asks whether members suffice until the directory has the code.
#[test]
fn a_command_that_gives_a_directory_a_code_lets_no_drain_begin_meanwhile() {
    let volume = open();
    let directory = mkdir(&volume, Ino::ROOT, "scratch");
    let transactions = volume.fs.transactions();
    let wanted = StripeCode {
        geometry: Geometry::new(5, 1).unwrap(),
        ..transactions.members().shape().stripe_code()
    };
    let draining = volume.maintenance.draining();
    std::thread::scope(|scope| {
        // The command waits for this in between.
        let classes = transactions.catalog.hold_classes();
        let given = scope.spawn(|| give(&volume, directory, wanted, false));
        let deadline = Instant::now() + HANG;
        while !draining.is_held() {
            assert!(Instant::now() < deadline, "the command holds nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let drained = scope.spawn(|| draining.drain(MemberIndex(2)));
        // Time for a drain that does not wait.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(transactions.members().membership().draining(), []);
        assert!(draining.is_held());
        drop(classes);
        given.join().unwrap().unwrap();
        let refused = drained.join().unwrap();
        let is_told = matches!(&refused, Err(CommitError::Members(error))
            if matches!(**error, MembersError::TooFewLeftForDirectories { staying: 5, .. }));
        assert!(is_told, "{refused:?}");
    });
    assert!(!draining.is_held());
    assert_eq!(transactions.members().membership().draining(), []);
}
