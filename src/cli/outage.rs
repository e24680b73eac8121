//! The end of an outage: a volume that lost too many members goes on when enough of them are back.
//!
//! A volume of which more than M members go away can neither read nor write everything. Its daemon keeps the mount, and
//! looks for the directories. Once more of them are there than the volume still has, the volume is closed as by a crash.
//! It is opened again as after one, so everything that was acknowledged is there. The mount, the files that programs have
//! open and the look-ups of the kernel stay. Changes that were not durable are lost: the next fsync of each file
//! reports that, and the kernel forgets what it saw of them.
//!
//! A volume whose code is changed is closed and opened again in the same way, while the requests of programs wait.

mod notices;
mod places;
mod reopening;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::notices::{Notice, Notices};
use self::places::Place;
use super::directories::Directories;
use super::failure::Failure;
use super::survey::survey_members;
use super::volume::VolumeOptions;
use crate::control::mounted::{MountedVolume, OpenVolume, ReopeningWish};
use crate::control::report::{self, StatusReport, UncountedReport};
use crate::control::summary::{TOO_FEW, blank_report, blank_report_of};
use crate::control::volume::{AbandonedVolume, Volume, VolumeRest};
use crate::format::event::EventKind;
use crate::format::{MemberIndex, VolumeId};
use crate::fs::{FsOptions, LostChanges};
use crate::fuse::{KernelCache, WaitingRequests};
use crate::membership::{AbsenceReason, Access, MemberState, MemberStatus, Members, Unusable};
use crate::workers::Threads;

/// The interval at which a volume is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two looks at the rest of an abandoned volume.
const REST_POLL: Duration = Duration::from_millis(20);

/// The time after which the log says that something still works on an abandoned volume.
const REST_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for which others may know the members of an abandoned volume: longer than an operation on a member takes.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest pause between two openings of a volume that fails again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The parts of an outage that look at directories.
pub(super) struct OutageSurvey {
    volume: Arc<MountedVolume>,
    known: Mutex<Option<LastKnown>>,
    /// The directories that were left out last. The log has named them.
    named: Mutex<Vec<Unusable>>,
    member_timeout: Duration,
}

/// The volume as it was when it was last open.
struct LastKnown {
    id: VolumeId,
    /// The directories of the members.
    places: Vec<Place>,
    report: StatusReport,
    /// The failure to open it since.
    failure: Option<String>,
}

impl OutageSurvey {
    /// Returns a survey of the directories of this volume.
    pub(super) fn new(volume: &Arc<MountedVolume>, member_timeout: Duration) -> Self {
        let survey = Self {
            volume: Arc::clone(volume),
            known: Mutex::default(),
            named: Mutex::default(),
            member_timeout,
        };
        if let Some(volume) = volume.now() {
            survey.note(&volume);
        }
        survey
    }

    /// Notes the members of an open volume, and the directories of those that were not left out. Asks none of them.
    fn note(&self, volume: &OpenVolume) {
        let transactions = volume.fs.transactions();
        let members = transactions.members();
        let found = members.known_members();
        let left_out = left_out_of(volume);
        let named = found.iter();
        let named = named.filter(|member| !left_out.contains(&member.index));
        let place = |member: &MemberStatus| Place {
            member: member.index,
            path: PathBuf::from(&member.path),
        };
        let places = named.map(place).collect();
        let report = StatusReport {
            mounted: true,
            read_only: true,
            mounted_read_only: transactions.access() == Access::ReadOnly,
            ..blank_report_of(members, found, (volume.notes.as_slice(), 0), TOO_FEW)
        };
        *self.known.lock() = Some(LastKnown {
            id: members.shape().volume_id(),
            places,
            report,
            failure: None,
        });
    }

    /// Notes why the volume could not be opened again.
    fn note_failure(&self, failure: &str) {
        if let Some(known) = &mut *self.known.lock() {
            known.failure = Some(failure.to_owned());
        }
    }

    /// Finds the directories that were noted last, and those that are wrong. The log names each wrong one once.
    fn directories(&self) -> Result<(Directories, Vec<Unusable>), Failure> {
        let known = {
            let known = self.known.lock();
            let known = known.as_ref();
            known.map(|known| (known.id, known.places.clone()))
        };
        let (id, places) = known.ok_or_else(|| Failure::environment("no volume was open"))?;
        let (directories, left_out) = places::find(id, &places, self.member_timeout)?;
        let mut named = self.named.lock();
        for wrong in left_out.iter().filter(|wrong| !named.contains(wrong)) {
            tracing::warn!("the volume does without a directory: {wrong}");
        }
        named.clone_from(&left_out);
        Ok((directories, left_out))
    }

    /// Looks at the members, and says which directories could not be used.
    fn survey(&self) -> Result<(Arc<Members>, Vec<Unusable>), Failure> {
        let (directories, mut left_out) = self.directories()?;
        let (members, mut notes) = survey_members(&directories, self.member_timeout)?;
        notes.append(&mut left_out);
        Ok((members, notes))
    }

