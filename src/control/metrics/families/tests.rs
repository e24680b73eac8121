use proptest::prelude::*;

use super::*;

fn gauge(name: &str, labels: &[(&str, &str)], value: f64) -> Family {
    let labels = labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let series = Series {
        labels: labels.collect(),
        value: SeriesValue::Gauge(value),
    };
    Family::new(name, "Help.", FamilyKind::Gauge, vec![series])
}

fn of(mountpoint: &str, families: Vec<Family>) -> VolumeFamilies {
    VolumeFamilies {
        own: vec![("mountpoint", mountpoint.to_owned())],
        is_up: true,
        refused: 3,
        families: Arc::new(Bounded::of(families, MOST_BYTES)),
    }
}

fn text_of(families: Vec<Family>) -> String {
    page(families, Format::Text).unwrap()
}

/// Returns the lines of series whose names begin so, without their values.
fn series<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines
        .filter_map(|line| Some(line.rsplit_once(' ')?.0))
        .collect()
}

/// Any gauge of the table that has a label.
const NAME: &str = "cauchyfs_member_full";

#[test]
fn families_of_several_volumes_are_written_once_with_a_series_for_each() {
    let merged = merged(vec![
        of("/a", vec![gauge(NAME, &[("member", "1")], 1.0)]),
        of("/b", vec![gauge(NAME, &[("member", "1")], 2.0)]),
    ]);
    let text = text_of(merged);
    let kind = format!("# TYPE {NAME} gauge");
    assert_eq!(text.matches(&kind).count(), 1, "{text}");
    assert_eq!(
        series(&text, NAME),
        [
            "cauchyfs_member_full{mountpoint=\"/a\",member=\"1\"}",
            "cauchyfs_member_full{mountpoint=\"/b\",member=\"1\"}",
        ]
    );
    assert!(text.contains("cauchyfs_up{mountpoint=\"/b\"} 1"), "{text}");
}

#[test]
fn a_daemon_that_lies_forges_no_series_of_another_volume_and_no_lines() {
    let forged = [
        gauge(NAME, &[("mountpoint", "/other")], 1.0),
        gauge(NAME, &[("mountpoint", "/a"), ("member", "kept")], 1.0),
        gauge(NAME, &[("a\"} 1\n", "x")], 1.0),
        gauge(NAME, &[("a", "x"), ("a", "y")], 1.0),
        gauge(NAME, &[("__name__", "cauchyfs_up")], 1.0),
        gauge(NAME, &[("instance", "x")], 1.0),
        gauge(NAME, &[("member", "x\"} 9\ncauchyfs_w 1")], 1.0),
        gauge(NAME, &[("member", "twice")], 1.0),
        gauge(NAME, &[("member", "twice")], 2.0),
        gauge("cauchyfs_bad} 1\ncauchyfs_y", &[], 1.0),
        gauge("cauchyfs_unknown", &[], 1.0),
        gauge("node_memory", &[], 1.0),
        gauge("cauchyfs_up", &[("member", "1")], 1.0),
    ];
    let mut liar = of("/a", forged.to_vec());
    liar.is_up = false;
    let text = text_of(merged(vec![liar]));
    let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        values,
        [
            "cauchyfs_member_full{mountpoint=\"/a\",member=\"kept\"} 1.0",
            "cauchyfs_member_full{mountpoint=\"/a\",member=\"x\\\"} 9\\ncauchyfs_w 1\"} 1.0",
            "cauchyfs_member_full{mountpoint=\"/a\",member=\"twice\"} 1.0",
            "cauchyfs_up{mountpoint=\"/a\"} 0.0",
            "cauchyfs_series_left_out{mountpoint=\"/a\"} 10.0",
            "cauchyfs_answers_refused_total{mountpoint=\"/a\"} 3",
        ]
    );
}

/// Of a family with the type of the first daemon, all others would be left out.
#[test]
fn a_daemon_that_comes_first_sets_neither_the_type_nor_the_help_of_a_family() {
    let mut liar = gauge(NAME, &[], 7.0);
    liar.kind = FamilyKind::Counter;
    let mut told = gauge(NAME, &[("member", "1")], 1.0);
    told.help = "A lie.".to_owned();
    let honest = gauge(NAME, &[("member", "1")], 1.0);
    let text = text_of(merged(vec![
        of("/a", vec![liar, told]),
        of("/b", vec![honest]),
    ]));
    let told = format!("# TYPE {NAME} gauge");
    assert!(!text.contains("A lie.") && text.contains(&told), "{text}");
    assert_eq!(series(&text, NAME).len(), 2, "{text}");
}

/// Two mounts at one mountpoint, or with paths that look alike.
#[test]
fn volumes_with_the_same_labels_are_shown_once() {
    let volume = |member: &str| of("/a", vec![gauge(NAME, &[("member", member)], 1.0)]);
    let text = text_of(merged(vec![volume("1"), of("/b", Vec::new()), volume("2")]));
    let shown = |name: &str| series(&text, name).len();
    let counts = ["cauchyfs_up", "cauchyfs_series_left_out", NAME].map(shown);
    assert_eq!(counts, [2, 2, 1], "{text}");
}

