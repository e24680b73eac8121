//! The house rules that a compiler does not check.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/graph.rs"]
mod graph;

use graph::{Graph, ModulePath};

/// Modules from the top down. A module uses those of lower tiers, and not those beside it.
const TIERS: [&[&str]; 10] = [
    &["cli"],
    &["control"],
    &["fuse"],
    &["fs", "bench", "events"],
    &["maintenance"],
    &["transaction"],
    &["stripes"],
    &["metadata"],
    &["membership", "workers", "coding"],
    &["rate_limit"],
];

/// Crates of their own, under the names by which the library exports them. Every module may use them, and the compiler
/// keeps them from using a module.
const CRATES: [&str; 4] = ["codec", "cuda", "format", "store"];

/// Rooms with cycles among their modules, which other rooms may not have.
const CYCLIC: [&str; 1] = ["cli"];

/// The longest source file, in lines.
const MAX_LINES: usize = 700;

/// The longest README, in lines.
const MAX_README_LINES: usize = 200;

/// The longest description of the architecture, in lines.
const MAX_ARCHITECTURE_LINES: usize = 300;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut directories = vec![root().join(directory)];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for path in entries.map(|entry| entry.expect("the entry can be read").path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                found.push((path, text));
            }
        }
    }
    found
}

fn tier(module: &str) -> Option<usize> {
    TIERS.iter().position(|tier| tier.contains(&module))
}

/// Returns the top-level module that a source file belongs to; none for `lib.rs` and `main.rs`.
fn module_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix(root().join("src")).ok()?;
    let first = Path::new(inside.components().next()?.as_os_str()).with_extension("");
    Some(first.to_str()?.to_owned()).filter(|name| name != "lib" && name != "main")
}