    /// Reports on the volume by what its directories tell now; `reason` says why nothing else can be counted. If none of
    /// them tells anything, all members that were known are missing. Returns none if the volume was never open.
    pub(super) fn report(&self, reason: &str) -> Option<StatusReport> {
        if let Some(volume) = self.volume.now() {
            self.note(&volume);
        }
        let (known, failure) = {
            let known = self.known.lock();
            let known = known.as_ref()?;
            (known.report.clone(), known.failure.clone())
        };
        let reason = failure.as_deref().unwrap_or(reason);
        Some(match self.survey() {
            Ok((members, notes)) => StatusReport {
                mounted: true,
                read_only: true,
                mounted_read_only: known.mounted_read_only,
                ..blank_report(&members, &notes, 0, reason)
            },
            Err(failure) => {
                tracing::debug!(
                    "no directory of the volume tells anything: {}",
                    failure.message
                );
                without_members(known, reason)
            }
        })
    }

    /// Counts the members whose directories are there and belong to the volume.
    fn count_present(&self) -> usize {
        let surveyed = self.survey();
        surveyed.map_or(0, |(members, _)| count_online(&members.known_members()))
    }
}

/// Returns the members whose directories were not named, and that have not come since.
fn left_out_of(volume: &OpenVolume) -> Vec<MemberIndex> {
    let membership = volume.fs.transactions().members().membership();
    let left_out = volume.left_out.iter().copied();
    left_out
        .filter(|member| !membership.was_online(*member))
        .collect()
}

/// Returns the report on a volume of which no member is there.
fn without_members(mut known: StatusReport, reason: &str) -> StatusReport {
    for member in &mut known.members {
        if member.is_here() {
            member.state = report::MemberState::Missing;
            member.reason = Some(AbsenceReason::NoDirectory);
        }
    }
    let of_members = known.members.iter().filter_map(UncountedReport::of_member);
    let mut uncounted = UncountedReport::of_records(reason);
    uncounted.extend(of_members);
    StatusReport { uncounted, ..known }
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
    end: Option<Arc<Sender<ReopeningWish>>>,
    threads: Threads,
}

impl OutageWatch {
    /// Starts to watch. Requests that wait are done once the volume is open again.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(
        survey: Arc<OutageSurvey>,
        reopening: Reopening,
        (kernel_cache, waiting): (KernelCache, Arc<WaitingRequests>),
    ) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let end = Arc::new(end);
        let wishes = Arc::downgrade(&end);
        survey.volume.set_reopener(Box::new(move |wish| {
            if let Some(wishes) = wishes.upgrade() {
                wishes.send(wish).ok();
            }
        }));
        let served = Arc::clone(survey.volume.served());
        let watcher = Watcher {
            volume: Arc::clone(&survey.volume),
            survey,
            reopening,
            notices: Notices::start(kernel_cache, served)?,
            waiting,
            ended,
            last_order: Cell::new(0),
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
    notices: Notices,
    waiting: Arc<WaitingRequests>,
    /// Gets wishes to open the volume again, until the watch is to end.
    ended: Receiver<ReopeningWish>,
    /// The number of the last order to rebuild: those of the next opening follow.
    last_order: Cell<u64>,
}

/// The outcome of a pause of the watch.
enum Wake {
    /// It is time for the next look.
    Look,
    /// The volume is to be closed and opened again.
    Reopen(ReopeningWish),
    /// The watch is to end.
    End,
}

