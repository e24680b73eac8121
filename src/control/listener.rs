//! Listening for commands on the control socket, and answering them.
//!
//! Every connection has a thread, so that a command that takes long, a `status` that counts, keeps no
//! other from its answer. Requests that end the daemon are handed on.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::code_orders;
use super::event_report::EventReport;
use super::exchange::MOST_LISTED_BYTES;
use super::failure::DaemonFailure;
use super::member_names::{member_called, member_to_replace};
use super::metrics::Source;
use super::mounted::{MountedVolume, OpenVolume};
use super::protocol::{Absentee, Answer, Membership, Request, RequestRefusal};
use super::quota_orders;
use super::report::{InterlockReport, StatusReport};
use super::scrub;
use super::server::{self, Announced, ControlSocket, QuestionSocket, meanwhile};
use super::summary::{Survey, TOO_FEW, rebuild_report, report};
use super::usage::{files_usage, volume_usage};
use super::volume_failure::VolumeFailure;
use crate::format::event::EventKind;
use crate::format::{Ino, MemberIndex};
use crate::fs::Interlock;
use crate::maintenance::{OrderNumber, RebuildOrders, RebuildState, ScrubState};
use crate::membership::{Access, JoinAs, Members, MembersError, directory};
use crate::store::StoreRef;
use crate::transaction::CommitError;

/// Commands that are answered at once at most; more are refused.
const MOST_AT_ONCE: usize = 64;

/// Questions of a group that are answered at once at most.
const MOST_QUESTIONS: usize = 16;

/// Most events in one answer.
const MOST_EVENTS: usize = 1000;

/// The interval at which a client that waits for a rebuild is told its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Command about the end of the daemon.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndRequest {
    /// [`Request::Unmount`].
    Unmount { lazy: bool },
    /// [`Request::AwaitEnd`].
    Await,
}

/// Passes a command about the end on, with the connection that waits for the answer.
type End = Box<dyn Fn(EndRequest, UnixStream) + Send + Sync>;

/// Answers commands.
struct Listener {
    /// True if a member belongs to another user: the daemon reaches no directory that it was not mounted with.
    is_foreign: bool,
    volume: Arc<MountedVolume>,
    survey: Survey,
    meters: Arc<Source>,
    end: End,
    announced: Arc<Announced>,
    /// Commands that are being answered.
    busy: AtomicUsize,
    /// Questions of the group that are being answered.
    asked: AtomicUsize,
}

/// Starts to listen for a daemon, whose volume may be foreign. `survey` reports on it if it has failed. A group may ask on the socket
/// `questions`. `meters` has its metrics. `end` gets the
/// commands about the end of the daemon, and the connections on which to answer.
///
/// # Errors
///
/// If the system has no thread left to give.
pub(crate) fn start(
    control: ControlSocket,
    questions: Option<QuestionSocket>,
    volume: Arc<MountedVolume>,
    is_foreign: bool,
    survey: Survey,
    meters: Arc<Source>,
    end: End,
) -> io::Result<()> {
    let listener = Arc::new(Listener {
        is_foreign,
        volume,
        survey,
        meters,
        end,
        announced: control.announced(),
        busy: AtomicUsize::new(0),
        asked: AtomicUsize::new(0),
    });
    if let Some(questions) = questions {
        listener.answer_questions(questions)?;
    }
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            loop {
                let attended = control.accept();
                if let Err(error) = attended.and_then(|client| listener.attend_to(client)) {
                    server::note_dropped("a command", &error);
                }
            }
        })
        .map(drop)
}

/// One of the commands or questions that are being answered, until it is dropped.
struct Active {
    listener: Arc<Listener>,
    count: fn(&Listener) -> &AtomicUsize,
    /// The number of those of its kind with this one.
    number: usize,
}

