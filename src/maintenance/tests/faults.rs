//! The n-th call failing, for every n.

use super::*;
use crate::store::{Effect, Fault};

fn work(fs: &TestFs, model: &mut Model) -> Result<(), CommitError> {
    for round in 0..2_u64 {
        for (file, len) in [(1, 900), (2, 50_000), (3, 4_096)] {
            let bytes = pattern(20 * round + file, len);
            fs.write(file, &bytes)?;
            model.insert(file, bytes);
            fs.sync()?;
            assert_eq!(fs.read(file)?, model[&file]);
        }
        fs.remove(3)?;
        model.insert(3, Vec::new());
        for _ in 0..3 {
            fs.maintenance.reaper.reap()?;
            fs.sync()?;
        }
        // A checkpoint that finds no room loses nothing, and is made later.
        match fs.transactions.checkpoint() {
            Err(CommitError::NoSpace) => fs.transactions.checkpoint()?,
            outcome => outcome?,
        }
        fs.transactions.members().probe();
    }
    Ok(())
}

/// One failing call costs at most one member: no caller sees an error, all reads back.
fn every_single_failure_is_borne(data: usize, parity: usize, count: usize, effect: Effect) {
    let base = Rig::new(data, parity, count);
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        plan.add(Fault::at(call, effect));
        let mut model = Model::new();
        let context = format!("{data}+{parity} of {count}, {effect:?} at call {call}");
        work(&fs, &mut model).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_holds(&fs, &model, &context);
        let struck = plan.triggered() > 0;
        assert!(
            fs.redundancy().iter().all(|row| row.0 + 1 >= parity as i16),
            "{context}"
        );
        match fs.maintenance.close() {
            Ok(()) | Err(CommitError::NoSpace) => {}
            Err(error) => panic!("{context}: {error}"),
        }
        drop(fs);
        assert_holds(
            &rig.fork().open(&[]),
            &model,
            &format!("{context}, reopened"),
        );
        let fs = rig.open(&[]);
        fs.assert_shards_lie_on(&rig, &[], &context);
        if !struck {
            assert!(call > 50, "only {call} calls were made");
            break;
        }
    }
}

#[test]
fn an_io_error_at_any_call_is_borne_2_plus_1() {
    every_single_failure_is_borne(2, 1, 3, Effect::Eio);
}

#[test]
fn an_io_error_at_any_call_is_borne_where_another_member_can_take_over() {
    every_single_failure_is_borne(2, 1, 5, Effect::Eio);
}

#[test]
fn a_short_write_at_any_call_is_borne() {
    every_single_failure_is_borne(2, 1, 3, Effect::ShortWrite);
}

#[test]
fn no_space_at_any_call_is_borne() {
    every_single_failure_is_borne(2, 1, 4, Effect::NoSpace);
}

/// A member that answers nothing is marked faulted after the timeout, and no caller sees an error.
#[test]
fn a_hang_at_any_call_is_borne() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    // Two may fail: the machine may be so busy that another one seems to hang.
    let base = Rig::new(2, 2, 4);
    for call in (1..).step_by(11) {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
        let options = OpenOptions {
            threads: 1,
            ..OpenOptions::default()
        };
        let executor = Arc::new(Executor::new(ExecutorKind::Threads, TIMEOUT));
        let volume = Maintenance::open(stores, &options, executor).unwrap();
        let fs = TestFs::over(volume);
        plan.add(Fault::at(call, Effect::Hang));
        let mut model = Model::new();
        let context = format!("hang at call {call}");
        work(&fs, &mut model).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_holds(&fs, &model, &context);
        let struck = plan.triggered() > 0;
        plan.release();
        fs.maintenance
            .close()
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        if !struck {
            assert!(call > 50, "only {call} calls were made");
            break;
        }
    }
}