/// Returns the modules that `text` names as `crate::module`, outside comments.
fn used_modules(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut used = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut name = String::new();
            for character in group.chars() {
                match character {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => used.push(std::mem::take(&mut name)),
                    character if depth == 0 && !character.is_whitespace() => name.push(character),
                    _ => {}
                }
            }
            used.push(name);
        } else {
            let word = |c: &char| c.is_alphanumeric() || *c == '_';
            used.push(rest.chars().take_while(word).collect());
        }
    }
    for name in &mut used {
        if let Some(end) = name.find("::") {
            name.truncate(end);
        }
    }
    used.retain(|name| !name.is_empty());
    used
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let Some(module) = module_of(&path) else {
            continue;
        };
        let Some(own) = tier(&module) else {
            wrong.push(format!("{}: `{module}` is in no tier", path.display()));
            continue;
        };
        for used in used_modules(&text)
            .into_iter()
            .filter(|used| *used != module && !CRATES.contains(&used.as_str()))
        {
            match tier(&used) {
                Some(other) if other > own => {}
                Some(_) => wrong.push(format!("{}: `{module}` uses `{used}`", path.display())),
                None => wrong.push(format!("{}: `{used}` is in no tier", path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_layer_test_sees_single_grouped_and_nested_uses() {
    let text =
        "use crate::a::B;\nuse crate::{c, d::{E, F}, g::H};\n// crate::not\nlet x = crate::i::j();";
    assert_eq!(used_modules(text), ["a", "c", "d", "g", "i"]);
}

/// Returns the module that a source file below `directory` is; `None` for the program that only calls the library.
fn module_path(directory: &str, path: &Path) -> Option<ModulePath> {
    let inside = path.strip_prefix(root().join(directory)).ok()?;
    let inside = inside.with_extension("");
    let parts = inside
        .iter()
        .map(|part| part.to_string_lossy().into_owned());
    let mut parts: ModulePath = parts.collect();
    match parts[..] {
        [ref root] if root == "main" => return None,
        [ref root] if root == "lib" => parts.clear(),
        _ => {}
    }
    Some(parts)
}

fn graph_of(directory: &str) -> Graph {
    let texts = sources(directory).into_iter();
    Graph::new(texts.filter_map(|(path, text)| Some((module_path(directory, &path)?, text))))
}

/// `tests/tidy/graph.rs` says what counts.
#[test]
fn the_imports_of_a_room_and_of_a_crate_form_no_cycle() {
    let rooms = graph_of("src");
    let mut found = Vec::new();
    for room in TIERS
        .concat()
        .into_iter()
        .filter(|room| !CYCLIC.contains(room))
    {
        found.extend(rooms.cycles_in(&[room.to_owned()]));
    }
    for name in [
        "codec", "cuda", "format", "models", "sandbox", "store", "testkit",
    ] {
        found.extend(graph_of(&format!("crates/{name}/src")).cycles_in(&[]));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// They compute: what they are given is all that they depend on.
#[test]
fn the_codes_and_the_format_know_no_file_no_clock_and_no_thread() {
    let pure = sources("crates/codec/src")
        .into_iter()
        .chain(sources("crates/format/src"));
    let mut looked_at = 0;
    for (path, text) in pure {
        looked_at += 1;
        for (number, line) in text.lines().enumerate() {
            for part in ["fs", "io", "net", "process", "thread", "time", "env"] {
                let name = format!("std::{part}");
                assert!(
                    !line.contains(&name),
                    "{}:{}: {line}",
                    path.display(),
                    number + 1
                );
            }
        }
    }
    assert!(looked_at > 50, "{looked_at} files");
}

#[test]
fn files_are_short_enough_to_be_read() {
    // Tests of a crate's interface stand beside its sources; those of the whole program are not counted either.
    let is_counted = |path: &Path| {
        !path.to_string_lossy().contains("/tests/") || path.starts_with(root().join("src"))
    };
    for (path, text) in sources("src").into_iter().chain(sources("crates")) {
        if !is_counted(&path) {
            continue;
        }
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines", path.display());
    }
}

#[test]
fn nothing_is_marked_as_unfinished() {
    let markers = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("HA", "CK"),
    ];
    for directory in ["src", "crates", "tests"] {
        for (path, text) in sources(directory) {
            for (number, line) in text.lines().enumerate() {
                for marker in markers {
                    assert!(
                        !line.contains(marker),
                        "{}:{}: {line}",
                        path.display(),
                        number + 1
                    );
                }
            }
        }
    }
}

#[test]
fn no_module_is_spelled_mod_rs() {
    for (path, _) in sources("src").into_iter().chain(sources("crates")) {
        assert!(!path.ends_with("mod.rs"), "{}", path.display());
    }
}

#[test]
fn the_readme_is_short_and_names_every_command() {
    let readme = fs::read_to_string(root().join("README.md")).expect("there is a README");
    let lines = readme.lines().count();
    assert!(lines <= MAX_README_LINES, "{lines} lines");
    let help = Command::new(env!("CARGO_BIN_EXE_cauchyfs"))
        .arg("--help")
        .output()
        .expect("the binary runs");
    let help = String::from_utf8(help.stdout).expect("help is text");
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() >= 8, "help lists commands: {help}");
    for command in commands {
        assert!(
            readme.contains(&format!("cauchyfs {command}")),
            "README lacks `cauchyfs {command}`"
        );
    }
}

/// Checks each `name` (`path`), each `Type::name` (`path`), and each path in backquotes.
#[test]
fn the_architecture_names_files_that_exist_and_what_they_define() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("there is a description");
    let lines = page.lines().count();
    assert!(lines <= MAX_ARCHITECTURE_LINES, "{lines} lines");
    let quoted: Vec<&str> = page.split('`').collect();
    let is_path = |text: &str| {
        let is_word = !text.contains(char::is_whitespace);
        is_word && text.contains('/') && Path::new(text).extension().is_some()
    };
    let mut paths = 0;
    // Every second piece is between backquotes, and the one before it between two of these.
    for index in (1..quoted.len()).step_by(2) {
        let path = quoted[index];
        if !is_path(path) {
            continue;
        }
        paths += 1;
        let text = fs::read_to_string(root().join(path));
        let text = text.unwrap_or_else(|error| panic!("`{path}`: {error}"));
        if quoted[index - 1] == " (" && index >= 3 {
            for name in quoted[index - 2].split("::") {
                assert!(text.contains(name), "`{path}` has no `{name}`");
            }
        }
    }
    assert!(paths > 100, "{paths} paths");
}
