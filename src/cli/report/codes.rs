//! The codes of a volume, for people.

use crate::cli::size::format_size;
use crate::cli::terminal::join_lines;
use crate::control::report::{
    CodeReport, GeometryReport, MemberState, RewritingObstacle, StatusReport,
};

/// Returns the code of new data, and how much data has which.
pub(in crate::cli) fn codes_lines(report: &StatusReport) -> String {
    let of_new_data = code_and_unit(&report.geometry);
    let mut lines = vec![format!("new data: {of_new_data}")];
    lines.extend(report.codes.iter().map(line));
    lines.extend(rewriting(report));
    join_lines(&lines)
}

/// Returns whether some data has another stripe unit than new data, or another code that is not that of a directory.
pub(in crate::cli) fn is_code_changing(report: &StatusReport) -> bool {
    let mut codes = report.codes.iter();
    codes.any(|code| {
        let has_other_code = code_name(&code.geometry) != code_name(&report.geometry);
        has_other_unit(code, report) || !code.of_directories && has_other_code
    })
}

/// Returns whether data is known to have another stripe unit than new data.
fn has_other_unit(code: &CodeReport, report: &StatusReport) -> bool {
    let unit = code.geometry.stripe_unit_bytes;
    unit.is_some() && unit != report.geometry.stripe_unit_bytes
}

/// Returns how much data has each code, in one line, with the members that the change waits for; nothing if all of it has
/// that of new data. That of directories counts only if it gets another stripe unit.
pub(in crate::cli) fn other_codes(report: &StatusReport) -> Option<String> {
    is_code_changing(report).then(|| {
        let is_told = |code: &&CodeReport| !code.of_directories || has_other_unit(code, report);
        let codes = report.codes.iter().filter(is_told);
        let lines: Vec<String> = codes.map(line).collect();
        let away: Vec<String> = report
            .absentees()
            .map(|member| format!("member {}", member.index))
            .collect();
        let waits = match away.as_slice() {
            [] => String::new(),
            [one] => format!("; it waits for {one}, which is away"),
            several => format!("; it waits for {}, which are away", several.join(", ")),
        };
        let new = if report.codes.iter().any(|code| has_other_unit(code, report)) {
            code_with_unit(&report.geometry)
        } else {
            code_name(&report.geometry)
        };
        format!(
            "the code is being changed to {new}; {}{waits}",
            lines.join(", ")
        )
    })
}

/// Returns lines about files whose data does not have their code yet, if there are any.
pub(in crate::cli) fn rewriting(report: &StatusReport) -> Vec<String> {
    let mut lines = Vec::new();
    if report.awaits_rewrite {
        let waits = match report.rewriting.waits_for {
            Some(RewritingObstacle::Members) => obstacle(report),
            Some(RewritingObstacle::Room) => ", once there is more room".to_owned(),
            None => String::new(),
        };
        lines.push(format!(
            "files whose data has another code than theirs are yet to be rewritten{waits}"
        ));
    }
    let left = report.rewriting.stripes_left;
    if left > 0 {
        let (stripes, they) = if left == 1 {
            ("stripe was", "it")
        } else {
            ("stripes were", "they")
        };
        lines.push(format!(
            "{left} {stripes} not rewritten with the code of the files, because {they} cannot be read"
        ));
    }
    lines
}

/// Names the members that the rewriting waits for, and what ends that. An absent member cannot be removed as long as a directory
/// has the code that lacks members.
fn obstacle(report: &StatusReport) -> String {
    let is_drained = |index: u16| {
        let mut members = report.members.iter();
        members.any(|member| member.index == index && member.state == MemberState::Removing)
    };
    let named = |drained: bool| {
        let awaited = report.rewriting.awaited.iter();
        let named = awaited.filter(|index| is_drained(**index) == drained);
        let named: Vec<String> = named.map(|index| format!("member {index}")).collect();
        named.join(", ")
    };
    let (away, drained) = (named(false), named(true));
    if !report.rewriting.lacks_members && !away.is_empty() {
        return format!(
            ", once {away} is back or given up: `cauchyfs rebuild` does that at once, and `--rebuild-after` after a time"
        );
    }
    let away = (!away.is_empty()).then(|| {
        format!(
            "; it waits for {away}, until that is back or replaced (`cauchyfs member replace`), or others are added \
             (`cauchyfs member add`)"
        )
    });
    let drained = (!drained.is_empty()).then(|| {
        format!(
            "; it waits for {drained}, which is drained, until that has left or is kept (`cauchyfs member add`)"
        )
    });
    let enough = ", once enough directories are there".to_owned();
    [Some(enough), away, drained]
        .into_iter()
        .flatten()
        .collect()
}

