use super::*;

/// The kernel gives the number of a device to the next mount at once.
#[test]
fn nothing_of_a_volume_is_shown_for_another_in_its_place() {
    let mut known = Known::nothing();
    known.note_volume("a");
    known.after = Some(7);
    known.wants_metrics = true;
    known.note_question(true);
    let asked_at = known.asked_at;
    known.note_volume("a");
    assert_eq!(known.after, Some(7));
    known.note_volume("b");
    assert_eq!((known.after, known.wants_state), (None, true));
    assert!(known.wants_metrics, "a scrape waits");
    assert!(asked_at.is_some());
    assert_eq!(known.asked_at, asked_at, "the question is under way still");
    assert_eq!(known.volume.as_deref(), Some("b"));
}

/// A page that says when the list was made would tell another time each second.
#[test]
fn a_list_is_old_only_if_mounts_could_not_be_listed() {
    let (new, late) = (Duration::from_secs(1), Duration::from_secs(90));
    for (failure, is_failed, age, is_told, is_old) in [
        (None, false, new, false, false),
        (None, false, late, true, true),
        (Some("no thread for a volume"), false, new, true, false),
        (Some("no mount table"), true, new, true, true),
        (Some("no thread for a volume"), false, late, true, true),
    ] {
        let volumes = Volumes {
            failure: failure.map(str::to_owned),
            is_old: is_failed,
            ..Volumes::default()
        };
        let (told, old) = volumes.failure(age);
        assert_eq!(
            (told.is_some(), old),
            (is_told, is_old),
            "{failure:?} {age:?}"
        );
    }
}

/// A member with an older copy of the log may count from there again.
#[test]
fn another_event_of_the_same_number_is_shown_and_the_same_event_once() {
    let event = |minute: u8| {
        let time = format!("2026-11-27T00:{minute:02}:00.000Z");
        EventDocument::of(&crate::control::event_report::EventReport {
            time,
            sequence: 7,
            severity: crate::format::event::Severity::Info,
            volume: "v".to_owned(),
            member: None,
            path: None,
            kind: crate::format::event::EventKind::Unknown,
        })
    };
    let mut known = Known::nothing();
    assert!(known.note_event(event(1)));
    assert!(!known.note_event(event(1)));
    assert!(known.note_event(event(2)));
    assert_eq!(known.events.len(), 2);
}

#[test]
fn metrics_are_kept_while_they_fit_into_the_share_of_their_volume() {
    use crate::control::metrics::families::{FamilyKind, Series, SeriesValue};

    let series = vec![Series {
        labels: vec![("member".to_owned(), "1".to_owned())],
        value: SeriesValue::Gauge(1.0),
    }];
    let family = Family::new("cauchyfs_member_full", "", FamilyKind::Gauge, series);
    let mut known = Known::nothing();
    known.note_metrics(Ok(Bounded::of(vec![family], 1 << 20)));
    let taken = known.metrics.as_ref().map_or(0, |(_, it)| it.bytes());
    assert!(taken > 0);
    known.drop_metrics_beyond(taken);
    assert!(known.metrics.is_some());
    known.drop_metrics_beyond(taken - 1);
    assert!(known.metrics.is_none());
}

#[test]
fn it_is_not_told_for_ever_that_metrics_were_missing() {
    let mut known = Known::nothing();
    known.note_metrics(Err(Failure::environment("no answer")));
    known.drop_metrics_beyond(0);
    assert!(known.no_metrics.is_some());
    let long_ago = Instant::now().checked_sub(Duration::from_secs(301));
    known.no_metrics = long_ago.map(|at| (at, "no answer".to_owned()));
    assert!(known.no_metrics.is_some(), "the machine has just started");
    known.drop_metrics_beyond(0);
    assert!(known.no_metrics.is_none());
}
