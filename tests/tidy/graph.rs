//! The modules of a room or a crate, and the cycles among their imports.
//!
//! A module uses another one if it names an item that is defined there, in an import or in a path. A name is followed
//! through imports and re-exports to its definition. So a parent that only re-exports items of its child does not use
//! it. A child that only adds methods to a type of its parent forms no cycle. A parent and a child do form one if
//! each names an item of the other. Tests count for nothing.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A path of modules from the root of a crate, which is empty.
pub(crate) type ModulePath = Vec<String>;

/// The words that an item may begin with, as opposed to a field or an arm.
const ITEMS: [&str; 12] = [
    "pub", "fn", "impl", "mod", "use", "struct", "enum", "const", "static", "trait", "type",
    "unsafe",
];

/// The names in the code of one module.
#[derive(Default)]
struct ModuleNames {
    /// The path behind each imported name, as written.
    imports: BTreeMap<String, Vec<String>>,
    /// The names that are imported for this module itself, and not only re-exported.
    used: BTreeSet<String>,
    /// All other paths, as written.
    paths: Vec<Vec<String>>,
    /// The paths whose items are all imported.
    globs: Vec<Vec<String>>,
    /// The files that belong to tests.
    tests: BTreeSet<String>,
}

/// The modules of one crate, and the items that they name of each other.
pub(crate) struct Graph {
    modules: BTreeMap<ModulePath, ModuleNames>,
}

impl Graph {
    /// Reads the modules of a crate, each with its text.
    pub(crate) fn new(texts: impl IntoIterator<Item = (ModulePath, String)>) -> Self {
        let mut modules = BTreeMap::new();
        for (path, text) in texts {
            let tokens: TokenStream = text.parse().expect("sources consist of tokens");
            let mut names = ModuleNames::default();
            names.read(&tokens.into_iter().collect::<Vec<_>>(), 0);
            modules.insert(path, names);
        }
        let of_tests: Vec<ModulePath> = modules
            .iter()
            .flat_map(|(path, names)| names.tests.iter().map(|test| child(path, test)))
            .collect();
        modules.retain(|path, _| !of_tests.iter().any(|test| path.starts_with(test)));
        for names in modules.values() {
            let is_own =
                |path: &&Vec<String>| ["crate", "self", "super"].contains(&path[0].as_str());
            let own = names.globs.iter().find(is_own);
            assert_eq!(
                own, None,
                "an import names its items, unless it is one of tests"
            );
        }
        Self { modules }
    }

    /// Returns the modules that form cycles within `room`, and by which items of each other.
    pub(crate) fn cycles_in(&self, room: &[String]) -> Vec<String> {
        let in_room = |path: &ModulePath| path.starts_with(room);
        let inside: Vec<&ModulePath> = self.modules.keys().filter(|path| in_room(path)).collect();
        let used: BTreeMap<_, _> = inside
            .iter()
            .map(|path| (*path, self.used_by(path)))
            .collect();
        let mut found = Vec::new();
        for (importer, items) in &used {
            for (owner, item) in items.iter().filter(|(owner, _)| in_room(owner)) {
                if reaches(&used, owner, importer) {
                    let (importer, owner) = (importer.join("::"), owner.join("::"));
                    found.push(format!("`{importer}` uses `{item}` of `{owner}`"));
                }
            }
        }
        found
    }

    /// Returns the items of other modules that a module names.
    fn used_by(&self, module: &ModulePath) -> BTreeSet<(ModulePath, String)> {
        let names = &self.modules[module];
        let imported = names.used.iter().map(|name| vec![name.clone()]);
        let paths = imported.chain(names.paths.iter().cloned());
        let absolute = paths.filter_map(|path| self.absolute(module, &path));
        let defined = absolute.filter_map(|path| self.definition(&path, &mut BTreeSet::new()));
        defined.filter(|(owner, _)| owner != module).collect()
    }

