//! Metrics as data: families, as they cross the control socket and become a page.
//!
//! Families of a daemon may be of another user's, and say anything. So [`merged`] takes the families of a table alone,
//! with the types and the help that stand there. It tells the series of volumes apart by labels of its own, of which no
//! daemon chooses the mountpoint. The page of all volumes has a limit, of which each volume has its share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

pub(crate) use super::known::FamilyKind;
use super::known::{KnownFamily, known};
use super::request::Format;

/// The most series of one volume that are taken.
const MOST_SERIES: usize = 20_000;

/// The most bytes of the series of all volumes on a page.
const MOST_BYTES: usize = 16 << 20;

/// The most bytes of a line beyond its name and labels: a suffix, a bound, a value, and signs.
const LINE_BYTES: usize = 96;

/// The longest name of a label, in bytes.
const LONGEST_NAME: usize = 100;

/// The most labels of a series.
const MOST_LABELS: usize = 16;

/// The longest value of a label, in bytes.
const LONGEST_TEXT: usize = 8192;

/// Labels that Prometheus gives a meaning of its own: parts of a family, and the origin of a scrape.
const RESERVED_LABELS: [&str; 4] = ["le", "quantile", "job", "instance"];

/// A value of a series. All of a family have the form that its type has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SeriesValue {
    /// A gauge.
    Gauge(f64),
    /// A counter of whole things.
    Count(u64),
    /// A counter of something that has parts.
    Amount(f64),
    /// A histogram.
    Histogram {
        /// The sum of all values.
        sum: f64,
        /// The upper bounds of buckets, with the number of values in each. None bounds the last.
        buckets: Vec<(Option<f64>, u64)>,
    },
}

impl SeriesValue {
    fn is_of(&self, kind: FamilyKind) -> bool {
        match self {
            Self::Gauge(_) => kind == FamilyKind::Gauge,
            Self::Count(_) | Self::Amount(_) => kind == FamilyKind::Counter,
            Self::Histogram { .. } => kind == FamilyKind::Histogram,
        }
    }

    /// JSON has no other numbers.
    fn is_finite(&self) -> bool {
        match self {
            Self::Gauge(value) | Self::Amount(value) => value.is_finite(),
            Self::Count(_) => true,
            Self::Histogram { sum, .. } => sum.is_finite(),
        }
    }
}

/// The labels of a series, and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: SeriesValue,
}

/// A family of metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) kind: FamilyKind,
    pub(crate) series: Vec<Series>,
}

