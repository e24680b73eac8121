//! Returns of members whose directories were gone, or failed, and are there again.
//!
//! A member that comes and goes is not taken back endlessly, because bringing it up to date costs more than it gives.
//! After some returns it is left alone for so long that its owner will have looked at it. A refused directory is tried
//! less and less often.
//!
//! The directory of an absent member may hang at the first access. So a separate thread opens it, and no other one
//! waits for it. There is at most one such thread for each member and each path that it had.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::format::{MemberIndex, files};
use crate::maintenance::{Joining, Maintenance};
use crate::membership::{AbsenceReason, JoinAs, Members, MembersError, directory};
use crate::store::{StoreError, StoreErrorKind, StoreRef};
use crate::transaction::CommitError;

/// Most returns of a member within [`SPAN`].
const MOST_RETURNS: usize = 3;

/// See [`MOST_RETURNS`].
const SPAN: Duration = Duration::from_secs(3600);

/// Longest wait for a directory before the others have their turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest pause between two attempts with one directory.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Returns of absent members.
pub(super) struct MemberReturns {
    members: Arc<Members>,
    joining: Arc<Joining>,
    absentees: BTreeMap<MemberIndex, AbsentMember>,
    /// Members that the volume was mounted without although their directories may be there: they come back on request
    /// only.
    left_out: Vec<MemberIndex>,
}

/// Directory found at a member's path.
#[derive(Debug)]
enum OpenedDirectory {
    /// Something with a superblock, which takes writes.
    Member(StoreRef),
    /// A directory without one: empty because its disk is not mounted, or foreign.
    Other(StoreRef),
}

/// Attempt to open a directory that may hang.
#[derive(Debug)]
struct OpeningAttempt {
    path: PathBuf,
    opened: Receiver<Result<OpenedDirectory, StoreError>>,
}

/// Member that is absent, or was.
#[derive(Debug, Default)]
struct AbsentMember {
    /// When it was taken back.
    returned: Vec<Instant>,
    /// An attempt that is under way.
    attempt: Option<OpeningAttempt>,
    /// The number of times in a row that it was there, and could not be taken back.
    refused: u32,
    refused_at: Option<Instant>,
}

impl AbsentMember {
    /// Returns whether the next attempt is due.
    fn is_due(&self, now: Instant) -> bool {
        let pause = Duration::from_secs(1 << self.refused.min(16)).min(LONGEST_PAUSE);
        let rests = |at| now.duration_since(at) < pause;
        !self.refused_at.is_some_and(rests)
    }

    /// Returns how often it was taken back within [`SPAN`].
    fn returns(&mut self, now: Instant) -> usize {
        self.returned
            .retain(|time| now.duration_since(*time) < SPAN);
        self.returned.len()
    }

    fn note_return(&mut self, now: Instant) {
        self.returned.push(now);
        self.forget_refusals();
    }

    fn forget_refusals(&mut self) {
        self.refused = 0;
        self.refused_at = None;
    }

    fn note_refusal(&mut self, now: Instant) {
        self.refused += 1;
        self.refused_at = Some(now);
    }

    /// Notes what is there instead of it. An empty directory may change at any time. A directory with files is listed
    /// at each attempt, even if there are many.
    fn note_other(&mut self, error: &MembersError, now: Instant) {
        match error {
            MembersError::NotAMember {
                reason: AbsenceReason::Empty,
                ..
            } => self.forget_refusals(),
            _ => self.note_refusal(now),
        }
    }

