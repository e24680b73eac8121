//! The choice of the side that computes a pass: the CPU or a device, whichever is expected to be done first.
//!
//! Both sides are taken to share their speed among all passes that they have at a time. So a pass that finds so many
//! bytes in flight on a side takes about `cost · (in flight + own)` there. The cost of a byte depends on the matrix's
//! size, on the operation, and on the length of the pass. It is learnt from passes that were computed there, and so
//! includes everything that slows a side down: cores that are busy with other things, memory that is not pinned, or the
//! latency of a bus.
//!
//! The costs are kept as long as the volume is mounted, and no longer. Learning takes only three passes a side, each of
//! which is a stripe that had to be coded anyway. The costs of another mount, with other work on the same cores,
//! another GPU or another driver, would be doubtful all the same.
//!
//! While one side is so much faster that it is done first despite its queue, it gets everything. Once it
//! is not, the other gets what it can finish sooner: both work.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use crate::codec::Item;

/// Passes of a class that each side gets before their costs are compared. The first of them does not count:
/// it makes programs and tables that the others find ready.
const TRIALS: u64 = 3;

/// One pass in about so many may go to a side only to learn what it costs there now.
const REFRESH: f64 = 64.0;

/// The part of a cost that the newest pass determines.
const WEIGHT: f64 = 0.25;

/// Classes whose costs are remembered.
const CLASSES: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// The sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Cpu,
    Device,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Cpu => Self::Device,
            Self::Device => Self::Cpu,
        }
    }
}

/// Passes that cost about the same per byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Class {
    sources: usize,
    targets: usize,
    is_compared: bool,
    has_sums: bool,
    /// Binary logarithm of the bytes.
    magnitude: u32,
}

impl Class {
    pub(super) fn of(item: &Item<'_>) -> Self {
        Self {
            sources: item.sources.len(),
            targets: item.targets.count(),
            is_compared: item.is_compared(),
            has_sums: !item.sums.is_empty(),
            magnitude: item.total_bytes().checked_ilog2().unwrap_or(0),
        }
    }
}

/// Passes of one class that were given to a side together, and end together: counted as one.
#[derive(Debug)]
#[must_use = "a pass that never ends counts as in flight for ever"]
pub(super) struct Ticket {
    pub(super) side: Side,
    class: Class,
    /// True if it was not known yet which side is faster.
    is_trial: bool,
    own_bytes: f64,
    /// Bytes that were in flight on that side, its own included.
    load_bytes: f64,
}

/// Passes that were given to sides.
#[derive(Debug)]
pub(super) struct Dealt {
    /// The side of each.
    pub(super) sides: Vec<Side>,
    pub(super) tickets: Vec<Ticket>,
}

/// The knowledge of one side for one class.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Passes that did not fail, those under way included.
    begun: u64,
    ended: u64,
    /// True if the last pass failed.
    has_failed: bool,
    /// Passes of this class that the other side got since this one last did.
    passed_over: f64,
    seconds_per_byte: Option<f64>,
}

impl Cost {
    fn learn(&mut self, seconds_per_byte: f64) {
        self.ended += 1;
        self.has_failed = false;
        if self.ended > 1 {
            let known = self.seconds_per_byte.unwrap_or(seconds_per_byte);
            self.seconds_per_byte = Some(known + (seconds_per_byte - known) * WEIGHT);
        }
    }
}

/// One value for each side.
#[derive(Debug, Clone, Copy, Default)]
struct Both<T> {
    cpu: T,
    device: T,
}

impl<T> Both<T> {
    fn of(&mut self, side: Side) -> &mut T {
        match side {
            Side::Cpu => &mut self.cpu,
            Side::Device => &mut self.device,
        }
    }
}

impl Both<Cost> {
    /// Returns whether one side has not had all its trials, or none that counts has ended.
    fn are_on_trial(&self) -> bool {
        let costs = [self.cpu, self.device];
        let mut costs = costs.iter();
        costs.any(|cost| cost.begun < TRIALS || cost.seconds_per_byte.is_none())
    }
}

/// The costs of both sides, and the bytes they are busy with.
#[derive(Debug)]
pub(super) struct Choice {
    costs: LruCache<Class, Both<Cost>>,
    in_flight: Both<f64>,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            costs: LruCache::new(CLASSES),
            in_flight: Both::default(),
        }
    }
}

