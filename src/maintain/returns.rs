//! Takes back members whose directories were gone, or failed, and are there again.
//!
//! A member that comes and goes is not taken back endlessly: bringing it up to date costs more than it gives. After
//! some times it is left alone for so long that its owner will have looked at it. A refused directory is tried less and
//! less often.
//!
//! A directory that was away may hang at the first touch. So a separate thread looks at it, and no other one waits for
//! it. There is at most one such thread for each member and each place that it had.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::{Stop, Work};
use crate::commit::{CommitError, Pipeline};
use crate::format::{MemberIndex, files};
use crate::members::{AbsenceReason, MembersError, Seat, directory};
use crate::store::{StoreError, StoreErrorKind, StoreRef};

/// The most returns of a member within [`SPAN`].
const MOST_RETURNS: usize = 3;

/// See [`MOST_RETURNS`].
const SPAN: Duration = Duration::from_secs(3600);

/// The longest wait for a directory before others have their turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest pause between two attempts with one directory.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The known facts about absent members.
#[derive(Debug)]
pub(super) struct Returns {
    absentees: BTreeMap<MemberIndex, Absentee>,
    /// Members that the volume was mounted without although their directories may be there: they come back on request
    /// only.
    left_out: Vec<MemberIndex>,
}

/// The directory found at a member's place.
#[derive(Debug)]
enum Seen {
    /// Something with a superblock, which takes writes.
    Member(StoreRef),
    /// A directory without one: empty because its disk is not mounted, or foreign.
    Other(StoreRef),
}

/// A look at a directory that may hang.
#[derive(Debug)]
struct Look {
    path: PathBuf,
    seen: Receiver<Result<Seen, StoreError>>,
}

/// A member that is away, or was.
#[derive(Debug, Default)]
struct Absentee {
    /// When it was taken back.
    returned: Vec<Instant>,
    /// A look that is under way.
    look: Option<Look>,
    /// The number of times in a row that it was there, and could not be taken back.
    refused: u32,
    refused_at: Option<Instant>,
}

impl Absentee {
    /// Says whether it is worth a look.
    fn is_due(&self, now: Instant) -> bool {
        let pause = Duration::from_secs(1 << self.refused.min(16)).min(LONGEST_PAUSE);
        let rests = |at| now.duration_since(at) < pause;
        !self.refused_at.is_some_and(rests)
    }

    /// Returns how often it was taken back of late.
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

