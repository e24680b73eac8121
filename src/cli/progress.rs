//! Progress bars, and times as people read them.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A part done, the rate and the time left.
const TEMPLATE: &str = "{wide_bar} {percent}% {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";

/// The interval at which a bar is drawn again although nothing new is known.
const TICK: Duration = Duration::from_millis(200);

/// Returns a bar on standard error that is at 0 %, hidden where that is no terminal.
pub(super) fn bar() -> ProgressBar {
    bar_of(TEMPLATE)
}

/// Returns such a bar that looks like `template`.
///
/// # Panics
///
/// If the template is not well formed.
pub(super) fn bar_of(template: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    // A bar of length 0 counts as full.
    let bar = ProgressBar::with_draw_target(None, target).with_style(style);
    if !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
    bar
}

/// Shows that so many bytes of a whole are done. Before the whole is known nothing is.
pub(super) fn show(bar: &ProgressBar, done: u64, whole: u64) {
    if whole > 0 {
        bar.set_length(whole);
    } else {
        bar.unset_length();
    }
    bar.set_position(done);
}

/// Writes a time for people. Only no time at all is 0.
pub(super) fn format_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if !time.is_zero() => {
            let tenths = time.as_millis().div_ceil(100).clamp(1, 9);
            format!("0.{tenths} s")
        }
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_passed_is_never_0() {
        for (milliseconds, text) in [
            (0, "0 s"),
            (1, "0.1 s"),
            (320, "0.4 s"),
            (999, "0.9 s"),
            (1999, "1 s"),
            (59_000, "59 s"),
            (61_000, "2 min"),
            (7_260_000, "2 h 1 min"),
        ] {
            assert_eq!(format_time(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(format_time(Duration::from_nanos(1)), "0.1 s");
    }

    #[test]
    fn a_bar_is_at_nothing_until_it_is_known_how_much_there_is_to_do() {
        let bar = bar();
        show(&bar, 0, 0);
        assert_eq!((bar.length(), bar.position()), (None, 0));
        show(&bar, 30, 120);
        assert_eq!((bar.length(), bar.position()), (Some(120), 30));
    }
}
