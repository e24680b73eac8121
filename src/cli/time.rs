//! Times and spans of time as people write them.

use std::fmt;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, SpanRelativeTo, Timestamp, Zoned};

/// The longest that everything may have to wait for a directory that hangs.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Parses `30d`, `12h`, `1h 30m` and the like; a day has 24 hours.
///
/// # Errors
///
/// A sentence, if it is no span of time, or none that passes.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    span(text)
        .filter(|time| !time.is_zero())
        .ok_or_else(|| format!("`{text}` is no time; write it like 30d or 12h"))
}

/// Returns the time for which a text stands, if it stands for one.
fn span(text: &str) -> Option<Duration> {
    let span: Span = text.trim().parse().ok()?;
    let time = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(time).ok()
}

/// Parses a time from a second to [`LONGEST_TIMEOUT`].
///
/// # Errors
///
/// A sentence, if it is no span of time, or a shorter or longer one.
pub(super) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = span(text).ok_or_else(|| format!("`{text}` is no time; write it like 10s or 2m"))?;
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

/// Parses a time: `2026-11-26T20:00:00Z`, `2026-11-26T20:00` and `2026-11-26` in the local zone, or `2h` before now.
///
/// # Errors
///
/// A sentence, if it is none of these.
pub(super) fn parse_since(text: &str) -> Result<Since, String> {
    since(text, Timestamp::now(), &TimeZone::system())
}

/// Parses the same at another time and in another zone.
fn since(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Since, String> {
    let text = text.trim();
    let parse = || -> Option<Timestamp> {
        if let Ok(zoned) = text.parse::<Zoned>() {
            return Some(zoned.timestamp());
        }
        if let Ok(timestamp) = text.parse() {
            return Some(timestamp);
        }
        if let Ok(local) = text.parse::<DateTime>() {
            return Some(local.to_zoned(zone.clone()).ok()?.timestamp());
        }
        now.checked_sub(parse_time(text).ok()?).ok()
    };
    let found = parse().map(|time| Since(time.as_millisecond()));
    found.ok_or_else(|| {
        format!("`{text}` is no time; write it like 2h, 2026-11-26 or 2026-11-26T20:00:00Z")
    })
}

/// A time from which events are wanted, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since(pub(super) i64);

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
        for text in ["900ms", "0s"] {
            let refused = parse_timeout(text).unwrap_err();
            assert!(refused.contains("less than a second"), "{refused}");
        }
        assert!(parse_timeout("x").unwrap_err().contains("like 10s"));
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

    #[test]
    fn moments_are_read_as_times_with_a_zone_local_times_dates_and_spans_before_now() {
        let now: Timestamp = "2026-11-26T20:00:00Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        for (text, expected) in [
            ("2026-11-26T18:00:00.250Z", "2026-11-26T18:00:00.250Z"),
            ("2026-11-26 18:00+01:00", "2026-11-26T17:00:00Z"),
            ("2026-11-26T18:00", "2026-11-26T16:00:00Z"),
            ("2026-11-26", "2026-11-25T22:00:00Z"),
            (" 2h ", "2026-11-26T18:00:00Z"),
            ("1d 30m", "2026-11-25T19:30:00Z"),
        ] {
            let expected: Timestamp = expected.parse().unwrap();
            let found = since(text, now, &zone);
            assert_eq!(found, Ok(Since(expected.as_millisecond())), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "20:00",
            "2026-13-01",
            "7",
            "-2h",
            "9999999y",
        ] {
            let refused = since(text, now, &zone).unwrap_err();
            assert!(refused.contains("write it like 2h"), "{text}: {refused}");
            assert!(!refused.contains('\n'), "{refused}");
        }
    }
}
