use std::io::{Write as _, pipe};
use std::os::fd::OwnedFd;

use bytes::Bytes;

use super::*;
use crate::tests::open;
use crate::{
    Effect, Fault, FaultPlan, FaultStore, Hold, MemStore, Pool, RawUse, Scope, Space,
    StoreErrorKind, StoreLock, Traffic, Visitor,
};

/// Short enough to wait for, long enough for a healthy store on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);

const CONCURRENT: [ExecutorKind; 2] = [ExecutorKind::Uring, ExecutorKind::Threads];

fn kind_of(outcome: &Outcome) -> Option<StoreErrorKind> {
    outcome.as_ref().err().map(StoreError::kind)
}

/// A healthy store and one on which every call to come hangs until the plan releases it.
fn healthy_and_hanging() -> (StoreRef, StoreRef, FaultPlan) {
    let plan = FaultPlan::new();
    let inner: StoreRef = Arc::new(MemStore::new("hanging"));
    inner.create("f", 4096).expect("a new file");
    let hanging: StoreRef = Arc::new(FaultStore::new(inner, 0, &plan));
    plan.add(Fault::at(1, Effect::Hang).of(Scope::Any).lasting());
    let healthy: StoreRef = Arc::new(MemStore::new("healthy"));
    healthy.create("f", 4096).expect("a new file");
    (healthy, hanging, plan)
}

#[test]
fn a_hanging_store_is_given_up_and_the_others_of_the_batch_answer() {
    for kind in CONCURRENT {
        let executor = Executor::new(kind, TIMEOUT);
        let pool = Pool::new(1 << 20);
        let (healthy, hanging, plan) = healthy_and_hanging();
        let outcomes = executor.run(vec![
            StoreRequest::read(&healthy, "f", 0, pool.buffer(4096)),
            StoreRequest::read(&hanging, "f", 0, pool.buffer(4096)),
            StoreRequest::sync(&hanging, "f"),
            StoreRequest::write(&healthy, "f", 0, Bytes::from_static(b"x")),
        ]);
        let kinds: Vec<_> = outcomes.iter().map(kind_of).collect();
        let hung = Some(StoreErrorKind::Hung);
        assert_eq!(kinds, [None, hung, hung, None], "{kind:?}");
        assert_eq!(
            pool.retained_bytes(),
            0,
            "the memory of what hangs is still lent"
        );
        plan.clear();
        plan.release();
    }
}