    /// Notes what is there instead of it. An empty place may change at any time; a directory with files is listed with
    /// each look, even if there are many.
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
    fn open(&mut self, path: &Path) -> Option<Result<Seen, StoreError>> {
        // A hang at the old place of a moved member says nothing of its new place.
        let under_way = self.look.take().filter(|look| look.path == path);
        let look = under_way.unwrap_or_else(|| start_look(path));
        match look.seen.recv_timeout(PATIENCE) {
            Ok(opened) => Some(opened),
            Err(RecvTimeoutError::Timeout) => {
                self.look = Some(look);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

impl Returns {
    /// Does not look for `left_out`, unless they come and are lost again.
    pub(super) fn new(left_out: Vec<MemberIndex>) -> Self {
        Self {
            absentees: BTreeMap::new(),
            left_out,
        }
    }

    /// Looks for the directories of members that are away, and takes back those that are there.
    pub(super) fn look(&mut self, pipeline: &Pipeline) -> Result<(), CommitError> {
        let members = pipeline.members();
        for (member, path) in members.away() {
            if self.left_out.contains(&member) && !members.was_here(member) {
                continue;
            }
            let absentee = self.absentees.entry(member).or_default();
            if absentee.returns(Instant::now()) >= MOST_RETURNS {
                members.note_flapping(member);
                continue;
            }
            if path.is_empty() || !absentee.is_due(Instant::now()) {
                continue;
            }
            let joined = match absentee.open(Path::new(&path)) {
                None => continue,
                Some(Ok(Seen::Member(store))) => pipeline.join(Seat::Own, &store),
                Some(Ok(Seen::Other(store))) => {
                    if let Err(error) = members.check_seat(Seat::Own, &store) {
                        members.note_refusal(member, &error);
                        absentee.note_other(&error, Instant::now());
                    }
                    continue;
                }
                Some(Err(error)) if is_absence(&error) => {
                    members.note_refusal(member, &error.into());
                    absentee.forget_refusals();
                    continue;
                }
                Some(Err(error)) => Err(MembersError::from(error).into()),
            };
            match joined {
                Ok(_) => {
                    log::info!("member {member} is back at {path}");
                    absentee.note_return(Instant::now());
                    if absentee.returns(Instant::now()) == MOST_RETURNS {
                        log::warn!(
                            "member {member} comes and goes; it is not taken back again by itself within an hour"
                        );
                    }
                }
                // Something else is there by now, or it fails still.
                Err(CommitError::Members(error)) => {
                    members.note_refusal(member, &error);
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

/// Returns the work that looks again for bytes that could not be read without returned members.
pub(super) fn look_at_lost(stop: &Arc<Stop>) -> Work {
    let stop = Arc::clone(stop);
    Box::new(move |pipeline| pipeline.recheck().run(&|| !*stop.stopped.lock()))
}

/// Says that there is no directory.
fn is_absence(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::NotFound | StoreErrorKind::Gone
    )
}

/// Opens a member's directory, and sees whether it takes writes.
fn start_look(path: &Path) -> Look {
    let (found, seen) = channel();
    let path = PathBuf::from(path);
    let place = path.clone();
    let look = move || {
        let opened = directory::open(&place).and_then(|store| {
            let touched = store.touch(files::SUPERBLOCK);
            let store: StoreRef = Arc::new(store);
            match touched {
                Ok(()) => Ok(Seen::Member(store)),
                Err(error) if error.kind().lacks_file() => Ok(Seen::Other(store)),
                Err(error) => Err(error),
            }
        });
        // The receiver may not wait any more.
        drop(found.send(opened));
    };
    let started = std::thread::Builder::new()
        .name("look".to_owned())
        .spawn(look);
    if let Err(error) = started {
        log::debug!("nobody looks whether a member is back: {error}");
    }
    Look { path, seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_and_goes_is_left_alone_for_an_hour() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut flapping = Absentee::default();
        for (before, second) in [0, 10, 20].into_iter().enumerate() {
            assert_eq!(flapping.returns(at(second)), before);
            flapping.note_return(at(second));
        }
        assert_eq!(flapping.returns(at(30)), MOST_RETURNS);
        assert_eq!(flapping.returns(at(3599)), MOST_RETURNS);
        assert!(flapping.returns(at(3605)) < MOST_RETURNS);
    }

    #[test]
    fn a_look_that_hangs_where_a_member_was_keeps_nobody_from_looking_where_it_is_now() {
        let (_hangs, seen) = channel();
        let path = PathBuf::from("/where/it/was");
        let mut moved = Absentee {
            look: Some(Look { path, seen }),
            ..Absentee::default()
        };
        let home = tempfile::tempdir().unwrap();
        let mut opened = None;
        // One that does not answer at once is waited for again.
        while opened.is_none() {
            opened = moved.open(home.path());
            let is_of_now = |look: &Look| look.path == home.path();
            assert!(moved.look.as_ref().is_none_or(is_of_now));
        }
        assert!(matches!(opened, Some(Ok(Seen::Other(_)))), "{opened:?}");
    }

    #[test]
    fn who_is_refused_is_asked_less_and_less_often_but_at_least_every_ten_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut absentee = Absentee::default();
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
    fn a_directory_of_others_is_looked_into_less_and_less_often_and_an_empty_one_each_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let refusal = |reason| MembersError::NotAMember {
            path: "/srv/d2".to_owned(),
            reason,
        };
        let foreign = || AbsenceReason::ForeignContent {
            found: "photo.jpg".to_owned(),
        };
        let mut absentee = Absentee::default();
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
    fn a_directory_is_there_once_it_takes_writes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("member");
        let look = |absentee: &mut Absentee| absentee.open(&path);
        let mut absentee = Absentee::default();
        let absent = look(&mut absentee).unwrap().unwrap_err();
        assert!(is_absence(&absent), "{absent}");
        std::fs::create_dir(&path).unwrap();
        let empty = look(&mut absentee).unwrap();
        assert!(matches!(empty, Ok(Seen::Other(_))), "{empty:?}");
        std::fs::write(path.join(files::SUPERBLOCK), b"").unwrap();
        let there = look(&mut absentee).unwrap();
        assert!(matches!(there, Ok(Seen::Member(_))), "{there:?}");
    }
}
