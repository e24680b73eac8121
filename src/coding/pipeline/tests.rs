use std::thread;

use super::queue::{MOST_BYTES, MOST_ITEMS};
use super::station::MOST_FAILURES;
use super::*;
use crate::codec::{Geometry, Targets};
use crate::cuda::Simulated;

fn pipeline(device: &Simulated) -> Pipeline {
    Pipeline::start(vec![Arc::new(device.clone())]).expect("threads")
}

/// Runs one item of 1+1, whose parity is its data; returns whether it was done, and rightly.
fn run_one(pipeline: &Pipeline, bytes: usize) -> bool {
    let matrix = Matrix::cauchy(Geometry::new(1, 1).expect("valid"));
    let data = vec![0x5A; bytes];
    let mut parity = vec![0; bytes];
    let mut item = Item {
        sources: vec![&data],
        targets: Targets::Written(vec![&mut parity]),
        sums: Vec::new(),
    };
    let done = pipeline.run(&matrix, &mut item).is_ok();
    assert_eq!(item.targets.count(), 1, "the item is back");
    assert!(!done || parity == data);
    done
}

/// Runs so many such items by one call; returns which of them were done, all of them rightly.
fn run_many(pipeline: &Pipeline, count: usize, bytes: usize) -> Vec<bool> {
    let matrix = Matrix::cauchy(Geometry::new(1, 1).expect("valid"));
    let data: Vec<Vec<u8>> = (0..count)
        .map(|at| vec![u8::try_from(at % 251).expect("below 251"); bytes])
        .collect();
    let mut parity = vec![vec![0xFF; bytes]; count];
    let item = |(data, parity)| Item {
        sources: vec![data],
        targets: Targets::Written(vec![parity]),
        sums: Vec::new(),
    };
    let slices = data.iter().map(Vec::as_slice);
    let rows = parity.iter_mut().map(Vec::as_mut_slice);
    let mut items: Vec<Item<'_>> = slices.zip(rows).map(item).collect();
    let orders = items.iter_mut().map(|item| (&matrix, item));
    let ran = pipeline.run_all(&mut orders.collect::<Vec<_>>(), || {});
    let done: Vec<bool> = ran.ended.iter().map(Result::is_ok).collect();
    assert!(items.iter().all(|item| item.targets.count() == 1));
    drop(items);
    let rows = done.iter().zip(data.iter().zip(&parity));
    rows.for_each(|(done, (data, parity))| assert!(!done || data == parity));
    done
}

/// Waits until another thread has got somewhere.
fn wait_for(reached: impl Fn() -> bool) {
    while !reached() {
        thread::yield_now();
    }
}

/// Returns the sizes of the batches without those that kept the lanes busy, smallest first.
fn others(device: &Simulated) -> Vec<usize> {
    let mut batches = device.batches();
    batches.sort_unstable();
    assert_eq!(batches[..LANES], [1; LANES]);
    batches.split_off(LANES)
}

/// Lets so many callers, with items of so many bytes each, meet a device that is held up; returns the
/// sizes of the batches that are run once it is not.
fn batches_of(callers: usize, bytes: usize) -> Vec<usize> {
    let device = Simulated::default();
    device.shut();
    let pipeline = pipeline(&device);
    thread::scope(|scope| {
        for busy in 1..=LANES {
            scope.spawn(|| assert!(run_one(&pipeline, 16)));
            wait_for(|| device.waiting() == busy);
        }
        for waiting in 1..=callers {
            scope.spawn(|| assert!(run_one(&pipeline, bytes)));
            wait_for(|| pipeline.shared.queue.waiting() == waiting);
        }
        device.open();
    });
    others(&device)
}

#[test]
fn callers_that_arrive_while_all_lanes_are_busy_are_served_as_one_batch() {
    assert_eq!(batches_of(10, 4096), [10]);
}

