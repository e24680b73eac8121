//! The daemon's side of `cauchyfs scrub`.

use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{MemberDefects, Progress, Scrubbed, UnverifiedMember};
use crate::cli::control::{self, Answer};
use crate::cli::listener::{MOST_LISTED_BYTES, meanwhile};
use crate::cli::report::{ScrubReport, ScrubState};
use crate::cli::volume::{VolumeFailure, files_in};
use crate::fs::Fs;
use crate::maintenance;
use crate::maintenance::{Maintenance, ScrubStatus};
use crate::membership::Members;

/// The interval at which a client that waits for a scrub is told its progress.
const TELL_INTERVAL: Duration = Duration::from_millis(250);

/// Scrubs for a client and tells it the progress, until the scrub is done or the client is gone. If a scrub is under
/// way already, the client follows that one. If that one stops half way, as one that began by itself does, this one
/// takes over.
pub(in crate::cli) fn serve(
    fs: &Arc<Fs>,
    maintenance: &Maintenance,
    client: &UnixStream,
    bytes_per_second: Option<u64>,
) {
    let scrubbed = meanwhile(client, || scrub(fs, maintenance, client, bytes_per_second));
    let answer = match scrubbed {
        Ok(Some(mut scrubbed)) => {
            scrubbed.lost.shorten(MOST_LISTED_BYTES);
            Answer::Scrubbed(scrubbed)
        }
        Ok(None) => return,
        Err(failure) => Answer::Failed(failure.into()),
    };
    control::answer(client, &answer);
}

/// Returns what the scrub came to, or `None` if the client has gone.
fn scrub(
    fs: &Arc<Fs>,
    maintenance: &Maintenance,
    client: &UnixStream,
    bytes_per_second: Option<u64>,
) -> Result<Option<Scrubbed>, VolumeFailure> {
    let scrubber = maintenance.scrubber();
    let mut told: Option<Instant> = None;
    let mut is_gone = false;
    let mut tell = |status: &ScrubStatus| {
        let is_due = told.is_none_or(|told| told.elapsed() >= TELL_INTERVAL);
        if is_due && !is_gone {
            told = Some(Instant::now());
            is_gone = control::tell(client, &Answer::Scrubbing(progress(status))).is_err();
        }
        is_gone
    };
    loop {
        let before = scrubber.scrub_status().map_err(VolumeFailure::from)?;
        let outcome = scrubber.scrub(&*fs.inode_locks(), bytes_per_second, |status| {
            // Followers would be told that it was stopped half way.
            if tell(status) && !scrubber.has_scrub_followers() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if let Some(status) = outcome.map_err(VolumeFailure::from)? {
            return result_of(fs, maintenance, &status, tell(&status));
        }
        let _follower = scrubber.follow_scrub();
        let status = loop {
            std::thread::sleep(TELL_INTERVAL);
            let of_other = scrubber.scrub_status().map_err(VolumeFailure::from)?;
            if tell(&of_other) || of_other.state != maintenance::ScrubState::Running {
                break of_other;
            }
        };
        // Else the scrub's owner has stopped, and another is to go on; or it has not begun yet, and this is the result
        // of an earlier one.
        if tell(&status) || status.is_through_since(&before) {
            return result_of(fs, maintenance, &status, tell(&status));
        }
    }
}

/// Returns the result of a scrub, unless the client is gone.
fn result_of(
    fs: &Fs,
    maintenance: &Maintenance,
    status: &ScrubStatus,
    is_gone: bool,
) -> Result<Option<Scrubbed>, VolumeFailure> {
    (!is_gone)
        .then(|| scrubbed_of(fs, maintenance, status))
        .transpose()
}

fn progress(status: &ScrubStatus) -> Progress {
    Progress {
        bytes_passed: status.bytes_passed,
        bytes_total: status.bytes_total,
        repaired: status.record.repaired,
        wrong: status.record.wrong,
    }
}

/// Says what a scrub came to.
pub(in crate::cli) fn scrubbed_of(
    fs: &Fs,
    maintenance: &Maintenance,
    status: &ScrubStatus,
) -> Result<Scrubbed, VolumeFailure> {
    let redundancy = maintenance.redundancy();
    let counted = redundancy.redundancy().map_err(VolumeFailure::from)?;
    let lost_now = redundancy.lost_bytes_in(&counted);
    let lost_now = lost_now.map_err(VolumeFailure::from)?;
    let record = status.record;
    let members = fs.transactions().members();
    let defects = maintenance.scrubber().found_by_scrub().into_iter();
    let defects = defects.map(|(member, pieces)| MemberDefects {
        index: member.0,
        path: Some(members.membership().path(member)).filter(|path| !path.is_empty()),
        pieces,
    });
    Ok(Scrubbed {
        state: state(status.state),
        progress: status.progress,
        bytes_read: record.bytes,
        repaired: record.repaired,
        wrong: record.wrong,
        // Others rebuild meanwhile.
        missing: counted.missing_shards(),
        missing_for_now: counted.missing_beside_too_many(),
        unverified: maintenance.scrubber().unverified_by_scrub(),
        unverified_members: unverified_members(members),
        defects: defects.collect(),
        // Of the files that are named as well, though it did not come to them.
        bytes_lost: record.lost.max(lost_now),
        began_at: moment(record.began),
        finished_at: moment(record.last_finished),
        lost: files_in(fs, redundancy, &counted)?,
    })
}

fn unverified_members(members: &Members) -> Vec<UnverifiedMember> {
    let (live, put_back) = (
        members.membership().live(),
        members.stale_copies().unverified(),
    );
    let unverified = put_back.into_keys().filter(|index| live.contains(index));
    unverified
        .map(|index| UnverifiedMember {
            index: index.0,
            path: members.membership().path(index),
        })
        .collect()
}

/// Says for `status` how the last scrub went, or how far the one is that is under way.
pub(in crate::cli) fn scrub_report(status: &ScrubStatus) -> ScrubReport {
    ScrubReport {
        state: state(status.state),
        progress: status.progress,
        repaired: status.record.repaired,
        finished_at: moment(status.record.last_finished),
    }
}

fn state(state: maintenance::ScrubState) -> ScrubState {
    match state {
        maintenance::ScrubState::Never => ScrubState::Never,
        maintenance::ScrubState::Running => ScrubState::Running,
        maintenance::ScrubState::Finished => ScrubState::Finished,
        maintenance::ScrubState::Stopped => ScrubState::Stopped,
    }
}

/// Writes a moment as RFC 3339 has it; 0 seconds are none.
fn moment(seconds: u64) -> Option<String> {
    let seconds = i64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    let moment = jiff::Timestamp::from_second(seconds).ok()?;
    Some(moment.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_in_rfc_3339() {
        assert_eq!(moment(0), None);
        assert_eq!(
            moment(1_700_000_000).as_deref(),
            Some("2023-11-14T22:13:20Z")
        );
    }
}
