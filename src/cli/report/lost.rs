//! Files that are lost, as people are told of them.

use crate::cli::size::format_count;

/// Lost files that are named to people; machines get all of them.
const MOST_NAMED: usize = 20;

/// Names files that are lost, in part or as a whole; of many, the first.
pub(in crate::cli) fn unrecoverable_lines(paths: &[String]) -> Vec<String> {
    let named = paths.iter().take(MOST_NAMED);
    let mut lines: Vec<String> = named
        .map(|path| format!("cannot be read in full: {path}"))
        .collect();
    let more = paths.len().saturating_sub(MOST_NAMED);
    if more > 0 {
        let files = format_count(more as u64, "more file");
        lines.push(format!(
            "{files} cannot be read in full; `cauchyfs status --json` lists them"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_files_the_first_are_named_and_the_others_counted() {
        let paths = |count: usize| -> Vec<String> {
            (0..count).map(|number| format!("f{number}")).collect()
        };
        assert_eq!(unrecoverable_lines(&[]), [""; 0]);
        assert_eq!(unrecoverable_lines(&paths(20)).len(), 20);
        let lines = unrecoverable_lines(&paths(22));
        assert_eq!(lines[19], "cannot be read in full: f19");
        assert!(lines[20].starts_with("2 more files cannot"), "{lines:?}");
        assert_eq!(lines.len(), 21);
    }
}