#[test]
fn items_of_one_caller_travel_together_and_come_back_together() {
    let device = Simulated::default();
    device.shut();
    let pipeline = pipeline(&device);
    thread::scope(|scope| {
        for busy in 1..=LANES {
            scope.spawn(|| assert!(run_one(&pipeline, 16)));
            wait_for(|| device.waiting() == busy);
        }
        scope.spawn(|| assert_eq!(run_many(&pipeline, 10, 4096), [true; 10]));
        wait_for(|| pipeline.waiting() == 10);
        device.open();
    });
    assert_eq!(others(&device), [10]);
}

/// The items of one caller are shared out among idle lanes, and wait where there are too few of
/// them: here one, and callers with several batches each.
#[test]
fn callers_with_more_items_than_lanes_can_take_get_all_of_them_done() {
    let device = Simulated::default().failing_at(0).failing_at(1);
    let pipeline = pipeline(&device);
    wait_for(|| device.operations() >= LANES as u64);
    let many = 3 * MOST_ITEMS + 1;
    thread::scope(|scope| {
        for bytes in [1 << 16, 1 << 16, 100, 5000] {
            let pipeline = &pipeline;
            scope.spawn(move || assert_eq!(run_many(pipeline, many, bytes), vec![true; many]));
        }
    });
    let batches = device.batches();
    assert_eq!(batches.iter().sum::<usize>(), 4 * many);
    assert!(batches.iter().all(|&items| items <= MOST_ITEMS));
}

#[test]
fn items_of_a_failed_batch_or_after_the_loss_of_the_device_are_not_done() {
    let many = 3 * MOST_ITEMS;
    let bytes = 1 << 16; // a whole batch is worth a lane by itself
    for (is_lost, failing) in [false, true]
        .into_iter()
        .flat_map(|lost| [(lost, 0), (lost, 1), (lost, 2)])
    {
        let first = LANES as u64;
        let device = Simulated::default().failing_at(0).failing_at(1);
        let device = if is_lost {
            device.lost_from(first + failing)
        } else {
            device.failing_at(first + failing)
        };
        let pipeline = pipeline(&device);
        wait_for(|| device.operations() >= first);
        let done = run_many(&pipeline, many, bytes);
        let count = done.iter().filter(|&&done| done).count();
        let batches = device.batches();
        assert_eq!(count, batches.iter().sum::<usize>());
        assert_eq!(pipeline.is_working(), !is_lost);
        if is_lost {
            assert_eq!(batches.len() as u64, failing, "{batches:?}");
        } else {
            assert!(count > 0 && count < many, "{count} of {many}");
        }
    }
}

#[test]
fn batches_are_bounded_in_items_and_in_bytes() {
    let batches = batches_of(MOST_ITEMS + 10, 64);
    assert_eq!(batches.iter().sum::<usize>(), MOST_ITEMS + 10);
    assert!(batches.contains(&MOST_ITEMS), "{batches:?}");
    let bytes = MOST_BYTES / 16; // of data; as many of parity come to it
    let batches = batches_of(10, bytes);
    assert_eq!(batches.iter().sum::<usize>(), 10);
    assert!(batches.iter().all(|&items| items <= 8), "{batches:?}");
    assert_eq!(batches_of(2, MOST_BYTES / 2 + 1), [1, 1]);
}

#[test]
fn items_that_differ_do_not_share_a_batch() {
    let device = Simulated::default();
    device.shut();
    let pipeline = pipeline(&device);
    thread::scope(|scope| {
        for busy in 1..=LANES {
            scope.spawn(|| assert!(run_one(&pipeline, 16)));
            wait_for(|| device.waiting() == busy);
        }
        for (waiting, bytes) in [100, 200, 100, 200, 100].into_iter().enumerate() {
            let pipeline = &pipeline;
            scope.spawn(move || assert!(run_one(pipeline, bytes)));
            wait_for(|| pipeline.shared.queue.waiting() == waiting + 1);
        }
        device.open();
    });
    assert_eq!(others(&device), [2, 3]);
}

