//! Metrics of daemons under libFuzzer: an input is what one sends to the dashboard, as a line of JSON.
//!
//! It comes from the first volume and from the third; the second is honest. It also comes from another volume with the
//! labels of the honest one.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;

/// As much of the room as metrics of several volumes need.
#[path = "../../src/control/metrics"]
#[allow(dead_code, reason = "the product needs more of it")]
mod metrics {
    pub(crate) mod families;
    mod known;
    pub(crate) mod request;
}

use metrics::families::{
    Bounded, Family, FamilyKind, Series, SeriesValue, VolumeFamilies, merged, page,
};
use metrics::request::Format;

fn volume(mountpoint: &str, families: Vec<Family>) -> VolumeFamilies {
    VolumeFamilies {
        own: vec![("mountpoint", mountpoint.to_owned())],
        is_up: true,
        refused: 0,
        families: Arc::new(Bounded::of(families, 16 << 20)),
    }
}

fn honest() -> Family {
    let series = Series {
        labels: vec![("member".to_owned(), "1".to_owned())],
        value: SeriesValue::Gauge(1.0),
    };
    Family::new("cauchyfs_member_full", "Help.", FamilyKind::Gauge, vec![series])
}

fuzz_target!(|input: &[u8]| {
    let Ok(families) = serde_json::from_slice::<Vec<Family>>(input) else {
        return;
    };
    let volumes = vec![
        volume("/first", families.clone()),
        volume("/honest", vec![honest()]),
        volume("/last", families.clone()),
        volume("/honest", families),
    ];
    let merged = merged(volumes);
    for format in [Format::Text, Format::OpenMetrics] {
        let page = page(merged.clone(), format).expect("any page can be written");
        assert!(page.contains("cauchyfs_member_full{mountpoint=\"/honest\",member=\"1\"} 1.0\n"));
        let mut series = std::collections::HashSet::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (series_of, value) = line.rsplit_once(' ').expect("each line has a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(series_of), "a scrape would be refused: {line}");
            let labels = ["/first", "/honest", "/last"].map(|it| format!("mountpoint=\"{it}\""));
            assert!(labels.iter().any(|it| line.contains(it)), "{line}");
        }
    }
});
