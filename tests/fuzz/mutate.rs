//! Hostile changes of a volume: damage that checksums tell, and forgeries that they do not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::entries;
use super::image::{Image, Member, Node, Sparse};
use super::raw::{self, Copy, SLOT, u32_at};
use super::volumes::Base;

/// Numbers at which arithmetic and bounds go wrong.
const NUMBERS: [u64; 26] = [
    0,
    1,
    2,
    3,
    7,
    0x7f,
    0xff,
    0x100,
    0xfff,
    0x1000,
    0x1001,
    0x7fff,
    0xffff,
    1 << 20,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff0,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 48,
    (1 << 48) + 4096,
    1 << 62,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Changes that a case makes to a volume.
pub(crate) struct Case {
    pub(crate) image: Image,
    /// Each change, for a person to read.
    pub(crate) notes: Vec<String>,
    /// The members that are damaged, if no checksum was forged.
    pub(crate) damaged: Option<BTreeSet<usize>>,
    /// True if pages of an index were changed. A database that is opened on them here may abort this program.
    has_forged_pages: bool,
}

impl Case {
    /// Returns case `number` of a run.
    pub(crate) fn new(base: &Base, seed: u64, number: u64, victims: &Path) -> Self {
        let mut rng = rng_of(seed, number);
        let mut case = Self {
            image: base.image.clone(),
            notes: Vec::new(),
            damaged: Some(BTreeSet::new()),
            has_forged_pages: false,
        };
        if rng.random_ratio(1, 3) {
            case.damage(base, &mut rng, victims);
        } else {
            case.damaged = None;
            for _ in 0..rng.random_range(1..4) {
                case.forge(base, &mut rng);
            }
        }
        case
    }

    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Damages some members, mostly no more than the volume can bear.
    fn damage(&mut self, base: &Base, rng: &mut StdRng, victims: &Path) {
        let most = if rng.random_ratio(1, 8) {
            base.members()
        } else {
            base.spare.max(1)
        };
        for _ in 0..rng.random_range(1..=most) {
            let member = rng.random_range(0..base.members());
            if let Some(damaged) = &mut self.damaged {
                damaged.insert(member);
            }
            for _ in 0..rng.random_range(1..4) {
                self.damage_member(member, rng, victims);
            }
        }
    }

    fn damage_member(&mut self, member: usize, rng: &mut StdRng, victims: &Path) {
        let Some(Some(files)) = self.image.0.get_mut(member) else {
            return;
        };
        let Some(name) = pick_file(files, rng) else {
            return;
        };
        let note = match rng.random_range(0..12) {
            0..4 => {
                let Some(Node::File(file)) = files.get_mut(&name) else {
                    return;
                };
                format!("{} of {name}", damage_bytes(file, rng))
            }
            4 => {
                let Some(Node::File(file)) = files.get_mut(&name) else {
                    return;
                };
                let len = [
                    0,
                    1,
                    file.len / 2,
                    file.len.saturating_sub(1),
                    file.len + 1,
                    1 << 33,
                ];
                let len = *len.choose(rng).unwrap();
                file.set_len(len);
                format!("{name} is {len} bytes long")
            }
            5 => {
                remove(files, &name);
                format!("{name} is gone")
            }
            6 => {
                self.image.0[member] = None;
                "the directory is gone".into()
            }
            7 => {
                let victim = victims.join(["file", "empty", "journal"].choose(rng).unwrap());
                remove(files, &name);
                files.insert(name.clone(), Node::Link(victim));
                format!("{name} is a hard link to a victim")
            }
            8 => {
                let victim = victims.join(["file", "directory", "absent"].choose(rng).unwrap());
                remove(files, &name);
                files.insert(name.clone(), Node::Symlink(victim));
                format!("{name} is a symlink to a victim")
            }
            9 => {
                let node = [Node::Fifo, Node::Socket, Node::Directory]
                    .choose(rng)
                    .unwrap()
                    .clone();
                remove(files, &name);
                let text = format!("{name} is a {node:?}");
                files.insert(name, node);
                text
            }
            10 => {
                let name = [
                    "extra",
                    "index~",
                    "segments/x",
                    "segments/00000000000000ff",
                    "journal.2",
                    "ballast",
                ];
                let name = *name.choose(rng).unwrap();
                if name.starts_with("segments/") && files.get("segments") != Some(&Node::Directory)
                {
                    return;
                }
                files.insert(name.into(), Node::File(Sparse::from_bytes(&[7; 5000])));
                format!("{name} is there as well")
            }
            _ => {
                remove(files, "segments");
                "segments is gone".into()
            }
        };
        self.note(format!("damage: member {member}: {note}"));
    }

    /// Forges something, every checksum right.
    fn forge(&mut self, base: &Base, rng: &mut StdRng) {
        match rng.random_range(0..10) {
            0..2 => self.forge_superblocks(rng),
            2 => self.forge_journal(rng),
            3..6 => self.append_to_journal(base, rng),
            6..8 => self.forge_index_records(base, rng),
            8 => self.forge_index_pages(rng),
            _ => self.forge_segments(rng),
        }
    }

    /// Draws the members that are forged alike: one, or all.
    fn draw_members(&self, rng: &mut StdRng) -> Vec<usize> {
        let all: Vec<usize> = (0..self.image.0.len()).collect();
        if rng.random_ratio(1, 3) {
            vec![*all.choose(rng).unwrap()]
        } else {
            all
        }
    }

    fn forge_superblocks(&mut self, rng: &mut StdRng) {
        let members = self.draw_members(rng);
        let pokes = rng.random_range(1..4);
        let seed: u64 = rng.random();
        let mut notes = Vec::new();
        for member in members {
            let Some(file) = self.image.file_mut(member, "superblock") else {
                continue;
            };
            for offset in [0, SLOT as u64] {
                let mut slot = file.read_at(offset, SLOT);
                let len = u32_at(&slot, 12) as usize;
                if !(112..=SLOT).contains(&len) {
                    continue;
                }
                // The same change everywhere, so that the members still agree.
                let mut same = StdRng::seed_from_u64(seed);
                for _ in 0..pokes {
                    let range = if same.random_ratio(1, 2) {
                        12..112
                    } else {
                        16..len - 4
                    };
                    notes.push(format!(
                        "member {member} slot {offset:#x}: {}",
                        poke(&mut slot, range, &mut same)
                    ));
                }
                raw::seal_superblock(&mut slot);
                file.write_at(offset, &slot);
            }
        }
        self.note(format!("superblock: {}", notes.join("; ")));
    }

    fn forge_journal(&mut self, rng: &mut StdRng) {
        let members = self.draw_members(rng);
        let seed: u64 = rng.random();
        let mut notes = Vec::new();
        for member in members {
            for name in ["journal.0", "journal.1"] {
                let Some(file) = self.image.file_mut(member, name) else {
                    continue;
                };
                let mut found = raw::records(file);
                if found.is_empty() {
                    continue;
                }
                let mut same = StdRng::seed_from_u64(seed);
                let number = same.random_range(0..found.len());
                let (offset, record) = &mut found[number];
                let note = forge_record(record, &mut same);
                notes.push(format!("member {member} {name} record {number}: {note}"));
                raw::put_records(file, *offset, std::slice::from_ref(record));
            }
        }
        self.note(format!("journal: {}", notes.join("; ")));
    }

    /// Appends a record that follows the newest one, with hostile entries, to every journal.
    fn append_to_journal(&mut self, base: &Base, rng: &mut StdRng) {
        let (changes, note) = entries::hostile(base, rng);
        let lie = rng
            .random_ratio(1, 8)
            .then(|| *NUMBERS.choose(rng).unwrap());
        let data = rng.random_ratio(1, 4).then(|| {
            let offset = low_half(number(rng));
            let stripe = *[1, 2, 3, 9, u64::MAX].choose(rng).unwrap();
            (
                stripe,
                offset,
                vec![9; *[0, 1, 4096, 70_000].choose(rng).unwrap()],
            )
        });
        for member in 0..self.image.0.len() {
            let newest = ["journal.0", "journal.1"]
                .iter()
                .filter_map(|name| {
                    let found = raw::records(self.image.file(member, name)?);
                    Some((
                        found.last()?.1.generation(),
                        found.last()?.1.lsn(),
                        *name,
                        found,
                    ))
                })
                .max_by_key(|(generation, lsn, _, _)| (*generation, *lsn));
            let Some((_, _, name, found)) = newest else {
                continue;
            };
            let (_, last) = found.last().unwrap();
            let mut record = last.clone();
            record.set_lsn(last.lsn() + 1);
            record.entries.clone_from(&changes);
            record.data = data.iter().cloned().collect();
            if let Some(lie) = lie {
                record.lie[1 + usize::from(lie % 2 == 0)] =
                    low_half(lie & 0x7fff_ffff).cast_signed();
            }
            let end = found.last().unwrap().0 + encoded_len(last);
            let file = self.image.file_mut(member, name).unwrap();
            raw::put_records(file, end, &[record]);
        }
        self.note(format!(
            "appended to the journal: {note}; lie {lie:?}; data {:?}",
            data.map(|d| (d.0, d.1, d.2.len()))
        ));
    }

    /// Commits hostile records to the database of one copy of the index, or of all.
    fn forge_index_records(&mut self, base: &Base, rng: &mut StdRng) {
        let (changes, note) = entries::hostile(base, rng);
        let members = self.draw_members(rng);
        let newer = rng.random_range(0..3);
        if self.has_forged_pages {
            return;
        }
        for member in members {
            let Some(file) = self.image.file_mut(member, "index") else {
                continue;
            };
            let Some(mut copy) = Copy::read(file) else {
                continue;
            };
            if copy.commit(&changes).is_some() {
                copy.write(file, newer);
                self.notes.push(format!(
                    "index: member {member}, sequence + {newer}: {note}"
                ));
            }
        }
    }

    /// Changes bytes of the database itself, or of the head around it.
    fn forge_index_pages(&mut self, rng: &mut StdRng) {
        let members = self.draw_members(rng);
        let seed: u64 = rng.random();
        for member in members {
            let Some(file) = self.image.file_mut(member, "index") else {
                continue;
            };
            let Some(mut copy) = Copy::read(file) else {
                continue;
            };
            let mut rng = StdRng::seed_from_u64(seed);
            let used: Vec<usize> = copy
                .pages
                .chunks(4096)
                .enumerate()
                .filter(|(number, page)| *number > 0 && page.iter().any(|byte| *byte != 0))
                .map(|(number, _)| number)
                .collect();
            let mut notes = Vec::new();
            for _ in 0..rng.random_range(1..6) {
                notes.push(if rng.random_ratio(1, 4) {
                    format!("head {}", poke(&mut copy.head, 32..600, &mut rng))
                } else if let Some(page) = used.choose(&mut rng) {
                    let start = page * 4096;
                    let end = start + *[16, 64, 4096].choose(&mut rng).unwrap();
                    format!(
                        "page {page} {}",
                        poke(&mut copy.pages, start..end, &mut rng)
                    )
                } else {
                    continue;
                });
            }
            copy.write(file, 0);
            self.has_forged_pages = true;
            self.notes.push(format!(
                "index pages: member {member}: {}",
                notes.join("; ")
            ));
        }
    }

    /// Lengthens, shortens, removes or swaps segment files of several members.
    fn forge_segments(&mut self, rng: &mut StdRng) {
        let len = *NUMBERS[..21].choose(rng).unwrap();
        let swap = rng.random_ratio(1, 4);
        if swap && self.image.0.len() > 1 {
            self.image.0.swap(0, 1);
            self.note("members 0 and 1 are swapped".into());
        }
        for member in self.draw_members(rng) {
            let Some(Some(files)) = self.image.0.get_mut(member) else {
                continue;
            };
            for (name, node) in files.iter_mut() {
                if let Node::File(file) = node
                    && name.starts_with("segments/")
                {
                    file.set_len(len);
                }
            }
            self.notes
                .push(format!("segments of member {member} are {len} bytes long"));
        }
    }
}

/// Returns the random numbers of a case, which no other case has.
pub(crate) fn rng_of(seed: u64, number: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn encoded_len(record: &raw::Record) -> u64 {
    (u64::from(u32_at(&record.header, 12))).next_multiple_of(4096)
}

fn pick_file(files: &Member, rng: &mut StdRng) -> Option<String> {
    let names: Vec<&String> = files
        .iter()
        .filter(|(_, node)| matches!(node, Node::File(_)))
        .map(|(name, _)| name)
        .collect();
    names.choose(rng).map(|name| (*name).clone())
}

/// Removes a file, or a directory with all that is in it.
fn remove(files: &mut Member, name: &str) {
    let below = format!("{name}/");
    files.retain(|other, _| other != name && !other.starts_with(&below));
}

fn damage_bytes(file: &mut Sparse, rng: &mut StdRng) -> String {
    let used = file.used_blocks();
    let Some(block) = used.choose(rng) else {
        return "nothing".into();
    };
    let offset = block * 4096 + rng.random_range(0..4096);
    let count = *[1, 4, 512, 9000].choose(rng).unwrap();
    let mut bytes = file.read_at(offset, count);
    let len = file.len;
    if rng.random_ratio(1, 3) {
        bytes.fill(0);
    } else {
        rng.fill(&mut bytes[..]);
    }
    file.write_at(offset, &bytes);
    file.set_len(len);
    format!("{count} bytes at {offset:#x}")
}

fn forge_record(record: &mut raw::Record, rng: &mut StdRng) -> String {
    match rng.random_range(0..6) {
        0 => poke(&mut record.header, 24..80, rng),
        1 => {
            let field = rng.random_range(0..3);
            record.lie[field] = low_half(number(rng)).cast_signed();
            format!("count {field} off by {}", record.lie[field])
        }
        2 if !record.data.is_empty() => {
            let piece = rng.random_range(0..record.data.len());
            let piece = &mut record.data[piece];
            piece.1 = low_half(number(rng));
            if rng.random() {
                piece.0 = *NUMBERS.choose(rng).unwrap();
            }
            format!("stripe {} offset {:#x}", piece.0, piece.1)
        }
        3 if !record.entries.is_empty() => {
            let number = rng.random_range(0..record.entries.len());
            let key = &mut record.entries[number].0;
            let range = 0..key.len();
            format!("key of entry {number}: {}", poke(key, range, rng))
        }
        4 if record.entries.len() > 1 => {
            let number = rng.random_range(0..record.entries.len());
            record.entries.remove(number);
            format!("entry {number} left out")
        }
        _ => {
            let Some((key, Some(value))) = record.entries.choose_mut_of(rng) else {
                return "nothing".into();
            };
            let range = 0..value.len();
            format!(
                "value of {}: {}",
                entries::shown(key),
                poke(value, range, rng)
            )
        }
    }
}

trait ChooseMut<T> {
    fn choose_mut_of(&mut self, rng: &mut StdRng) -> Option<&mut T>;
}

impl<T> ChooseMut<T> for Vec<T> {
    fn choose_mut_of(&mut self, rng: &mut StdRng) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let number = rng.random_range(0..self.len());
        self.get_mut(number)
    }
}

/// Overwrites a field somewhere in a range: a number of one to eight bytes, in either order of bytes, or a bit.
pub(crate) fn poke(bytes: &mut [u8], range: std::ops::Range<usize>, rng: &mut StdRng) -> String {
    if range.is_empty() {
        return "nothing".into();
    }
    let at = rng.random_range(range.clone());
    let width = *[1, 2, 4, 8].choose(rng).unwrap();
    let width = width.min(range.end - at).min(bytes.len() - at);
    let number = *NUMBERS.choose(rng).unwrap();
    match rng.random_range(0..4) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8),
        1 => bytes[at..at + width].copy_from_slice(&number.to_be_bytes()[8 - width..]),
        _ => bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]),
    }
    format!("{width} bytes at {at:#x} of {number:#x}")
}

/// Returns the place where a case hides things that no command may change.
pub(crate) fn victims_in(outer: &Path) -> PathBuf {
    outer.join("victims")
}

/// Returns the lower 32 bits.
pub(crate) fn low_half(number: u64) -> u32 {
    u32::try_from(number & 0xffff_ffff).unwrap()
}

/// Returns one of the numbers at which things go wrong.
pub(crate) fn number(rng: &mut StdRng) -> u64 {
    *NUMBERS.choose(rng).unwrap()
}
