//! The results of a run, for machines (serde) and for people (Display).

use std::fmt;

use serde::Serialize;

use super::columns::Columns;
use super::job::Job;
use super::wake::{POLL_PARAMETER, Wake};

/// Everything that one run measured. Serialized, it is what `bench fs --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FsReport {
    /// The filesystems.
    pub columns: Columns<ColumnReport>,
    /// The columns that could not be had.
    pub left_out: Vec<LeftOut>,
    /// The bytes of the large file.
    pub size_bytes: u64,
    /// The seconds of each job that has no end of its own.
    pub seconds: f64,
    /// One entry per job.
    pub rows: Vec<JobRow>,
    /// The time in which an idle CPU runs a thread; none if one CPU is all there is.
    pub wake: Option<Wake>,
}

/// One of the filesystems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ColumnReport {
    /// The directory.
    pub path: String,
    /// The type of its filesystem.
    pub filesystem: String,
    /// The way of requests, if the filesystem is one of ours: `classic` or `uring`.
    pub transport: Option<&'static str>,
    /// The member that it was found by.
    pub member: Option<u16>,
    /// True if random reads went past the page cache.
    pub direct: bool,
}

/// A column that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The column: `below` or `fuse`.
    pub column: &'static str,
    /// The reason, a sentence.
    pub reason: String,
}

/// The rates of one job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobRow {
    /// The job.
    pub job: &'static str,
    /// Its threads.
    pub jobs: usize,
    /// The unit of its rates.
    pub unit: &'static str,
    /// The rates.
    #[serde(flatten)]
    pub rates: Columns<f64>,
    /// The rate of the directory, divided by that of the one below.
    pub of_below: Option<f64>,
    /// The rate of the directory, divided by the limit of FUSE.
    pub of_fuse: Option<f64>,
    /// The rate of the directory, divided by the limit of striping over FUSE.
    pub of_plain: Option<f64>,
    #[serde(skip)]
    title: String,
}

impl JobRow {
    /// Compares the rates of a job.
    pub(super) fn new(job: Job, rates: Columns<f64>) -> Self {
        let ratio = |other: f64| rates.directory / other;
        Self {
            job: job.name(),
            jobs: job.threads(),
            unit: job.unit(),
            of_below: rates.below.map(ratio),
            of_fuse: rates.fuse.map(ratio),
            of_plain: rates.plain.map(ratio),
            rates,
            title: job.title(),
        }
    }

    /// Returns its line of the table, with the column `plain` if `has_plain`.
    fn line(&self, has_plain: bool) -> String {
        let mut others = vec![
            (shown(self.rates.below), shown(self.of_below)),
            (shown(self.rates.fuse), shown(self.of_fuse)),
        ];
        if has_plain {
            others.push((shown(self.rates.plain), shown(self.of_plain)));
        }
        line(
            [&self.title, self.unit, &shown(Some(self.rates.directory))],
            &others,
        )
    }
}

/// Returns a line of the table: a title, a unit, the rate of the directory, and those of others with their ratios. With
/// three others it has 100 columns.
fn line([title, unit, directory]: [&str; 3], others: &[(String, String)]) -> String {
    let others = others.iter();
    let others = others.map(|(rate, ratio)| format!(" {rate:>8} {ratio:>5}"));
    format!("{title:<37} {unit:<8} {directory:>8}") + &others.collect::<String>()
}

/// Returns the head of the table.
fn head(has_plain: bool) -> String {
    let names = ["below", "FUSE", "plain"].map(|name| (name.to_owned(), "ratio".to_owned()));
    let others = if has_plain { &names[..] } else { &names[..2] };
    line(["job", "unit", "DIR"], others)
}

/// A table, with what its columns are above it.
impl fmt::Display for FsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Columns {
            directory,
            below,
            fuse,
            plain,
        } = &self.columns;
        writeln!(f, "DIR    {directory}")?;
        if let Some(below) = below {
            writeln!(f, "below  {below}")?;
        }
        if let Some(fuse) = fuse {
            writeln!(
                f,
                "FUSE   {fuse}; empty, in memory, for this run, with writeback by the kernel"
            )?;
        }
        if let Some(plain) = plain {
            writeln!(
                f,
                "plain  {plain}; in memory too, with plain files beside the members: no checksums, no coding"
            )?;
        }
        for LeftOut { column, reason } in &self.left_out {
            writeln!(f, "The column {column} is left out: {reason}")?;
        }
        let has_plain = plain.is_some();
        writeln!(f, "\n{}", head(has_plain))?;
        for row in &self.rows {
            writeln!(f, "{}", row.line(has_plain))?;
        }
        writeln!(
            f,
            "\nA ratio is DIR / the column before it. On a volume, DIR uses all members, and below is the disk of \
             one.\nSequential reads come after POSIX_FADV_DONTNEED, which empties the kernel's cache of the file. The \
             daemon of a\nvolume has a cache of its own, so reads of DIR may come from memory: a --size above its \
             --cache-size avoids that."
        )?;
        self.wake.map_or(Ok(()), |wake| write!(f, "\n{wake}"))
    }
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "An idle CPU runs a thread {:.1} µs after its wake. A request to FUSE has up to two wakes.",
            self.median_us
        )?;
        if self.guest_poll_ns == Some(0) {
            write!(
                f,
                "\nThis virtual machine halts idle CPUs at once. It could wait for work a moment, at the cost of CPU time \
                 of the host:\n  echo 200000 > {POLL_PARAMETER}"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for ColumnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.path, self.filesystem)?;
        match self.transport {
            Some("uring") => f.write_str(", requests over io_uring")?,
            Some(_) => f.write_str(", requests over /dev/fuse")?,
            None => {}
        }
        if let Some(member) = self.member {
            write!(f, ", holds member {member}")?;
        }
        f.write_str(if self.direct {
            "), random reads with O_DIRECT"
        } else {
            "), random reads through the page cache, since it refuses O_DIRECT"
        })
    }
}