#[test]
fn memory_of_a_request_that_was_given_up_returns_when_it_answers() {
    let executor = Executor::new(ExecutorKind::Threads, TIMEOUT);
    let pool = Pool::new(1 << 20);
    let (_, hanging, plan) = healthy_and_hanging();
    let outcome = executor.run_one(StoreRequest::read(&hanging, "f", 0, pool.buffer(4096)));
    assert_eq!(kind_of(&outcome), Some(StoreErrorKind::Hung));
    assert_eq!(pool.retained_bytes(), 0);
    plan.clear();
    plan.release();
    while pool.retained_bytes() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_store_on_which_many_operations_hang_gets_no_more_until_they_answer() {
    for kind in CONCURRENT {
        let executor = Executor::new(kind, TIMEOUT);
        let (_, hanging, plan) = healthy_and_hanging();
        let syncs = |count| {
            (0..count)
                .map(|_| StoreRequest::sync(&hanging, "f"))
                .collect::<Vec<_>>()
        };
        let outcomes = executor.run(syncs(3 * MAX_ABANDONED));
        assert!(
            outcomes
                .iter()
                .all(|one| kind_of(one) == Some(StoreErrorKind::Hung)),
            "{kind:?}"
        );
        let before = plan.calls();
        assert_eq!(
            before, MAX_ABANDONED as u64,
            "what was queued behind never began"
        );
        let outcomes = executor.run(syncs(5));
        assert!(
            outcomes
                .iter()
                .all(|one| kind_of(one) == Some(StoreErrorKind::Hung))
        );
        let called = executor.call(&hanging, "measure", |store| store.space());
        assert_eq!(called.expect_err("refused").kind(), StoreErrorKind::Hung);
        assert_eq!(plan.calls(), before, "{kind:?}: nothing reached the store");
        plan.clear();
        plan.release();
        while kind_of(&executor.run_one(StoreRequest::sync(&hanging, "f"))).is_some() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn workers_that_hang_are_replaced() {
    let executor = Executor::new(ExecutorKind::Threads, TIMEOUT);
    let (_, hanging, plan) = healthy_and_hanging();
    let syncs = |count| {
        (0..count)
            .map(|_| StoreRequest::sync(&hanging, "f"))
            .collect::<Vec<_>>()
    };
    for (more, begun) in [(3, 3), (8, 11)] {
        assert!(executor.run(syncs(more)).iter().all(Result::is_err));
        assert_eq!(plan.calls(), begun);
    }
    plan.clear();
    plan.release();
}

#[test]
fn work_that_hangs_is_left_to_itself() {
    let executor = Executor::new(ExecutorKind::Threads, TIMEOUT);
    let (healthy, hanging, plan) = healthy_and_hanging();
    let outcome = executor.call(&hanging, "list", |store| store.list(""));
    assert_eq!(outcome.expect_err("no answer").kind(), StoreErrorKind::Hung);
    let listed = executor.call(&healthy, "list", |store| store.list(""));
    assert_eq!(listed.expect("names"), [("f".to_owned(), 4096)]);
    plan.clear();
    plan.release();
}

#[test]
fn a_store_that_cannot_be_spared_is_waited_for() {
    for kind in CONCURRENT {
        let executor = Executor::new(kind, TIMEOUT);
        let (_, hanging, plan) = healthy_and_hanging();
        let release = std::thread::spawn(move || {
            std::thread::sleep(2 * TIMEOUT);
            plan.clear();
            plan.release();
        });
        let outcomes = executor.run_sparing(vec![StoreRequest::sync(&hanging, "f")], 0);
        assert_eq!(kind_of(&outcomes[0]), None, "{kind:?}");
        release.join().expect("nothing panics");
    }
}

#[test]
fn a_caller_that_does_not_need_a_store_goes_on_if_it_does_not_answer() {
    for kind in CONCURRENT {
        let executor = Executor::new(kind, Duration::from_secs(600));
        let (healthy, hanging, plan) = healthy_and_hanging();
        let pool = Pool::new(1 << 20);
        let read = |store: &StoreRef| StoreRequest::read(store, "f", 0, pool.buffer(4096));
        let outcomes = executor.run_hedged(vec![read(&healthy), read(&hanging)], 1);
        let kinds: Vec<_> = outcomes.iter().map(kind_of).collect();
        assert_eq!(kinds, [None, Some(StoreErrorKind::Slow)], "{kind:?}");
        assert!(
            executor.is_slow(&hanging) && !executor.is_slow(&healthy),
            "{kind:?}"
        );
        drop(outcomes);
        assert_eq!(
            pool.retained_bytes(),
            4096,
            "the memory of what hangs is still lent"
        );
        let called = executor.call_hedged(&hanging, "measure", |store| store.space());
        assert_eq!(called.expect_err("no answer").kind(), StoreErrorKind::Slow);
        let stores = [healthy, Arc::clone(&hanging)];
        assert!(executor.overdue(&stores, 1).iter().all(Option::is_none));
        plan.clear();
        plan.release();
        while executor.is_slow(&hanging) {
            std::thread::yield_now();
        }
        assert!(!executor.has_slow());
        assert_eq!(
            kind_of(&executor.run_hedged(vec![read(&hanging)], 1)[0]),
            None
        );
    }
}

#[test]
fn a_store_that_is_slow_for_too_long_is_overdue_if_it_can_be_spared() {
    let executor = Executor::new(ExecutorKind::Threads, TIMEOUT);
    let (healthy, hanging, plan) = healthy_and_hanging();
    let sync = StoreRequest::sync(&hanging, "f");
    assert_eq!(
        kind_of(&executor.run_hedged(vec![sync], 1)[0]),
        Some(StoreErrorKind::Slow)
    );
    let stores = [hanging, healthy];
    while executor.overdue(&stores, 1)[0].is_none() {
        std::thread::yield_now();
    }
    let overdue = executor.overdue(&stores, 1);
    assert_eq!(
        overdue[0].as_ref().map(StoreError::kind),
        Some(StoreErrorKind::Hung)
    );
    assert!(overdue[1].is_none());
    assert!(
        executor.overdue(&stores, 0).iter().all(Option::is_none),
        "it cannot be spared"
    );
    plan.clear();
    plan.release();
}

#[test]
fn many_threads_share_an_executor() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store: StoreRef = Arc::new(open(dir.path()).expect("a directory"));
    let pool = Pool::new(1 << 20);
    for kind in CONCURRENT {
        let executor = Executor::new(kind, Duration::from_secs(120));
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let (executor, store, pool) = (&executor, &store, &pool);
                scope.spawn(move || {
                    let name = format!("chunks/{kind:?}{thread}");
                    store.create(&name, 1 << 20).expect("a new file");
                    for round in 0..50_u64 {
                        let mut data = pool.buffer(4096);
                        data.fill(thread);
                        let write = StoreRequest::write(store, &*name, round * 4096, data.freeze());
                        executor.run_one(write).expect("room");
                        let read =
                            StoreRequest::read(store, &*name, round * 4096, pool.buffer(4096));
                        let seen = executor.run_one(read).expect("bytes").expect("a buffer");
                        assert!(seen.iter().all(|&byte| byte == thread));
                    }
                });
            }
        });
    }
}

