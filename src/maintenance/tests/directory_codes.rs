//! Volumes with codes of directories: every file lies in stripes of its own code, through crashes, losses and compaction.

use std::collections::{BTreeMap, BTreeSet};

use super::rebuild::fill;
use super::*;
use crate::format::record::{FileKind, Inline, Inode, Segment, Timestamp};
use crate::format::{Cookie, MemberIndex, QuotaId, SegmentId, StripeClass};
use crate::maintenance::RedundancyRow;
use crate::maintenance::compaction::Floor;
use crate::membership::{MembersError, StripeCode};
use crate::stripes::StripeError;
use crate::transaction::DirectoryCodeError;

mod blocked;
mod cuts;
mod full;
mod lasting;
mod looking;
mod members;
mod packs;
mod returning;
mod room;
mod shared;
mod units;
mod unreadable;

/// Files of one volume, each with its class of stripes.
#[derive(Clone, Default)]
struct Classed {
    model: Model,
    classes: BTreeMap<u64, StripeClass>,
}

fn inode_of(class: StripeClass) -> Inode {
    let time = Timestamp::default();
    Inode {
        kind: FileKind::Regular,
        permissions: 0o600,
        uid: 0,
        gid: 0,
        links: 1,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        unwritten_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: Ino(0),
        next_cookie: Cookie(0),
        quota: QuotaId::NONE,
        class,
        inline: Inline::None,
    }
}

impl TestFs {
    fn class_for(&self, data: usize, parity: usize) -> StripeClass {
        let geometry = Geometry::new(data, parity).unwrap();
        let class = self.transactions.class_for(geometry, CodeId::RS_CAUCHY);
        class.unwrap()
    }

    /// Gives a file a class.
    fn set_class(&self, file: u64, class: StripeClass) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        batch.put(key::inode(Ino(file)), inode_of(class).encode());
        self.transactions.apply(batch)
    }

    /// Writes a file of a class, and the extents that name its bytes.
    fn write_as(&self, class: StripeClass, file: u64, data: &[u8]) -> Result<(), CommitError> {
        self.set_class(file, class)?;
        let written = self.transactions.write_within(class, None, data)?;
        self.put_extents(file, &written)
    }

    /// Returns the segments in which the bytes of a file lie.
    fn segments_of(&self, file: u64) -> Vec<Segment> {
        let segments = self.transactions.stripes.segments();
        let extents = self.extents(file).unwrap().into_iter();
        let stripes = extents.filter_map(|(_, it)| self.transactions.stripe(it.stripe).unwrap());
        let records = stripes.map(|stripe| segments.record(stripe.segment).unwrap());
        records.collect()
    }

    /// Rebuilds until some bytes were written.
    fn rebuild_a_part(&self) {
        let progress = || self.maintenance.rebuild().status().progress();
        let rebuilt = self.rebuild_while(&|_| progress().bytes_done == 0);
        rebuilt.unwrap();
    }

    /// Flushes all stripes.
    fn flush(&self) {
        self.transactions
            .stripes
            .writer()
            .retire_segments()
            .unwrap();
        self.sync().unwrap();
    }
}

impl Classed {
    /// Writes files of some classes in turn, so that all have open stripes at once. Some of their bytes are in the journal
    /// alone afterwards.
    fn fill(&mut self, fs: &TestFs, first: u64, classes: &[StripeClass]) {
        let lens = [1, 63, 4_096, 5_000, 100, 70_000, 3, 16_384, 40_001];
        let turns = lens
            .iter()
            .flat_map(|len| classes.iter().map(move |it| (*len, *it)));
        for (file, (len, class)) in (first..).zip(turns) {
            self.write(fs, file, class, len).unwrap();
            if file % 4 == 3 {
                fs.sync().unwrap();
            }
        }
        fs.sync().unwrap();
    }

    fn write(
        &mut self,
        fs: &TestFs,
        file: u64,
        class: StripeClass,
        len: usize,
    ) -> Result<(), CommitError> {
        let data = pattern(file, len);
        fs.write_as(class, file, &data)?;
        self.model.insert(file, data);
        self.classes.insert(file, class);
        Ok(())
    }