#[test]
fn an_operation_that_fails_spoils_its_own_batch_only_whichever_it_is() {
    // The first operations make lanes; without one of them the others go on.
    for failing in 0..10 {
        let device = Simulated::default().failing_at(failing);
        let pipeline = pipeline(&device);
        wait_for(|| device.operations() >= LANES as u64);
        let done = (0..10).filter(|_| run_one(&pipeline, 64)).count();
        assert_eq!(
            done,
            if failing < LANES as u64 { 10 } else { 9 },
            "{failing}"
        );
        assert!(pipeline.is_working());
    }
}

#[test]
fn a_lost_device_is_given_up_at_once_and_no_caller_waits_for_it() {
    for lost in 0..10 {
        let device = Simulated::default().lost_from(lost);
        let pipeline = pipeline(&device);
        wait_for(|| device.operations() >= LANES as u64);
        let done = (0..20).filter(|_| run_one(&pipeline, 64)).count();
        assert_eq!(done as u64, lost.saturating_sub(LANES as u64));
        assert!(!pipeline.is_working());
        let asked = device.operations();
        assert!(!run_one(&pipeline, 64));
        assert_eq!(device.operations(), asked, "it is asked for nothing");
    }
}

#[test]
fn a_device_that_fails_time_and_again_is_given_up() {
    let mut device = Simulated::default();
    for operation in LANES as u64 + 1..100 {
        device = device.failing_at(operation);
    }
    let pipeline = pipeline(&device);
    wait_for(|| device.operations() >= LANES as u64);
    assert!(run_one(&pipeline, 64));
    for _ in 0..MOST_FAILURES {
        assert!(pipeline.is_working());
        assert!(!run_one(&pipeline, 64));
    }
    wait_for(|| !pipeline.is_working());
}

#[test]
fn callers_waiting_for_a_device_learn_of_its_loss() {
    let device = Simulated::default().lost_from(LANES as u64);
    device.shut();
    let pipeline = pipeline(&device);
    thread::scope(|scope| {
        for busy in 1..=LANES {
            scope.spawn(|| assert!(!run_one(&pipeline, 16)));
            wait_for(|| device.waiting() == busy);
        }
        for waiting in 1..=5 {
            scope.spawn(|| assert!(!run_one(&pipeline, 64)));
            wait_for(|| pipeline.shared.queue.waiting() == waiting);
        }
        device.open();
    });
    assert!(!pipeline.is_working());
}

#[test]
fn a_second_device_goes_on_alone_when_the_first_is_lost() {
    let (first, second) = (Simulated::default(), Simulated::default());
    let first = first.lost_from(LANES as u64 + 1);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(first.clone()), Arc::new(second.clone())];
    let pipeline = Pipeline::start(devices).expect("threads");
    let ready = |device: &Simulated| device.operations() >= LANES as u64;
    wait_for(|| ready(&first) && ready(&second));
    while pipeline.device_names().len() == 2 {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| run_one(&pipeline, 64));
            }
        });
    }
    // Its second batch is the first to fail: it asked for work until then, and for none afterwards.
    assert_eq!(first.batches().len(), 1);
    assert_eq!(pipeline.device_names(), ["simulated"], "the second is left");
    assert!(pipeline.is_working());
    let done = second.batches().len();
    assert!(run_one(&pipeline, 64));
    assert_eq!(second.batches().len(), done + 1);
}

#[test]
fn a_device_without_lanes_is_given_up_and_another_goes_on() {
    let mut first = Simulated::default();
    for lane in 0..LANES as u64 {
        first = first.failing_at(lane);
    }
    let devices: Vec<Arc<dyn Device>> =
        vec![Arc::new(first.clone()), Arc::new(Simulated::default())];
    let pipeline = Pipeline::start(devices).expect("threads");
    wait_for(|| pipeline.device_names().len() == 1);
    assert!((0..10).all(|_| run_one(&pipeline, 64)));
    assert_eq!(first.operations(), LANES as u64);
}

