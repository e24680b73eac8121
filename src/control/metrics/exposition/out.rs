//! Families of metrics while they are collected.

use std::fmt;

use crate::control::metrics::families::{Family, FamilyKind, Series, SeriesValue};
use crate::control::metrics::known::known;

/// The labels of a series.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Collects families of metrics. It refuses a family that comes twice, and one that is not in the table of all.
pub(super) struct Out<'a>(&'a mut Vec<Family>);

impl<'a> Out<'a> {
    /// Adds to a list.
    pub(super) fn new(families: &'a mut Vec<Family>) -> Self {
        Self(families)
    }

    fn add(
        &mut self,
        name: &str,
        kind: FamilyKind,
        rows: impl IntoIterator<Item = (Labels, SeriesValue)>,
    ) -> fmt::Result {
        let known = known(name).filter(|it| it.kind == kind);
        let known = known.ok_or(fmt::Error)?;
        if self.0.iter().any(|it| it.name == name) {
            return Err(fmt::Error);
        }
        let rows = rows.into_iter().map(|(labels, value)| Series {
            labels: labels
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            value,
        });
        let family = Family::new(known.name, known.help, kind, rows.collect());
        self.0.push(family);
        Ok(())
    }

    /// Adds gauges that have labels; no family if there are none.
    pub(super) fn gauges(
        &mut self,
        name: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let rows = rows.into_iter();
        let rows = rows.map(|(labels, value)| (labels, SeriesValue::Gauge(value)));
        self.add(name, FamilyKind::Gauge, rows)
    }

    /// Adds a gauge without labels, if there is a value.
    pub(super) fn gauge(&mut self, name: &str, value: impl Into<Option<f64>>) -> fmt::Result {
        let value = value.into().map(|value| (Vec::new(), value));
        self.gauges(name, value)
    }

    /// Adds counters that have labels; no family if there are none. The name gets the suffix `_total`.
    pub(super) fn counters<T: Into<SeriesValue>>(
        &mut self,
        name: &str,
        rows: impl IntoIterator<Item = (Labels, T)>,
    ) -> fmt::Result {
        let rows = rows.into_iter();
        let rows = rows.map(|(labels, value)| (labels, value.into()));
        self.add(name, FamilyKind::Counter, rows)
    }

    /// Adds a counter without labels. The name gets the suffix `_total`.
    pub(super) fn counter<T: Copy + Into<SeriesValue>>(
        &mut self,
        name: &str,
        value: &T,
    ) -> fmt::Result {
        self.counters(name, [(Vec::new(), *value)])
    }

    /// Adds histograms: the sum of all values, and the number of values in each bucket. The last bucket has no bound.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        rows: impl IntoIterator<Item = (Labels, f64, Vec<(Option<f64>, u64)>)>,
    ) -> fmt::Result {
        let rows = rows.into_iter().map(|(labels, sum, buckets)| {
            let histogram = SeriesValue::Histogram { sum, buckets };
            (labels, histogram)
        });
        self.add(name, FamilyKind::Histogram, rows)
    }
}

/// A counter of whole things.
impl From<u64> for SeriesValue {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

/// A counter of something that has parts.
impl From<f64> for SeriesValue {
    fn from(amount: f64) -> Self {
        Self::Amount(amount)
    }
}