/// A store whose files are one pipe: what reads it waits for the other end.
#[derive(Debug)]
struct Pipe {
    end: Arc<OwnedFd>,
    traffic: Traffic,
}

/// Everything but `raw`, `label` and `traffic` is out of use here.
macro_rules! out_of_use {
    ($($method:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {$(
        fn $method(&self, $($argument: $type),*) -> Result<$output, StoreError> {
            $(let _ = $argument;)*
            unreachable!(concat!(stringify!($method), " of a pipe"))
        }
    )*};
}

impl Store for Pipe {
    fn label(&self) -> String {
        "pipe".to_owned()
    }

    out_of_use! {
        create(name: &str, len: u64) -> ();
        open_len(name: &str) -> u64;
        truncate(name: &str, len: u64) -> ();
        reserve(name: &str, offset: u64, len: u64) -> ();
        remove(name: &str) -> ();
        remove_if_empty(dir: &str) -> ();
        rename(from: &str, to: &str) -> ();
        list(dir: &str) -> Vec<(String, u64)>;
        visit(dir: &str, look: &mut Visitor<'_>) -> ();
        taken_by_file(dir: &str) -> Vec<(String, u64)>;
        punch(name: &str, offset: u64, len: u64) -> ();
        read_at(name: &str, offset: u64, buf: &mut [u8]) -> ();
        write_at(name: &str, offset: u64, data: &[u8]) -> ();
        sync(name: &str) -> ();
        space() -> Space;
        probe() -> ();
        lock(hold: Hold) -> StoreLock;
    }

    fn raw(&self, _name: &str, _usage: RawUse) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.end))
    }

    fn traffic(&self) -> Option<&Traffic> {
        Some(&self.traffic)
    }
}

/// A store that notes which threads its files are written by.
#[derive(Debug)]
struct Noting {
    is_in_memory: bool,
    file: Arc<OwnedFd>,
    writers: parking_lot::Mutex<Vec<std::thread::ThreadId>>,
}

