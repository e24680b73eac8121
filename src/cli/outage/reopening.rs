//! Closing a volume and opening it again on purpose, to change it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{REST_POLL, Watcher, left_out_of};
use crate::control::failure::DaemonFailure;
use crate::control::fault::Fault;
use crate::control::mounted::ReopeningWish;
use crate::control::volume::{Volume, VolumeRest};
use crate::control::volume_failure::VolumeFailure;
use crate::maintenance::Schedule;

/// The time that requests and commands may take which are under way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

impl Watcher {
    /// Stops the volume, changes it and opens it again, while the requests of programs wait. Everything is durable before.
    /// Returns the rest of the old one if something hangs on its members.
    pub(super) fn reopen(&self, wish: ReopeningWish) -> Option<VolumeRest> {
        let ReopeningWish { change, outcome } = wish;
        let served = self.volume.served();
        let tell = |told: Result<(), DaemonFailure>| {
            served.resume();
            // A command that is gone needs no answer.
            outcome.send(told).ok();
        };
        let left_out = self.volume.now().map(|volume| {
            // Members may have come since the mount.
            self.survey.note(&volume);
            left_out_of(&volume)
        });
        let Some(left_out) = left_out else {
            tell(Err(DaemonFailure::VolumeAway));
            return None;
        };
        served.pause();
        let Some(mut volume) = self.volume.take() else {
            tell(Err(DaemonFailure::VolumeAway));
            return None;
        };
        self.note_orders(&volume);
        volume.stop_work();
        if let Err(failure) = self.quiesce(&volume).and_then(|()| change(&volume)) {
            let schedule = Schedule {
                last_order: self.last_order.get(),
                ..self.reopening.volume_options.schedule
            };
            if let Err(error) = volume.start_work(schedule, left_out) {
                tracing::error!("there is no background work until the next mount: {error}");
            }
            self.volume.put(volume);
            tell(Err(failure));
            return None;
        }
        let rest = self.close_and_open(volume, &left_out, &mut |opened| {
            tell(opened.map_err(|failure| DaemonFailure::NotReopened {
                failure: Some(VolumeFailure {
                    error: failure.message.clone(),
                    fault: Fault::Environment,
                    remedy: None,
                }),
            }));
        });
        // The watch may end before the volume is open.
        served.resume();
        rest
    }

    /// Waits until nothing works on a volume that serves no more, and makes everything durable.
    fn quiesce(&self, volume: &Volume) -> Result<(), DaemonFailure> {
        let since = Instant::now();
        // The volume itself knows its files once.
        while Arc::strong_count(&volume.fs) > 1 {
            if since.elapsed() > IDLE_TIMEOUT || !self.pause(REST_POLL) {
                return Err(DaemonFailure::Busy);
            }
        }
        let synced = volume.fs.syncfs();
        synced.map_err(|error| DaemonFailure::Volume {
            failure: error.into(),
        })
    }
}