    /// Returns a path from the root of the crate; `None` if it leads to another crate, or names an item of its module.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut from = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => {
                let parent = &module[..module.len().checked_sub(1)?];
                if rest.first().is_some_and(|next| next == "super") {
                    return self.absolute(&parent.to_vec(), rest);
                }
                parent.to_vec()
            }
            _ => match self.modules.get(module)?.imports.get(first) {
                Some(import) if import[0] != *first => self.absolute(module, import)?,
                _ if self.modules.contains_key(&child(module, first)) => child(module, first),
                _ => return None,
            },
        };
        from.extend_from_slice(rest);
        Some(from)
    }

    /// Returns the module that defines the item of an absolute path, and the item; `None` for a module, and for an item
    /// of another crate.
    fn definition(
        &self,
        path: &[String],
        seen: &mut BTreeSet<Vec<String>>,
    ) -> Option<(ModulePath, String)> {
        let is_module = |len: &usize| self.modules.contains_key(&path[..*len]);
        let len = (0..=path.len()).rev().find(is_module)?;
        let (module, item) = (path[..len].to_vec(), path.get(len)?);
        match self.modules[&module].imports.get(item) {
            Some(import) if seen.insert(path.to_vec()) => {
                let mut path_on = self.absolute(&module, import)?;
                path_on.extend_from_slice(&path[len + 1..]);
                self.definition(&path_on, seen)
            }
            _ => Some((module, item.clone())),
        }
    }
}

fn child(module: &ModulePath, name: &str) -> ModulePath {
    let mut path = module.clone();
    path.push(name.to_owned());
    path
}

/// Returns whether a module uses another one, directly or through others.
fn reaches(
    used: &BTreeMap<&ModulePath, BTreeSet<(ModulePath, String)>>,
    from: &ModulePath,
    to: &ModulePath,
) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            let others = used.get(module).into_iter().flatten();
            next.extend(others.map(|(other, _)| other));
        }
    }
    false
}

impl ModuleNames {
    /// Reads tokens that stand `depth` modules deep inside the file.
    fn read(&mut self, tokens: &[TokenTree], depth: usize) {
        let mut at = 0;
        while at < tokens.len() {
            if is_punct(tokens, at, '#') && is_for_tests(tokens.get(at + 1)) {
                at = self.skip_item(tokens, at + 2);
            } else if is_word(tokens, at, "use") && !is_punct(tokens, at + 1, '<') {
                let end = (at..tokens.len()).find(|end| is_punct(tokens, *end, ';'));
                let end = end.unwrap_or(tokens.len());
                let is_public = at > 0 && is_visibility(&tokens[..at]);
                self.import(&tokens[at + 1..end], &[], (is_public, depth));
                at = end;
            } else if is_word(tokens, at, "mod")
                && let Some(TokenTree::Group(body)) = tokens.get(at + 2)
            {
                let body: Vec<TokenTree> = body.stream().into_iter().collect();
                self.read(&body, depth + 1);
                at += 3;
            } else if let Some(TokenTree::Group(group)) = tokens.get(at) {
                self.read(&group.stream().into_iter().collect::<Vec<_>>(), depth);
                at += 1;
            } else {
                at = self.read_path(tokens, at, depth);
            }
        }
    }

    /// Reads the path that begins here, if one does; returns where to go on.
    fn read_path(&mut self, tokens: &[TokenTree], start: usize, depth: usize) -> usize {
        let mut path = Vec::new();
        let mut at = start;
        while let Some(TokenTree::Ident(word)) = tokens.get(at) {
            path.push(word.to_string());
            at += 1;
            if !is_separator(tokens, at) {
                break;
            }
            at += 2;
        }
        let is_rest =
            start > 0 && (is_punct(tokens, start - 1, '.') || ends_separator(tokens, start));
        let path = from_file(path, depth);
        if path.len() > 1 && !is_rest {
            self.paths.push(path);
        }
        at.max(start + 1)
    }

    /// Reads what is imported by `tokens`, which follow `prefix`.
    fn import(&mut self, tokens: &[TokenTree], prefix: &[String], place: (bool, usize)) {
        if tokens.is_empty() {
            return;
        }
        let mut path = prefix.to_vec();
        let mut name = None;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Ident(word) if word == "as" => {
                    name = tokens.get(at + 1).map(ToString::to_string);
                    at += 1;
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) => {
                    let group: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in group
                        .split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','))
                    {
                        self.import(part, &path, place);
                    }
                    return;
                }
                TokenTree::Punct(punct) if punct.as_char() == '*' => {
                    self.globs.push(path);
                    return;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
        let (is_public, depth) = place;
        let name = name.unwrap_or_else(|| path[path.len() - 1].clone());
        let path = from_file(path, depth);
        if path.len() < 2 {
            return;
        }
        if !is_public {
            self.used.insert(name.clone());
        }
        self.imports.insert(name, path);
    }

    /// Returns where the item ends that begins at `start`, and notes it if it is a file of tests.
    fn skip_item(&mut self, tokens: &[TokenTree], start: usize) -> usize {
        let mut at = start;
        while is_punct(tokens, at, '#') {
            at += 2;
        }
        let is_item = ITEMS.iter().any(|word| is_word(tokens, at, word));
        while at < tokens.len() {
            if is_word(tokens, at, "mod") && is_punct(tokens, at + 2, ';') {
                self.tests.insert(tokens[at + 1].to_string());
            }
            let is_body = matches!(&tokens[at], TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
            if is_body || is_punct(tokens, at, ';') || !is_item && is_punct(tokens, at, ',') {
                return at + 1;
            }
            at += 1;
        }
        at
    }
}

