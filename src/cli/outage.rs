//! The end of an outage: a volume that lost too many members goes on when enough of them are back.
//!
//! A volume of which more than M members go away can neither read nor write everything. Its daemon keeps the mount, and
//! looks for the directories. Once more of them are there than the volume still has, the volume is closed as by a crash,
//! and opened again as after one, so everything that was acknowledged is there. The mount, the files that programs have
//! open and the look-ups of the kernel stay. Changes that were not durable are lost: the next fsync of each file
//! reports that, and the kernel forgets what it saw of them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::directories::Directories;
use super::failure::Failure;
use super::survey::survey_members;
use super::volume::VolumeOptions;
use crate::control::in_time::Silent;
use crate::control::mounted::{MountedVolume, OpenVolume};
use crate::control::report::StatusReport;
use crate::control::summary::blank_report;
use crate::control::volume::{AbandonedVolume, Volume};
use crate::format::MemberIndex;
use crate::fs::{FsOptions, LostChanges};
use crate::fuse::KernelCache;
use crate::membership::{MemberState, MemberStatus};
use crate::workers::Threads;

/// The interval at which a volume is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two looks at the rest of an abandoned volume.
const REST_POLL: Duration = Duration::from_millis(20);

/// The time after which the log says that something still works on an abandoned volume.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of an outage that look at directories.
pub(super) struct OutageSurvey {
    volume: Arc<MountedVolume>,
    /// The directories of the members when the volume was last open.
    paths: Mutex<Vec<PathBuf>>,
    member_timeout: Duration,
}

impl OutageSurvey {
    /// Returns a survey of the directories of this volume.
    pub(super) fn new(volume: &Arc<MountedVolume>, member_timeout: Duration) -> Self {
        Self {
            volume: Arc::clone(volume),
            paths: Mutex::default(),
            member_timeout,
        }
    }

    /// Notes the directories of an open volume, but those of members that were left out.
    fn note_paths(&self, volume: &OpenVolume) {
        let members = volume.fs.transactions().members().known_members();
        let members = members
            .into_iter()
            .filter(|member| !volume.left_out.contains(&member.index));
        *self.paths.lock() = members.map(|member| PathBuf::from(member.path)).collect();
    }

    /// Finds the directories that were noted last.
    fn directories(&self) -> Result<Directories, Failure> {
        let paths = self.paths.lock().clone();
        Directories::find_within(&paths, self.member_timeout, Silent::default())
    }

    /// Reports on the volume by what its directories tell now. Returns none if none of them tells anything.
    pub(super) fn report(&self) -> Option<StatusReport> {
        if let Some(volume) = self.volume.now() {
            self.note_paths(&volume);
        }
        let directories = self.directories().ok()?;
        let (members, notes) = survey_members(&directories, self.member_timeout).ok()?;
        Some(StatusReport {
            mounted: true,
            ..blank_report(&members, &notes, 0)
        })
    }

    /// Counts the members whose directories are there and belong to the volume.
    fn count_present(&self) -> usize {
        let surveyed = self
            .directories()
            .and_then(|directories| survey_members(&directories, self.member_timeout));
        surveyed.map_or(0, |(members, _)| count_online(&members.known_members()))
    }
}

fn count_online(members: &[MemberStatus]) -> usize {
    let online = members
        .iter()
        .filter(|member| member.state == MemberState::Online);
    online.count()
}

/// The options with which a volume was opened, and is opened again.
#[derive(Clone)]
pub(super) struct Reopening {
    pub(super) volume_options: VolumeOptions,
    pub(super) fs_options: FsOptions,
}

/// The watch over the volume of a mount. It ends when it is dropped.
pub(super) struct OutageWatch {
    end: Option<Sender<()>>,
    threads: Threads,
}

impl OutageWatch {
    /// Starts to watch.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(
        survey: Arc<OutageSurvey>,
        reopening: Reopening,
        kernel_cache: KernelCache,
    ) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let watcher = Watcher {
            volume: Arc::clone(&survey.volume),
            survey,
            reopening,
            kernel_cache,
            ended,
        };
        let threads = Threads::default();
        threads.start("outage", move || watcher.watch())?;
        Ok(Self {
            end: Some(end),
            threads,
        })
    }
}