    fn of(&self, class: StripeClass) -> Model {
        let model = self.model.iter();
        let of_class = model.filter(|(file, _)| self.classes[file] == class);
        of_class
            .map(|(file, bytes)| (*file, bytes.clone()))
            .collect()
    }

    /// Asserts that all bytes that are on members lie in stripes of the class of their file.
    fn assert_in_place(&self, fs: &TestFs, context: &str) {
        for (file, class) in &self.classes {
            for segment in fs.segments_of(*file) {
                let code = fs.transactions.code_of_class(*class).unwrap();
                let geometry =
                    Geometry::new(segment.data_shards.into(), segment.parity_shards.into());
                let found = (segment.class, geometry.unwrap(), CodeId(segment.code));
                assert_eq!(found, (*class, code.0, code.1), "{context}: file {file}");
            }
        }
    }

    /// Asserts that the files of a class can be read without any `losses` members.
    fn assert_survives(&self, rig: &Rig, class: StripeClass, losses: usize, context: &str) {
        for lost in subsets(rig.disks.len(), losses) {
            let fs = TestFs::open(rig.fork().stores(&lost), Access::ReadOnly).unwrap();
            let context = format!("{context}, class {class} without {lost:?}");
            assert_holds(&fs, &self.of(class), &context);
        }
    }
}

/// Makes a volume of 2 data shards whose stripes are long enough for those of wide codes.
fn rig(parity: usize, count: usize) -> Rig {
    Rig::with_unit(2, parity, &vec![DISK; count], 4 * UNIT)
}

fn volume() -> StripeClass {
    StripeClass::VOLUME
}

/// Returns a volume over so many members with files of its own code and of two others, and the classes of the three.
fn filled(count: usize, codes: [(usize, usize); 2]) -> (Rig, TestFs, [StripeClass; 3], Classed) {
    let rig = rig(2, count);
    let fs = rig.open(&[]);
    let [first, second] = codes.map(|(data, parity)| fs.class_for(data, parity));
    let classes = [volume(), first, second];
    let mut files = Classed::default();
    files.fill(&fs, 0, &classes);
    (rig, fs, classes, files)
}

#[test]
fn files_of_several_codes_written_at_once_survive_the_losses_that_each_promises() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let (wide, thin, equal) = (fs.class_for(5, 1), fs.class_for(1, 1), fs.class_for(4, 2));
    assert_eq!(fs.class_for(5, 1), wide, "a code has one class");
    assert_eq!(fs.class_for(2, 2), volume());
    let classes = [volume(), wide, thin, equal];
    assert_eq!(classes.iter().collect::<BTreeSet<_>>().len(), 4);
    let mut files = Classed::default();
    files.fill(&fs, 0, &classes);
    files.fill(&fs, 100, &classes);
    fs.flush();
    let written: Vec<_> = classes.iter().map(|it| files.of(*it).len()).collect();
    assert_eq!(written, [18; 4]);
    files.assert_in_place(&fs, "written");
    fs.assert_shards_lie_on(&rig, &[], "written");
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    let rows: Vec<i16> = counted
        .rows
        .iter()
        .map(|row| row.losses_tolerated)
        .collect();
    assert_eq!(rows, [1, 2]);
    assert!(
        counted.rows.iter().all(RedundancyRow::is_as_promised),
        "{counted:?}"
    );
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_eq!(fs.rebuild().unwrap().bytes_done, 0, "nothing is to be done");
    files.assert_in_place(&fs, "after a rebuild");
    fs.close();
    for (class, losses) in [(volume(), 2), (wide, 1), (thin, 1), (equal, 2)] {
        files.assert_survives(&rig, class, losses, "closed");
    }
}

