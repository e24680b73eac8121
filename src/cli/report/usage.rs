//! The text of `usage` for people.

use std::path::Path;

use crate::cli::failure::Outcome;
use crate::cli::size::{format_count, format_size};
use crate::cli::terminal::join_lines;
use crate::control::report::{
    FilesUsageReport, MemberShardsReport, MemberUsageReport, StripesReport, UsesReport,
    VolumeUsageReport,
};

/// The heads of the columns, in the order of [`UsesReport::columns`].
const HEADS: [&str; 8] = [
    "data",
    "parity",
    "dead",
    "preallocated",
    "journal",
    "index",
    "held back",
    "other",
];

/// The reasons for the space that also an empty volume takes.
const NOTES: [&str; 3] = [
    "the journal is two files, made with the volume and never longer: no fsync waits for room",
    "what is held back, at most 64 MiB on a member with a copy of the index, lets a full volume be freed by deleting",
    "`cauchyfs usage --help` explains the columns",
];

impl VolumeUsageReport {
    /// Writes it for people: the sum first, then a row for each member.
    pub(in crate::cli) fn for_people(&self) -> String {
        let name = if self.label.is_empty() {
            &self.volume
        } else {
            &self.label
        };
        let all = self.sum();
        let used: u64 = all
            .columns()
            .iter()
            .fold(0, |sum, it| sum.saturating_add(*it));
        let mut lines = vec![
            format!(
                "{name}: files hold {}, and the members use {}",
                format_size(self.held_bytes),
                format_size(used)
            ),
            format!(
                "not yet written: {}, in memory until a stripe is full or five seconds have passed",
                format_size(self.unwritten_bytes)
            ),
            String::new(),
            row("member", "used", &HEADS.map(str::to_owned), "directory"),
        ];
        lines.extend(self.members.iter().map(member_row));
        lines.push(row("all", &format_size(used), &sizes(&all), ""));
        lines.push(String::new());
        lines.extend(NOTES.map(str::to_owned));
        join_lines(&lines)
    }

    /// Returns the sum over the members that were counted. The numbers may be a daemon's, and any.
    fn sum(&self) -> UsesReport {
        let counted = self.members.iter().filter_map(|member| member.uses);
        counted.fold(UsesReport::default(), |sum, uses| UsesReport {
            data: sum.data.saturating_add(uses.data),
            parity: sum.parity.saturating_add(uses.parity),
            dead: sum.dead.saturating_add(uses.dead),
            preallocated: sum.preallocated.saturating_add(uses.preallocated),
            journal: sum.journal.saturating_add(uses.journal),
            index: sum.index.saturating_add(uses.index),
            held_back: sum.held_back.saturating_add(uses.held_back),
            other: sum.other.saturating_add(uses.other),
        })
    }
}

fn sizes(uses: &UsesReport) -> [String; 8] {
    uses.columns().map(format_size)
}

fn member_row(member: &MemberUsageReport) -> String {
    let unknown = || "?".to_owned();
    let used = member.bytes_used.map_or_else(unknown, format_size);
    let columns = member.uses.as_ref().map(sizes);
    let columns = columns.unwrap_or_else(|| std::array::from_fn(|_| unknown()));
    let path = member.path.as_deref().unwrap_or("(unknown)");
    let reason = member.reason.as_ref().map(|reason| format!("  ({reason})"));
    let place = format!("{path}{}", reason.unwrap_or_default());
    row(&member.index.to_string(), &used, &columns, &place)
}

fn row(member: &str, used: &str, columns: &[String; 8], place: &str) -> String {
    let columns: Vec<String> = columns.iter().map(|it| format!("{it:<13}")).collect();
    let line = format!("{member:<7} {used:<12} {} {place}", columns.join(" "));
    line.trim_end().to_owned()
}

impl FilesUsageReport {
    /// Returns how a command that shows this report ends.
    pub(in crate::cli) fn outcome(&self) -> Outcome {
        if self.losses_tolerated < 0 {
            Outcome::Lost
        } else if self.stripes_below_full > 0 || self.index.is_short() {
            Outcome::Degraded
        } else {
            Outcome::Done
        }
    }