/// Returns a path as seen from the file, of which a module inside it is a part.
fn from_file(mut path: Vec<String>, depth: usize) -> Vec<String> {
    let inner = path.iter().take_while(|word| *word == "super").count();
    path.split_off(inner.min(depth))
}

fn is_punct(tokens: &[TokenTree], at: usize, character: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

fn is_word(tokens: &[TokenTree], at: usize, expected: &str) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Ident(word)) if word == expected)
}

fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

fn ends_separator(tokens: &[TokenTree], end: usize) -> bool {
    end >= 2 && is_separator(tokens, end - 2)
}

/// Returns whether tokens end with `pub`, `pub(crate)` or the like.
fn is_visibility(tokens: &[TokenTree]) -> bool {
    let last = tokens.len() - 1;
    let is_scoped = matches!(tokens[last], TokenTree::Group(_)) && last > 0;
    is_word(tokens, last - usize::from(is_scoped), "pub")
}

/// Returns whether the brackets of an attribute say that something is for tests alone.
fn is_for_tests(attribute: Option<&TokenTree>) -> bool {
    let text = attribute.map(|brackets| brackets.to_string().replace(' ', ""));
    text.is_some_and(|text| text.starts_with("[cfg(test") || text.starts_with("[cfg(all(test"))
}

fn graph(texts: &[(&str, &str)]) -> Graph {
    let path = |name: &str| name.split("::").map(str::to_owned).collect();
    Graph::new(
        texts
            .iter()
            .map(|(name, text)| (path(name), (*text).to_owned())),
    )
}

fn cycles(texts: &[(&str, &str)]) -> Vec<String> {
    graph(texts).cycles_in(&["room".to_owned()])
}

#[test]
fn modules_that_name_items_of_each_other_form_a_cycle() {
    let found = cycles(&[
        ("room", "mod a; mod b; mod c;"),
        ("room::a", "use super::b::{self, B}; fn f() { b::g() }"),
        ("room::b", "fn g() -> crate::room::c::C { todo() }"),
        ("room::c", "use crate::{other::X, room::{a::A as Z, b}};"),
    ]);
    let expected = [
        "`room::a` uses `B` of `room::b`",
        "`room::a` uses `g` of `room::b`",
        "`room::b` uses `C` of `room::c`",
        "`room::c` uses `A` of `room::a`",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_parent_and_a_child_form_a_cycle_only_if_each_names_an_item_of_the_other() {
    let child = (
        "room::a",
        "use super::P; impl P { fn f(&self) -> A { A } } struct A;",
    );
    let silent = cycles(&[("room", "mod a; pub use a::A; struct P;"), child]);
    assert_eq!(silent, [""; 0]);
    for parent in [
        "mod a; use a::A; struct P;",
        "mod a; struct P; fn f() -> a::A { a::A }",
    ] {
        let found = cycles(&[("room", parent), child]);
        let expected = [
            "`room` uses `A` of `room::a`",
            "`room::a` uses `P` of `room`",
        ];
        assert_eq!(found, expected, "{parent}");
    }
}

#[test]
fn names_are_followed_through_imports_to_their_definition() {
    let found = cycles(&[
        ("room", "mod a; mod b; pub(crate) use b::B;"),
        ("room::a", "use crate::room::B; struct A;"),
        (
            "room::b",
            "mod inside { fn f() -> super::super::a::A { vec![super::B] } } struct B;",
        ),
    ]);
    let expected = [
        "`room::a` uses `B` of `room::b`",
        "`room::b` uses `A` of `room::a`",
    ];
    assert_eq!(found, expected);
}

#[test]
fn tests_form_no_cycle() {
    let found = cycles(&[
        ("room", "mod a; mod b; #[cfg(test)] mod tests;"),
        (
            "room::a",
            "use super::b::B; struct A; #[cfg(test)] fn f<X, Y>() -> crate::room::b::C { 1 }",
        ),
        (
            "room::b",
            "struct B; #[cfg(test)] mod tests { use crate::room::a::A; }",
        ),
        ("room::tests", "use super::a::A;"),
        ("room::tests::more", "use super::super::b::B;"),
    ]);
    assert_eq!(found, [""; 0]);
}
