//! Commits while a checkpoint writes the index.

use super::*;

/// Writes that were synced after the records for the index were chosen.
const AFTER: [(u64, usize); 3] = [(2, 3_000), (3, 700), (1, 5_000)];

/// Writes a file whose bytes are in the journal, and then in a stripe.
fn prepare(fs: &TestFs) -> Result<(), CommitError> {
    fs.write(1, &pattern(1, 9_000))?;
    fs.sync()?;
    fs.transactions.stripes.writer().seal();
    fs.sync()
}

/// Makes a checkpoint of the index, and syncs further writes before it is written. Returns how many were acknowledged.
fn checkpoint(fs: &TestFs) -> usize {
    let mut synced = 0;
    let write = |(file, len): (u64, usize)| {
        fs.write(file, &pattern(10 + file, len))?;
        fs.sync()
    };
    // A power cut shows in what was acknowledged.
    let _ = fs.transactions.meta.checkpoint_beyond(|| {
        synced = AFTER.into_iter().map_while(|it| write(it).ok()).count();
    });
    synced
}

#[test]
fn data_journaled_during_a_checkpoint_survives_a_power_cut_after_any_call() {
    let base = Rig::new(2, 1, 3);
    let mut cuts = 0;
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        prepare(&fs).unwrap();
        plan.add(power_cut_at(call));
        let synced = checkpoint(&fs);
        let is_cut = plan.triggered() > 0;
        drop(fs);
        for (turn, policy) in ways_to_cut(call).into_iter().enumerate() {
            let left = rig.fork();
            left.cut(policy);
            let lost = [(usize::try_from(call).unwrap() + turn) % 3];
            let context = format!("cut {call}, {policy:?}, lost {lost:?}");
            let fs = left.open_in(&lost, &context);
            for (file, len) in &AFTER[..synced] {
                // A later write of the same file may have become durable as well.
                if *file != 1 || synced == AFTER.len() {
                    assert_eq!(
                        fs.read(*file).unwrap(),
                        pattern(10 + file, *len),
                        "{context}"
                    );
                }
            }
            let first = fs.read(1).unwrap();
            assert!(
                first == pattern(1, 9_000) || first == pattern(11, 5_000),
                "{context}"
            );
        }
        if !is_cut {
            assert_eq!(synced, AFTER.len());
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 20, "only {cuts} cuts were tried");
}

fn is_index_write(call: &Call) -> bool {
    call.kind == CallKind::Write && call.name == files::INDEX
}

/// A commit that flushed its few bytes as a stripe would take more room, and more writes to each member.
#[test]
fn a_commit_during_the_write_of_the_index_journals_its_data() {
    let base = Rig::new(2, 1, 3);
    let open = || {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        prepare(&fs).unwrap();
        plan.record();
        (rig, plan, fs)
    };
    let (_rig, plan, fs) = open();
    fs.transactions.checkpoint().unwrap();
    let first = plan.take_log().iter().position(is_index_write);
    let first = first.expect("a checkpoint writes the index") as u64 + 1;

    let (rig, plan, fs) = open();
    plan.add(Fault::at(first, Effect::Hang));
    std::thread::scope(|scope| {
        let checkpointing = scope.spawn(|| fs.transactions.checkpoint());
        while plan.triggered() == 0 {
            std::thread::yield_now();
        }
        assert!(plan.take_log().iter().any(is_index_write));
        fs.write(2, &pattern(2, 3_000)).unwrap();
        fs.sync().unwrap();
        let log = plan.take_log();
        plan.release();
        checkpointing.join().unwrap().unwrap();
        let writes = log.iter().filter(|call| call.kind == CallKind::Write);
        let names: Vec<_> = writes.map(|call| &*call.name).collect();
        assert!(!names.is_empty());
        assert!(
            names.iter().all(|name| files::JOURNALS.contains(name)),
            "{names:?}"
        );
    });
    drop(fs);
    rig.cut(CutPolicy::Drop);
    assert_eq!(rig.open(&[]).read(2).unwrap(), pattern(2, 3_000));
}

/// If the journal alone made checkpoints due, small changes would fill their memory first, and all wait for a whole checkpoint.
#[test]
fn changes_that_take_half_of_their_memory_go_to_the_index_with_the_next_tick() {
    // Their journals hold more changes than the memory.
    let rig = Rig::with_disks(2, 1, &[1 << 30; 3]);
    let fs = rig.open(&[]);
    // The epoch of the mount waits for one as well.
    fs.transactions.checkpoint().unwrap();
    let meta = &fs.transactions.meta;
    let limit = meta.most_waiting();
    let attribute = |number| key::xattr(Ino(number), b"user.a");
    let mut numbers = 0..;
    while meta.waits_below(limit / 2) {
        let mut batch = Batch::default();
        for number in numbers.by_ref().take(1000) {
            batch.put(attribute(number), vec![1]);
        }
        fs.transactions.apply(batch).unwrap();
        fs.sync().unwrap();
    }
    assert!(meta.journal_fill() < 0.5, "the journal makes one due");
    assert!(!meta.waits_below(limit / 2), "there was one already");
    let epochs = fs.transactions.members().epochs();
    assert!(!epochs.is_checkpoint_awaited(), "the epoch makes one due");
    fs.transactions.clock().tick().unwrap();
    assert!(meta.overlay_bytes() < 1 << 20, "{}", meta.overlay_bytes());
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    for number in [0, 1, numbers.start / 2, numbers.start - 1] {
        let value = fs.transactions.get(&attribute(number)).unwrap();
        assert_eq!(value.as_deref(), Some(&[1][..]), "{number}");
    }
}