    /// Writes it for people; `path` is what was asked for.
    pub(in crate::cli) fn for_people(&self, path: &Path) -> String {
        let shown = path.display();
        let (size, allocated) = (format_size(self.size), format_size(self.allocated_bytes));
        let what = if self.is_directory {
            let below = self.directories.saturating_sub(1);
            let below = match below {
                1 => "1 directory".to_owned(),
                below => format!("{below} directories"),
            };
            let files = format_count(self.files, "file");
            format!("{shown}: {files} and {below} below it, {size} in {allocated} of blocks")
        } else {
            format!("{shown}: {size} in {allocated} of blocks")
        };
        let mut lines = vec![what, self.place(), self.survival()];
        let is_mixed = self.redundancy.len() > 1 || self.stripes_below_full > 0;
        if is_mixed {
            lines.extend(self.redundancy.iter().map(stripes_line));
            let below = format_count(self.stripes_below_full, "stripe");
            let all = self.stripes;
            lines.push(format!("{below} of {all} below full redundancy"));
        }
        if !self.members.is_empty() {
            lines.push(String::new());
            lines.push("member  shards    state    directory".to_owned());
            lines.extend(self.members.iter().map(shards_row));
        }
        join_lines(&lines)
    }

    /// Says where the bytes are.
    fn place(&self) -> String {
        let copies = format_count(self.index.members.len() as u64, "copy");
        let copies = copies.replace("copys", "copies");
        let unwritten = match self.unwritten_stripes {
            0 => String::new(),
            count => format!(
                "; {} not yet written, in memory and as far as synced in the journal",
                format_count(count, "stripe")
            ),
        };
        let without_record = match self.stripes_without_record {
            0 => String::new(),
            count => format!(
                "; {} in {} without a record, lost",
                format_size(self.bytes_without_record),
                format_count(count, "stripe")
            ),
        };
        if [
            self.stripes,
            self.unwritten_stripes,
            self.stripes_without_record,
        ] == [0; 3]
        {
            return match self.reserved_bytes {
                0 => format!("no stripes: all of it is in the index, of which there are {copies}"),
                reserved => format!(
                    "no stripes: room is reserved for {}, and any bytes are in the index, of which there are {copies}",
                    format_size(reserved)
                ),
            };
        }
        let reserved = match self.reserved_bytes {
            0 => String::new(),
            reserved => format!("; room is reserved for {} more", format_size(reserved)),
        };
        let stripes = format_count(self.stripes, "stripe");
        let extents = format_count(self.extents, "extent");
        format!("{extents} in {stripes} on the members{unwritten}{without_record}{reserved}")
    }

    fn survival(&self) -> String {
        match self.losses_tolerated {
            ..0 => "some bytes cannot be read now".to_owned(),
            0 => "would not survive another loss".to_owned(),
            1 => "survives the loss of 1 more member".to_owned(),
            losses => format!("survives the loss of {losses} more members"),
        }
    }
}

fn stripes_line(row: &StripesReport) -> String {
    let stripes = format_count(row.stripes, "stripe");
    match row.losses_tolerated {
        ..0 => format!("  {stripes} cannot be read in full"),
        losses => format!("  {stripes} with {losses} to lose"),
    }
}

