//! Events during the second pass over segments that could not be read in the first.

use std::time::Instant;

use super::*;
use crate::format::MemberIndex;
use crate::maintenance::RebuildState;

/// A member that was away while a scrub passed everything, and is back: all that it has must be passed once more.
struct Late {
    rig: Rig,
    model: Model,
    plan: FaultPlan,
    fs: TestFs,
    member: usize,
    /// The number of its shards.
    shards: u64,
    /// Bytes that the scrub has read so far.
    read: u64,
}

impl Late {
    fn of(rig: Rig) -> Self {
        let model = fill(&rig);
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        // One without a copy of the index: what is read from it then is shards.
        let holders = rig.holders();
        let member = (0..rig.disks.len()).rfind(|disk| !holders.contains(disk));
        let member = member.unwrap();
        let written = fs.written_shards().into_iter();
        let shards = written.filter(|shard| shard.disk == member).count() as u64;
        assert!(shards > 3, "{shards}");
        fs.lose(&rig, member);
        let stopped = scrub_until(&fs, |record| record.segment >= record.end).record;
        assert_eq!(stopped.missing, shards);
        rig.disks[member].fail(None);
        let store = Arc::new(rig.disks[member].open());
        let store: StoreRef = Arc::new(FaultStore::new(store, member, &plan));
        fs.maintenance
            .joining()
            .join(JoinAs::Returning, &store)
            .unwrap();
        Self {
            rig,
            model,
            plan,
            fs,
            member,
            shards,
            read: stopped.bytes,
        }
    }

    fn index(&self) -> MemberIndex {
        MemberIndex(self.member as u16)
    }

    /// The n-th time that something is read from the member.
    fn on_read(&self, nth: u64, effect: Effect) -> Fault {
        Fault::at(nth, effect).of(Scope::MemberKind(self.member, CallKind::Read))
    }
}

#[test]
fn a_member_unread_for_want_of_descriptors_is_neither_verified_nor_marked_missing() {
    let late = Late::of(Rig::new(4, 2, 6));
    late.plan
        .add(late.on_read(1, Effect::NoDescriptors).lasting());
    let done = scrub(&late.fs);
    assert_eq!(done.state, ScrubState::Finished);
    assert_eq!((done.record.missing, done.record.wrong), (late.shards, 0));
    assert_eq!(
        late.fs.maintenance.scrubber.unverified_by_scrub(),
        late.shards
    );
    assert_eq!(late.fs.transactions.members().membership().live().len(), 6);
    late.plan.clear();
    let done = scrub(&late.fs);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(late.fs.maintenance.scrubber.unverified_by_scrub(), 0);
}

#[test]
fn the_second_pass_keeps_the_ordered_rate() {
    let late = Late::of(Rig::new(4, 2, 6));
    let rate: u64 = 2 << 20;
    let start = Instant::now();
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    let done = late
        .fs
        .maintenance
        .scrubber
        .scrub(&NoLocks, Some(rate), go_on);
    let took = start.elapsed();
    let done = done.unwrap().unwrap();
    assert!(done.is_clean(), "{done:?}");
    let read = done.record.bytes - late.read;
    assert!(read >= late.shards * BLOCK_SIZE as u64, "{read}");
    let least = Duration::from_micros(read * 1_000_000 / rate);
    assert!(took >= least, "{read} bytes in {took:?}");
}

/// A segment leaves the member while that is being read; all others have left by the time that they would be.
#[test]
fn shards_that_move_meanwhile_are_looked_for_in_their_new_place() {
    let late = Late::of(Rig::new(2, 1, 5));
    let Late { plan, fs, .. } = &late;
    plan.add(late.on_read(1, Effect::Hang));
    let done = std::thread::scope(|scope| {
        let scrubbing = scope.spawn(|| scrub(fs));
        while plan.triggered() == 0 && !scrubbing.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(plan.triggered(), 1, "nothing of it was read");
        let left = fs.maintenance.draining().drain(late.index());
        let moved = left.and_then(|()| fs.rebuild());
        plan.release();
        assert_eq!(moved.unwrap().state, RebuildState::Finished);
        scrubbing.join().unwrap()
    });
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(wrong_pieces(fs), [], "nothing was wrong anywhere");
    assert_eq!(fs.maintenance.scrubber.unverified_by_scrub(), 0);
    let is_on_it = |shard: &WrittenShard| shard.disk == late.member;
    assert!(!fs.written_shards().iter().any(is_on_it));
    fs.assert_shards_lie_on(&late.rig, &[], "moved");
    assert_holds(fs, &late.model, "moved");
}