#[test]
fn bytes_that_only_the_journal_has_get_the_code_of_their_file_after_a_crash() {
    for policy in ways_to_cut(7) {
        let rig = rig(2, 6);
        let fs = rig.open(&[]);
        let classes = [volume(), fs.class_for(5, 1), fs.class_for(4, 2)];
        let mut files = Classed::default();
        for file in 0..60 {
            let class = classes[file as usize % 3];
            files.write(&fs, file, class, 700 + file as usize).unwrap();
            fs.sync().unwrap();
        }
        let in_memory = fs.transactions.stripes.writer().unwritten_bytes();
        assert!(in_memory > 0, "nothing is in the journal alone");
        drop(fs);
        rig.cut(policy);
        let fs = rig.open(&[]);
        assert_holds(&fs, &files.model, "after a crash");
        fs.flush();
        files.assert_in_place(&fs, "after a crash");
        let lying: usize = files
            .classes
            .keys()
            .map(|it| fs.segments_of(*it).len())
            .sum();
        assert!(lying >= 60, "{lying}");
        fs.close();
        files.assert_survives(&rig, classes[0], 2, "after a crash");
        files.assert_survives(&rig, classes[1], 1, "after a crash");
        files.assert_survives(&rig, classes[2], 2, "after a crash");
    }
}

#[test]
fn lost_shards_of_every_code_are_rebuilt() {
    let (rig, fs, classes, mut files) = filled(8, [(5, 1), (4, 2)]);
    fs.lose(&rig, 3);
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    assert!(
        !counted.rows.iter().all(RedundancyRow::is_as_promised),
        "{counted:?}"
    );
    files.fill(&fs, 100, &classes);
    assert!(fs.rebuild().unwrap().bytes_done > 0);
    files.assert_in_place(&fs, "rebuilt");
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    assert!(
        counted.rows.iter().all(RedundancyRow::is_as_promised),
        "{counted:?}"
    );
    fs.close();
    let rig = Rig {
        disks: rig
            .disks
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != 3)
            .map(|(_, it)| it.clone())
            .collect(),
    };
    files.assert_survives(&rig, classes[1], 1, "rebuilt");
    files.assert_survives(&rig, classes[2], 2, "rebuilt");
}

/// The volume goes on after as many losses as its own code survives.
#[test]
fn while_members_are_too_few_for_the_code_of_a_directory_its_bytes_get_that_of_the_volume() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    let mut files = Classed::default();
    files.write(&fs, 1, wide, 10_000).unwrap();
    fs.lose(&rig, 0);
    // Six members suffice for the data shards, and new stripes would have no parity.
    files.fill(&fs, 50, &[wide]);
    fs.flush();
    for file in files.classes.keys() {
        for segment in fs.segments_of(*file) {
            assert_eq!(segment.class, volume(), "file {file}");
        }
    }
    files.write(&fs, 2, wide, 10_000).unwrap();
    fs.lose(&rig, 1);
    fs.sync().unwrap();
    files.fill(&fs, 10, &[wide, volume()]);
    fs.flush();
    assert_holds(&fs, &files.model, "two of seven are lost");
    for (file, class) in &files.classes {
        for segment in fs.segments_of(*file) {
            assert_eq!(segment.class, volume(), "file {file} of class {class}");
        }
    }
    fs.take_back(&rig, 0);
    fs.take_back(&rig, 1);
    fs.rebuild().unwrap();
    files.fill(&fs, 100, &[wide]);
    fs.flush();
    assert_eq!(fs.segments_of(100)[0].class, wide);
    fs.transactions.order_rewrite().unwrap();
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "rewritten");
    assert!(!fs.maintenance.rebuild().awaits_rewrite().unwrap());
    fs.close();
    files.assert_survives(&rig, wide, 1, "rewritten");
}