    /// Returns the directory if it answers soon; it may also do so the next time.
    fn open(&mut self, path: &Path) -> Option<Result<OpenedDirectory, StoreError>> {
        // A hang at the old path of a moved member says nothing of its new path.
        let under_way = self.attempt.take().filter(|attempt| attempt.path == path);
        let attempt = under_way.unwrap_or_else(|| start_attempt(path));
        match attempt.opened.recv_timeout(PATIENCE) {
            Ok(opened) => Some(opened),
            Err(RecvTimeoutError::Timeout) => {
                self.attempt = Some(attempt);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl MemberReturns {
    /// Returns the returns of all members but those `left_out`, unless these come and are lost again.
    pub(super) fn new(maintenance: &Maintenance, left_out: Vec<MemberIndex>) -> Self {
        Self {
            members: Arc::clone(maintenance.transactions().members()),
            joining: Arc::clone(maintenance.joining()),
            absentees: BTreeMap::new(),
            left_out,
        }
    }

    /// Looks for the directories of absent members, and takes back those that are there.
    pub(super) fn look(&mut self) -> Result<(), CommitError> {
        let members = &self.members;
        for (member, path) in members.membership().away() {
            if self.left_out.contains(&member) && !members.membership().was_online(member) {
                continue;
            }
            let absentee = self.absentees.entry(member).or_default();
            if absentee.returns(Instant::now()) >= MOST_RETURNS {
                members.changes().note_flapping(member);
                continue;
            }
            if path.is_empty() || !absentee.is_due(Instant::now()) {
                continue;
            }
            let joined = match absentee.open(Path::new(&path)) {
                None => continue,
                Some(Ok(OpenedDirectory::Member(store))) => {
                    self.joining.join(JoinAs::Returning, &store)
                }
                Some(Ok(OpenedDirectory::Other(store))) => {
                    if let Err(error) = members.changes().check(JoinAs::Returning, &store) {
                        members.changes().note_refusal(member, &error);
                        absentee.note_other(&error, Instant::now());
                    }
                    continue;
                }
                Some(Err(error)) if is_absence(&error) => {
                    members.changes().note_refusal(member, &error.into());
                    absentee.forget_refusals();
                    continue;
                }
                Some(Err(error)) => Err(MembersError::from(error).into()),
            };
            match joined {
                Ok(_) => {
                    tracing::info!(journal.member = %member, "member {member} is back at {path}");
                    absentee.note_return(Instant::now());
                    if absentee.returns(Instant::now()) == MOST_RETURNS {
                        tracing::warn!(
                            journal.member = %member, "member {member} comes and goes; it does not rejoin by itself within an hour"
                        );
                    }
                }
                // Something else is there by now, or it fails still.
                Err(CommitError::Members(error)) => {
                    members.changes().note_refusal(member, &error);
                    absentee.note_refusal(Instant::now());
                }
                Err(error) => {
                    absentee.note_refusal(Instant::now());
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Returns whether an error says that there is no directory.
fn is_absence(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::NotFound | StoreErrorKind::Gone | StoreErrorKind::Displaced
    )
}

/// Starts a thread that opens a member's directory, and checks whether it takes writes.
fn start_attempt(path: &Path) -> OpeningAttempt {
    let (sender, receiver) = channel();
    let path = PathBuf::from(path);
    let target = path.clone();
    let open = move || {
        let opened = directory::open(&target).and_then(|store| {
            let touched = store.touch(files::SUPERBLOCK);
            let store: StoreRef = Arc::new(store);
            match touched {
                Ok(()) => Ok(OpenedDirectory::Member(store)),
                Err(error) if error.kind().lacks_file() => Ok(OpenedDirectory::Other(store)),
                Err(error) => Err(error),
            }
        });
        // The receiver may not wait any more.
        drop(sender.send(opened));
    };
    let started = std::thread::Builder::new()
        .name("look".to_owned())
        .spawn(open);
    if let Err(error) = started {
        tracing::debug!("no thread can open the directory of an absent member: {error}");
    }
    OpeningAttempt {
        path,
        opened: receiver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_comes_and_goes_is_left_alone_for_an_hour() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut flapping = AbsentMember::default();
        for (before, second) in [0, 10, 20].into_iter().enumerate() {
            assert_eq!(flapping.returns(at(second)), before);
            flapping.note_return(at(second));
        }
        assert_eq!(flapping.returns(at(30)), MOST_RETURNS);
        assert_eq!(flapping.returns(at(3599)), MOST_RETURNS);
        assert!(flapping.returns(at(3605)) < MOST_RETURNS);
    }

    #[test]
    fn a_hanging_attempt_at_the_old_path_of_a_member_does_not_delay_one_at_its_new_path() {
        let (_hangs, opened) = channel();
        let path = PathBuf::from("/where/it/was");
        let mut moved = AbsentMember {
            attempt: Some(OpeningAttempt { path, opened }),
            ..AbsentMember::default()
        };
        let home = tempfile::tempdir().unwrap();
        let mut opened = None;
        // One that does not answer at once is waited for again.
        while opened.is_none() {
            opened = moved.open(home.path());
            let is_of_now = |attempt: &OpeningAttempt| attempt.path == home.path();
            assert!(moved.attempt.as_ref().is_none_or(is_of_now));
        }
        assert!(
            matches!(opened, Some(Ok(OpenedDirectory::Other(_)))),
            "{opened:?}"
        );
    }

    #[test]
    fn a_refused_directory_is_tried_less_and_less_often_but_at_least_every_ten_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut absentee = AbsentMember::default();
        assert!(absentee.is_due(at(0)));
        absentee.note_refusal(at(0));
        assert!(!absentee.is_due(at(1)));
        assert!(absentee.is_due(at(2)));
        for _ in 0..40 {
            absentee.note_refusal(at(100));
        }
        assert!(!absentee.is_due(at(109)));
        assert!(absentee.is_due(at(110)));
        // It was gone meanwhile: the next directory may be another.
        absentee.note_refusal(at(110));
        absentee.forget_refusals();
        assert!(absentee.is_due(at(111)));
        absentee.note_return(at(111));
        assert!(absentee.is_due(at(112)));
    }

    #[test]
    fn a_foreign_directory_is_tried_less_and_less_often_and_an_empty_one_each_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let refusal = |reason| MembersError::NotAMember {
            path: "/srv/d2".to_owned(),
            reason,
        };
        let foreign = || AbsenceReason::ForeignContent {
            found: "photo.jpg".to_owned(),
        };
        let mut absentee = AbsentMember::default();
        absentee.note_other(&refusal(AbsenceReason::Empty), at(0));
        assert!(absentee.is_due(at(0)));
        for second in 1..9 {
            absentee.note_other(&refusal(foreign()), at(second));
        }
        assert!(!absentee.is_due(at(17)));
        assert!(absentee.is_due(at(18)));
        absentee.note_other(&refusal(AbsenceReason::Empty), at(18));
        assert!(absentee.is_due(at(18)));
    }

    #[test]
    fn a_directory_counts_as_returned_once_it_takes_writes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("member");
        let look = |absentee: &mut AbsentMember| absentee.open(&path);
        let mut absentee = AbsentMember::default();
        let absent = look(&mut absentee).unwrap().unwrap_err();
        assert!(is_absence(&absent), "{absent}");
        std::fs::create_dir(&path).unwrap();
        let empty = look(&mut absentee).unwrap();
        assert!(matches!(empty, Ok(OpenedDirectory::Other(_))), "{empty:?}");
        std::fs::write(path.join(files::SUPERBLOCK), b"").unwrap();
        let there = look(&mut absentee).unwrap();
        assert!(matches!(there, Ok(OpenedDirectory::Member(_))), "{there:?}");
    }
}
