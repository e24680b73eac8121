use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// The seed of all random values.
const SEED: u64 = 20_261_126;

fn seeded() -> (u64, StdRng) {
    (SEED, StdRng::seed_from_u64(SEED))
}

fn event(sequence: u64, kind: EventKind) -> Event {
    Event {
        time_ms: 1_700_000_000_000 + i64::try_from(sequence).unwrap(),
        sequence,
        volume: VolumeId(Uuid::from_u128(7)),
        member: Some(EventMember {
            index: MemberIndex(3),
            path: "/srv/d3".to_owned(),
        }),
        severity: kind.severity(),
        kind,
    }
}

fn missing(sequence: u64) -> Event {
    event(
        sequence,
        EventKind::MemberMissing {
            reason: format!("reason {sequence}"),
        },
    )
}

/// Returns an event of a kind, with random values in its fields.
fn random_of(tag: u8, rng: &mut StdRng) -> Event {
    loop {
        let mut fields = vec![0; 200];
        rng.fill(&mut fields[..]);
        // Flags are 0 or 1, and texts short: small bytes make both likely.
        for byte in &mut fields {
            if rng.random_range(0..4) > 0 {
                *byte &= 1;
            }
        }
        if let Ok(kind) = EventKind::take(tag, &mut Reader::new(EVENT, &fields)) {
            let mut made = event(rng.random_range(0..1 << 40), kind);
            made.member = made.member.filter(|_| rng.random());
            return made;
        }
    }
}

/// As earlier builds wrote it. They ignore the names of later builds in turn.
#[test]
fn lost_ranges_without_names_decode_to_an_event_that_names_none() {
    let fields: Vec<u8> = [5_u64, 7].iter().flat_map(|it| it.to_le_bytes()).collect();
    let taken = EventKind::take(72, &mut Reader::new(EVENT, &fields)).unwrap();
    let named = |names: &[&str]| EventKind::RangesLost {
        files: 5,
        bytes: 7,
        first_files: FirstNames(names.iter().map(ToString::to_string).collect()),
    };
    assert_eq!(taken, named(&[]));
    let mut written = Vec::new();
    named(&["a", "b", "c", "d"]).put(&mut written);
    assert_eq!(written[..16], fields);
    let taken = EventKind::take(72, &mut Reader::new(EVENT, &written)).unwrap();
    assert_eq!(taken, named(&["a", "b", "c"]), "there are at most three");
    let shown: EventKind =
        serde_json::from_str(r#"{"event":"ranges_lost","files":5,"bytes":7}"#).unwrap();
    assert_eq!(shown, named(&[]), "an earlier daemon told it");
}

#[test]
fn an_event_of_every_kind_decodes_to_the_encoded_one() {
    let (seed, mut rng) = seeded();
    assert!(EventKind::TAGS.len() > 40);
    for &tag in EventKind::TAGS {
        for _ in 0..20 {
            let event = random_of(tag, &mut rng);
            assert_eq!(event.kind.tag(), tag, "seed {seed}");
            let frame = event.encode();
            let decoded = Event::decode(&frame);
            assert_eq!(decoded, Ok((event, frame.len())), "seed {seed}, kind {tag}");
        }
    }
}

#[test]
fn the_json_of_every_kind_reads_back_as_the_kind() {
    let (seed, mut rng) = seeded();
    for &tag in EventKind::TAGS {
        let kind = random_of(tag, &mut rng).kind;
        let text = serde_json::to_string(&kind).unwrap();
        let again: EventKind = serde_json::from_str(&text).unwrap();
        assert_eq!(again, kind, "seed {seed}: {text}");
    }
    let later = r#"{"event":"moon_full","phase":1}"#;
    assert_eq!(
        serde_json::from_str::<EventKind>(later).unwrap(),
        EventKind::Unknown
    );
}

#[test]
fn no_flipped_bit_of_a_frame_goes_unnoticed_and_costs_only_that_frame() {
    let events = [missing(1), missing(2), missing(3)];
    let frames: Vec<Vec<u8>> = events.iter().map(Event::encode).collect();
    let whole = frames.concat();
    let (start, end) = (frames[0].len(), frames[0].len() + frames[1].len());
    for bit in start * 8..end * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let file = read_file(&bytes);
        assert_eq!(
            file.events,
            [events[0].clone(), events[2].clone()],
            "bit {bit}"
        );
        assert_eq!(file.damaged, 1, "bit {bit}");
    }
}