/// Members fail that a directory has too little parity for, before its bytes are durable. All others are.
#[test]
fn a_sync_fails_for_files_alone_whose_unsynced_stripes_were_lost() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    let mut files = Classed::default();
    files.write(&fs, 1, volume(), 20_000).unwrap();
    fs.write_as(thin, 2, &pattern(2, 20_000)).unwrap();
    fs.transactions.stripes.writer().seal();
    fs.transactions.stripes.writer().wait_flushed().unwrap();
    fs.lose(&rig, 0);
    fs.lose(&rig, 1);
    fs.transactions.sync_file(Ino(1)).unwrap();
    for _ in 0..2 {
        let synced = fs.transactions.sync_file(Ino(2));
        let is_told = matches!(
            &synced,
            Err(CommitError::Stripes(StripeError::LostUnsynced { .. }))
        );
        assert!(is_told, "{synced:?}");
    }
    fs.transactions.sync_all().unwrap_err();
    fs.transactions.sync_all().unwrap();
    // The volume goes on, and the file can be written again.
    files.write(&fs, 3, volume(), 20_000).unwrap();
    fs.remove(2).unwrap();
    files.write(&fs, 2, thin, 30_000).unwrap();
    fs.transactions.sync_file(Ino(2)).unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = TestFs::open(rig.fork().stores(&[0, 1]), Access::ReadOnly).unwrap();
    assert_holds(&fs, &files.model, "after a power cut");
}

/// A rebuild that looks for files too early ends no order.
#[test]
fn an_order_to_rewrite_outlives_rebuilds_until_all_files_have_their_class() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[volume()]);
    fs.flush();
    let all: Vec<u64> = files.classes.keys().copied().collect();
    let rebuild = fs.maintenance.rebuild();
    let given = fs.transactions.ordering_rewrite(|| {
        fs.rebuild().unwrap();
        assert!(rebuild.awaits_rewrite()?, "no file has the class yet");
        for file in &all {
            fs.set_class(*file, thin)?;
        }
        Ok::<_, CommitError>(())
    });
    given.unwrap();
    files.classes = all.iter().map(|file| (*file, thin)).collect();
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "rewritten");
    assert!(!rebuild.awaits_rewrite().unwrap());
    let failed = fs.transactions.ordering_rewrite(|| {
        fs.set_class(all[0], volume())?;
        Err::<(), _>(CommitError::NoSpace)
    });
    assert!(matches!(failed, Err(CommitError::NoSpace)));
    assert!(rebuild.awaits_rewrite().unwrap(), "one file has the class");
}

#[test]
fn compaction_leaves_every_file_its_code() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let classes = [
        volume(),
        fs.class_for(5, 1),
        fs.class_for(4, 2),
        fs.class_for(1, 1),
    ];
    let mut files = Classed::default();
    files.fill(&fs, 0, &classes);
    // An extent of each class lies in a stripe of another one.
    for file in (0..36).step_by(5) {
        let class = classes[(file as usize + 1) % 4];
        fs.set_class(file, class).unwrap();
        files.classes.insert(file, class);
    }
    fs.flush();
    for _ in 0..20 {
        let moved = fs.maintenance.room.compaction.move_stripes(
            fs.stripes(),
            &NoLocks,
            Floor::Written,
            &|_| true,
        );
        moved.unwrap();
        fs.flush();
        fs.maintenance.reaper.free_dead().unwrap();
    }
    assert_holds(&fs, &files.model, "compacted");
    files.assert_in_place(&fs, "compacted");
    let survives = files.clone();
    fs.transactions.order_rewrite().unwrap();
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "rewritten");
    fs.close();
    survives.assert_survives(&rig, classes[2], 2, "rewritten");
}

