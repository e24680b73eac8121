//! Hostile records of the metadata, made from those that a volume has.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::mutate::{low_half, number, poke};
use super::volumes::Base;

/// Changes of the index: keys with their new values.
pub(crate) type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

const REGULAR: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMLINK: u8 = 3;

/// Returns changes that no honest program makes, in order of key, and a description.
pub(crate) fn hostile(base: &Base, rng: &mut StdRng) -> (Changes, String) {
    let mut changes = Changes::new();
    let mut notes = Vec::new();
    for _ in 0..rng.random_range(1..5) {
        notes.push(add_one(base, rng, &mut changes));
    }
    changes.sort();
    changes.dedup_by(|a, b| a.0 == b.0);
    (changes, notes.join("; "))
}

fn add_one(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    match rng.random_range(0..16) {
        0..3 => evil_name(base, rng, changes),
        3 => twice(base, rng, changes),
        4 => cycle(base, rng, changes),
        5 => evil_inode(base, rng, changes),
        6 => evil_attribute(base, rng, changes),
        7 => evil_extent(base, rng, changes),
        8 => evil_segment(base, rng, changes),
        9 => evil_marker(base, rng, changes),
        10 => gone(base, rng, changes),
        _ => changed_value(base, rng, changes),
    }
}

/// Returns a key in words.
pub(crate) fn shown(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

fn key(tag: u8, numbers: &[u64], name: &[u8]) -> Vec<u8> {
    let mut key = vec![tag];
    for number in numbers {
        key.extend(number.to_be_bytes());
    }
    key.extend(name);
    key
}

/// Returns the number at `place` of a key.
fn in_key(key: &[u8], place: usize) -> u64 {
    let start = 1 + 8 * place;
    key.get(start..start + 8)
        .map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()))
}

fn pick<'a>(base: &'a Base, tag: u8, rng: &mut StdRng) -> Option<(&'a Vec<u8>, &'a Vec<u8>)> {
    let all: Vec<_> = base.entries.range(vec![tag]..vec![tag + 1]).collect();
    all.choose(rng).copied()
}

fn inode_of_kind(base: &Base, kind: u8, rng: &mut StdRng) -> u64 {
    let inodes: Vec<u64> = base
        .entries
        .range(vec![b'i']..vec![b'j'])
        .filter(|(_, value)| value.get(1) == Some(&kind))
        .map(|(key, _)| in_key(key, 0))
        .collect();
    inodes.choose(rng).copied().unwrap_or(1)
}

/// Links an inode into a directory, by name and by position.
fn link(changes: &mut Changes, parent: u64, cookie: u64, name: &[u8], kind: u8, ino: u64) {
    let mut entry = vec![1, kind];
    entry.extend(ino.to_le_bytes());
    let mut position = entry.clone();
    position.extend(name);
    entry.extend(cookie.to_le_bytes());
    changes.push((key(b'd', &[parent], name), Some(entry)));
    changes.push((key(b'c', &[parent, cookie], b""), Some(position)));
}

/// Returns an inode with inline bytes: kind, permissions, and what its data or target is.
fn inode(kind: u8, permissions: u16, inline: &[u8], parent: u64) -> Vec<u8> {
    let mut value = vec![1, kind];
    value.extend(permissions.to_le_bytes());
    value.push(if kind == DIRECTORY { 2 } else { 0 });
    value.extend([0; 8]);
    value.extend(if kind == DIRECTORY { 2u32 } else { 1 }.to_le_bytes());
    value.extend((inline.len() as u64).to_le_bytes());
    value.extend([0; 8 + 48]);
    if kind == DIRECTORY {
        value.extend(parent.to_le_bytes());
        value.extend(1000u64.to_le_bytes());
    }
    value.push(match kind {
        REGULAR => 1,
        SYMLINK => 2,
        _ => 0,
    });
    value.extend(inline);
    value
}

