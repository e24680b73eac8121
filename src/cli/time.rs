//! Spans of time as people write them.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// The longest that everything may have to wait for a directory that hangs.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Parses `30d`, `12h`, `1h 30m` and the like; a day has 24 hours.
///
/// # Errors
///
/// A sentence, if it is no span of time, or none that passes.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let parse = || -> Option<Duration> {
        let span: Span = text.trim().parse().ok()?;
        let time = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        Duration::try_from(time).ok().filter(|time| !time.is_zero())
    };
    parse().ok_or_else(|| format!("`{text}` is no time; write it like 30d or 12h"))
}

/// Like [`parse_time`], but from a second to [`LONGEST_TIMEOUT`].
///
/// # Errors
///
/// As for [`parse_time`], or if it is less or more.
pub(super) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time < Duration::from_secs(1) {
        return Err(format!("`{text}` is less than a second"));
    }
    if time > LONGEST_TIMEOUT {
        return Err(format!(
            "`{text}` is more than 10 minutes: for so long everything would wait for a directory that hangs"
        ));
    }
    Ok(time)
}

/// Like [`parse_time`], or `never`.
///
/// # Errors
///
/// As for [`parse_time`].
pub(super) fn parse_wait(text: &str) -> Result<Wait, String> {
    if text == "never" {
        return Ok(Wait(None));
    }
    parse_time(text).map(|time| Wait(Some(time)))
}

/// A time to wait; for ever, if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait(pub(super) Option<Duration>);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{}s", time.as_secs()),
            None => f.write_str("never"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let hours = |hours: u64| Ok(Duration::from_secs(hours * 3600));
        assert_eq!(parse_time("30d"), hours(720));
        assert_eq!(parse_time(" 2w "), hours(336));
        assert_eq!(parse_time("12h"), hours(12));
        assert_eq!(parse_time("59m 60s"), hours(1));
        assert_eq!(parse_timeout("1500ms"), Ok(Duration::from_millis(1500)));
        assert!(parse_timeout("900ms").is_err());
        assert_eq!(parse_timeout("10m"), Ok(LONGEST_TIMEOUT));
        let refused = parse_timeout("10m 1ms").unwrap_err();
        assert!(refused.contains("more than 10 minutes"), "{refused}");
        for text in ["", "30", "x", "-1d", "0s", "1mo"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        for text in ["90s", "never"] {
            assert_eq!(
                parse_wait(text).map(|wait| wait.to_string()),
                Ok(text.to_owned())
            );
        }
    }
}
