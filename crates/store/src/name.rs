//! Names of files inside a backing directory.

use std::io;

use super::{StoreError, StoreErrorKind};

/// A checked name: a file at the top of the directory, or in one subdirectory of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// The subdirectory, `""` for the top.
    pub(super) dir: &'a str,
    /// The file within it.
    pub(super) base: &'a str,
}

impl<'a> Name<'a> {
    /// Splits `name`, or returns `None` if it could lead anywhere but to such a file.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let (dir, base) = name.split_once('/').unwrap_or(("", name));
        let taken = is_component(base) && (dir.is_empty() != name.contains('/')) && is_dir(dir);
        taken.then_some(Self { dir, base })
    }

    /// [`Name::parse`] with an error that names the store and the action.
    pub(super) fn check(
        name: &'a str,
        label: &str,
        action: &'static str,
    ) -> Result<Self, StoreError> {
        Self::parse(name).ok_or_else(|| invalid(name, label, action))
    }
}

/// Returns whether `dir` is `""` or the name of a subdirectory.
pub(super) fn is_dir(dir: &str) -> bool {
    dir.is_empty() || is_component(dir)
}

/// The error for a name that no store takes.
pub(super) fn invalid(name: &str, label: &str, action: &'static str) -> StoreError {
    let source = io::Error::new(
        io::ErrorKind::InvalidInput,
        "not a name of a file in a store",
    );
    StoreError::new(StoreErrorKind::InvalidName, label, action, name, source)
}

fn is_component(part: &str) -> bool {
    let plain = part
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'/');
    plain && !matches!(part, "" | "." | "..") && part.len() <= 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_at_their_only_slash() {
        assert_eq!(
            Name::parse("log.0"),
            Some(Name {
                dir: "",
                base: "log.0"
            })
        );
        assert_eq!(
            Name::parse("chunks/0a"),
            Some(Name {
                dir: "chunks",
                base: "0a"
            })
        );
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [
            "", "/", "/a", "a/", "a//b", "a/b/c", ".", "..", "../a", "a/..", "é", "a b", "a\0",
        ] {
            assert_eq!(Name::parse(name), None, "{name:?}");
        }
    }
}
