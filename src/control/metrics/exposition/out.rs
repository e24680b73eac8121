//! Families of metrics while they are collected.

use std::fmt;

use crate::control::metrics::families::{Family, FamilyKind, Series, SeriesValue};

/// The labels of a series.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Collects families of metrics. It refuses a family that comes twice.
pub(super) struct Out<'a>(&'a mut Vec<Family>);

impl<'a> Out<'a> {
    /// Adds to a list.
    pub(super) fn new(families: &'a mut Vec<Family>) -> Self {
        Self(families)
    }

    fn add(
        &mut self,
        name: &str,
        help: &str,
        kind: FamilyKind,
        rows: impl IntoIterator<Item = (Labels, SeriesValue)>,
    ) -> fmt::Result {
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
        self.0.push(Family::new(name, help, kind, rows.collect()));
        Ok(())
    }

    /// Adds gauges that have labels; no family if there are none.
    pub(super) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let rows = rows.into_iter();
        let rows = rows.map(|(labels, value)| (labels, SeriesValue::Gauge(value)));
        self.add(name, help, FamilyKind::Gauge, rows)
    }

    /// Adds a gauge without labels, if there is a value.
    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl Into<Option<f64>>,
    ) -> fmt::Result {
        let value = value.into().map(|value| (Vec::new(), value));
        self.gauges(name, help, value)
    }

    /// Adds counters that have labels; no family if there are none. The name gets the suffix `_total`.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let rows = rows.into_iter();
        let rows = rows.map(|(labels, value)| (labels, SeriesValue::Count(value)));
        self.add(name, help, FamilyKind::Counter, rows)
    }

    /// Adds counters as [`Self::counters`], whose values have fractions.
    pub(super) fn float_counters(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let rows = rows.into_iter();
        let rows = rows.map(|(labels, value)| (labels, SeriesValue::Amount(value)));
        self.add(name, help, FamilyKind::Counter, rows)
    }

    /// Adds a counter without labels. The name gets the suffix `_total`.
    pub(super) fn counter<T: Copy + Into<SeriesValue>>(
        &mut self,
        name: &str,
        help: &str,
        value: &T,
    ) -> fmt::Result {
        let row = (Vec::new(), (*value).into());
        self.add(name, help, FamilyKind::Counter, [row])
    }

    /// Adds histograms: the sum of all values, and the number of values in each bucket. The last bucket has no bound.
    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64, Vec<(Option<f64>, u64)>)>,
    ) -> fmt::Result {
        let rows = rows.into_iter().map(|(labels, sum, buckets)| {
            let histogram = SeriesValue::Histogram { sum, buckets };
            (labels, histogram)
        });
        self.add(name, help, FamilyKind::Histogram, rows)
    }
}

impl From<u64> for SeriesValue {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for SeriesValue {
    fn from(amount: f64) -> Self {
        Self::Amount(amount)
    }
}
