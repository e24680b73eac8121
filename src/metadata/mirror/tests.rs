//! The parts of the mirror, each by itself, on members in memory.

use std::sync::Arc;

use super::Mirror;
use super::copy_set::CopySet;
use super::files::{CopyFiles, FIRST_PAGES, IndexCopy, PAGE, file_bytes};
use super::page_buffer::{Front, PageBuffer};
use super::page_reader::{PageReader, WrongFrame};
use super::reserve::{self, Reserve};
use super::write_mode::WriteMode;
use super::writer::{CopyWriter, Heads, WriterParts};
use crate::format::frame::{self, FRAME_BYTES, PAGE_BYTES};
use crate::format::{MemberIndex, files};
use crate::membership::{Access, Members, Wait};
use crate::metadata::disk::Disk;
use crate::metadata::index::Index;
use crate::metadata::redb_index::RedbIndex;
use crate::metadata::tests::rig::{Rig, inline};
use crate::store::Store;

/// Members of a volume that was made just now.
struct Fixture {
    rig: Rig,
    disk: Arc<Disk>,
}

impl Fixture {
    fn new(members: usize) -> Self {
        let rig = Rig::new(1, 1, members);
        let opened = Members::open(rig.stores(&[], None), Access::ReadWrite, inline());
        let disk = Arc::new(Disk::new(opened.expect("members")));
        Self { rig, disk }
    }

    /// Makes empty copies on all members.
    fn empty_copies(&self) -> Arc<CopySet> {
        let files = CopyFiles::new(&self.disk);
        let file_bytes = file_bytes(FIRST_PAGES * PAGE);
        let make = |member| {
            files.create(member, file_bytes).expect("there is room");
            IndexCopy {
                member,
                file_bytes,
                slot: 1,
            }
        };
        let copies = self
            .disk
            .members()
            .membership()
            .live()
            .into_iter()
            .map(make)
            .collect();
        Arc::new(CopySet::new(Arc::new(files), copies))
    }

    /// Returns a writer to empty copies of a database of eight pages, and the parts that it works with.
    fn writer(&self) -> (CopyWriter, WriterParts) {
        let copies = self.empty_copies();
        let parts = WriterParts {
            buffer: Arc::new(PageBuffer::new(Front::empty())),
            reader: Arc::new(PageReader::of_new(&copies)),
            mode: Arc::new(WriteMode::begun()),
            repairs: Arc::default(),
            copies,
        };
        parts.buffer.set_len(8 * PAGE);
        (CopyWriter::new(parts.clone(), Heads::empty(), 2), parts)
    }
}

/// Returns the numbers and first bytes of the pages below 8 that copies have.
fn pages_on_copies(reader: &PageReader) -> Vec<(u64, u8)> {
    let compared = reader.compare(1..8, Wait::Full);
    assert!(compared.wrong.is_empty(), "{:?}", compared.wrong);
    let newest = compared.newest.into_iter();
    newest.map(|(page, (_, bytes))| (page, bytes[0])).collect()
}

#[test]
fn a_sync_puts_pages_and_heads_on_all_copies() {
    let fixture = Fixture::new(2);
    let (mut writer, parts) = fixture.writer();
    for page in [1, 2, 5] {
        let fill = u8::try_from(page).expect("small");
        parts.buffer.insert(page, Arc::new([fill; PAGE_BYTES]));
    }
    parts.buffer.write_header(0, &[9]).expect("it is within");
    writer.sync().expect("all members answer");
    assert!(parts.buffer.pages().is_empty());
    assert_eq!(pages_on_copies(&parts.reader), [(1, 1), (2, 2), (5, 5)]);
    for copy in parts.copies.list() {
        let found = parts.copies.files().find(copy.member).expect("a copy");
        assert_eq!((found.copy.slot, copy.slot), (0, 0));
        assert_eq!(Front::of(&found.head), parts.buffer.front());
        assert_eq!(found.head.copies, parts.copies.members());
    }
}

#[test]
fn a_reset_forgets_what_was_never_synced() {
    let fixture = Fixture::new(2);
    let (mut writer, parts) = fixture.writer();
    writer.sync().expect("all members answer");
    let durable = parts.buffer.front();
    parts.buffer.set_len(100 * PAGE);
    parts.buffer.insert(3, Arc::new([3; PAGE_BYTES]));
    parts.mode.set_out_of_space(true);
    writer.reset().expect("there is nothing to undo");
    assert_eq!(parts.buffer.front(), durable);
    assert!(parts.buffer.pages().is_empty() && !parts.mode.is_out_of_space());
    writer.sync().expect("all members answer");
    assert!(pages_on_copies(&parts.reader).is_empty());
}