fn line(code: &CodeReport) -> String {
    let whose = if code.of_directories {
        ", a code of directories"
    } else {
        ""
    };
    format!(
        "{} in {}{whose}",
        format_size(code.bytes),
        code_with_unit(&code.geometry)
    )
}

/// Returns the name of a code with its numbers of shards, as a part of a list. A stripe unit that is known follows.
fn code_with_unit(geometry: &GeometryReport) -> String {
    let unit = geometry.stripe_unit_bytes.map(|bytes| {
        let size = format_size(bytes.into());
        format!(" with a stripe unit of {size}")
    });
    code_name(geometry) + &unit.unwrap_or_default()
}

/// Returns the name of a code with its numbers of shards, and with the stripe unit of new stripes if that is known.
pub(in crate::cli) fn code_and_unit(geometry: &GeometryReport) -> String {
    let unit = geometry.stripe_unit_bytes.map(|bytes| {
        let size = format_size(bytes.into());
        format!(", stripe unit {size}")
    });
    code_name(geometry) + &unit.unwrap_or_default()
}

/// Returns the name of a code with its numbers of shards.
fn code_name(geometry: &GeometryReport) -> String {
    let GeometryReport {
        data, parity, code, ..
    } = geometry;
    format!("{data}+{parity} {code}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::report_without;

    #[test]
    fn a_status_tells_of_codes_only_while_data_has_another_than_new_data() {
        let mut report = report_without(&[], &[(2, 9)], &[0, 1, 2]);
        let code = |parity, bytes| CodeReport {
            geometry: GeometryReport {
                data: 4,
                parity,
                code: "rs-cauchy".to_owned(),
                stripe_unit_bytes: None,
                survives: None,
            },
            bytes,
            of_directories: false,
        };
        report.codes = vec![code(2, 3 << 20)];
        assert_eq!(other_codes(&report), None);
        assert!(rewriting(&report).is_empty());
        report.awaits_rewrite = true;
        assert!(codes_lines(&report).ends_with("are yet to be rewritten"));
        report.rewriting.waits_for = Some(RewritingObstacle::Members);
        report.rewriting.stripes_left = 1;
        let lines = rewriting(&report);
        assert!(
            lines[0].ends_with("rewritten, once enough directories are there"),
            "{lines:?}"
        );
        report.rewriting.awaited = vec![9, 1];
        report.rewriting.lacks_members = true;
        report.members[1].state = MemberState::Removing;
        let waits = &rewriting(&report)[0];
        assert!(
            waits.contains("there; it waits for member 9, until that is back or replaced")
                && waits.contains("; it waits for member 1, which is drained, until")
                && !waits.contains("member remove"),
            "{waits}"
        );
        report.rewriting.awaited = vec![9];
        report.rewriting.lacks_members = false;
        let waits = &rewriting(&report)[0];
        assert!(
            waits.contains("rewritten, once member 9 is back or given up: `cauchyfs rebuild`"),
            "{waits}"
        );
        assert!(
            lines[1].starts_with("1 stripe was not rewritten"),
            "{lines:?}"
        );
        assert!(report.for_people(None).contains(&lines[1]), "{lines:?}");
        report.rewriting.waits_for = Some(RewritingObstacle::Room);
        assert!(rewriting(&report)[0].ends_with(", once there is more room"));
        report.codes.insert(0, code(1, 2048));
        let said = "the code is being changed to 4+2 rs-cauchy; \
                    2.0 KiB in 4+1 rs-cauchy, 3.0 MiB in 4+2 rs-cauchy";
        assert_eq!(other_codes(&report).as_deref(), Some(said));
        assert!(report.for_people(None).contains(said));
        // Stripes of directories have the unit of the volume.
        let mut units = report.clone();
        units.codes.remove(0);
        units.codes[0].of_directories = true;
        assert_eq!(other_codes(&units), None);
        units.codes[0].geometry.stripe_unit_bytes = Some(64 << 10);
        let said_of_unit = "the code is being changed to 4+2 rs-cauchy with a stripe unit of 1.0 MiB; \
                            3.0 MiB in 4+2 rs-cauchy with a stripe unit of 64.0 KiB, a code of directories";
        assert_eq!(other_codes(&units).as_deref(), Some(said_of_unit));
        units.codes[0].of_directories = false;
        assert!(is_code_changing(&units));
        units.codes[0].geometry.stripe_unit_bytes = Some(1 << 20);
        assert_eq!(other_codes(&units), None, "it is the unit in force");
        report.members[3].state = MemberState::Missing;
        let waiting = format!("{said}; it waits for member 3, which is away");
        assert_eq!(other_codes(&report), Some(waiting));
        let lines = codes_lines(&report);
        assert!(
            lines.starts_with("new data: 4+2 rs-cauchy, stripe unit 1.0 MiB\n2.0 KiB in 4+1"),
            "{lines}"
        );
    }
}