fn evil_name(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let parent = inode_of_kind(base, DIRECTORY, rng);
    let long = vec![b'n'; 300];
    let names: [&[u8]; 15] = [
        b"..",
        b".",
        b"",
        b"../up",
        b"a/b",
        b"/run/fuzzed",
        b"../../../../victims/file",
        b"nul\0",
        b"esc\x1b[2J",
        b"\xff\xfe",
        b"line\nfeed",
        b"\r",
        &long,
        b"../..",
        b".\0",
    ];
    let name = *names.choose(rng).unwrap();
    let fresh = 1 << 40 | u64::from(rng.random::<u8>());
    let kind = *[REGULAR, DIRECTORY, SYMLINK].choose(rng).unwrap();
    let ino = if rng.random() {
        changes.push((
            key(b'i', &[fresh], b""),
            Some(inode(kind, 0o4777, b"../../../x", parent)),
        ));
        fresh
    } else {
        inode_of_kind(base, kind, rng)
    };
    link(changes, parent, 1 << 30, name, kind, ino);
    if kind == DIRECTORY && rng.random() {
        let inner = fresh + 1;
        changes.push((
            key(b'i', &[inner], b""),
            Some(inode(REGULAR, 0o4755, b"evil", 0)),
        ));
        link(changes, ino, 900, b"evil", REGULAR, inner);
    }
    format!(
        "name {} in {parent} for {ino} of kind {kind}",
        name.escape_ascii()
    )
}

/// One name twice: a symlink out of the volume, then a directory with a file.
fn twice(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let parent = inode_of_kind(base, DIRECTORY, rng);
    let (symlink, directory, file) = (1 << 41, 1 << 41 | 1, 1 << 41 | 2);
    let target: &[u8] = [b"../../../victims/directory".as_slice(), b"/run", b".."]
        .choose(rng)
        .unwrap();
    changes.push((
        key(b'i', &[symlink], b""),
        Some(inode(SYMLINK, 0o777, target, 0)),
    ));
    changes.push((
        key(b'i', &[directory], b""),
        Some(inode(DIRECTORY, 0o777, b"", parent)),
    ));
    changes.push((
        key(b'i', &[file], b""),
        Some(inode(REGULAR, 0o6755, b"evil", 0)),
    ));
    link(changes, directory, 5, b"evil", REGULAR, file);
    for (cookie, kind, ino) in [
        (1 << 31, SYMLINK, symlink),
        (1 << 31 | 1, DIRECTORY, directory),
    ] {
        let mut position = vec![1, kind];
        position.extend(ino.to_le_bytes());
        position.extend(b"twice");
        changes.push((key(b'c', &[parent, cookie], b""), Some(position)));
    }
    link(changes, parent, 1 << 31 | 1, b"twice", DIRECTORY, directory);
    changes.sort();
    changes.dedup_by(|a, b| a.0 == b.0);
    format!("one name twice in {parent}")
}

fn cycle(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let (parent, child) = (
        inode_of_kind(base, DIRECTORY, rng),
        inode_of_kind(base, DIRECTORY, rng),
    );
    link(changes, parent, 77_777, b"cycle", DIRECTORY, child);
    format!("directory {child} once more, in {parent}")
}

fn evil_inode(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let Some((found, value)) = pick(base, b'i', rng) else {
        return "nothing".into();
    };
    let mut value = value.clone();
    let fields = [
        (1, 1),
        (2, 2),
        (4, 1),
        (5, 4),
        (9, 4),
        (13, 4),
        (17, 8),
        (25, 8),
        (33, 8),
        (41, 4),
        (81, 4),
        (81, 8),
        (89, 8),
    ];
    let (at, width) = *fields.choose(rng).unwrap();
    let number = if at < 5 { rng.random() } else { number(rng) };
    if let Some(field) = value.get_mut(at..at + width) {
        field.copy_from_slice(&number.to_le_bytes()[..width]);
    }
    changes.push((found.clone(), Some(value)));
    format!("inode {}: field at {at} is {number:#x}", in_key(found, 0))
}

fn evil_attribute(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let ino = inode_of_kind(base, *[REGULAR, DIRECTORY].choose(rng).unwrap(), rng);
    let count = *[1, 1, 1, 762].choose(rng).unwrap();
    let long = vec![b'u'; 300];
    let names: [&[u8]; 7] = [
        b"security.capability",
        b"trusted.x",
        b"user.",
        b"user.\x1b[1m",
        b"system.posix_acl_access",
        b"",
        &long,
    ];
    let name = *names.choose(rng).unwrap();
    let len = *[0, 20, 65_536, 200_000].choose(rng).unwrap();
    for number in 0..count {
        let name = if count == 1 {
            name.to_vec()
        } else {
            format!("user.{number}").into_bytes()
        };
        let mut value = vec![1];
        value.resize(1 + if count == 1 { len } else { 100 }, 2);
        changes.push((key(b'x', &[ino], &name), Some(value)));
    }
    format!(
        "{count} attributes {} of {ino}, {len} bytes",
        name.escape_ascii()
    )
}