#[test]
fn files_that_get_another_code_are_rewritten_in_parts_and_the_order_outlives_a_crash() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let (wide, equal) = (fs.class_for(5, 1), fs.class_for(4, 2));
    let mut files = Classed::default();
    files.fill(&fs, 0, &[volume(), wide]);
    fs.transactions.order_rewrite().unwrap();
    let all: Vec<u64> = files.classes.keys().copied().collect();
    for file in all {
        let class = if file % 3 == 0 { volume() } else { equal };
        fs.set_class(file, class).unwrap();
        files.classes.insert(file, class);
    }
    fs.sync().unwrap();
    let mut rounds = 0;
    let mut fs = fs;
    loop {
        rounds += 1;
        fs.rebuild_a_part();
        if rounds % 3 > 0 {
            fs.sync().unwrap();
        }
        drop(fs);
        rig.cut(CutPolicy::Drop);
        fs = rig.open(&[]);
        assert_holds(&fs, &files.model, "between two parts");
        if !fs.maintenance.rebuild().awaits_rewrite().unwrap() {
            break;
        }
        assert!(rounds < 500);
    }
    assert!(rounds > 2, "{rounds}");
    files.assert_in_place(&fs, "rewritten");
    fs.rebuild().unwrap();
    fs.close();
    files.assert_survives(&rig, equal, 2, "rewritten");
    files.assert_survives(&rig, volume(), 2, "rewritten");
}

#[test]
fn codes_that_a_directory_cannot_have_are_refused_and_change_nothing() {
    let rig = rig(1, 5);
    let fs = rig.open(&[]);
    let class_for = |data, parity, code| {
        let geometry = Geometry::new(data, parity).unwrap();
        fs.transactions.class_for(geometry, code)
    };
    let cauchy = CodeId::RS_CAUCHY;
    let refused = class_for(2, 2, cauchy);
    let expected = matches!(
        refused,
        Err(DirectoryCodeError::TooMuchParity { losses: 2, most: 1 })
    );
    assert!(expected, "{refused:?}");
    let refused = class_for(5, 1, cauchy);
    assert!(
        matches!(refused, Err(DirectoryCodeError::Commit(_))),
        "{refused:?}"
    );
    let refused = class_for(2, 1, CodeId(999));
    assert!(refused.is_err(), "{refused:?}");
    let (from, end) = key::directory_codes();
    assert!(fs.transactions.scan(&from, &end, 9).unwrap().is_empty());
    let classes = [fs.class_for(3, 1), fs.class_for(4, 1), fs.class_for(1, 1)];
    assert_eq!(classes, [1, 2, 3].map(StripeClass));
    fs.close();
    let fs = rig.open(&[]);
    assert_eq!(
        fs.class_for(4, 1),
        StripeClass(2),
        "it is the same after an opening"
    );
}

#[test]
fn a_code_too_many_and_one_too_wide_are_refused_and_say_which_would_do() {
    let rig = Rig::with_unit(2, 2, &[DISK; 10], 2 * UNIT);
    let fs = rig.open(&[]);
    let class_for = |data, parity, code| {
        let geometry = Geometry::new(data, parity).unwrap();
        fs.transactions.class_for(geometry, code)
    };
    let cauchy = CodeId::RS_CAUCHY;
    let refused = class_for(9, 1, cauchy);
    assert!(
        matches!(
            refused,
            Err(DirectoryCodeError::TooWide {
                data_shards: 9,
                most: 8
            })
        ),
        "{refused:?}"
    );
    let all = (1..=8).flat_map(|data| [(data, 1), (data, 2)]);
    let all: Vec<_> = all.filter(|shards| *shards != (2, 2)).collect();
    for (data, parity) in &all {
        class_for(*data, *parity, cauchy).unwrap();
    }
    let shards = Geometry::new(2, 2).unwrap();
    let other = CodeId::RANDOM_GF2.for_geometry(shards).unwrap();
    let Err(DirectoryCodeError::TooMany { known }) = class_for(2, 2, other) else {
        panic!("there is a sixteenth code");
    };
    let known: Vec<_> = known
        .into_iter()
        .map(|(geometry, code)| (geometry.data_shards(), geometry.parity_shards(), code))
        .collect();
    // That of the volume can be used as well.
    let all = [(2, 2)].into_iter().chain(all);
    let expected: Vec<_> = all.map(|(data, parity)| (data, parity, cauchy)).collect();
    assert_eq!(known, expected);
    assert_eq!(class_for(8, 1, cauchy).unwrap(), StripeClass(14));
    fs.maintenance.draining().drain(MemberIndex(9)).unwrap();
    let Err(DirectoryCodeError::TooMany { known }) = class_for(2, 2, other) else {
        panic!("there is a sixteenth code");
    };
    let shards = known.iter().map(|(geometry, _)| geometry.total_shards());
    assert_eq!(shards.max(), Some(9), "those that can be used: {known:?}");
    // A volume with shorter stripes has no room for the widest of them.
    let shorter = StripeCode {
        unit_bytes: 4096,
        ..fs.transactions.members().shape().stripe_code()
    };
    fs.set_class(7, StripeClass(15)).unwrap();
    let refused = fs.transactions.check_beside_directories(shorter);
    assert!(
        matches!(
            refused,
            Err(DirectoryCodeError::DirectoryTooWide {
                data_shards: 8,
                most: 2
            })
        ),
        "{refused:?}"
    );
}

