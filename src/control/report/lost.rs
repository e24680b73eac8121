//! Files that are lost.

use serde::{Deserialize, Serialize};

/// The files of which bytes are lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostFiles {
    #[serde(rename = "unrecoverable_files")]
    /// None if they cannot be listed.
    pub(crate) paths: Option<Vec<String>>,
    /// True if these are all; a daemon of an older version does not say.
    #[serde(rename = "unrecoverable_files_complete", default)]
    pub(crate) are_all: bool,
}

impl Default for LostFiles {
    fn default() -> Self {
        Self {
            paths: Some(Vec::new()),
            are_all: true,
        }
    }
}

impl LostFiles {
    /// Files that cannot be listed.
    pub(crate) fn uncounted() -> Self {
        Self {
            paths: None,
            are_all: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.paths.as_ref().is_some_and(Vec::is_empty) && self.are_all
    }

    /// Leaves so many files out that the names of the others take no more than so many bytes as JSON.
    pub(crate) fn shorten(&mut self, most_bytes: usize) {
        let Some(paths) = &mut self.paths else {
            return;
        };
        let mut left = most_bytes;
        let fits = |path: &String| {
            let len = serde_json::to_string(path).map_or(usize::MAX, |text| text.len());
            let fits = len < left;
            left = left.saturating_sub(len + 1);
            fits
        };
        let kept = paths.iter().map(fits).take_while(|fits| *fits).count();
        self.are_all &= kept == paths.len();
        paths.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_a_byte_limit_are_left_out_with_a_message() {
        let mut lost = LostFiles {
            paths: Some(["a", "\u{1}", "ccc", "d"].map(str::to_owned).to_vec()),
            are_all: true,
        };
        // As JSON with a comma, they take 4, 9, 6 and 4 bytes.
        let paths = |lost: &LostFiles| lost.paths.clone().unwrap();
        lost.shorten(23);
        assert_eq!(paths(&lost).len(), 4);
        assert!(lost.are_all);
        lost.shorten(19);
        assert_eq!(paths(&lost), ["a", "\u{1}", "ccc"]);
        assert!(!lost.are_all);
        lost.shorten(3);
        assert!(paths(&lost).is_empty() && !lost.is_empty());
    }
}