#[test]
fn a_file_that_ends_anywhere_keeps_all_events_before_and_takes_more_behind() {
    let events = [missing(1), missing(2)];
    let (first, second) = (events[0].encode(), events[1].encode());
    let whole = [first.clone(), second].concat();
    for len in 0..whole.len() {
        let is_whole = len == 0 || len == first.len();
        let kept = usize::from(len >= first.len());
        let file = read_file(&whole[..len]);
        assert_eq!(file.events, events[..kept], "{len} bytes");
        assert_eq!(file.damaged, usize::from(!is_whole), "{len} bytes");
        // The next daemon goes on behind the torn frame.
        let bytes = [&whole[..len], &missing(9).encode()].concat();
        assert_eq!(
            read_file(&bytes).events.last(),
            Some(&missing(9)),
            "{len} bytes"
        );
    }
}

#[test]
fn no_bytes_make_the_reader_of_files_panic_or_invent_events() {
    let (seed, mut rng) = seeded();
    let good = missing(5).encode();
    for round in 0..3_000 {
        let mut bytes = vec![0; rng.random_range(0..2_000)];
        rng.fill(&mut bytes[..]);
        assert_eq!(read_file(&bytes).events, [], "seed {seed}, round {round}");
        // Many places at which a frame seems to begin.
        for chunk in bytes.chunks_mut(13) {
            let kept = rng.random_range(0..=good.len().min(chunk.len()));
            chunk[..kept].copy_from_slice(&good[..kept]);
        }
        assert_eq!(read_file(&bytes).events, [], "seed {seed}, round {round}");
        let at = rng.random_range(0..=bytes.len());
        bytes.splice(at..at, good.iter().copied());
        assert_eq!(
            read_file(&bytes).events,
            [missing(5)],
            "seed {seed}, round {round}"
        );
    }
}

/// Returns a frame with a right checksum, after a change of its body.
fn changed(event: &Event, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = event.encode();
    change(&mut frame);
    let len = u16::try_from(frame.len()).unwrap();
    frame[at::LEN..at::BODY].copy_from_slice(&len.to_le_bytes());
    let checksum = crc32c::crc32c(&frame[at::LEN..]);
    frame[at::CHECKSUM..at::LEN].copy_from_slice(&checksum.to_le_bytes());
    frame
}

#[test]
fn kinds_and_fields_of_later_builds_are_passed_over_and_later_versions_are_refused() {
    let known = missing(4);
    let frame = changed(&known, |frame| frame.extend_from_slice(b"a later field"));
    assert_eq!(Event::decode(&frame), Ok((known.clone(), frame.len())));
    let frame = changed(&known, |frame| frame[at::BODY + 1] = 250);
    let (event, _) = Event::decode(&frame).unwrap();
    assert_eq!(
        event,
        Event {
            kind: EventKind::Unknown,
            ..known.clone()
        }
    );
    let frame = changed(&known, |frame| frame[at::BODY] = VERSION + 1);
    assert!(matches!(
        Event::decode(&frame),
        Err(FormatError::Version { .. })
    ));
    assert_eq!(read_file(&frame).events, []);
}

#[test]
fn long_texts_are_cut_between_characters() {
    let event = event(
        1,
        EventKind::FileLost {
            file: "é".repeat(TEXT_MAX),
        },
    );
    let (decoded, len) = Event::decode(&event.encode()).unwrap();
    assert!(len < FRAME_MAX);
    let EventKind::FileLost { file } = decoded.kind else {
        panic!("{decoded:?}");
    };
    assert_eq!(file, "é".repeat(TEXT_MAX / 2));
}

#[test]
fn merged_events_stand_once_in_the_order_of_time_and_sequence() {
    let mut apart = missing(2);
    apart.kind = EventKind::MemberBack { seconds_away: 1 };
    let mut set_back = missing(4);
    set_back.time_ms -= 10;
    let files = [
        vec![missing(1), missing(2), missing(3)],
        vec![missing(2), missing(3), set_back.clone()],
        vec![apart.clone(), missing(3)],
    ];
    let merged = merge(files.into_iter().flatten());
    let sequences: Vec<u64> = merged.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [4, 1, 2, 2, 3]);
    assert!(merged.contains(&apart) && merged.contains(&missing(2)));
}

#[test]
fn every_kind_stands_in_the_description_with_its_number_severity_and_fields() {
    let page = include_str!("../FORMAT.md");
    let (seed, mut rng) = seeded();
    for &tag in EventKind::TAGS {
        let kind = random_of(tag, &mut rng).kind;
        let json = serde_json::to_value(&kind).unwrap();
        let severity = serde_json::to_value(kind.severity()).unwrap();
        let (name, severity) = (json["event"].as_str().unwrap(), severity.as_str().unwrap());
        let row = format!("| {tag} | `{name}` | {severity} |");
        let line = page.lines().find(|line| line.starts_with(&row));
        let line = line.unwrap_or_else(|| panic!("seed {seed}: the page lacks {row}"));
        for field in json
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "event")
        {
            assert!(line.contains(&format!("`{field}`")), "{line} lacks {field}");
        }
    }
}
