//! The daemon's side of `cauchyfs scrub`.

use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::exchange::MOST_LISTED_BYTES;
use super::mounted::OpenVolume;
use super::protocol::Answer;
use super::scrubbed::{Progress, Scrubbed};
use super::server::{self, meanwhile};
use super::summary::scrubbed_of;
use super::volume_failure::VolumeFailure;
use crate::fs::Fs;
use crate::maintenance::{Maintenance, ScrubState, ScrubStatus};

/// The interval at which a client that waits for a scrub is told its progress.
const TELL_INTERVAL: Duration = Duration::from_millis(250);

/// Scrubs for a client and tells it the progress, until the scrub is done or the client is gone. If a scrub is under
/// way already, the client follows that one. If that one stops half way, as one that began by itself does, this one
/// takes over.
pub(crate) fn serve(volume: &OpenVolume, client: &UnixStream, bytes_per_second: Option<u64>) {
    let scrubbed = meanwhile(client, || scrub(volume, client, bytes_per_second));
    let answer = match scrubbed {
        Ok(Some(mut scrubbed)) => {
            scrubbed.lost.shorten(MOST_LISTED_BYTES);
            Answer::Scrubbed(scrubbed)
        }
        Ok(None) => return,
        Err(failure) => Answer::Failed(failure.into()),
    };
    server::answer(client, &answer);
}

/// Returns what the scrub came to, or `None` if the client has gone.
fn scrub(
    volume: &OpenVolume,
    client: &UnixStream,
    bytes_per_second: Option<u64>,
) -> Result<Option<Scrubbed>, VolumeFailure> {
    let (fs, maintenance) = (&volume.fs, &*volume.maintenance);
    let scrubber = maintenance.scrubber();
    let mut told: Option<Instant> = None;
    let mut is_gone = false;
    let mut tell = |status: &ScrubStatus| {
        let is_due = told.is_none_or(|told| told.elapsed() >= TELL_INTERVAL);
        if is_due && !is_gone {
            told = Some(Instant::now());
            is_gone = server::tell(client, &Answer::Scrubbing(progress(status))).is_err();
        }
        is_gone
    };
    loop {
        let before = scrubber.scrub_status().map_err(VolumeFailure::from)?;
        let outcome = scrubber.scrub(&*fs.inode_locks(), bytes_per_second, |status| {
            loop {
                // Followers would be told that it was stopped half way.
                if tell(status) && !scrubber.has_scrub_followers() {
                    return ControlFlow::Break(());
                }
                let switch = volume.pause_switch.as_ref();
                if !switch.is_some_and(|switch| switch.holds_for(TELL_INTERVAL)) {
                    return ControlFlow::Continue(());
                }
            }
        });
        if let Some(status) = outcome.map_err(VolumeFailure::from)? {
            return result_of(fs, maintenance, &status, tell(&status));
        }
        let _follower = scrubber.follow_scrub();
        let status = loop {
            std::thread::sleep(TELL_INTERVAL);
            let of_other = scrubber.scrub_status().map_err(VolumeFailure::from)?;
            if tell(&of_other) || of_other.state != ScrubState::Running {
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
