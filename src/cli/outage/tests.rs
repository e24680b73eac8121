use std::os::unix::net::UnixDatagram;

use super::places::Place;
use super::*;
use crate::cli::survey::{executor, stores};
use crate::codec::Geometry;
use crate::format::Ino;
use crate::format::files::SUPERBLOCK;
use crate::fs::{Caller, OpenFlags};
use crate::fuse::OnFailure;
use crate::transaction::{CreateOptions, Transactions};

const PATIENCE: Duration = Duration::from_secs(60);

/// More messages than a socket takes.
const MOST_FILLERS: usize = 100_000;

/// Makes a volume of two data and one parity shards in `d0` to `d2` below a directory.
fn make_volume(home: &std::path::Path) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = (0..3).map(|index| home.join(format!("d{index}"))).collect();
    Directories::make(&paths, |paths| {
        let options = CreateOptions::new(Geometry::new(2, 1).expect("it is one"));
        let created = Transactions::create(&stores(paths)?, &options, executor(PATIENCE));
        created.map_err(Failure::environment)
    })
    .expect("there is room");
    paths
}

fn aside(path: &std::path::Path) -> PathBuf {
    path.with_extension("aside")
}

/// A volume that is watched, and a kernel at the other end of its mount, which the test is.
struct Rig {
    paths: Vec<PathBuf>,
    volume: Arc<MountedVolume>,
    survey: Arc<OutageSurvey>,
    watch: Option<OutageWatch>,
    kernel: UnixDatagram,
    /// The number of messages that the kernel has not read, and that are not from the volume.
    fillers: usize,
    home: tempfile::TempDir,
}

impl Rig {
    /// Starts the watch of a volume over a kernel that takes no notice.
    fn new() -> Self {
        let home = tempfile::tempdir().expect("there is room");
        let base = std::fs::canonicalize(home.path()).expect("it is there");
        let paths = make_volume(&base);
        let directories = Directories::find(&paths).expect("they are there");
        let reopening = Reopening {
            volume_options: VolumeOptions {
                access: Access::ReadWrite,
                ..VolumeOptions::looking()
            },
            fs_options: FsOptions::default(),
        };
        let options = &reopening.volume_options;
        let volume = Volume::open(&directories, options, reopening.fs_options.clone());
        let volume = Arc::new(MountedVolume::new(volume.expect("all members are there")));
        let survey = Arc::new(OutageSurvey::new(&volume, PATIENCE));
        let (ours, kernel) = UnixDatagram::pair().expect("there are descriptors left");
        ours.set_nonblocking(true).expect("it is a socket");
        let fillers = (0..MOST_FILLERS)
            .take_while(|_| ours.send(b"filler").is_ok())
            .count();
        ours.set_nonblocking(false).expect("it is a socket");
        let kernel_cache = KernelCache::over(ours.into());
        let waiting = Arc::new(WaitingRequests::new(OnFailure::Wait));
        let watch = OutageWatch::start(Arc::clone(&survey), reopening, (kernel_cache, waiting));
        Self {
            paths,
            volume,
            survey,
            watch: Some(watch.expect("there are threads left")),
            kernel,
            fillers,
            home,
        }
    }

    fn has_failed(&self) -> bool {
        let served = self.volume.served().current();
        served
            .as_ref()
            .is_none_or(|fs| fs.transactions().has_failed())
    }

    /// Takes two of the members away, and makes files meanwhile: at least the last of these is lost.
    fn take_away(&self, round: u32) {
        for path in &self.paths[..2] {
            std::fs::rename(path, aside(path)).expect("it is there");
        }
        for number in 0.. {
            let served = self.volume.served().current();
            let Some(fs) = &*served else { return };
            if fs.transactions().has_failed() {
                return;
            }
            let name = format!("{round}.{number}");
            let made = fs.names().create(
                &Caller::ROOT,
                Ino::ROOT,
                name.as_bytes(),
                0o644,
                OpenFlags::read_write(),
            );
            if made.is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        cauchyfs_testkit::eventually("it is seen", PATIENCE, || self.has_failed());
    }

    fn bring_back(&self, index: usize) {
        let path = &self.paths[index];
        std::fs::rename(aside(path), path).expect("it is aside");
    }

    #[track_caller]
    fn goes_on(&self) {
        cauchyfs_testkit::eventually("it goes on", PATIENCE, || !self.has_failed());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A watch that hangs would never end.
            std::mem::forget(self.watch.take());
            return;
        }
        drop(self.watch.take());
        let volume = self.volume.take().expect("it is open");
        volume.close().expect("enough members are there");
    }
}