impl Active {
    fn take(listener: &Arc<Listener>, count: fn(&Listener) -> &AtomicUsize) -> Self {
        Self {
            number: count(listener).fetch_add(1, Ordering::Relaxed) + 1,
            listener: Arc::clone(listener),
            count,
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        (self.count)(&self.listener).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Listener {
    /// Answers a client on a thread of its own, unless there are too many already.
    fn attend_to(self: &Arc<Self>, client: UnixStream) -> io::Result<()> {
        let place = Active::take(self, |it| &it.busy);
        if place.number > MOST_AT_ONCE {
            return server::refuse_one_too_many(&client);
        }
        std::thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || place.listener.serve(client))
            .map(drop)
    }

    /// Answers questions of a group from now on, each on a thread of its own, and no more at once than commands can spare.
    fn answer_questions(self: &Arc<Self>, questions: QuestionSocket) -> io::Result<()> {
        let listener = Arc::clone(self);
        let attend_to = move |client: UnixStream| {
            let place = Active::take(&listener, |it| &it.asked);
            if place.number > MOST_QUESTIONS {
                return server::refuse_one_too_many(&client);
            }
            let thread = std::thread::Builder::new().name("question".to_owned());
            let answering = move || match server::receive(&client, &place.listener.announced) {
                Ok(request) if request.is_for_group() => place.listener.obey(request, client),
                Ok(_) => server::answer(&client, &Answer::Refused(RequestRefusal::QuestionsOnly)),
                Err(error) => server::note_dropped("a question", &error),
            };
            thread.spawn(answering).map(drop)
        };
        let thread = std::thread::Builder::new().name("questions".to_owned());
        let listening = move || {
            loop {
                if let Err(error) = questions.accept().and_then(&attend_to) {
                    server::note_dropped("a question", &error);
                }
            }
        };
        thread.spawn(listening).map(drop)
    }

    fn serve(&self, client: UnixStream) {
        match server::receive(&client, &self.announced) {
            Ok(request) => self.obey(request, client),
            Err(error) => server::note_dropped("a request", &error),
        }
    }

    fn obey(&self, request: Request, client: UnixStream) {
        match request {
            Request::Status => {
                let answer = meanwhile(&client, || self.status());
                server::answer(&client, &answer);
            }
            Request::Unmount { lazy } => (self.end)(EndRequest::Unmount { lazy }, client),
            Request::AwaitEnd => (self.end)(EndRequest::Await, client),
            // Such work would not begin.
            request if self.volume.is_paused() && request.is_work() => {
                server::answer(&client, &Answer::Failed(DaemonFailure::Paused));
            }
            Request::Pause => server::answer(&client, &self.pause()),
            Request::Resume => server::answer(&client, &self.resume()),
            Request::SetCode {
                change,
                bytes_per_second,
            } => {
                let change = || code_orders::change(&self.volume, &change, bytes_per_second);
                let answer = meanwhile(&client, || change().unwrap_or_else(Answer::Failed));
                server::answer(&client, &answer);
            }
            Request::DirectoryCode(request) => {
                let answer = || code_orders::of_directory(&self.volume, &request);
                let answer = meanwhile(&client, || answer().unwrap_or_else(Answer::Failed));
                server::answer(&client, &answer);
            }
            Request::Events { after, since_ms } => {
                server::answer(&client, &self.events(after, since_ms));
            }
            Request::Activity => {
                server::answer(&client, &Answer::Activity(self.meters.activity()));
            }
            Request::Metrics => {
                let metrics = meanwhile(&client, || self.meters.families());
                let answer = metrics.map(Answer::Metrics);
                let answer = answer.unwrap_or(Answer::Failed(DaemonFailure::VolumeAway));
                server::answer(&client, &answer);
            }
            // It is answered by the time that a request is received.
            Request::Identify => {}
            request => match self.volume.open() {
                // Any work on the volume would fail.
                Some(volume) if !request.is_question() && is_away(&volume) => {
                    server::answer(&client, &Answer::Failed(DaemonFailure::VolumeAway));
                }
                Some(volume) => {
                    let is_foreign = self.is_foreign;
                    Commands { is_foreign, volume }.serve(request, &client);
                }
                None => server::answer(&client, &Answer::Failed(DaemonFailure::VolumeAway)),
            },
        }
    }

    /// Says how the volume is. If too many members are away, the directories themselves are looked at, because members may
    /// be back. A volume that serves is reported on as it is, without the values that cannot be counted.
    fn status(&self) -> Answer {
        let volume = self.volume.open();
        match status_of(volume.as_ref(), &self.survey) {
            Some(report) => self.status_answer(report),
            None => Answer::Failed(DaemonFailure::VolumeAway),
        }
    }

    fn pause(&self) -> Answer {
        let paused = self.volume.set_paused(true).map(|since| {
            let was_paused = since.is_some();
            if !was_paused {
                let had_work = self.volume.now().is_some_and(|volume| has_work(&volume));
                self.volume
                    .events()
                    .record(None, EventKind::Paused { had_work });
            }
            Answer::Paused { was_paused }
        });
        paused.unwrap_or_else(Answer::Failed)
    }

    /// Ends the pause of background work if there is one, which takes a volume that is there. Otherwise lets removals go on
    /// that the interlock refuses, also during an outage. Its event is recorded after the outage then.
    fn resume(&self) -> Answer {
        let interlock = self.volume.interlock();
        if !self.volume.is_paused() && interlock.is_some_and(Interlock::release) {
            return Answer::Resumed {
                was_paused: false,
                was_locked: true,
                is_locked: false,
            };
        }
        let resumed = self.volume.set_paused(false).map(|since| {
            if let Some(since) = since {
                let seconds = since.elapsed().as_secs();
                self.volume
                    .events()
                    .record(None, EventKind::Resumed { seconds });
            }
            Answer::Resumed {
                was_paused: since.is_some(),
                was_locked: false,
                is_locked: interlock.is_some_and(|it| it.refused().is_some()),
            }
        });
        resumed.unwrap_or_else(Answer::Failed)
    }

    /// Returns as many of the remembered events as an answer takes.
    fn events(&self, after: Option<u64>, since_ms: Option<i64>) -> Answer {
        let newer = self
            .volume
            .events()
            .newer_than(after, since_ms, MOST_EVENTS);
        let mut left = MOST_LISTED_BYTES;
        let count = newer.events.len();
        let fits = |report: &EventReport| {
            let len = serde_json::to_string(report).map_or(usize::MAX, |text| text.len());
            let fits = len < left;
            left = left.saturating_sub(len);
            fits
        };
        let reports = newer.events.into_iter().map(EventReport::of);
        let events: Vec<EventReport> = reports.take_while(fits).collect();
        let has_more = newer.has_more || events.len() < count;
        Answer::Events { events, has_more }
    }

    fn status_answer(&self, mut report: StatusReport) -> Answer {
        report.paused = self.volume.is_paused();
        report.alerts = self.volume.alerts();
        report.interlock = self.volume.interlock().map(InterlockReport::from);
        report.lost.shorten(MOST_LISTED_BYTES);
        report.transport = self.announced.transport();
        Answer::Status(Box::new(report))
    }
}

/// Reports on a volume, or by a survey if it cannot serve. Returns none if there is neither.
pub(super) fn status_of(volume: Option<&OpenVolume>, survey: &Survey) -> Option<StatusReport> {
    let has_left = volume.is_none_or(is_away);
    if has_left && let Some(report) = survey(TOO_FEW) {
        return Some(report);
    }
    let volume = volume?;
    let mut report = report(&volume.fs, &volume.maintenance, &volume.notes, true);
    if let Some(orders) = &volume.orders {
        report.rebuild.note_limit(orders.bytes_per_second());
    }
    // Members may have gone since, or the count found them gone.
    let reason = report
        .why_uncounted("redundancy")
        .filter(|_| is_away(volume));
    let surveyed = reason.and_then(survey);
    Some(surveyed.unwrap_or(report))
}

/// Returns whether a rebuild or a scrub is under way.
fn has_work(volume: &OpenVolume) -> bool {
    let rebuild = volume.maintenance.rebuild().status().progress();
    let scrub = volume.maintenance.scrubber().scrub_status();
    rebuild.state == RebuildState::Running
        || scrub.is_ok_and(|scrub| scrub.state == ScrubState::Running)
}

/// Returns whether so many members are away that the volume cannot go on without them.
fn is_away(volume: &OpenVolume) -> bool {
    let members = volume.fs.transactions().members();
    members.membership().is_failed()
}

/// Commands that work on an open volume.
struct Commands {
    is_foreign: bool,
    volume: OpenVolume,
}

impl Commands {
    fn serve(&self, request: Request, client: &UnixStream) {
        match request {
            Request::Directories => {
                let directories = self.volume.fs.transactions().members().in_use();
                server::answer(client, &Answer::Directories(directories));
            }
            Request::Membership => {
                server::answer(client, &Answer::Membership(self.membership()));
            }
            Request::Usage { ino } => {
                let answer = meanwhile(client, || self.usage(ino.map(Ino)));
                server::answer(client, &answer);
            }
            Request::Scrub { bytes_per_second } => {
                let volume = &self.volume;
                scrub::serve(volume, client, bytes_per_second);
            }
            Request::Rebuild { bytes_per_second } => {
                let rebuild = || self.rebuild(bytes_per_second);
                let answer = meanwhile(client, || rebuild().unwrap_or_else(Answer::Failed));
                server::answer(client, &answer);
            }
            Request::Balance { bytes_per_second } => {
                let balance = || {
                    let ordered = self.orders()?.order(bytes_per_second, true);
                    let OrderNumber(order) = ordered.map_err(VolumeFailure::from)?;
                    Ok(Answer::Ordered(order))
                };
                let answer = meanwhile(client, || balance().unwrap_or_else(Answer::Failed));
                server::answer(client, &answer);
            }
            Request::Remove {
                member,
                bytes_per_second,
            } => {
                let remove = || self.remove(&member, bytes_per_second);
                let answer = meanwhile(client, || remove().unwrap_or_else(Answer::Failed));
                server::answer(client, &answer);
            }
            Request::Join {
                old,
                directory,
                balance,
                bytes_per_second,
            } => {
                let join = || {
                    let orders = self.orders()?;
                    let (MemberIndex(member), seat) = self.join(old.as_deref(), &directory)?;
                    // The data of a lost one may be on others by now, which are fuller for it. The same holds if it
                    // was replaced before, and that was cut off.
                    let is_own = seat == JoinAs::Returning && old.is_some();
                    let balance = balance || is_own || matches!(seat, JoinAs::InPlaceOf(_));
                    let ordered = orders.order(bytes_per_second, balance);
                    let OrderNumber(order) = ordered.map_err(VolumeFailure::from)?;
                    Ok(Answer::Joined { member, order })
                };
                let answer = meanwhile(client, || join().unwrap_or_else(Answer::Failed));
                server::answer(client, &answer);
            }
            Request::RebuildProgress { order } => {
                let progress = self.rebuild_progress(OrderNumber(order));
                server::answer(client, &progress.unwrap_or_else(Answer::Failed));
            }
            Request::Quota(request) => {
                let answer = meanwhile(client, || quota_orders::answer(&self.volume.fs, request));
                server::answer(client, &answer.unwrap_or_else(Answer::Failed));
            }
            // The listener answers these.
            Request::Status
            | Request::Unmount { .. }
            | Request::AwaitEnd
            | Request::SetCode { .. }
            | Request::DirectoryCode(_)
            | Request::Events { .. }
            | Request::Activity
            | Request::Metrics
            | Request::Pause
            | Request::Resume
            | Request::Identify => {}
        }
    }

    fn rebuild(&self, bytes_per_second: Option<u64>) -> Result<Answer, DaemonFailure> {
        let orders = self.orders()?;
        // So that it is carried out also if this daemon does not live to do so.
        let members = self.volume.fs.transactions().members();
        let absent = members.epochs().give_up_absentees();
        let ordered = orders.order_giving_up(bytes_per_second, absent);
        let OrderNumber(order) = ordered.map_err(VolumeFailure::from)?;
        Ok(Answer::Ordered(order))
    }

    fn orders(&self) -> Result<&RebuildOrders, DaemonFailure> {
        let orders = self.volume.orders.as_deref();
        orders.ok_or(DaemonFailure::MountedReadOnly)
    }

    /// Says where the space of the volume goes, or where an inode is with everything in it.
    fn usage(&self, ino: Option<Ino>) -> Answer {
        let maintenance = &self.volume.maintenance;
        let answer = match ino {
            None => volume_usage(maintenance).map(|usage| Answer::VolumeUsage(Box::new(usage))),
            Some(ino) => files_usage(&self.volume.fs, maintenance, ino)
                .map(|usage| Answer::FilesUsage(Box::new(usage))),
        };
        answer.unwrap_or_else(|failure| Answer::Failed(failure.into()))
    }

    fn membership(&self) -> Membership {
        let members = self.volume.fs.transactions().members();
        let away = members.absentees().into_iter().map(|member| Absentee {
            index: member.index.0,
            id: member.id.to_string(),
        });
        Membership {
            volume: members.shape().volume_id().to_string(),
            writable: members.access() == Access::ReadWrite,
            away: away.collect(),
        }
    }

    /// Takes a directory into the volume, in the place of another or as one more. One that is still there is left to be
    /// drained. A member that is being drained is kept if it is added, or put in its own place. An earlier attempt is
    /// completed, wherever it was cut off.
    fn join(
        &self,
        old: Option<&str>,
        directory: &Path,
    ) -> Result<(MemberIndex, JoinAs), DaemonFailure> {
        let transactions = self.volume.fs.transactions();
        let members = transactions.members();
        let store = directory::open(directory).map_err(|error| {
            let failure = VolumeFailure::from(error);
            if self.is_foreign {
                DaemonFailure::OutOfReach { failure }
            } else {
                failure.into()
            }
        })?;
        let store: StoreRef = Arc::new(store);
        let own = members.changes().check(JoinAs::New, &store).err();
        let own = own.as_ref().and_then(own_place);
        let old = old.map(|old| member_to_replace(members, old, own));
        let old = old.transpose()?;
        if let Some(own) = self.settled(old, own, &store)? {
            if let Some(old) = old
                && is_to_be_drained_for(members, old, own)
            {
                self.drain_for(old, own, directory)?;
            }
            return Ok((own, JoinAs::Returning));
        }
        let drained = old.filter(|old| members.membership().live().contains(old));
        let seat = match (old, drained) {
            (None, _) => JoinAs::New,
            (_, Some(old)) => JoinAs::HeirOf(old),
            (Some(old), None) => JoinAs::InPlaceOf(old),
        };
        if let Some(old) = drained {
            if members.membership().draining().contains(&old) {
                return Err(DaemonFailure::AlreadyDraining { member: old.0 });
            }
            let draining = self.volume.maintenance.draining();
            let replaceable = draining.check_replaceable(old);
            replaceable.map_err(VolumeFailure::from)?;
        }
        let member = self.take_in(seat, old, &store)?;
        if members.membership().draining().contains(&member) {
            // It was away while it was to be drained, and is wanted.
            self.keep(member)?;
        }
        if let Some(old) = drained {
            self.drain_for(old, member, directory)?;
        }
        Ok((member, seat))
    }

    /// Has a member drained for one that has come to replace it.
    fn drain_for(
        &self,
        old: MemberIndex,
        member: MemberIndex,
        directory: &Path,
    ) -> Result<(), DaemonFailure> {
        let transactions = self.volume.fs.transactions();
        let drained = self.volume.maintenance.draining().drain_to(old, member);
        drained.map_err(|error| DaemonFailure::ReplacedInPart {
            directory: directory.display().to_string(),
            member: member.0,
            old: old.0,
            is_draining: transactions
                .members()
                .membership()
                .draining()
                .contains(&old),
            failure: error.into(),
        })?;
        tracing::info!(journal.member = %old, "member {old} is to be drained for member {member}, and removed");
        Ok(())
    }

    /// Returns the member that a directory is already, if it is `own` and no step is left but two: to see through work
    /// that is under way, or to keep a member that was to be drained or replaced. It takes part then.
    fn settled(
        &self,
        old: Option<MemberIndex>,
        own: Option<MemberIndex>,
        store: &StoreRef,
    ) -> Result<Option<MemberIndex>, DaemonFailure> {
        let transactions = self.volume.fs.transactions();
        let members = transactions.members();
        let Some(own) = own else {
            return Ok(None);
        };
        let draining = &self.volume.maintenance.draining();
        let is_kept = draining.can_be_kept(own, old.is_none()) && old.is_none_or(|old| old == own);
        // Perhaps it came back by itself a moment ago, or gets what the other has.
        let is_there = old.is_some_and(|old| old == own || draining.is_replaced_by(old, own));
        if !is_kept && !is_there {
            return Ok(None);
        }
        if !members.membership().live().contains(&own) {
            self.take_in(JoinAs::Returning, Some(own), store)?;
        }
        if is_kept {
            self.keep(own)?;
        }
        Ok(Some(own))
    }

    /// Has a directory take part, or notes why that of a member must not.
    fn take_in(
        &self,
        seat: JoinAs,
        member: Option<MemberIndex>,
        store: &StoreRef,
    ) -> Result<MemberIndex, DaemonFailure> {
        let transactions = self.volume.fs.transactions();
        let joined = self
            .volume
            .maintenance
            .joining()
            .join(seat, store)
            .or_else(|error| match &error {
                // It came back by itself meanwhile.
                CommitError::Members(refusal) if seat == JoinAs::Returning => {
                    own_place(refusal).ok_or(error)
                }
                _ => Err(error),
            });
        joined.map_err(|error| {
            if let (Some(member), CommitError::Members(refusal)) = (member, &error)
                && !matches!(seat, JoinAs::New | JoinAs::HeirOf(_))
            {
                transactions
                    .members()
                    .changes()
                    .note_refused(member, store, refusal);
            }
            VolumeFailure::from(error).into()
        })
    }

    /// Keeps a member that was to be drained.
    fn keep(&self, member: MemberIndex) -> Result<(), DaemonFailure> {
        let membership = self.volume.fs.transactions().members().membership();
        let was_draining = membership.draining().contains(&member);
        let kept = self.volume.maintenance.draining().keep(member);
        kept.map_err(VolumeFailure::from)?;
        let drained = if was_draining {
            ", and not drained any further"
        } else {
            ""
        };
        tracing::info!(journal.member = %member, "member {member} is kept{drained}");
        // The limit of other orders stays.
        if was_draining && membership.draining().is_empty() {
            let lifted = self.orders()?.lift_limit();
            lifted.map_err(VolumeFailure::from)?;
        }
        Ok(())
    }

    fn remove(&self, member: &str, bytes_per_second: Option<u64>) -> Result<Answer, DaemonFailure> {
        let orders = self.orders()?;
        let transactions = self.volume.fs.transactions();
        let member = member_called(transactions.members(), member)?;
        let removed = self.volume.maintenance.draining().drain(member);
        removed.map_err(VolumeFailure::from)?;
        tracing::info!(journal.member = %member, "member {member} is to be drained and removed");
        let ordered = orders.order(bytes_per_second, false);
        let OrderNumber(order) = ordered.map_err(VolumeFailure::from)?;
        let MemberIndex(member) = member;
        Ok(Answer::Leaving { member, order })
    }

    fn rebuild_progress(&self, order: OrderNumber) -> Result<Answer, DaemonFailure> {
        let orders = self.orders()?;
        let outcome = orders.outcome(order, PROGRESS_INTERVAL);
        let now = self.volume.maintenance.rebuild().status().progress();
        let mut report = rebuild_report(&orders.progress_of(order, now));
        report.note_limit(orders.bytes_per_second());
        match outcome {
            Some(Err(error)) => Err(VolumeFailure::from(error).into()),
            outcome => Ok(Answer::Rebuild {
                report,
                done: outcome.is_some(),
            }),
        }
    }
}

/// Returns which member a directory is that was refused because it is one.
fn own_place(error: &MembersError) -> Option<MemberIndex> {
    match error {
        MembersError::OwnMember { index, .. } => Some(*index),
        _ => None,
    }
}

/// Says whether a member is yet to leave although another, which has come to replace it, is here: the daemon ended
/// before it was told to.
fn is_to_be_drained_for(members: &Members, old: MemberIndex, own: MemberIndex) -> bool {
    let is_leaving = members.membership().draining().contains(&old);
    old != own && !is_leaving && members.membership().successor_of(old).is_none()
}

#[cfg(test)]
mod tests;
