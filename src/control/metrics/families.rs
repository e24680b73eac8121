//! Metrics as data: families, as they cross the control socket and become a page.
//!
//! Families of a daemon may be of another user's, and say anything. So [`merged`] takes names that Prometheus allows, and
//! no others, and tells the series of volumes apart by labels that no daemon chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

use super::request::Format;

/// The most series of one volume that are taken.
const MOST_SERIES: usize = 20_000;

/// The longest name of a family or a label, in bytes.
const LONGEST_NAME: usize = 100;

/// The most labels of a series.
const MOST_LABELS: usize = 16;

/// The longest value of a label, and the longest help, in bytes.
const LONGEST_TEXT: usize = 8192;

/// The beginnings of the names of our families.
const PREFIXES: [&str; 2] = ["cauchyfs_", "process_"];

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FamilyKind {
    /// Values that rise and fall.
    Gauge,
    /// Values that only grow.
    Counter,
    /// Counts of values by size.
    Histogram,
}

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

/// Puts the families of several volumes together. Every series gets the labels of its volume, in the place of any that it
/// has by these names. Families and series that no daemon of ours sends are left out.
pub(crate) fn merged(volumes: Vec<(OwnLabels, Vec<Family>)>) -> Vec<Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    for (own, families) in volumes {
        let mut left = MOST_SERIES;
        for family in families {
            if !is_name(&family.name) || !PREFIXES.iter().any(|it| family.name.starts_with(it)) {
                continue;
            }
            let Family {
                name, help, kind, ..
            } = &family;
            let merged = all
                .entry(name.clone())
                .or_insert_with(|| Family::new(name, &one_line(help), *kind, Vec::new()));
            if merged.kind != family.kind {
                continue;
            }
            let mut seen = BTreeSet::new();
            for series in family.series {
                let Some(series) = labelled(series, &own).filter(|it| it.value.is_of(merged.kind))
                else {
                    continue;
                };
                if left == 0 || !series.value.is_finite() || !seen.insert(sorted(&series.labels)) {
                    continue;
                }
                left -= 1;
                merged.series.push(series);
            }
        }
    }
    all.into_values().collect()
}

fn sorted(labels: &[(String, String)]) -> Vec<(String, String)> {
    let mut labels = labels.to_vec();
    labels.sort();
    labels
}

/// Returns a series with the labels of its volume. None if it has a name that is none, or one twice.
fn labelled(mut series: Series, own: &[(&'static str, String)]) -> Option<Series> {
    let labels = &mut series.labels;
    labels.retain(|(name, _)| own.iter().all(|(it, _)| it != name));
    let is_fine = |(name, value): &(String, String)| {
        is_name(name) && !matches!(name.as_str(), "le" | "quantile") && value.len() <= LONGEST_TEXT
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
    if let SeriesValue::Histogram { buckets, .. } = &series.value
        && !are_in_order(buckets)
    {
        return None;
    }
    let own = own
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    labels.splice(0..0, own);
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

fn is_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let mut bytes = name.bytes();
    name.len() <= LONGEST_NAME
        && bytes.next().is_some_and(is_first)
        && bytes.all(|byte| is_first(byte) || byte.is_ascii_digit())
}

/// Returns a help text that stays on its line in every format.
fn one_line(help: &str) -> String {
    let shown = help.chars().filter(|it| !it.is_control() && *it != '\\');
    shown.take(LONGEST_TEXT / 4).collect()
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

    fn of(mountpoint: &str) -> Vec<(&'static str, String)> {
        vec![("mountpoint", mountpoint.to_owned())]
    }

    fn text_of(families: Vec<Family>) -> String {
        page(families, Format::Text).unwrap()
    }

    #[test]
    fn families_of_several_volumes_are_written_once_with_a_series_for_each() {
        let merged = merged(vec![
            (of("/a"), vec![gauge("cauchyfs_x", &[("member", "1")], 1.0)]),
            (of("/b"), vec![gauge("cauchyfs_x", &[("member", "1")], 2.0)]),
        ]);
        let text = text_of(merged);
        assert_eq!(text.matches("# TYPE cauchyfs_x gauge").count(), 1, "{text}");
        for line in [
            "cauchyfs_x{mountpoint=\"/a\",member=\"1\"} 1",
            "cauchyfs_x{mountpoint=\"/b\",member=\"1\"} 2",
        ] {
            assert!(text.lines().any(|it| it.starts_with(line)), "{text}");
        }
    }

    #[test]
    fn a_daemon_that_lies_forges_no_series_of_another_volume_and_no_lines() {
        let forged = [
            gauge("cauchyfs_x", &[("mountpoint", "/other")], 1.0),
            gauge("cauchyfs_bad} 1\ncauchyfs_y", &[], 1.0),
            gauge("node_memory", &[], 1.0),
            gauge("cauchyfs_z", &[("a\"} 1\n", "x")], 1.0),
            gauge("cauchyfs_z", &[("a", "x"), ("a", "y")], 1.0),
            gauge("cauchyfs_v", &[("a", "x\"} 9\ncauchyfs_w 1")], 1.0),
        ];
        let text = text_of(merged(vec![(of("/a"), forged.to_vec())]));
        assert!(
            text.contains("cauchyfs_x{mountpoint=\"/a\"} 1"),
            "the name of the volume is ours: {text}"
        );
        assert!(!text.contains("/other") && !text.contains("node_memory"));
        let values = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(values.count(), 2, "{text}");
        let mut liar = gauge("cauchyfs_x", &[], 7.0);
        liar.kind = FamilyKind::Counter;
        let honest = gauge("cauchyfs_x", &[], 1.0);
        let text = text_of(merged(vec![
            (of("/a"), vec![honest]),
            (of("/b"), vec![liar]),
        ]));
        assert!(!text.contains("/b"), "{text}");
    }

    #[test]
    fn a_histogram_survives_the_socket_with_its_last_bucket() {
        let value = SeriesValue::Histogram {
            sum: 1.5,
            buckets: vec![(Some(0.5), 2), (None, 1)],
        };
        let labels = Vec::new();
        let series = vec![Series { labels, value }];
        let family = Family::new("cauchyfs_h", "H.", FamilyKind::Histogram, series);
        let json = serde_json::to_string(&family).unwrap();
        let family: Family = serde_json::from_str(&json).unwrap();
        let text = text_of(merged(vec![(of("/a"), vec![family])]));
        assert!(
            text.contains("cauchyfs_h_bucket{mountpoint=\"/a\",le=\"+Inf\"} 3"),
            "{text}"
        );
    }

    proptest! {
        /// The page has one series on each line for any answer of a daemon. The daemon does not choose its label `volume`.
        #[test]
        fn any_family_becomes_lines_of_its_own_volume_alone(
            name in "(cauchyfs_)?\\PC{0,20}",
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
            let text = text_of(merged(vec![(of("/a"), vec![family])]));
            for line in text.lines() {
                prop_assert!(line.starts_with('#') || line.contains("{mountpoint=\"/a\""), "{line}");
            }
        }
    }
}
