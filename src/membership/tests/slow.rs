use super::*;
use crate::store::{CallKind, Effect, Fault, Pool, Scope};

fn open_on(disks: &Disks, plan: &FaultPlan, timeout: Duration) -> Arc<Members> {
    for disk in &disks.directories {
        disk.open().create("f", 4096).expect("there is room");
    }
    let executor = Arc::new(Executor::new(ExecutorKind::Threads, timeout));
    let stores = disks.faulty(disks.all(), plan);
    let members = Members::open(stores, Access::ReadWrite, executor);
    let members = members.expect("all members are there");
    members.epochs().begin().expect("all members are there");
    members
}

fn read(member: u16) -> (MemberIndex, Op) {
    let buf = Pool::new(0).buffer(4096);
    let name = "f".into();
    (
        MemberIndex(member),
        Op::Read {
            name,
            offset: 0,
            buf,
        },
    )
}

fn kinds(members: &Members, reads: impl IntoIterator<Item = u16>) -> Vec<Option<StoreErrorKind>> {
    let reads = reads.into_iter().map(read).collect();
    let outcomes = members.io().read(reads, Wait::HedgeDelay).into_iter();
    outcomes
        .map(|outcome| outcome.err().map(|error| error.kind()))
        .collect()
}

const SLOW: Option<StoreErrorKind> = Some(StoreErrorKind::Slow);

#[test]
fn a_slow_member_is_asked_once_until_it_answers_and_counts_with_what_was_last_known() {
    let disks = Disks::volume(2, 2, 4);
    let plan = FaultPlan::new();
    let members = open_on(&disks, &plan, Duration::from_secs(600));
    let spaces = members.io().spaces();
    assert_eq!(spaces.len(), 4);
    let status = members.status();
    assert!(status[1].bytes_used > 0 && status[1].bytes_free > 0);
    plan.add(Fault::at(1, Effect::Hang).of(Scope::Member(1)).lasting());
    assert_eq!(kinds(&members, 0..4), [None, SLOW, None, None]);
    assert!(members.io().is_avoided(MemberIndex(1)));
    assert_eq!(kinds(&members, [1, 3, 1]), [SLOW, None, SLOW]);
    assert_eq!(members.io().spaces(), spaces);
    assert_eq!(members.status(), status);
    assert_eq!(plan.triggered(), 1, "it is asked once");
    members.io().fail_overdue();
    assert_eq!(
        members.membership().live(),
        indices(0..4),
        "the member is not given up yet"
    );
    plan.clear();
    plan.release();
    while members.io().is_avoided(MemberIndex(1)) {
        std::thread::yield_now();
    }
    assert_eq!(kinds(&members, 0..4), [None; 4]);
    assert_eq!(members.status()[1].errors, ErrorCounts::default());
}

#[test]
fn a_member_that_cannot_be_spared_is_waited_for() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let members = open_on(&disks, &plan, Duration::from_secs(600));
    plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(0, CallKind::Read)));
    assert_eq!(kinds(&members, [0]), [SLOW]);
    plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(2, CallKind::Read)));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| kinds(&members, [0, 1, 2]));
        while plan.triggered() < 2 {
            std::thread::yield_now();
        }
        plan.release();
        assert_eq!(read.join().expect("it returns"), [SLOW, None, None]);
    });
}

/// A volume of more members than a stripe has shards. To give up two of them would lose stripes.
#[test]
fn no_more_members_are_given_up_at_once_than_there_are_parity_shards() {
    let disks = Disks::volume(2, 1, 6);
    let plan = FaultPlan::new();
    let members = open_on(&disks, &plan, Duration::from_secs(1));
    for index in [0, 2] {
        plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(index, CallKind::Read)));
    }
    std::thread::scope(|scope| {
        let ask = || members.io().run([0, 1, 2].map(read).into());
        let asked = scope.spawn(ask);
        while plan.triggered() < 2 {
            std::thread::yield_now();
        }
        // For longer than one silent member is waited for.
        std::thread::sleep(Duration::from_secs(2));
        plan.release();
        let outcomes = asked.join().expect("it returns");
        // One of them was silent first, and can be spared.
        let failed = outcomes.iter().filter(|outcome| outcome.is_err());
        assert!(failed.count() <= 1, "{outcomes:?}");
    });
    assert!(members.membership().live().len() >= 5);
}

#[test]
fn a_member_that_is_slow_for_too_long_is_faulted() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let members = open_on(&disks, &plan, Duration::from_secs(2));
    plan.add(
        Fault::at(1, Effect::Hang)
            .of(Scope::MemberKind(1, CallKind::Read))
            .lasting(),
    );
    assert_eq!(kinds(&members, [1]), [SLOW]);
    while members.membership().live() == indices(0..3) {
        members.probe();
    }
    assert_eq!(members.membership().live(), indices([0, 2]));
    let status = &members.status()[1];
    assert_eq!(
        (status.state, status.errors.read),
        (MemberState::Faulted, 1)
    );
    assert_eq!(disks.block(0).head().epoch, Epoch(2));
    assert_eq!(disks.block(1).head().epoch, Epoch(1));
    plan.release();
}