/// Shows a rate or a ratio with about three digits.
fn shown(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(rate) if rate >= 100.0 => format!("{rate:.0}"),
        Some(rate) if rate >= 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(path: &str, transport: Option<&'static str>) -> ColumnReport {
        ColumnReport {
            path: path.to_owned(),
            filesystem: "ext4".to_owned(),
            transport,
            member: None,
            direct: true,
        }
    }

    fn report() -> FsReport {
        let rates = Columns {
            directory: 250.0,
            below: Some(1000.0),
            fuse: None,
            plain: None,
        };
        FsReport {
            columns: Columns {
                directory: column("/mnt", Some("uring")),
                below: Some(column("/srv", None)),
                fuse: None,
                plain: None,
            },
            left_out: vec![LeftOut {
                column: "fuse",
                reason: "there is no /dev/fuse".to_owned(),
            }],
            size_bytes: 1 << 20,
            seconds: 0.5,
            rows: vec![JobRow::new(Job::SyncedWrite(16), rates)],
            wake: None,
        }
    }

    #[test]
    fn a_virtual_machine_that_halts_idle_cpus_at_once_gets_advice() {
        let shown = |guest_poll_ns| {
            let wake = Some(Wake {
                median_us: 43.21,
                guest_poll_ns,
            });
            FsReport { wake, ..report() }.to_string()
        };
        let advice = "  echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns";
        assert!(shown(Some(0)).ends_with(advice), "{}", shown(Some(0)));
        for none in [None, Some(200_000)] {
            let table = shown(none);
            let wake = table.lines().last().unwrap();
            assert!(wake.starts_with("An idle CPU runs a thread 43.2 µs after its wake."));
        }
    }

    #[test]
    fn the_table_has_rates_and_ratios_and_says_what_is_left_out() {
        let table = report().to_string();
        let row = table.lines().find(|line| line.starts_with("4 KiB write"));
        let words: Vec<&str> = row.unwrap().split_whitespace().collect();
        assert_eq!(
            words[5..],
            ["16", "jobs", "writes/s", "250", "1000", "0.25", "–", "–"]
        );
        for line in [
            "DIR    /mnt (ext4, requests over io_uring), random reads with O_DIRECT",
            "below  /srv (ext4), random reads with O_DIRECT",
            "The column fuse is left out: there is no /dev/fuse",
        ] {
            assert!(table.lines().any(|seen| seen == line), "{line}\n{table}");
        }
        assert_eq!(widths(&table, 4), [85; 2], "{table}");
    }

    /// Returns the columns of the first line of the table, and of the next.
    fn widths(table: &str, head: usize) -> Vec<usize> {
        let lines = table.lines().skip(head).take(2);
        lines.map(|line| line.chars().count()).collect()
    }

    #[test]
    fn a_table_with_plain_files_has_one_column_and_one_line_more_and_100_columns() {
        let mut report = report();
        report.left_out.clear();
        report.columns.fuse = Some(column("/fuse", Some("classic")));
        report.columns.plain = Some(column("/plain", Some("classic")));
        let rates = Columns {
            directory: 250.0,
            below: Some(1000.0),
            fuse: Some(20.0),
            plain: Some(500.0),
        };
        report.rows = vec![JobRow::new(Job::SyncedWrite(16), rates)];
        let table = report.to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[3],
            "plain  /plain (ext4, requests over /dev/fuse), random reads with O_DIRECT; in memory too, with plain \
             files beside the members: no checksums, no coding"
        );
        let words = |line: &str| -> Vec<String> {
            let words = line.split_whitespace();
            words.rev().take(7).map(str::to_owned).collect()
        };
        let of_head = ["ratio", "plain", "ratio", "FUSE", "ratio", "below", "DIR"];
        assert_eq!(words(lines[5]), of_head);
        let of_row = ["0.50", "500", "12.5", "20.0", "0.25", "1000", "250"];
        assert_eq!(words(lines[6]), of_row);
        assert_eq!(widths(&table, 5), [100; 2], "{table}");
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["rows"][0]["plain"], 500.0);
        assert_eq!(json["rows"][0]["of_plain"], 0.5);
        assert_eq!(json["columns"]["plain"]["path"], "/plain");
    }

    #[test]
    fn every_title_fits_into_the_table_with_any_number_of_jobs() {
        for job in Job::all(256) {
            assert!(job.title().len() <= 37, "{}", job.title());
        }
    }

    #[test]
    fn json_has_a_rate_or_null_for_each_column() {
        let json = serde_json::to_value(report()).unwrap();
        let row = &json["rows"][0];
        assert_eq!(row["job"], "write-fdatasync");
        assert_eq!(row["jobs"], 16);
        assert_eq!(row["directory"], 250.0);
        assert_eq!(row["of_below"], 0.25);
        assert!(row["fuse"].is_null() && row["of_fuse"].is_null());
        assert!(row["plain"].is_null() && row["of_plain"].is_null());
        assert!(row.get("title").is_none());
        assert_eq!(json["columns"]["directory"]["transport"], "uring");
        assert_eq!(json["left_out"][0]["column"], "fuse");
        assert!(json["wake"].is_null());
    }

    #[test]
    fn rates_are_shown_with_three_digits_or_all_before_the_point() {
        for (rate, expected) in [(123_456.7, "123457"), (12.34, "12.3"), (0.123, "0.12")] {
            assert_eq!(shown(Some(rate)), expected);
        }
    }
}