impl Drop for OutageWatch {
    fn drop(&mut self) {
        drop(self.end.take());
        self.threads.wait();
    }
}

struct Watcher {
    volume: Arc<MountedVolume>,
    survey: Arc<OutageSurvey>,
    reopening: Reopening,
    kernel_cache: KernelCache,
    ended: Receiver<()>,
}

impl Watcher {
    fn watch(&self) {
        while self.pause(LOOK_INTERVAL) {
            if let Some(left_out) = self.may_go_on() {
                self.go_on(&left_out);
            }
        }
    }

    /// Waits. Returns false if the watch is to end.
    fn pause(&self, time: Duration) -> bool {
        self.ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }

    /// Returns whether the volume has failed, and more members are there than it still has; if so, the members that
    /// are to stay out.
    fn may_go_on(&self) -> Option<Vec<MemberIndex>> {
        let has_failed = {
            let served = self.volume.served().current();
            served
                .as_ref()
                .is_some_and(|fs| fs.transactions().has_failed())
        };
        if !has_failed {
            return None;
        }
        let open = self.volume.now()?;
        let still_there = count_online(&open.fs.transactions().members().known_members());
        self.survey.note_paths(&open);
        (self.survey.count_present() > still_there).then_some(open.left_out)
    }

    /// Closes the volume and opens it again, as often as that takes.
    fn go_on(&self, left_out: &[MemberIndex]) {
        let Some(volume) = self.volume.take() else {
            return;
        };
        tracing::warn!("members are back: the volume is opened again");
        let (abandoned, hanging) = volume.abandon();
        if !hanging.is_empty() {
            tracing::warn!("left out until they answer: {}", hanging.join(" and "));
        }
        if !self.wait_until_gone(&abandoned) {
            return;
        }
        let lost = &abandoned.lost;
        let mut told = String::new();
        loop {
            match self.open_again(lost, left_out.to_vec()) {
                Ok(volume) => return self.put(volume, lost),
                Err(failure) => {
                    if failure.message != told {
                        tracing::error!("the volume waits for its members: {}", failure.message);
                        told = failure.message;
                    }
                }
            }
            if !self.pause(LOOK_INTERVAL) {
                return;
            }
        }
    }

    /// Waits until nothing works on an abandoned volume any more: it could write after the volume is opened again.
    /// Returns false if the watch is to end before.
    fn wait_until_gone(&self, abandoned: &AbandonedVolume) -> bool {
        let since = Instant::now();
        let mut has_told = false;
        while !abandoned.is_gone() {
            if since.elapsed() > REST_TIMEOUT && !has_told {
                tracing::warn!("requests and commands still work on the volume that has failed");
                has_told = true;
            }
            if !self.pause(REST_POLL) {
                return false;
            }
        }
        true
    }

    fn open_again(
        &self,
        lost: &LostChanges,
        left_out: Vec<MemberIndex>,
    ) -> Result<Volume, Failure> {
        let directories = self.survey.directories()?;
        let Reopening {
            volume_options,
            fs_options,
        } = self.reopening.clone();
        let kept = self.volume.served().kept();
        Volume::open_again(
            &directories,
            &volume_options,
            fs_options,
            (kept, lost),
            left_out,
        )
    }

    /// Serves the volume again, and makes the kernel forget the changes that were lost.
    fn put(&self, volume: Volume, lost: &LostChanges) {
        let fs = Arc::clone(&volume.fs);
        self.volume.put(volume);
        if let Err(error) = fs.resume_removal() {
            tracing::warn!("what was being removed goes at the next mount: {error}");
        }
        drop(fs);
        self.kernel_cache.distrust(lost);
        tracing::warn!(
            "the volume goes on; changes of {} files and directories were not durable and are lost",
            lost.inodes.len()
        );
    }
}
