//! Writes families of metrics.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// The labels of one series.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Writes families of metrics.
pub(super) struct Out<'a>(DescriptorEncoder<'a>);

impl<'a> Out<'a> {
    /// Writes to an encoder.
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// Begins a family.
    pub(super) fn family(
        &mut self,
        name: &'static str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    /// Writes gauges that have labels; no family if there are none.
    pub(super) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        rows.try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    /// Writes a gauge without labels, if there is a value.
    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl Into<Option<f64>>,
    ) -> fmt::Result {
        let Some(value) = value.into() else {
            return Ok(());
        };
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    /// Writes counters that have labels; no family if there are none. The name gets the suffix `_total`.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        rows.try_for_each(|(labels, value)| {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Writes counters as [`Self::counters`], whose values have fractions.
    pub(super) fn float_counters(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        rows.into_iter().try_for_each(|(labels, value)| {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// Writes a counter without labels. The name gets the suffix `_total`.
    pub(super) fn counter(
        &mut self,
        name: &str,
        help: &str,
        value: &impl prometheus_client::encoding::EncodeCounterValue,
    ) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(value, None)
    }
}