impl Store for Noting {
    fn label(&self) -> String {
        "noting".to_owned()
    }

    out_of_use! {
        create(name: &str, len: u64) -> ();
        open_len(name: &str) -> u64;
        truncate(name: &str, len: u64) -> ();
        reserve(name: &str, offset: u64, len: u64) -> ();
        remove(name: &str) -> ();
        remove_if_empty(dir: &str) -> ();
        rename(from: &str, to: &str) -> ();
        list(dir: &str) -> Vec<(String, u64)>;
        visit(dir: &str, look: &mut Visitor<'_>) -> ();
        taken_by_file(dir: &str) -> Vec<(String, u64)>;
        punch(name: &str, offset: u64, len: u64) -> ();
        read_at(name: &str, offset: u64, buf: &mut [u8]) -> ();
        sync(name: &str) -> ();
        space() -> Space;
        probe() -> ();
        lock(hold: Hold) -> StoreLock;
    }

    fn write_at(&self, _: &str, _: u64, _: &[u8]) -> Result<(), StoreError> {
        self.writers.lock().push(std::thread::current().id());
        Ok(())
    }

    fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    fn raw(&self, name: &str, _usage: RawUse) -> Option<Arc<OwnedFd>> {
        (name == "open").then(|| Arc::clone(&self.file))
    }
}

#[test]
fn only_small_writes_to_open_files_in_memory_run_on_the_calling_thread() {
    let (reader, _writer) = pipe().expect("a pipe");
    let file = Arc::new(OwnedFd::from(reader));
    let here = std::thread::current().id();
    for (is_in_memory, name, len, expected) in [
        (true, "open", COPIED_HERE, true),
        (true, "open", COPIED_HERE + 1, false),
        (true, "not open", 1, false),
        (false, "open", 1, false),
    ] {
        let store = Arc::new(Noting {
            is_in_memory,
            file: Arc::clone(&file),
            writers: parking_lot::Mutex::default(),
        });
        let held: StoreRef = Arc::clone(&store) as _;
        let executor = Executor::new(ExecutorKind::Threads, TIMEOUT);
        let data = Bytes::from(vec![1; len]);
        let written = executor.run_one(StoreRequest::write(&held, name, 0, data));
        written.expect("it takes everything");
        assert_eq!(*store.writers.lock() == [here], expected, "{name} {len}");
    }
}

/// The kernel gives a thread no more workers than its first ring has entries.
#[test]
fn a_thread_with_a_small_ring_of_its_own_has_workers_for_all_stores() {
    let Ok(small) = io_uring::IoUring::new(1) else {
        return; // this kernel has no io_uring
    };
    // The executor's first ring is made by another thread.
    let made = std::thread::spawn(|| Executor::new(ExecutorKind::Auto, TIMEOUT));
    let executor = made.join().expect("an executor");
    if executor.kind() != ExecutorKind::Uring {
        return;
    }
    let workers = || {
        // Zeros change nothing, and are replaced by the numbers that count.
        let mut numbers = [0; 2];
        let asked = small.submitter().register_iowq_max_workers(&mut numbers);
        asked.expect("the kernel says it");
        numbers[0]
    };
    assert_eq!(
        workers(),
        1,
        "the kernel has changed, and this test is void"
    );
    let file = tempfile::tempfile().expect("a temporary file");
    let store: StoreRef = Arc::new(Noting {
        is_in_memory: false,
        file: Arc::new(file.into()),
        writers: parking_lot::Mutex::default(),
    });
    let write = StoreRequest::write(&store, "open", 0, Bytes::from_static(b"x"));
    executor.run_one(write).expect("the file takes it");
    assert_eq!(workers(), ring::KERNEL_WORKERS);
}

/// The kernel itself hangs here, not a thread.
#[test]
fn an_operation_that_the_kernel_does_not_finish_keeps_its_memory_until_it_answers() {
    let executor = Executor::new(ExecutorKind::Auto, TIMEOUT);
    if executor.kind() != ExecutorKind::Uring {
        return; // this kernel has no io_uring, and the threads are tried above
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let healthy: StoreRef = Arc::new(open(dir.path()).expect("a directory"));
    healthy.create("index", 100).expect("a new file");
    let (reader, mut writer) = pipe().expect("a pipe");
    let hanging: StoreRef = Arc::new(Pipe {
        end: Arc::new(reader.into()),
        traffic: Traffic::default(),
    });
    let (pool, other) = (Pool::new(1 << 20), Pool::new(1 << 20));
    let read =
        |store: &StoreRef, pool: &Pool| StoreRequest::read(store, "index", 0, pool.buffer(100));

    let mut batch: Vec<_> = (0..MAX_ABANDONED).map(|_| read(&hanging, &pool)).collect();
    batch.push(read(&healthy, &other));
    let outcomes = executor.run(batch);
    let (last, hung) = outcomes.split_last().expect("a batch");
    assert!(
        hung.iter()
            .all(|one| kind_of(one) == Some(StoreErrorKind::Hung))
    );
    assert_eq!(kind_of(last), None);
    assert_eq!(pool.retained_bytes(), 0, "the kernel may still write there");

    let refused = executor.run_one(read(&hanging, &other));
    assert_eq!(
        kind_of(&refused),
        Some(StoreErrorKind::Hung),
        "no more for this store"
    );
    writer
        .write_all(&[7; 100 * MAX_ABANDONED])
        .expect("the pipe takes it");
    while pool.retained_bytes() < MAX_ABANDONED * 4096 {
        executor
            .run_one(read(&healthy, &other))
            .expect("the healthy store answers");
    }
    // The last of them may have returned its memory just before it is counted.
    drop(executor.run_one(read(&healthy, &other)));
    let late = hanging.traffic().expect("it counts").reads();
    assert_eq!(
        (late.count, late.bytes),
        (MAX_ABANDONED as u64, 100 * MAX_ABANDONED as u64)
    );
    assert!(
        late.time >= TIMEOUT * u32::try_from(MAX_ABANDONED).expect("few"),
        "{late:?}"
    );
    writer.write_all(&[8; 100]).expect("the pipe takes it");
    let seen = executor
        .run_one(read(&hanging, &other))
        .expect("it answers again");
    assert_eq!(seen.expect("a buffer")[..], [8; 100]);
}

/// Each executor counts what it ran on a directory: the bytes of both directions, syncs, and what failed.
#[test]
fn what_an_executor_runs_on_a_directory_is_counted_there() {
    let kinds = [
        ExecutorKind::Uring,
        ExecutorKind::Threads,
        ExecutorKind::Inline,
    ];
    for kind in kinds {
        let home = tempfile::tempdir().expect("there is room");
        let store: StoreRef = Arc::new(open(home.path()).expect("it is a directory"));
        let pool = Pool::new(1 << 20);
        let executor = Executor::new(kind, TIMEOUT);
        store.create("f", 8192).expect("a new file");
        let outcomes = executor.run(vec![
            StoreRequest::write(&store, "f", 0, Bytes::from_static(b"1234")),
            StoreRequest::sync(&store, "f"),
            StoreRequest::read(&store, "f", 0, pool.buffer(4096)),
            StoreRequest::read(&store, "absent", 0, pool.buffer(4096)),
        ]);
        assert!(outcomes[3].is_err(), "{kind:?}");
        let traffic = store.traffic().expect("directories count");
        let (reads, writes) = (traffic.reads(), traffic.writes());
        assert_eq!((reads.count, reads.bytes), (2, 4096), "{kind:?}");
        assert_eq!((writes.count, writes.bytes), (2, 4), "{kind:?}");
        assert!(!writes.time.is_zero(), "{kind:?}");
    }
}