fn evil_extent(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let ino = pick(base, b'e', rng).map_or(2, |(key, _)| in_key(key, 0));
    let end = number(rng);
    let stripe = pick(base, b't', rng).map_or(1, |(key, _)| in_key(key, 0));
    let stripe = *[stripe, stripe, number(rng)].choose(rng).unwrap();
    let (len, offset) = (number(rng).min(end), low_half(number(rng)));
    let mut value = vec![1];
    value.extend(len.to_le_bytes());
    value.extend(stripe.to_le_bytes());
    value.extend(offset.to_le_bytes());
    changes.push((key(b'e', &[ino, end], b""), Some(value)));
    if rng.random() {
        let mut backref = vec![1];
        backref.extend(len.to_le_bytes());
        backref.extend(offset.to_le_bytes());
        changes.push((key(b'r', &[stripe, ino, end], b""), Some(backref)));
    }
    format!("extent of {ino}: {len:#x} bytes before {end:#x}, stripe {stripe:#x} at {offset:#x}")
}

fn evil_segment(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let Some((found, value)) = pick(base, *[b's', b't'].choose(rng).unwrap(), rng) else {
        return "nothing".into();
    };
    let mut value = value.clone();
    let fields = if found[0] == b's' {
        1..value.len()
    } else {
        9..value.len()
    };
    let note = poke(&mut value, fields, rng);
    changes.push((found.clone(), Some(value)));
    format!("{}: {note}", shown(found))
}

fn evil_marker(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let stripe = pick(base, b't', rng).map_or(1, |(key, _)| in_key(key, 0));
    let (ino, any) = (inode_of_kind(base, REGULAR, rng), number(rng));
    let counters = [b"next-ino".as_slice(), b"next-stripe", b"next-segment"];
    let counter = counters.choose(rng).unwrap();
    let mut note = vec![1, 1, 3];
    let scrub: Vec<u8> = std::iter::once(1)
        .chain((0..rng.random_range(60..120)).map(|_| rng.random()))
        .collect();
    let mut value = vec![1];
    let change = match rng.random_range(0..6) {
        0 => (
            key(b'o', &[*[ino, 1, any].choose(rng).unwrap()], b""),
            value,
        ),
        1 => (
            key(b'q', &[*[stripe, any].choose(rng).unwrap()], b""),
            value,
        ),
        2 => {
            let mut found = vec![b'l', rng.random()];
            found.extend(stripe.to_be_bytes());
            note.truncate(rng.random_range(1..4));
            (found, note)
        }
        3 => {
            value.extend(number(rng).to_le_bytes());
            value.extend(number(rng).to_le_bytes());
            (key(b'u', &[stripe], b""), value)
        }
        4 => (vec![b'v'], scrub),
        _ => {
            value.extend(any.to_le_bytes());
            (key(b'n', &[], counter), value)
        }
    };
    let note = format!("marker {}", shown(&change.0));
    changes.push((change.0, Some(change.1)));
    note
}

fn gone(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let Some((found, _)) = any(base, rng) else {
        return "nothing".into();
    };
    changes.push((found.clone(), None));
    format!("{} is gone", shown(found))
}

fn changed_value(base: &Base, rng: &mut StdRng, changes: &mut Changes) -> String {
    let Some((found, value)) = any(base, rng) else {
        return "nothing".into();
    };
    let (mut found, mut value) = (found.clone(), value.clone());
    let note = match rng.random_range(0..8) {
        0 => {
            let range = 0..found.len();
            format!("key {}", poke(&mut found, range, rng))
        }
        1 => {
            value.truncate(rng.random_range(0..=value.len()));
            format!("{} bytes left", value.len())
        }
        2 => {
            value.resize(
                value.len() + *[1, 100, 100_000].choose(rng).unwrap(),
                rng.random(),
            );
            format!("{} bytes", value.len())
        }
        _ => {
            let range = 1.min(value.len())..value.len();
            poke(&mut value, range, rng)
        }
    };
    let note = format!("{}: {note}", shown(&found));
    changes.push((found, Some(value)));
    note
}

/// Returns some record, each kind as likely as every other.
fn any<'a>(base: &'a Base, rng: &mut StdRng) -> Option<(&'a Vec<u8>, &'a Vec<u8>)> {
    let mut tags: Vec<u8> = base
        .entries
        .keys()
        .filter_map(|key| key.first().copied())
        .collect();
    tags.dedup();
    let tag = *tags.choose(rng)?;
    pick(base, tag, rng)
}