#[test]
fn of_what_a_daemon_sends_no_more_is_kept_than_a_page_shows() {
    let all = gauge(NAME, &[("member", "1")], 1.0);
    let mut many = all.clone();
    many.series = vec![all.series[0].clone(); MOST_SERIES];
    let wide: Vec<(String, &str)> = (0..=MOST_LABELS).map(|it| (format!("l{it}"), "")).collect();
    let wide: Vec<(&str, &str)> = wide.iter().map(|(name, value)| (&**name, *value)).collect();
    let sent = vec![
        gauge("cauchyfs_unknown", &[], 1.0),
        gauge(NAME, &wide, 1.0),
        gauge(NAME, &[], f64::NAN),
        all,
        many,
    ];
    let kept = Bounded::of(sent, usize::MAX);
    let names: Vec<_> = kept.families.keys().copied().collect();
    assert_eq!(names, [NAME], "families that no page shows are dropped");
    assert_eq!(kept.families[NAME].len(), MOST_SERIES);
    assert_eq!(kept.left_out, 3);
}

#[test]
fn what_is_kept_of_a_daemon_takes_no_more_memory_than_its_share() {
    let narrow = ["a", "b", "c", "d", "e", "f"].map(|name| (name, ""));
    let families = || (0..2000).map(|_| gauge(NAME, &narrow, 1.0)).collect();
    let (all, share) = (Bounded::of(families(), usize::MAX), 200_000);
    assert_eq!(all.left_out, 0);
    let kept = Bounded::of(families(), share);
    let memory: usize = kept.families[NAME].iter().map(memory_of).sum();
    assert!(memory <= share && memory > share / 2, "{memory}");
    assert_eq!(kept.left_out() as usize, 2000 - kept.families[NAME].len());
}

#[test]
fn a_page_has_a_limit_of_which_each_volume_has_its_share() {
    let greedy = |mountpoint: &str| {
        let members = 0..2000;
        let wide = "\"".repeat(500);
        let families = members.map(|member| {
            let member = format!("{member}{wide}");
            gauge(NAME, &[("member", &member)], f64::MIN_POSITIVE)
        });
        of(mountpoint, families.collect())
    };
    let modest = of("/m", vec![gauge(NAME, &[("member", "1")], 1.0)]);
    let most = 300_000;
    let volumes = vec![greedy("/a"), modest, greedy("/z")];
    let text = text_of(merged_within(volumes, most));
    let shown = series(&text, NAME);
    let of_volume = |place: &str| shown.iter().filter(|line| line.contains(place)).count();
    assert!(text.len() < most + 2000, "{}", text.len());
    assert_eq!(of_volume("\"/m\""), 1);
    assert!(of_volume("\"/a\"") > 50 && of_volume("\"/z\"") > 100);
    let left_out = 2000 - of_volume("\"/a\"");
    let line = format!("cauchyfs_series_left_out{{mountpoint=\"/a\"}} {left_out}.0");
    assert!(text.contains(&line), "{line}");
}

#[test]
fn a_histogram_survives_the_socket_with_its_last_bucket() {
    let value = SeriesValue::Histogram {
        sum: 1.5,
        buckets: vec![(Some(0.5), 2), (None, 1)],
    };
    let labels = Vec::new();
    let series = vec![Series { labels, value }];
    let name = "cauchyfs_operation_duration_seconds";
    let family = Family::new(name, "H.", FamilyKind::Histogram, series);
    let json = serde_json::to_string(&family).unwrap();
    let family: Family = serde_json::from_str(&json).unwrap();
    let text = text_of(merged(vec![of("/a", vec![family])]));
    assert!(
        text.contains(
            "cauchyfs_operation_duration_seconds_bucket{mountpoint=\"/a\",le=\"+Inf\"} 3"
        ),
        "{text}"
    );
}

proptest! {
    /// The page has one series on each line for any answer of a daemon. The daemon does not choose its label `volume`.
    #[test]
    fn any_family_becomes_lines_of_its_own_volume_alone(
        name in "cauchyfs_member_full|cauchyfs_up|\\PC{0,20}",
        help in any::<String>(),
        label in any::<String>(),
        value in any::<String>(),
        number in any::<f64>(),
    ) {
        let family = Family {
            name,
            help,
            kind: FamilyKind::Gauge,
            series: vec![Series { labels: vec![(label, value)], value: SeriesValue::Gauge(number) }],
        };
        let text = text_of(merged(vec![of("/a", vec![family])]));
        for line in text.lines() {
            prop_assert!(line.starts_with('#') || line.contains("{mountpoint=\"/a\""), "{line}");
        }
    }
}
