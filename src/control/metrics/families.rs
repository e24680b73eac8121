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
    /// The memory that they take.
    bytes: usize,
}

impl Bounded {
    /// Takes what a daemon sent, and no more than `bytes` of memory.
    pub(crate) fn of(families: Vec<Family>, bytes: usize) -> Self {
        let mut bounded = Self::default();
        let mut room = PageRoom {
            series: MOST_SERIES,
            bytes,
        };
        for family in families {
            let all = count(&family.series);
            let known = known(&family.name).filter(|it| it.kind == family.kind);
            let Some(known) = known.filter(|_| all > 0) else {
                bounded.left_out = bounded.left_out.saturating_add(all);
                continue;
            };
            let fine = family.series.into_iter();
            let fine = fine.filter_map(|series| labelled(series, &Labels::new(), known));
            let mut fine: Vec<Series> = fine
                .filter(|series| room.take(known.name, series))
                .collect();
            let left_out = all - count(&fine);
            bounded.left_out = bounded.left_out.saturating_add(left_out);
            let taken = bounded.families.entry(known.name).or_default();
            taken.append(&mut fine);
            taken.shrink_to_fit();
        }
        bounded.families.retain(|_, series| !series.is_empty());
        bounded.bytes = bytes - room.bytes;
        bounded
    }

    /// Returns the memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many series are left out.
    pub(crate) fn left_out(&self) -> u32 {
        self.left_out
    }
}

/// The metrics of one volume.
#[derive(Debug)]
pub(crate) struct VolumeFamilies {
    /// The labels that each of its series gets.
    pub(crate) own: OwnLabels,
    /// True if its daemon answers.
    pub(crate) is_up: bool,
    /// The number of its answers that were refused.
    pub(crate) refused: u64,
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
    refused: Vec<Series>,
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
        refused: Vec::new(),
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
        let mut room = PageRoom {
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
        self.refused.push(Series {
            labels: own,
            value: SeriesValue::Count(volume.refused),
        });
    }

    /// Adds the series of a family. Returns how many are left out.
    fn add_family(&mut self, name: &str, all: &[Series], own: &Labels, room: &mut PageRoom) -> u32 {
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
                FamilyKind::Gauge,
                "cauchyfs_up",
                "1 if the daemon of a mounted volume answers the dashboard.",
                self.up,
            ),
            (
                FamilyKind::Gauge,
                "cauchyfs_series_left_out",
                "Series of a daemon that the dashboard does not show: it knows no such ones, or they are too many.",
                self.left_out,
            ),
            (
                FamilyKind::Counter,
                "cauchyfs_answers_refused",
                "Answers of a daemon that the dashboard did not take: they made no sense, or were too long alone or beside those of others.",
                self.refused,
            ),
        ];
        let of_dashboard = of_dashboard
            .into_iter()
            .map(|(kind, name, help, series)| Family::new(name, help, kind, series));
        families.chain(of_dashboard).collect()
    }
}

/// The room for the series of one volume.
#[derive(Debug)]
struct PageRoom {
    series: usize,
    bytes: usize,
}

impl PageRoom {
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

/// Returns the most bytes that a series takes on a page or in memory.
fn bytes_of(name: &str, series: &Series) -> usize {
    page_bytes_of(name, series).max(memory_of(series))
}

/// Returns the memory of a series, with what the allocator adds.
fn memory_of(series: &Series) -> usize {
    const ADDED: usize = 16;
    let labels = series.labels.iter();
    let texts = labels.map(|(name, value)| name.len() + value.len() + 2 * ADDED);
    let buckets = match &series.value {
        SeriesValue::Histogram { buckets, .. } => size_of_val(&**buckets) + ADDED,
        _ => 0,
    };
    size_of_val(series) + size_of_val(&*series.labels) + ADDED + texts.sum::<usize>() + buckets
}

fn page_bytes_of(name: &str, series: &Series) -> usize {
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
    if let SeriesValue::Histogram { buckets, .. } = &mut series.value {
        if !are_in_order(buckets) {
            return None;
        }
        buckets.shrink_to_fit();
    }
    labels.splice(0..0, own.iter().cloned());
    labels.shrink_to_fit();
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
mod tests;