fn shards_row(member: &MemberShardsReport) -> String {
    let state = if member.is_online { "online" } else { "away" };
    format!(
        "{:<7} {:<9} {state:<8} {}",
        member.index,
        member.shards,
        member.path.as_deref().unwrap_or("(unknown)")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::IndexReport;

    fn uses(data: u64) -> UsesReport {
        UsesReport {
            data,
            parity: 2 << 20,
            journal: 64 << 20,
            ..UsesReport::default()
        }
    }

    fn member(index: u16, uses: Option<UsesReport>) -> MemberUsageReport {
        MemberUsageReport {
            index,
            path: Some(format!("/srv/d{index}")),
            bytes_used: uses.map(|uses| uses.columns().iter().sum()),
            uses,
            reason: uses
                .is_none()
                .then(|| "the directory does not exist".to_owned()),
        }
    }

    #[test]
    fn each_member_has_a_row_with_a_reason_where_it_was_not_counted_and_all_have_a_sum() {
        let report = VolumeUsageReport {
            volume: "v".to_owned(),
            label: "photos".to_owned(),
            held_bytes: 5 << 20,
            unwritten_bytes: 4096,
            members: vec![
                member(0, Some(uses(1 << 20))),
                member(1, None),
                member(2, Some(uses(4 << 20))),
            ],
        };
        let text = report.for_people();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "photos: files hold 5.0 MiB, and the members use 137.0 MiB"
        );
        assert!(lines[1].starts_with("not yet written: 4.0 KiB"), "{text}");
        assert!(lines[5].starts_with("1       ?  "), "{text}");
        assert!(lines[5].ends_with("/srv/d1  (the directory does not exist)"));
        let sum: Vec<&str> = lines[7].split_whitespace().collect();
        assert_eq!(sum[..5], ["all", "137.0", "MiB", "5.0", "MiB"], "{text}");
    }

    fn file(rows: &[(i64, u64)], below: u64, losses_tolerated: i64) -> FilesUsageReport {
        FilesUsageReport {
            is_directory: false,
            files: 1,
            directories: 0,
            size: 5 << 20,
            allocated_bytes: 5 << 20,
            extents: 3,
            reserved_bytes: 0,
            stripes: rows.iter().map(|(_, stripes)| stripes).sum(),
            unwritten_stripes: 0,
            stripes_without_record: 0,
            bytes_without_record: 0,
            stripes_below_full: below,
            losses_tolerated,
            redundancy: rows
                .iter()
                .map(|&(losses_tolerated, stripes)| StripesReport {
                    losses_tolerated,
                    stripes,
                })
                .collect(),
            index: IndexReport {
                copies_wanted: 3,
                members: vec![0, 1, 2],
            },
            members: Vec::new(),
        }
    }

    #[test]
    fn a_file_is_shown_with_the_losses_that_it_survives_and_the_stripes_below_full_redundancy() {
        let whole = file(&[(2, 7)], 0, 2);
        let text = whole.for_people(Path::new("/mnt/f"));
        assert!(text.starts_with("/mnt/f: 5.0 MiB in 5.0 MiB of blocks\n"));
        assert!(text.contains("3 extents in 7 stripes"), "{text}");
        assert!(text.contains("survives the loss of 2 more members"));
        assert!(!text.contains("below"), "{text}");
        assert_eq!(whole.outcome(), Outcome::Done);
        let degraded = file(&[(1, 2), (2, 5)], 2, 1);
        let text = degraded.for_people(Path::new("/mnt/f"));
        assert!(
            text.contains("2 stripes of 7 below full redundancy"),
            "{text}"
        );
        assert_eq!(degraded.outcome(), Outcome::Degraded);
        let lost = file(&[(-1, 1)], 1, -1);
        let text = lost.for_people(Path::new("/mnt/f"));
        assert!(text.contains("some bytes cannot be read now"), "{text}");
        assert_eq!(lost.outcome(), Outcome::Lost);
        let gone = FilesUsageReport {
            stripes_without_record: 2,
            bytes_without_record: 3 << 20,
            ..file(&[], 0, -1)
        };
        let text = gone.for_people(Path::new("/mnt/f"));
        let place =
            "3 extents in 0 stripes on the members; 3.0 MiB in 2 stripes without a record, lost";
        assert!(text.contains(place), "{text}");
        assert_eq!(gone.outcome(), Outcome::Lost);
    }

    #[test]
    fn a_small_file_is_said_to_be_in_the_index() {
        let text = file(&[], 0, 2).for_people(Path::new("/mnt/f"));
        let place = "no stripes: all of it is in the index, of which there are 3 copies";
        assert!(text.contains(place), "{text}");
    }

    #[test]
    fn room_that_is_reserved_is_not_said_to_be_in_the_index() {
        let shown = |rows: &[(i64, u64)]| {
            let report = FilesUsageReport {
                reserved_bytes: 1 << 20,
                ..file(rows, 0, 2)
            };
            report.for_people(Path::new("/mnt/f"))
        };
        let text = shown(&[]);
        assert!(text.contains("room is reserved for 1.0 MiB"), "{text}");
        let text = shown(&[(2, 7)]);
        assert!(text.contains("room is reserved for 1.0 MiB more"), "{text}");
    }
}
