//! Files that are lost.

use serde::{Deserialize, Serialize};

use crate::cli::size::format_count;

/// Lost files that are named to people; machines get all that were listed.
const MOST_NAMED: usize = 20;

/// The files of which bytes are lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct LostFiles {
    #[serde(rename = "unrecoverable_files")]
    pub(in crate::cli) paths: Vec<String>,
    /// True if these are all; a daemon of an older version does not say.
    #[serde(rename = "unrecoverable_files_complete", default)]
    pub(in crate::cli) are_all: bool,
}

impl Default for LostFiles {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            are_all: true,
        }
    }
}

impl LostFiles {
    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.are_all
    }

    /// Leaves so many files out that the names of the others take no more than so many bytes as JSON.
    pub(in crate::cli) fn shorten(&mut self, most_bytes: usize) {
        let mut left = most_bytes;
        let fits = |path: &String| {
            let len = serde_json::to_string(path).map_or(usize::MAX, |text| text.len());
            let fits = len < left;
            left = left.saturating_sub(len + 1);
            fits
        };
        let kept = self.paths.iter().map(fits).take_while(|fits| *fits).count();
        self.are_all &= kept == self.paths.len();
        self.paths.truncate(kept);
    }

    /// Names the files, in part or as a whole lost; of many, the first.
    pub(in crate::cli) fn lines(&self) -> Vec<String> {
        let named = self.paths.iter().take(MOST_NAMED);
        let mut lines: Vec<String> = named
            .map(|path| format!("cannot be read in full: {path}"))
            .collect();
        let more = self.paths.len().saturating_sub(MOST_NAMED);
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
            paths: (0..count).map(|number| format!("f{number}")).collect(),
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
    fn names_beyond_a_byte_limit_are_left_out_with_a_message() {
        let mut lost = LostFiles {
            paths: ["a", "\u{1}", "ccc", "d"].map(str::to_owned).to_vec(),
            are_all: true,
        };
        // As JSON with a comma, they take 4, 9, 6 and 4 bytes.
        lost.shorten(23);
        assert_eq!(lost.paths.len(), 4);
        assert!(lost.are_all);
        lost.shorten(19);
        assert_eq!(lost.paths, ["a", "\u{1}", "ccc"]);
        assert!(!lost.are_all);
        lost.shorten(3);
        assert!(lost.paths.is_empty() && !lost.is_empty());
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
