//! The costs of opening a volume.

use super::*;

/// Makes a volume with as many stripes, all in one unfinished segment. Returns how often opening it reads from the
/// index once that is open: before, a debug build of the database looks at all of it.
fn index_reads_at_open(stripes: u64) -> usize {
    let disks: Vec<MemDisk> = (0..2)
        .map(|number| MemDisk::new(&format!("disk{number}"), 256 << 20))
        .collect();
    let rig = Rig { disks };
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    options.unit_bytes = BLOCK_SIZE as u32;
    options.segment_bytes = 64 << 20;
    Transactions::create(&rig.stores(&[]), &options, executor()).unwrap();
    let rig = rig.fork();
    let fs = rig.open(&[]);
    for file in 0..stripes {
        fs.write(file, &pattern(file, BLOCK_SIZE)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    assert_eq!(fs.stripes().len() as u64, stripes);
    // As a crash leaves it: the segment has its whole length.
    let crashed = rig.fork();
    drop(fs);
    let plan = FaultPlan::new();
    plan.record();
    let fs = crashed.open_with_faults(&plan).unwrap();
    let calls = plan.take_log();
    let is_open =
        |call: &&Call| call.kind == CallKind::Write && files::JOURNALS.contains(&&*call.name);
    let reads = calls
        .iter()
        .skip_while(|call| !is_open(call))
        .filter(|call| call.kind == CallKind::Read && call.name == files::INDEX);
    let reads = reads.count();
    assert_eq!(
        fs.read(stripes - 1).unwrap(),
        pattern(stripes - 1, BLOCK_SIZE)
    );
    reads
}

#[test]
fn opening_reads_little_of_the_index_however_many_stripes_a_segment_has() {
    let (few, many) = (index_reads_at_open(64), index_reads_at_open(8192));
    assert!(
        many <= 2 * few + 32,
        "{many} reads of the index for 8192 stripes, {few} for 64"
    );
}