impl Choice {
    /// Gives passes, of which the classes and bytes are given, to sides, all at once.
    pub(super) fn deal(&mut self, passes: &[(Class, usize)]) -> Dealt {
        let mut sides = Vec::with_capacity(passes.len());
        let mut tickets: Vec<Ticket> = Vec::new();
        for &(class, bytes) in passes {
            let side = self.side_among(class, bytes, &tickets);
            let is_same = |ticket: &&mut Ticket| (ticket.side, ticket.class) == (side, class);
            match tickets.iter_mut().find(is_same) {
                Some(ticket) => ticket.own_bytes += as_f64(bytes),
                None => tickets.push(self.begin_on(side, class, bytes)),
            }
            *self.in_flight.of(side) += as_f64(bytes);
            sides.push(side);
        }
        for ticket in &mut tickets {
            ticket.load_bytes = *self.in_flight.of(ticket.side);
        }
        Dealt { sides, tickets }
    }

    /// Returns the side for a pass, given the tickets of those that are dealt with it: a trial is one of all of them.
    fn side_among(&mut self, class: Class, bytes: usize, tickets: &[Ticket]) -> Side {
        match tickets.iter().find(|ticket| ticket.class == class) {
            Some(ticket) if ticket.is_trial => ticket.side,
            _ => self.side_for(class, as_f64(bytes)),
        }
    }

    /// Makes a ticket for a pass of so many bytes.
    fn begin_on(&mut self, side: Side, class: Class, bytes: usize) -> Ticket {
        let costs = self.costs.get_or_insert_mut(class, Both::default);
        let is_trial = costs.are_on_trial();
        let chosen = costs.of(side);
        chosen.begun += 1;
        chosen.passed_over = 0.0;
        costs.of(side.other()).passed_over += 1.0;
        Ticket {
            side,
            class,
            is_trial,
            own_bytes: as_f64(bytes),
            load_bytes: 0.0,
        }
    }

    /// Takes note of how long the passes of a ticket took, or that one failed: then they were no trial.
    pub(super) fn end(&mut self, ticket: &Ticket, took: Option<Duration>) {
        let in_flight = self.in_flight.of(ticket.side);
        *in_flight = (*in_flight - ticket.own_bytes).max(0.0);
        let Some(costs) = self.costs.get_mut(&ticket.class) else {
            return;
        };
        let cost = costs.of(ticket.side);
        if let Some(took) = took {
            cost.learn(took.as_secs_f64() / ticket.load_bytes);
        } else {
            cost.begun = cost.begun.saturating_sub(1);
            cost.has_failed = true;
        }
    }

    fn side_for(&mut self, class: Class, bytes: f64) -> Side {
        let in_flight = self.in_flight;
        let Both { cpu, device } = *self.costs.get_or_insert(class, Both::default);
        if cpu.begun.min(device.begun) < TRIALS {
            // After a failure it is left alone for a while; memory that was short may be free again then.
            let is_avoided = device.has_failed && device.passed_over < REFRESH;
            return if device.begun < cpu.begun && !is_avoided {
                Side::Device
            } else {
                Side::Cpu
            };
        }
        let (Some(cpu_cost), Some(device_cost)) = (cpu.seconds_per_byte, device.seconds_per_byte)
        else {
            // Still under way on one side; the one that was tried out already goes on meanwhile.
            return if cpu.seconds_per_byte.is_some() {
                Side::Cpu
            } else {
                Side::Device
            };
        };
        let on_cpu = cpu_cost * (in_flight.cpu + bytes);
        let on_device = device_cost * (in_flight.device + bytes);
        if on_device < on_cpu {
            refreshing(Side::Cpu, cpu.passed_over, on_cpu / on_device)
        } else {
            refreshing(Side::Device, device.passed_over, on_cpu.recip() * on_device)
        }
    }
}