#[test]
fn a_volume_keeps_as_much_parity_as_a_directory_in_use_has() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let class = fs.class_for(4, 2);
    let less = StripeCode {
        geometry: Geometry::new(2, 1).unwrap(),
        ..fs.transactions.members().shape().stripe_code()
    };
    let check = |fs: &TestFs| fs.transactions.check_beside_directories(less);
    check(&fs).unwrap();
    fs.set_class(7, class).unwrap();
    let refused = check(&fs);
    let expected = matches!(
        refused,
        Err(DirectoryCodeError::DirectoryHasMore { losses: 2, most: 1 })
    );
    assert!(expected, "{refused:?}");
    fs.set_class(7, volume()).unwrap();
    check(&fs).unwrap();
}

#[test]
fn a_member_stays_that_the_stripes_of_a_directory_need() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let wide = fs.class_for(5, 1);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide]);
    fs.flush();
    let drained = fs.maintenance.draining().drain(MemberIndex(2));
    let refused = matches!(&drained, Err(CommitError::Members(error))
        if matches!(**error, MembersError::TooFewLeftForDirectories { staying: 5, .. }));
    assert!(refused, "{drained:?}");
    for file in files.model.keys() {
        fs.remove(*file).unwrap();
    }
    fs.sync().unwrap();
    fs.maintenance.reaper.free_dead().unwrap();
    fs.sync().unwrap();
    fs.maintenance.reaper.free_dead().unwrap();
    fs.maintenance.draining().drain(MemberIndex(2)).unwrap();
}

/// The change of the volume's code leaves the stripes of directories alone.
#[test]
fn a_change_of_the_code_of_the_volume_leaves_those_of_directories() {
    for (data, parity) in [(2, 3), (3, 2), (5, 2)] {
        // One has the same code as the volume has afterwards.
        let (rig, fs, classes, mut files) = filled(7, [(5, 1), (5, 2)]);
        fs.flush();
        let before: BTreeSet<SegmentId> = segments_of_directories(&fs);
        let to = StripeCode {
            geometry: Geometry::new(data, parity).unwrap(),
            ..fs.transactions.members().shape().stripe_code()
        };
        fs.transactions.change_code(to).unwrap();
        fs.close();
        let fs = rig.open(&[]);
        fs.rebuild().unwrap();
        let context = format!("to {data}+{parity}");
        assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
        assert_eq!(segments_of_directories(&fs), before, "{context}");
        files.fill(&fs, 100, &classes);
        fs.flush();
        files.assert_in_place(&fs, &context);
        fs.close();
        files.assert_survives(&rig, classes[0], parity, &context);
        files.assert_survives(&rig, classes[2], 2, &context);
    }
}

fn segments_of_directories(fs: &TestFs) -> BTreeSet<SegmentId> {
    let records = fs.transactions.stripes.segments().records().into_iter();
    let of_directories = records.filter(|(_, record)| record.class != volume());
    of_directories.map(|(segment, _)| segment).collect()
}

/// Codes of directories take no notice of a file that no inode names.
#[test]
fn files_without_an_inode_have_the_code_of_the_volume() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    fs.class_for(1, 1);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.flush();
    assert!(segments_of_directories(&fs).is_empty());
    assert_holds(&fs, &model, "filled");
}
