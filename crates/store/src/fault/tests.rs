use super::*;
use crate::{Executor, ExecutorKind, MemStore, StoreRequest};
use std::time::Duration;

/// Two wrapped stores on memory disks and the plan that they share.
fn pair() -> (FaultPlan, Vec<StoreRef>) {
    let plan = FaultPlan::new();
    let stores = (0..2).map(|n| Arc::new(MemStore::new(&format!("m{n}"))) as StoreRef);
    let wrapped = FaultStore::wrap_all(stores.collect(), &plan);
    (plan, wrapped)
}

/// Ten calls, five on each store; returns the kinds of those that failed, by their place.
fn work(stores: &[StoreRef]) -> Vec<Option<StoreErrorKind>> {
    let each = |act: &dyn Fn(&dyn Store) -> Result<(), StoreError>| {
        let outcomes = stores
            .iter()
            .map(|store| act(&**store).err().map(|error| error.kind()));
        outcomes.collect::<Vec<_>>()
    };
    [
        each(&|store| store.create("f", 8)),
        each(&|store| store.write_at("f", 0, b"12345678")),
        each(&|store| store.sync("f")),
        each(&|store| store.read_at("f", 0, &mut [0; 8])),
        each(&|store| store.remove("f")),
    ]
    .concat()
}

#[test]
fn the_nth_call_of_all_fails_for_every_n_and_no_other_does() {
    for nth in 1..=10 {
        let (plan, stores) = pair();
        plan.add(Fault::at(nth, Effect::Eio).of(Scope::Any));
        let failed = work(&stores);
        assert_eq!(
            failed[usize::try_from(nth).expect("small") - 1],
            Some(StoreErrorKind::Io)
        );
        assert_eq!(plan.calls(), 10);
        assert_eq!(plan.triggered(), 1);
        let consequences = failed
            .iter()
            .flatten()
            .filter(|&&kind| kind != StoreErrorKind::Io);
        assert!(
            consequences.count() == 0 || nth <= 2,
            "only a failed create has any: {failed:?}"
        );
    }
    let (plan, stores) = pair();
    plan.add(Fault::at(11, Effect::Eio));
    assert_eq!(work(&stores), [None; 10]);
    assert_eq!(plan.triggered(), 0);
}

#[test]
fn scopes_count_only_their_own_calls() {
    let struck = |scope, nth| {
        let (plan, stores) = pair();
        plan.add(Fault::at(nth, Effect::NoSpace).of(scope));
        work(&stores)
            .iter()
            .position(|kind| *kind == Some(StoreErrorKind::NoSpace))
    };
    assert_eq!(struck(Scope::Member(1), 2), Some(3));
    assert_eq!(struck(Scope::Kind(CallKind::Sync), 2), Some(5));
    assert_eq!(struck(Scope::MemberKind(1, CallKind::Read), 1), Some(7));
    assert_eq!(struck(Scope::MemberKind(1, CallKind::Read), 2), None);
    assert_eq!(struck(Scope::Changing, 7), Some(8), "reads are not counted");
}

#[test]
fn a_lasting_fault_strikes_every_later_call_of_its_scope_until_cleared() {
    let (plan, stores) = pair();
    plan.add(Fault::at(2, Effect::Eio).of(Scope::Member(0)).lasting());
    let failed = work(&stores);
    for (place, kind) in failed.iter().enumerate() {
        let hit = place % 2 == 0 && place >= 2;
        assert_eq!(*kind, hit.then_some(StoreErrorKind::Io), "{place}");
    }
    plan.clear();
    stores[0].remove("f").expect("works again");
}

#[test]
fn a_short_write_writes_its_first_half_and_fails() {
    let (plan, stores) = pair();
    stores[0].create("f", 8).expect("a new file");
    plan.add(Fault::at(1, Effect::ShortWrite).of(Scope::Kind(CallKind::Write)));
    assert!(stores[0].write_at("f", 0, b"12345678").is_err());
    let mut seen = [0; 8];
    stores[0].read_at("f", 0, &mut seen).expect("bytes");
    assert_eq!(&seen, b"1234\0\0\0\0");
}

#[test]
fn wrong_bytes_differ_in_one_bit_without_an_error() {
    for kind in [CallKind::Read, CallKind::Write] {
        let (plan, stores) = pair();
        stores[0].create("f", 8).expect("a new file");
        plan.add(Fault::at(1, Effect::WrongBytes).of(Scope::Kind(kind)));
        stores[0].write_at("f", 0, b"12345678").expect("no error");
        let mut seen = [0; 8];
        stores[0].read_at("f", 0, &mut seen).expect("no error");
        let flipped: u32 = seen
            .iter()
            .zip(b"12345678")
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!(flipped, 1, "{kind:?}");
    }
}

#[test]
fn after_a_power_cut_no_call_has_an_effect_on_any_member() {
    for nth in 1..=10 {
        let (plan, stores) = pair();
        plan.add(Fault::at(nth, Effect::PowerCut));
        for (place, kind) in work(&stores).into_iter().enumerate() {
            let off = place as u64 + 1 >= nth;
            assert_eq!(
                kind,
                off.then_some(StoreErrorKind::PowerCut),
                "cut {nth} place {place}"
            );
        }
        plan.clear();
        let there = stores
            .iter()
            .filter(|store| store.open_len("f").is_ok())
            .count() as u64;
        let (made, removed) = ((nth - 1).min(2), (nth - 1).saturating_sub(8));
        assert_eq!(there, made - removed, "cut {nth}");
    }
}

#[test]
fn a_hanging_call_goes_on_when_released() {
    let (plan, stores) = pair();
    plan.add(Fault::at(1, Effect::Hang));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| stores[0].create("f", 1));
        while plan.triggered() == 0 {
            std::thread::yield_now();
        }
        stores[1].create("f", 1).expect("others go on");
        assert!(stores[0].open_len("f").is_err(), "nothing happened yet");
        plan.release();
        hanging.join().expect("no panic").expect("it went through");
    });
    stores[0].open_len("f").expect("it took effect");
}

#[test]
fn the_same_work_makes_the_same_calls_in_the_same_order_inline() {
    let log = || {
        let (plan, stores) = pair();
        plan.record();
        let executor = Executor::new(ExecutorKind::Inline, Duration::ZERO);
        let batch = |make: &dyn Fn(&StoreRef) -> StoreRequest| {
            executor.run(stores.iter().map(make).collect()).len()
        };
        batch(&|store| StoreRequest::create(store, "f", 8));
        batch(&|store| StoreRequest::write(store, "f", 4, bytes::Bytes::from_static(b"1234")));
        batch(&|store| StoreRequest::sync(store, "f"));
        plan.take_log()
    };
    let calls = log();
    assert_eq!(calls, log());
    assert_eq!(
        calls.iter().map(|call| call.member).collect::<Vec<_>>(),
        [0, 1, 0, 1, 0, 1]
    );
    let write = Call {
        member: 1,
        kind: CallKind::Write,
        name: "f".into(),
        offset: 4,
        len: 4,
    };
    assert_eq!(calls[3], write);
}