/// Returns the slower side if it has not been heard of for so long that asking it costs next to nothing,
/// else the faster.
fn refreshing(slower: Side, passed_over: f64, ratio: f64) -> Side {
    if passed_over >= REFRESH * ratio {
        slower
    } else {
        slower.other()
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an estimate of far less than 2^52"
)]
fn as_f64(bytes: usize) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: usize = 1_000_000;

    impl Choice {
        /// Gives one pass of so many bytes to a side.
        fn begin(&mut self, class: Class, bytes: usize) -> Ticket {
            let mut dealt = self.deal(&[(class, bytes)]);
            assert_eq!(dealt.sides, [dealt.tickets[0].side]);
            dealt.tickets.remove(0)
        }
    }

    fn class(magnitude: u32) -> Class {
        Class {
            sources: 10,
            targets: 4,
            is_compared: false,
            has_sums: true,
            magnitude,
        }
    }

    /// Passes that come one after the other, to sides of these speeds; returns which side each went to.
    fn one_by_one(choice: &mut Choice, cpu_us: u64, device_us: u64, count: usize) -> Vec<Side> {
        let pass = |_| {
            let ticket = choice.begin(class(20), MEGABYTE);
            let us = match ticket.side {
                Side::Cpu => cpu_us,
                Side::Device => device_us,
            };
            choice.end(&ticket, Some(Duration::from_micros(us)));
            ticket.side
        };
        (0..count).map(pass).collect()
    }

    fn count(sides: &[Side], side: Side) -> usize {
        sides.iter().filter(|&&seen| seen == side).count()
    }

    #[test]
    fn both_sides_are_tried_and_then_the_faster_gets_nearly_everything() {
        for (cpu_us, device_us, faster) in [(100, 10, Side::Device), (10, 100, Side::Cpu)] {
            let mut choice = Choice::default();
            let sides = one_by_one(&mut choice, cpu_us, device_us, 6);
            assert_eq!(count(&sides, Side::Cpu), 3);
            let sides = one_by_one(&mut choice, cpu_us, device_us, 10_000);
            let slower = count(&sides, faster.other());
            assert!((10..=20).contains(&slower), "{slower} of 10,000");
        }
    }

    #[test]
    fn the_first_pass_on_a_side_does_not_count() {
        let mut choice = Choice::default();
        // Making a program for the device takes long, once.
        for us in [50, 1_000_000, 50, 10, 50, 10] {
            let ticket = choice.begin(class(20), MEGABYTE);
            choice.end(&ticket, Some(Duration::from_micros(us)));
        }
        assert_eq!(choice.begin(class(20), MEGABYTE).side, Side::Device);
    }

    #[test]
    fn a_side_that_becomes_faster_is_noticed() {
        let mut choice = Choice::default();
        let sides = one_by_one(&mut choice, 10, 30, 1000);
        assert!(count(&sides, Side::Cpu) > 980);
        // Other work takes the cores.
        let sides = one_by_one(&mut choice, 300, 30, 1000);
        assert!(count(&sides, Side::Device) > 900);
        let sides = one_by_one(&mut choice, 10, 30, 5000);
        assert!(count(&sides[4000..], Side::Cpu) > 980);
    }

    #[test]
    fn the_slower_side_helps_once_the_queue_of_the_faster_is_longer_than_it_is_slow() {
        let mut choice = Choice::default();
        one_by_one(&mut choice, 40, 10, 6);
        let in_flight: Vec<Ticket> = (0..10).map(|_| choice.begin(class(20), MEGABYTE)).collect();
        let sides: Vec<Side> = in_flight.iter().map(|ticket| ticket.side).collect();
        // Three passes ahead of its own, and the device is still as fast as the idle CPU is not.
        assert_eq!(count(&sides[..3], Side::Device), 3);
        assert_eq!(count(&sides, Side::Cpu), 2);
        for ticket in in_flight {
            choice.end(&ticket, None);
        }
        assert_eq!(choice.begin(class(20), MEGABYTE).side, Side::Device);
    }

    #[test]
    fn the_best_side_for_long_passes_does_not_decide_short_ones() {
        let mut choice = Choice::default();
        one_by_one(&mut choice, 100, 10, 6);
        let short = class(12);
        for us in [9, 90, 9, 90, 9, 90] {
            let ticket = choice.begin(short, 4096);
            choice.end(&ticket, Some(Duration::from_micros(us)));
        }
        assert_eq!(choice.begin(short, 4096).side, Side::Cpu);
        assert_eq!(choice.begin(class(20), MEGABYTE).side, Side::Device);
    }

    #[test]
    fn nothing_is_learnt_from_passes_that_failed_and_they_leave_the_queue() {
        let mut choice = Choice::default();
        one_by_one(&mut choice, 100, 10, 6);
        for _ in 0..50 {
            let ticket = choice.begin(class(20), MEGABYTE);
            assert_eq!(ticket.side, Side::Device);
            choice.end(&ticket, None);
        }
    }

    #[test]
    fn a_device_whose_trials_failed_is_tried_again_after_a_while_and_then_for_good() {
        let mut choice = Choice::default();
        let mut pass = |is_failing: bool| {
            let ticket = choice.begin(class(20), MEGABYTE);
            let took = match ticket.side {
                Side::Cpu => Some(Duration::from_micros(100)),
                Side::Device => (!is_failing).then(|| Duration::from_micros(10)),
            };
            choice.end(&ticket, took);
            ticket.side
        };
        let failing: Vec<Side> = (0..10_000).map(|_| pass(true)).collect();
        let asked = count(&failing, Side::Device);
        assert!((100..=200).contains(&asked), "{asked} of 10,000");
        let healed: Vec<Side> = (0..10_000).map(|_| pass(false)).collect();
        let asked = count(&healed, Side::Device);
        assert!(asked > 9_800, "{asked} of 10,000");
    }

    #[test]
    fn while_trials_are_under_way_callers_go_where_something_is_known() {
        let mut choice = Choice::default();
        let trials: Vec<Ticket> = (0..6).map(|_| choice.begin(class(20), MEGABYTE)).collect();
        for ticket in trials.iter().filter(|ticket| ticket.side == Side::Cpu) {
            choice.end(ticket, Some(Duration::from_micros(50)));
        }
        for _ in 0..5 {
            assert_eq!(choice.begin(class(20), MEGABYTE).side, Side::Cpu);
        }
    }
    /// Deals so many passes at once to sides that take so long for each; returns which side each went to.
    fn deal(choice: &mut Choice, cpu_us: u64, device_us: u64, passes: usize) -> Vec<Side> {
        let Dealt { sides, tickets } = choice.deal(&vec![(class(20), MEGABYTE); passes]);
        for ticket in &tickets {
            let us = match ticket.side {
                Side::Cpu => cpu_us,
                Side::Device => device_us,
            };
            let count = count(&sides, ticket.side) as u64;
            choice.end(ticket, Some(Duration::from_micros(us * count)));
        }
        sides
    }

    #[test]
    fn passes_of_one_call_are_one_trial_of_one_side_and_then_shared_by_speed() {
        let mut choice = Choice::default();
        // The device takes long for what it does first, however much that is.
        let slow_at_first = [40, 100_000, 40, 10, 40, 10];
        for (us, side) in slow_at_first
            .into_iter()
            .zip([Side::Cpu, Side::Device].into_iter().cycle())
        {
            assert_eq!(deal(&mut choice, us, us, 8), [side; 8]);
        }
        let sides = deal(&mut choice, 40, 10, 10);
        assert_eq!(
            count(&sides, Side::Cpu),
            2,
            "as much as it is done with when the device is"
        );
        assert_eq!(deal(&mut choice, 40, 10, 1), [Side::Device]);
        let in_flight = choice.deal(&vec![(class(20), MEGABYTE); 10]);
        assert_eq!(
            count(&in_flight.sides, Side::Cpu),
            2,
            "nothing was left in flight"
        );
        assert_eq!(choice.begin(class(20), MEGABYTE).side, Side::Device);
    }

    #[test]
    fn passes_of_several_classes_that_come_together_get_a_ticket_for_each_class_and_side() {
        let mut choice = Choice::default();
        one_by_one(&mut choice, 40, 10, 6);
        let mut passes = vec![(class(20), MEGABYTE); 10];
        passes.insert(5, (class(12), 4096));
        let Dealt { sides, tickets } = choice.deal(&passes);
        assert_eq!(sides.len(), 11);
        assert_eq!(sides[5], Side::Cpu, "the first of its class");
        assert_eq!(tickets.len(), 3);
        for ticket in &tickets {
            let in_flight = *choice.in_flight.of(ticket.side);
            assert!(
                (ticket.load_bytes - in_flight).abs() < 1e-9,
                "all of them slow each other down"
            );
        }
        for ticket in &tickets {
            choice.end(ticket, None);
        }
        let Both { cpu, device } = choice.in_flight;
        assert!(cpu.abs() < 1e-9 && device.abs() < 1e-9);
    }
}
