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

#[test]
fn a_list_that_is_not_renewed_is_called_old() {
    assert_eq!(old_list(Duration::from_secs(1)), None);
    assert!(old_list(Duration::from_secs(90)).is_some());
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
