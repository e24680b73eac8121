//! A table of figures: those of a source, and beside them ours.

use std::fmt;

use serde::Serialize;

/// A source of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Cauchy Reed–Solomon on GPUs.
    GCrs,
    /// Codes that XOR packets.
    Fast19,
    /// A random code over GF(2).
    Thesis,
    /// Reed–Solomon on a GPU, with several streams.
    GpuRscode,
    /// Reed–Solomon in `OpenCL` on CPUs, GPUs and an FPGA.
    Opencl,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::GCrs,
        Self::Fast19,
        Self::Thesis,
        Self::GpuRscode,
        Self::Opencl,
    ];

    /// Returns the name by which it is asked for.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GCrs => "g-crs",
            Self::Fast19 => "fast19",
            Self::Thesis => "thesis",
            Self::GpuRscode => "gpu-rscode",
            Self::Opencl => "opencl",
        }
    }

    /// Returns whether some of its figures need a GPU.
    pub(super) fn needs_gpu(self) -> bool {
        match self {
            Self::GCrs | Self::Thesis | Self::GpuRscode | Self::Opencl => true,
            Self::Fast19 => false,
        }
    }
}

/// The figures of one source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// The source.
    pub source: Source,
    /// Its authors and title.
    pub title: &'static str,
    /// One entry per figure.
    pub rows: Vec<PaperRow>,
    /// Sentences about what is compared, and what is not known of the source.
    pub notes: Vec<&'static str>,
}

/// One figure. Of a quantity that the source has no figure for, or none that was found, there is only ours.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "FlatRow")]
pub struct PaperRow {
    /// The quantity.
    pub quantity: String,
    /// Its unit.
    pub unit: Unit,
    /// The figure of the source.
    pub published: Option<Published>,
    /// The figure of this run.
    pub ours: Ours,
}

/// A figure of a source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// The figure.
    pub figure: f64,
    /// The hardware of that figure.
    pub hardware: &'static str,
}

/// A row as JSON has it.
#[derive(Serialize)]
struct FlatRow {
    quantity: String,
    unit: Unit,
    /// The figure of the source.
    published: Option<f64>,
    /// The hardware of that figure.
    published_on: Option<&'static str>,
    /// The figure of this run.
    ours: Option<f64>,
    /// The reason why this run has none.
    missing: Option<Missing>,
    /// [`PaperRow::ratio`]: higher is better, whatever the unit.
    ratio: Option<f64>,
}

impl From<PaperRow> for FlatRow {
    fn from(row: PaperRow) -> Self {
        Self {
            ratio: row.ratio(),
            quantity: row.quantity,
            unit: row.unit,
            published: row.published.map(|published| published.figure),
            published_on: row.published.map(|published| published.hardware),
            ours: row.ours.ok(),
            missing: row.ours.err(),
        }
    }
}

impl PaperRow {
    /// Returns a row with our figure, or the reason why there is none.
    pub(super) fn new(quantity: impl Into<String>, unit: Unit, ours: Ours) -> Self {
        Self {
            quantity: quantity.into(),
            unit,
            published: None,
            ours,
        }
    }

    /// Adds the figure of the source.
    pub(super) fn beside(self, figure: f64, hardware: &'static str) -> Self {
        Self {
            published: Some(Published { figure, hardware }),
            ..self
        }
    }

    /// Returns how many times as good as the source's figure ours is, if both are known. Higher is better: of times and
    /// counts of XORs this is the source's figure, divided by ours, and otherwise ours, divided by the source's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let (ours, published) = (self.ours.ok()?, self.published?.figure);
        Some(match self.unit {
            Unit::Ms | Unit::Xors => published / ours,
            Unit::GbPerS | Unit::Times | Unit::Percent => ours / published,
        })
    }
}

/// A figure of this run, or the reason why there is none.
pub type Ours = Result<f64, Missing>;

/// The reason why this run has no figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Missing {
    /// It needs a GPU, and there is none.
    #[serde(rename = "no GPU")]
    NoGpu,
    /// It needs ISA-L, which could not be loaded.
    #[serde(rename = "no ISA-L")]
    NoIsal,
    /// It needs more memory than this machine has to spare.
    #[serde(rename = "no memory")]
    NoMemory,
    /// This program has nothing of the kind.
    #[serde(rename = "not offered")]
    NotOffered,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGpu => "no GPU",
            Self::NoIsal => "no ISA-L",
            Self::NoMemory => "no memory",
            Self::NotOffered => "not offered",
        })
    }
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// 10⁹ bytes a second.
    #[serde(rename = "GB/s")]
    GbPerS,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Ms,
    /// XORs and copies of packets.
    #[serde(rename = "XORs")]
    Xors,
    /// A multiple of the speed of the base case.
    #[serde(rename = "times")]
    Times,
    /// Percent.
    #[serde(rename = "%")]
    Percent,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GbPerS => "GB/s",
            Self::Ms => "ms",
            Self::Xors => "XORs",
            Self::Times => "times",
            Self::Percent => "%",
        })
    }
}