impl Watcher {
    fn watch(&self) {
        let mut pause = LOOK_INTERVAL;
        let mut opened: Option<Instant> = None;
        // The fewest members that a volume had since it failed: absent ones may be taken back although it has failed.
        let mut fewest = usize::MAX;
        let mut rests = Vec::new();
        loop {
            match self.wake(pause) {
                Wake::Look => {}
                Wake::Reopen(wish) => {
                    rests.extend(self.reopen(wish));
                    continue;
                }
                Wake::End => return,
            }
            rests.retain(|rest: &VolumeRest| !rest.release().is_empty());
            let Some(failed) = self.failed() else {
                fewest = usize::MAX;
                if opened.is_none_or(|opened| opened.elapsed() > LONGEST_PAUSE) {
                    pause = LOOK_INTERVAL;
                }
                continue;
            };
            let members = failed.fs.transactions().members();
            fewest = fewest.min(count_online(&members.known_members()));
            let needed = members.shape().geometry().data_shards();
            self.survey.note(&failed);
            if self.survey.count_present() < needed.max(fewest + 1) {
                continue;
            }
            let left_out = left_out_of(&failed);
            drop(failed);
            rests.extend(self.go_on(&left_out));
            let is_frequent = opened.is_some_and(|opened| opened.elapsed() < LONGEST_PAUSE);
            opened = Some(Instant::now());
            fewest = usize::MAX;
            if is_frequent {
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    fn wake(&self, pause: Duration) -> Wake {
        match self.ended.recv_timeout(pause) {
            Ok(wish) => Wake::Reopen(wish),
            Err(RecvTimeoutError::Timeout) => Wake::Look,
            Err(RecvTimeoutError::Disconnected) => Wake::End,
        }
    }

    /// Waits during an outage. Returns false if the watch is to end. The volume cannot be opened for another reason now.
    fn pause(&self, time: Duration) -> bool {
        !matches!(self.wake(time), Wake::End)
    }

    /// Returns the volume if it has failed.
    fn failed(&self) -> Option<OpenVolume> {
        let has_failed = {
            let served = self.volume.served().current();
            served
                .as_ref()
                .is_some_and(|fs| fs.transactions().has_failed())
        };
        if has_failed { self.volume.now() } else { None }
    }

    /// Closes the volume and opens it again, as often as that takes. Returns the rest of the old one if something hangs on
    /// its members.
    fn go_on(&self, left_out: &[MemberIndex]) -> Option<VolumeRest> {
        let volume = self.volume.take()?;
        tracing::warn!("members are back: the volume is opened again");
        self.close_and_open(volume, left_out, &mut |_| ())
    }

    /// Closes a volume that serves no more, as by a crash, and opens it again, as often as that takes. `tell` gets the outcome
    /// of each attempt.
    fn close_and_open(
        &self,
        volume: Volume,
        left_out: &[MemberIndex],
        tell: &mut dyn FnMut(Result<(), &Failure>),
    ) -> Option<VolumeRest> {
        self.note_orders(&volume);
        let (lost, rest) = self.end(volume.abandon())?;
        let hanging = rest.release();
        let rest = (!hanging.is_empty()).then_some(rest);
        if rest.is_some() {
            let hanging = hanging.join(" and ");
            tracing::warn!("left out until the volume is mounted again: {hanging} hangs");
        }
        let mut told = String::new();
        loop {
            match self.open_again(&lost, left_out.to_vec()) {
                Ok(volume) => {
                    self.put(volume, lost);
                    tell(Ok(()));
                    return rest;
                }
                Err(failure) => {
                    tell(Err(&failure));
                    self.survey.note_failure(&failure.message);
                    if failure.message != told {
                        tracing::error!("the volume waits for its members: {}", failure.message);
                        told = failure.message;
                    }
                }
            }
            if !self.pause(LOOK_INTERVAL) {
                return rest;
            }
        }
    }

    /// Notes the numbers of the orders that were given so far.
    fn note_orders(&self, volume: &Volume) {
        let newest = volume.orders().map_or(0, |orders| orders.newest().0);
        self.last_order.set(self.last_order.get().max(newest));
    }

    /// Waits until nothing works on an abandoned volume any more: it could write after the volume is opened again.
    /// Returns none if the watch is to end before.
    fn end(&self, abandoned: AbandonedVolume) -> Option<(LostChanges, VolumeRest)> {
        self.wait_until(|_| abandoned.is_idle())?;
        let (lost, rest) = abandoned.end();
        self.wait_until(|since| {
            rest.is_alone() || rest.has_ended() && since.elapsed() > MEMBERS_TIMEOUT
        })?;
        Some((lost, rest))
    }

    /// Waits until something is so; it gets the time since when. Returns none if the watch is to end before.
    fn wait_until(&self, is_so: impl Fn(Instant) -> bool) -> Option<()> {
        let since = Instant::now();
        let mut has_told = false;
        while !is_so(since) {
            if since.elapsed() > REST_TIMEOUT && !has_told {
                tracing::warn!("something still works on the volume that has failed");
                has_told = true;
            }
            if !self.pause(REST_POLL) {
                return None;
            }
        }
        Some(())
    }

    fn open_again(
        &self,
        lost: &LostChanges,
        left_out: Vec<MemberIndex>,
    ) -> Result<Volume, Failure> {
        let (directories, mut wrong) = self.survey.directories()?;
        let Reopening {
            mut volume_options,
            fs_options,
        } = self.reopening.clone();
        volume_options.schedule.last_order = self.last_order.get();
        let kept = self.volume.served().kept();
        let is_wanted = || !matches!(self.ended.try_recv(), Err(TryRecvError::Disconnected));
        let mut volume = Volume::open_again(
            &directories,
            (&volume_options, &is_wanted),
            fs_options,
            (kept, lost),
            left_out,
        )?;
        volume.notes.append(&mut wrong);
        Ok(volume)
    }

    /// Serves the volume again, and has the kernel forget the changes that were lost.
    fn put(&self, volume: Volume, lost: LostChanges) {
        let fs = Arc::clone(&volume.fs);
        self.volume.put(volume);
        let failed = fs.make_up();
        drop(fs);
        // Pages may be among what waits, and the kernel forgets none that it has not written.
        self.waiting.resume();
        match lost.inodes.len() {
            0 => tracing::info!("the volume goes on, and nothing is lost"),
            count => {
                tracing::warn!(
                    "the volume goes on; changes of {count} files and directories were not durable and are lost"
                );
                let files = count as u64;
                let events = self.volume.events();
                events.record(None, EventKind::ChangesLost { files });
            }
        }
        self.notices.add(Notice { lost, failed });
    }
}