#[test]
fn a_damaged_frame_is_named_and_another_copy_is_read() {
    let fixture = Fixture::new(2);
    let (mut writer, parts) = fixture.writer();
    parts.buffer.insert(4, Arc::new([4; PAGE_BYTES]));
    writer.sync().expect("all members answer");
    let offset = frame::frame_offset(4);
    let disk = &fixture.rig.disks[0];
    assert!(disk.corrupt(files::INDEX, offset, |bytes| bytes.fill(7), FRAME_BYTES));
    let compared = parts.reader.compare(4..5, Wait::Full);
    let sequence = compared.newest[&4].0;
    let wrong = WrongFrame {
        member: MemberIndex(0),
        page: 4,
        sequence,
    };
    assert_eq!((compared.wrong, compared.damaged), (vec![wrong], 0));
    // Page 4 is read from member 0 first.
    let mut out = [0; PAGE_BYTES];
    let found = parts.reader.read(4, vec![4], &mut out).expect("member 1");
    assert_eq!((found, out), (vec![wrong], [4; PAGE_BYTES]));
    writer.repair(wrong, &out).expect("member 0 is online");
    assert_eq!(pages_on_copies(&parts.reader), [(4, 4)]);
    for disk in &fixture.rig.disks {
        assert!(disk.corrupt(files::INDEX, offset, |bytes| bytes.fill(7), FRAME_BYTES));
    }
    let compared = parts.reader.compare(4..5, Wait::Full);
    assert_eq!((compared.newest.len(), compared.damaged), (0, 1));
    assert!(parts.reader.read(4, vec![4], &mut out).is_err());
}

/// A member that hangs may hold up a reader beyond the end of the volume.
#[test]
fn a_reader_that_goes_on_after_the_close_changes_no_copy() {
    let fixture = Fixture::new(2);
    let mirror = Mirror::open(&fixture.disk).expect("both members have it");
    let index = RedbIndex::open(Arc::clone(&mirror), 1 << 20).expect("it is sound");
    index.begin().expect("there is room");
    let compare = || mirror.reader.compare(1..FIRST_PAGES, Wait::Full);
    let pages: Vec<u64> = compare().newest.into_keys().collect();
    assert!(!pages.is_empty());
    let read_damaged = || {
        for &page in &pages {
            let offset = frame::frame_offset(page);
            let disk = &fixture.rig.disks[0];
            assert!(disk.corrupt(files::INDEX, offset, |bytes| bytes.fill(7), FRAME_BYTES));
            let mut out = [0; PAGE_BYTES];
            mirror.read_pages(page, &mut out).expect("member 1 has it");
            assert_ne!(out, [7; PAGE_BYTES]);
        }
        compare().wrong.len()
    };
    assert_eq!(read_damaged(), 0, "a reader repairs what it finds");
    index.close().expect("all members answer");
    assert!(read_damaged() > 0);
    let wrong = compare().wrong.len();
    assert!(mirror.go_back().is_err());
    assert_eq!(compare().wrong.len(), wrong);
}

#[test]
fn a_reader_that_goes_on_after_the_close_of_what_is_only_read_tries_no_other_copies() {
    let rig = Rig::new(1, 1, 2);
    let members = Members::open(rig.stores(&[], None), Access::ReadOnly, inline());
    let disk = Arc::new(Disk::new(members.expect("members")));
    let mirror = Mirror::open(&disk).expect("both members have it");
    let index = RedbIndex::open(Arc::clone(&mirror), 1 << 20).expect("it is sound");
    index.close().expect("all members answer");
    assert!(mirror.go_back().is_err());
}

#[test]
fn a_new_copy_gets_all_pages_before_a_head_names_it() {
    let fixture = Fixture::new(3);
    let (mut writer, parts) = fixture.writer();
    let last = MemberIndex(2);
    writer.give_up(last);
    parts.buffer.insert(6, Arc::new([6; PAGE_BYTES]));
    writer.sync().expect("all members answer");
    writer.give_up(MemberIndex(1));
    let named = |member| {
        let found = parts.copies.files().find(member);
        found.is_some_and(|found| found.head.copies.contains(&member))
    };
    while writer.refill().expect("member 0 has all") {
        let is_counted = parts.copies.members().len() == 2;
        let chosen = [MemberIndex(1), last].into_iter().filter(|it| named(*it));
        assert_eq!(chosen.count(), usize::from(is_counted));
    }
    assert_eq!(parts.copies.members().len(), 2);
    assert_eq!(pages_on_copies(&parts.reader), [(6, 6)]);
}

#[test]
fn the_reserve_is_made_once_and_gone_after_its_release() {
    let fixture = Fixture::new(2);
    let holders = fixture.disk.members().membership().live();
    let mut reserve = Reserve::new(&fixture.disk);
    assert!(reserve.keep(&holders) && holders.iter().all(|it| reserve.is_complete_on(*it)));
    let len = |disk: usize| fixture.rig.disks[disk].open().open_len(files::BALLAST).ok();
    let bytes = reserve::least_bytes(&fixture.disk, holders.clone());
    assert_eq!((len(0), len(1)), (Some(bytes), Some(bytes)));
    reserve.release(&holders);
    assert_eq!((len(0), len(1)), (None, None));
    fixture.rig.disks[1].set_capacity(0);
    assert!(!reserve.keep(&holders), "member 1 has no space");
    assert!(reserve.is_complete_on(holders[0]) && !reserve.is_complete_on(holders[1]));
}

#[test]
fn a_member_that_is_away_is_not_one_without_room_for_its_reserve() {
    let fixture = Fixture::new(2);
    let holders = fixture.disk.members().membership().live();
    fixture.rig.disks[1].delete();
    let mut reserve = Reserve::new(&fixture.disk);
    assert!(reserve.keep(&holders));
    assert!(reserve.is_complete_on(holders[0]) && !reserve.is_complete_on(holders[1]));
}