/// The time that devices may take where they are to be found hanging.
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn a_hanging_device_gets_no_more_items_and_callers_waiting_for_a_lane_learn_of_it() {
    let device = Simulated::default();
    device.shut();
    let pipeline = Pipeline::start_with(vec![Arc::new(device.clone())], SHORT).expect("threads");
    thread::scope(|scope| {
        let caught: Vec<_> = (1..=LANES)
            .map(|busy| {
                let caller = scope.spawn(|| run_one(&pipeline, 16));
                wait_for(|| device.waiting() == busy || !pipeline.is_working());
                caller
            })
            .collect();
        let waiting: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| run_one(&pipeline, 64)))
            .collect();
        for caller in waiting {
            assert!(!caller.join().expect("told"));
        }
        assert!(!pipeline.is_working());
        assert_eq!(pipeline.hanging_device_names(), ["simulated"]);
        assert!(!run_one(&pipeline, 64), "nobody waits for it any more");
        let held = device.waiting();
        assert!(held > 0);
        device.open();
        let done = caught
            .into_iter()
            .map(|caller| caller.join().expect("no panic"));
        assert_eq!(
            done.filter(|&done| done).count(),
            held,
            "it answered after all"
        );
    });
    wait_for(|| pipeline.hanging_device_names().is_empty());
    assert!(!pipeline.is_working(), "it is not trusted to answer again");
}

#[test]
fn a_caller_of_a_hanging_device_waits_only_for_the_items_the_device_has() {
    let device = Simulated::default();
    device.shut();
    let pipeline = Pipeline::start_with(vec![Arc::new(device.clone())], SHORT).expect("threads");
    let many = (LANES + 2) * MOST_ITEMS;
    thread::scope(|scope| {
        let caller = scope.spawn(|| run_many(&pipeline, many, 1 << 16));
        wait_for(|| !pipeline.is_working());
        wait_for(|| pipeline.waiting() == 0);
        assert!(!caller.is_finished(), "the device may be writing still");
        device.open();
        let done = caller.join().expect("no panic");
        let count = done.iter().filter(|&&done| done).count();
        assert_eq!(count, device.batches().iter().sum::<usize>());
        assert!(count > 0 && count < many, "{count} of {many}");
    });
}

#[test]
fn a_lane_for_which_there_was_no_room_is_made_once_there_is() {
    let device = Simulated::default().failing_at(1);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
    let pipeline = Pipeline::start_with(devices, SHORT).expect("threads");
    let is_retried = || device.operations() == LANES as u64 + 1;
    wait_for(|| is_retried() && pipeline.shared.queue.lanes() == LANES);
    assert!(run_one(&pipeline, 64));
    assert_eq!(pipeline.device_names(), ["simulated"]);
}

#[test]
fn no_caller_waits_for_a_device_that_hangs_while_its_lanes_are_created() {
    for most in 0..LANES {
        let device = Simulated::default().shut_after_lanes(most);
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device.clone())];
        let pipeline = Pipeline::start_with(devices, SHORT).expect("threads");
        wait_for(|| device.waiting() == LANES - most);
        assert!(most == 0 || run_one(&pipeline, 64), "another lane does it");
        drop(pipeline);
        assert_eq!(device.waiting(), LANES - most, "they hang still");
        device.open();
        wait_for(|| device.operations() == (LANES + usize::from(most > 0)) as u64);
    }
}

#[test]
fn another_device_goes_on_while_one_does_not_answer() {
    let (first, second) = (Simulated::default(), Simulated::default());
    first.shut();
    second.shut();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(first.clone()), Arc::new(second.clone())];
    let pipeline = Pipeline::start_with(devices, SHORT).expect("threads");
    thread::scope(|scope| {
        scope.spawn(|| run_one(&pipeline, 64));
        wait_for(|| first.waiting() + second.waiting() == 1);
        let (hanging, other) = if first.waiting() == 1 {
            (&first, &second)
        } else {
            (&second, &first)
        };
        other.open();
        wait_for(|| pipeline.device_names().len() == 1);
        assert!(pipeline.is_working());
        assert!((0..20).all(|_| run_one(&pipeline, 64)));
        assert_eq!(other.batches().len(), 20);
        hanging.open();
    });
}
