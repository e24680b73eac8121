//! Paths inside the volume, as they are typed and as they are shown.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Returns a path as the volume spells it: from its root, without dots.
fn normalized(path: &Path) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => parts.push(name.as_bytes()),
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    parts.join(&b'/')
}

/// Returns paths as the volume spells them, without those that lie below another of them.
pub(super) fn outermost(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let all: BTreeSet<Vec<u8>> = paths.iter().map(|path| normalized(path)).collect();
    let lies_below_another = |path: &[u8]| {
        let above = (0..path.len()).filter(|&end| path[end] == b'/');
        let parent = |end| all.contains(&path[..end]);
        !path.is_empty() && (all.contains(&b""[..]) || above.into_iter().any(parent))
    };
    all.iter()
        .filter(|path| !lies_below_another(path))
        .cloned()
        .collect()
}

/// Returns a path as a terminal may show it: control characters and what is no UTF-8 are escaped.
pub(super) fn shown(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _infallible = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_spelled_from_the_root_of_the_volume() {
        for (typed, inside) in [
            ("/", ""),
            ("a/b", "a/b"),
            ("/a/./b/", "a/b"),
            ("a/../b", "b"),
            ("../../x", "x"),
        ] {
            assert_eq!(normalized(Path::new(typed)), inside.as_bytes(), "{typed}");
        }
    }

    #[test]
    fn paths_below_a_wanted_path_are_included() {
        let outermost_of = |typed: &[&str]| {
            let paths: Vec<PathBuf> = typed.iter().map(PathBuf::from).collect();
            let found = outermost(&paths).into_iter();
            found
                .map(|path| String::from_utf8(path).expect("it was typed as UTF-8"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            outermost_of(&["b", "a/b", "a", "/a/./c", "ab", "b"]),
            ["a", "ab", "b"]
        );
        assert_eq!(outermost_of(&["a/b", "/", "c"]), [""]);
        assert_eq!(outermost_of(&["a/b/c", "a/b-c"]), ["a/b-c", "a/b/c"]);
    }

    #[test]
    fn a_path_is_shown_without_control_characters() {
        for (path, text) in [
            (&b"a b/\xc3\xa4'\""[..], "a b/ä'\""),
            (b"\x1b[2Ja\n", "\\u{1b}[2Ja\\n"),
            (b"\xc2\x9b\x7f", "\\u{9b}\\u{7f}"),
            (b"\xff/\\", "\\xff/\\"),
        ] {
            assert_eq!(shown(path), text);
        }
    }
}