impl Family {
    /// Returns a family without the values that no format can show.
    pub(crate) fn new(name: &str, help: &str, kind: FamilyKind, mut series: Vec<Series>) -> Self {
        series.retain(|it| it.value.is_finite());
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            kind,
            series,
        }
    }

    fn write(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.series.is_empty() {
            return Ok(());
        }
        let kind = match self.kind {
            FamilyKind::Gauge => MetricType::Gauge,
            FamilyKind::Counter => MetricType::Counter,
            FamilyKind::Histogram => MetricType::Histogram,
        };
        let mut family = encoder.encode_descriptor(&self.name, &self.help, None, kind)?;
        for Series { labels, value } in &self.series {
            let mut series = family.encode_family(labels)?;
            match value {
                SeriesValue::Gauge(value) => series.encode_gauge(value)?,
                SeriesValue::Count(value) => {
                    series.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
                SeriesValue::Amount(value) => {
                    series.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                }
                SeriesValue::Histogram { sum, buckets } => {
                    let bounded = |(bound, count): &(Option<f64>, u64)| {
                        (bound.unwrap_or(f64::INFINITY), *count)
                    };
                    let buckets: Vec<(f64, u64)> = buckets.iter().map(bounded).collect();
                    let count = buckets
                        .iter()
                        .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
                    series.encode_histogram::<NoLabelSet>(*sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }
}

/// Families that a registry writes.
#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|it| it.write(&mut encoder))
    }
}

/// Writes families as a page.
///
/// # Errors
///
/// If a number cannot be written.
pub(crate) fn page(families: Vec<Family>, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut page = String::new();
    match format {
        Format::OpenMetrics => text::encode(&mut page, &registry)?,
        Format::Text => prometheus_text::encode(&mut page, &registry)?,
    }
    Ok(page)
}

/// The labels that tell the series of one volume from those of others.
pub(crate) type OwnLabels = Vec<(&'static str, String)>;

/// The families of a daemon that the table has, within the limits of one volume.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    families: BTreeMap<&'static str, Vec<Series>>,
    /// How many series it sent beyond those.
    left_out: u32,
}

impl Bounded {
    /// Takes what a daemon sent.
    pub(crate) fn of(families: Vec<Family>) -> Self {
        let mut bounded = Self::default();
        let mut room = MOST_SERIES;
        for family in families {
            let all = count(&family.series);
            let known = known(&family.name).filter(|it| it.kind == family.kind);
            let Some(known) = known.filter(|_| all > 0) else {
                bounded.left_out = bounded.left_out.saturating_add(all);
                continue;
            };
            let fine = family.series.into_iter();
            let fine = fine.filter_map(|series| labelled(series, &Labels::new(), known));
            let mut fine: Vec<Series> = fine.take(room).collect();
            room -= fine.len();
            let left_out = all - count(&fine);
            bounded.left_out = bounded.left_out.saturating_add(left_out);
            let taken = bounded.families.entry(known.name).or_default();
            taken.append(&mut fine);
            taken.shrink_to_fit();
        }
        bounded.families.retain(|_, series| !series.is_empty());
        bounded
    }
}

/// The metrics of one volume.
#[derive(Debug)]
pub(crate) struct VolumeFamilies {
    /// The labels that each of its series gets.
    pub(crate) own: OwnLabels,
    /// True if its daemon answers.
    pub(crate) is_up: bool,
    /// The families that its daemon sent.
    pub(crate) families: Arc<Bounded>,
}

/// Families of a page that is put together.
#[derive(Debug)]
struct Merged {
    families: BTreeMap<&'static str, (Family, BTreeSet<Labels>)>,
    /// The labels of the volumes that are in it.
    volumes: BTreeSet<Labels>,
    up: Vec<Series>,
    left_out: Vec<Series>,
    /// The bytes that are left for series.
    bytes: usize,
}

type Labels = Vec<(String, String)>;

/// Puts the families of several volumes together, those of the first volumes first. Every series gets the labels of its
/// volume. Families and series that no daemon of ours sends are left out, and counted. Of volumes with the same labels,
/// the first alone is shown: a scrape with a series twice would be refused as a whole.
pub(crate) fn merged(volumes: Vec<VolumeFamilies>) -> Vec<Family> {
    merged_within(volumes, MOST_BYTES)
}

fn merged_within(volumes: Vec<VolumeFamilies>, bytes: usize) -> Vec<Family> {
    let mut merged = Merged {
        families: BTreeMap::new(),
        volumes: BTreeSet::new(),
        up: Vec::new(),
        left_out: Vec::new(),
        bytes,
    };
    let count = volumes.len();
    for (number, volume) in volumes.into_iter().enumerate() {
        let share = merged.bytes / (count - number);
        merged.add(volume, share);
    }
    merged.into_families()
}

impl Merged {
    /// Adds a volume, whose series have at most `share` bytes.
    fn add(&mut self, volume: VolumeFamilies, share: usize) {
        let own: Labels = volume
            .own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        if !self.volumes.insert(own.clone()) {
            return;
        }
        let mut room = Room {
            series: MOST_SERIES,
            bytes: share,
        };
        let mut left_out = volume.families.left_out;
        for (name, series) in &volume.families.families {
            left_out = left_out.saturating_add(self.add_family(name, series, &own, &mut room));
        }
        self.bytes -= share - room.bytes;
        self.up.push(gauge(&own, u32::from(volume.is_up)));
        self.left_out.push(gauge(&own, left_out));
    }

    /// Adds the series of a family. Returns how many are left out.
    fn add_family(&mut self, name: &str, all: &[Series], own: &Labels, room: &mut Room) -> u32 {
        let Some(known) = known(name) else {
            return count(all);
        };
        let new = || {
            let empty = Family::new(known.name, known.help, known.kind, Vec::new());
            (empty, BTreeSet::new())
        };
        let (merged, seen) = self.families.entry(known.name).or_insert_with(new);
        let mut taken = 0;
        for series in all {
            let Some(series) = labelled(series.clone(), own, known) else {
                continue;
            };
            // A scrape with the same series twice would be refused as a whole.
            let labels = sorted(&series.labels);
            if !seen.contains(&labels) && room.take(known.name, &series) {
                seen.insert(labels);
                merged.series.push(series);
                taken += 1;
            }
        }
        count(all) - taken
    }

    fn into_families(self) -> Vec<Family> {
        let families = self.families.into_values().map(|(family, _)| family);
        let of_dashboard = [
            (
                "cauchyfs_up",
                "1 if the daemon of a mounted volume answers the dashboard.",
                self.up,
            ),
            (
                "cauchyfs_series_left_out",
                "Series of a daemon that the dashboard does not show: it knows no such ones, or they are too many.",
                self.left_out,
            ),
        ];
        let of_dashboard = of_dashboard
            .into_iter()
            .map(|(name, help, series)| Family::new(name, help, FamilyKind::Gauge, series));
        families.chain(of_dashboard).collect()
    }
}

/// The room for the series of one volume.
#[derive(Debug)]
struct Room {
    series: usize,
    bytes: usize,
}

impl Room {
    /// Takes the room of a series, if there is enough.
    fn take(&mut self, name: &str, series: &Series) -> bool {
        let bytes = bytes_of(name, series);
        if self.series == 0 || bytes > self.bytes {
            return false;
        }
        self.series -= 1;
        self.bytes -= bytes;
        true
    }
}

/// Returns the most bytes that a series takes on a page.
fn bytes_of(name: &str, series: &Series) -> usize {
    let escaped = |value: &String| {
        let signs = value
            .bytes()
            .filter(|it| matches!(it, b'"' | b'\\' | b'\n'));
        value.len() + signs.count()
    };
    let labels = series.labels.iter();
    let labels: usize = labels
        .map(|(name, value)| name.len() + escaped(value) + 4)
        .sum();
    let lines = match &series.value {
        SeriesValue::Histogram { buckets, .. } => buckets.len() + 2,
        _ => 1,
    };
    lines * (name.len() + labels + LINE_BYTES)
}

fn count(series: &[Series]) -> u32 {
    u32::try_from(series.len()).unwrap_or(u32::MAX)
}

fn gauge(own: &Labels, value: u32) -> Series {
    Series {
        labels: own.clone(),
        value: SeriesValue::Gauge(f64::from(value)),
    }
}

fn sorted(labels: &Labels) -> Labels {
    let mut labels = labels.clone();
    labels.sort();
    labels
}

/// Returns a series with the labels of its volume. None if it is none of its family, or has a label that is none, one
/// twice, or one of its volume with another value.
fn labelled(mut series: Series, own: &Labels, known: &KnownFamily) -> Option<Series> {
    let labels = &mut series.labels;
    labels.retain(|label| !own.contains(label));
    let is_fine = |(name, value): &(String, String)| {
        is_label_name(name) && own.iter().all(|(it, _)| it != name) && value.len() <= LONGEST_TEXT
    };
    if labels.len() > MOST_LABELS || !labels.iter().all(is_fine) {
        return None;
    }
    let mut names: Vec<&String> = labels.iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    if names.len() != labels.len() {
        return None;
    }
    if !series.value.is_of(known.kind) || !series.value.is_finite() {
        return None;
    }
    if let SeriesValue::Histogram { buckets, .. } = &series.value
        && !are_in_order(buckets)
    {
        return None;
    }
    labels.splice(0..0, own.iter().cloned());
    Some(series)
}

/// Returns whether bounds rise, and the last bucket has none.
fn are_in_order(buckets: &[(Option<f64>, u64)]) -> bool {
    let Some(((last, _), others)) = buckets.split_last() else {
        return false;
    };
    let rises = |pair: &[(Option<f64>, u64)]| pair[0].0 < pair[1].0;
    last.is_none()
        && buckets.len() <= MOST_LABELS * 4
        && others
            .iter()
            .all(|(bound, _)| bound.is_some_and(f64::is_finite))
        && others.windows(2).all(rises)
}

/// Returns whether a label may have a name. Names that begin with two underscores are those of Prometheus itself.
fn is_label_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let mut bytes = name.bytes();
    name.len() <= LONGEST_NAME
        && bytes.next().is_some_and(is_first)
        && bytes.all(|byte| is_first(byte) || byte.is_ascii_digit())
        && !name.starts_with("__")
        && !RESERVED_LABELS.contains(&name)
}

#[cfg(test)]
mod tests {
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
            families: Arc::new(Bounded::of(families)),
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
        assert!(
            !text.contains("A lie.") && !text.contains("counter"),
            "{text}"
        );
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
        let wide: Vec<(String, &str)> =
            (0..=MOST_LABELS).map(|it| (format!("l{it}"), "")).collect();
        let wide: Vec<(&str, &str)> = wide.iter().map(|(name, value)| (&**name, *value)).collect();
        let sent = vec![
            gauge("cauchyfs_unknown", &[], 1.0),
            gauge(NAME, &wide, 1.0),
            gauge(NAME, &[], f64::NAN),
            all,
            many,
        ];
        let kept = Bounded::of(sent);
        let names: Vec<_> = kept.families.keys().copied().collect();
        assert_eq!(names, [NAME], "families that no page shows are dropped");
        assert_eq!(kept.families[NAME].len(), MOST_SERIES);
        assert_eq!(kept.left_out, 3);
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
}