/// The title, a line per figure, and the notes.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.source.name(), self.title)?;
        let lengths = self.rows.iter().map(|row| row.quantity.chars().count());
        let width = lengths.max().unwrap_or(0);
        writeln!(
            f,
            "{:<width$}  {:<5} {:>10} {:>11} {:>8}  hardware of the paper",
            "", "", "paper", "ours", "ratio"
        )?;
        for row in &self.rows {
            let ours = match row.ours {
                Ok(ours) => figure(ours, row.unit),
                Err(missing) => missing.to_string(),
            };
            let (published, hardware) = match row.published {
                Some(published) => (figure(published.figure, row.unit), published.hardware),
                None => ("–".to_owned(), ""),
            };
            let line = format!(
                "{:<width$}  {:<5} {published:>10} {ours:>11} {:>8}  {hardware}",
                row.quantity,
                row.unit.to_string(),
                ratio(row.ratio()),
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// Shows a figure with about four digits. Counts and large figures stay whole.
fn figure(figure: f64, unit: Unit) -> String {
    match figure {
        _ if unit == Unit::Xors || figure >= 1000.0 => format!("{figure:.0}"),
        _ if figure >= 100.0 => format!("{figure:.1}"),
        _ if figure >= 10.0 => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

/// Shows a ratio with about three digits.
fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => "–".to_owned(),
        Some(ratio) if ratio >= 100.0 => format!("{ratio:.0}"),
        Some(ratio) if ratio >= 10.0 => format!("{ratio:.1}"),
        Some(ratio) if ratio >= 0.01 => format!("{ratio:.2}"),
        Some(ratio) => format!("{ratio:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let rows = vec![
            PaperRow::new("k=4", Unit::GbPerS, Ok(300.0)).beside(150.0, "GTX 980"),
            PaperRow::new("k=8", Unit::GbPerS, Err(Missing::NoGpu)).beside(144.71, "GTX 980"),
            PaperRow::new("encode, k=16", Unit::Xors, Ok(57.0)),
        ];
        Table {
            source: Source::GCrs,
            title: "A. Author, a title",
            rows,
            notes: vec!["A note."],
        }
    }

    #[test]
    fn a_table_shows_both_figures_and_their_ratio_or_what_there_is_of_them() {
        let text = table().to_string();
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "g-crs: A. Author, a title",
            "                         paper        ours    ratio  hardware of the paper",
            "k=4           GB/s       150.0       300.0     2.00  GTX 980",
            "k=8           GB/s       144.7      no GPU        –  GTX 980",
            "encode, k=16  XORs           –          57        –",
            "A note.",
        ];
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn json_has_the_same_figures_under_their_names() {
        let json = serde_json::to_value(table()).expect("plain data");
        assert_eq!(json["source"], "g-crs");
        let both = serde_json::json!({
            "quantity": "k=4", "unit": "GB/s", "published": 150.0, "published_on": "GTX 980",
            "ours": 300.0, "missing": null, "ratio": 2.0,
        });
        let missing = serde_json::json!({
            "quantity": "k=8", "unit": "GB/s", "published": 144.71, "published_on": "GTX 980",
            "ours": null, "missing": "no GPU", "ratio": null,
        });
        assert_eq!((&json["rows"][0], &json["rows"][1]), (&both, &missing));
    }

    #[test]
    fn a_ratio_above_one_is_better_in_every_unit() {
        let ratio = |unit| {
            PaperRow::new("q", unit, Ok(50.0))
                .beside(200.0, "it")
                .ratio()
        };
        for unit in [Unit::GbPerS, Unit::Times, Unit::Percent] {
            assert_eq!(ratio(unit), Some(0.25), "{unit}: more is better");
        }
        for unit in [Unit::Ms, Unit::Xors] {
            assert_eq!(ratio(unit), Some(4.0), "{unit}: less is better");
        }
    }

    #[test]
    fn json_names_sources_as_they_are_asked_for() {
        for source in Source::ALL {
            let json = serde_json::to_value(source).expect("plain data");
            assert_eq!(json, source.name());
        }
    }
}