/// The kernel takes a notice once no request holds what it is about. Requests that wait for the volume hold much.
#[test]
fn a_kernel_that_takes_no_notice_keeps_no_volume_from_a_second_return() {
    let rig = Rig::new();
    for round in 0..2 {
        rig.take_away(round);
        rig.bring_back(0);
        rig.bring_back(1);
        rig.goes_on();
    }
    let mut message = [0; 4096];
    for _ in 0..rig.fillers {
        let len = rig.kernel.recv(&mut message).expect("it is queued");
        assert_eq!(&message[..len], b"filler");
    }
    rig.kernel
        .set_read_timeout(Some(PATIENCE))
        .expect("it is a socket");
    let len = rig.kernel.recv(&mut message).expect("a notice waited");
    assert_ne!(&message[..len], b"filler");
}

#[test]
fn a_wrong_directory_keeps_no_volume_from_going_on_with_the_others() {
    let rig = Rig::new();
    rig.take_away(0);
    let other = rig.home.path().join("other");
    let others = make_volume(&other);
    std::fs::rename(&others[0], &rig.paths[0]).expect("its place is free");
    rig.bring_back(1);
    rig.goes_on();
    let report = rig.survey.report("").expect("it was open");
    let reason = report.members[0].reason.clone();
    let is_named = matches!(reason, Some(AbsenceReason::OtherVolume { .. }));
    assert!(is_named, "{reason:?}");
    std::fs::rename(&rig.paths[0], &others[0]).expect("it is there");
    rig.bring_back(0);
}

#[test]
fn directories_that_do_not_belong_to_a_volume_are_left_out_each_for_its_reason() {
    let home = tempfile::tempdir().expect("there is room");
    let base = std::fs::canonicalize(home.path()).expect("it is there");
    let paths = make_volume(&base);
    let others = make_volume(&base.join("other"));
    let present = survey_members(
        &Directories::find(&paths).expect("they are there"),
        PATIENCE,
    );
    let volume = present.expect("they belong together").0.shape().volume_id();
    let place = |(index, path): (u16, &PathBuf)| Place {
        member: MemberIndex(index),
        path: path.clone(),
    };
    let places: Vec<Place> = (0..).zip(&paths).map(place).collect();
    let (found, left_out) = places::find(volume, &places, PATIENCE).expect("all are there");
    assert_eq!((found.present, left_out), (paths.clone(), Vec::new()));

    let wrong = &paths[1];
    std::fs::rename(wrong, aside(wrong)).expect("it is there");
    let make_file = || std::fs::write(wrong, "").expect("there is room");
    let make_other = || std::fs::rename(&others[0], wrong).expect("it is there");
    let make_foreign = || {
        std::fs::create_dir(wrong).expect("there is room");
        std::fs::write(wrong.join("letter"), "").expect("there is room");
    };
    let make_copy = || {
        std::fs::create_dir(wrong).expect("there is room");
        let superblock = paths[2].join(SUPERBLOCK);
        std::fs::copy(superblock, wrong.join(SUPERBLOCK)).expect("there is room");
    };
    let make_link = || std::os::unix::fs::symlink(&paths[2], wrong).expect("there is room");
    let cases: [(&dyn Fn(), &str); 5] = [
        (&make_file, "is no directory"),
        (&make_other, "a member of another volume"),
        (&make_foreign, "it has letter"),
        (&make_copy, "the same member as"),
        (&make_link, "given twice"),
    ];
    for (make, expected) in cases {
        make();
        let (found, left_out) = places::find(volume, &places, PATIENCE).expect("two are there");
        let mut present = found.present;
        present.sort_unstable();
        assert_eq!(present.len(), 2, "{expected}: {left_out:?}");
        let said: Vec<String> = left_out.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{expected}");
        assert!(said[0].contains(expected), "{said:?}");
        assert!(
            survey_members(&found_of(&present), PATIENCE).is_ok(),
            "{expected}"
        );
        if wrong.is_dir() && !wrong.is_symlink() {
            std::fs::rename(wrong, base.join(expected)).expect("it is there");
        } else {
            std::fs::remove_file(wrong).expect("it is there");
        }
    }
}

fn found_of(present: &[PathBuf]) -> Directories {
    Directories::find(present).expect("they are there")
}
