//! Sentences about files that are lost.

use crate::cli::size::format_count;
use crate::control::report::LostFiles;

/// Lost files that are named to people; machines get all that were listed.
const MOST_NAMED: usize = 20;

impl LostFiles {
    /// Names the files, in part or as a whole lost; of many, the first.
    pub(in crate::cli) fn lines(&self) -> Vec<String> {
        let Some(paths) = &self.paths else {
            return Vec::new();
        };
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
        if !self.are_all {
            lines.push("these are not all: too much is lost to list every file".to_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_files_the_first_are_named_and_the_others_counted() {
        let lost = |count: usize| LostFiles {
            paths: Some((0..count).map(|number| format!("f{number}")).collect()),
            are_all: true,
        };
        assert!(lost(0).is_empty());
        assert_eq!(lost(0).lines(), [""; 0]);
        assert_eq!(lost(20).lines().len(), 20);
        let lines = lost(22).lines();
        assert_eq!(lines[19], "cannot be read in full: f19");
        assert!(lines[20].starts_with("2 more files cannot"), "{lines:?}");
        assert_eq!(lines.len(), 21);
    }

    #[test]
    fn a_shortened_list_says_so() {
        let lost = LostFiles {
            are_all: false,
            ..LostFiles::default()
        };
        assert!(!lost.is_empty());
        assert!(lost.lines()[0].starts_with("these are not all"));
    }
}
