//! Lending items to other threads for as long as their owner waits.

#![expect(
    unsafe_code,
    reason = "no safe way is known to share borrowed memory with threads that outlive the borrow"
)]

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::codec::{Item, Matrix};

/// The number of parts in which devices are waited for. A process that was stopped for long has waited for one of them,
/// and looks as late as any other.
pub(super) const PARTS: u32 = 30;

/// An item, and the matrix to apply to it.
pub(in crate::coding) type Order<'o, 'a> = (&'o Matrix, &'o mut Item<'a>);

/// The desk to which items return that were lent together.
struct Desk<R> {
    returned: Mutex<Returned<R>>,
    complete: Condvar,
}

struct Returned<R> {
    /// In the order in which they were lent.
    items: Vec<Option<(Item<'static>, Option<R>)>>,
    missing: usize,
    /// The time when the last of them came back.
    completed: Instant,
}

/// An item on loan, and the matrix to apply to it. It comes back to its waiting owner when it is
/// returned or dropped.
pub(super) struct Loan<R> {
    matrix: &'static Matrix,
    item: Item<'static>,
    /// The place among the items that were lent together.
    index: usize,
    desk: Option<Arc<Desk<R>>>,
}

impl<R> Loan<R> {
    pub(super) fn matrix(&self) -> &Matrix {
        self.matrix
    }

    pub(super) fn item(&self) -> &Item<'static> {
        &self.item
    }

    /// Takes the item out; the caller returns it in any case.
    pub(super) fn take_item(&mut self) -> Item<'static> {
        mem::take(&mut self.item)
    }

    pub(super) fn put_item(&mut self, item: Item<'static>) {
        self.item = item;
    }

    /// Returns the item to its owner, and what became of it.
    pub(super) fn give_back(mut self, result: R) {
        self.settle(Some(result));
    }

    fn settle(&mut self, result: Option<R>) {
        let Some(desk) = self.desk.take() else {
            return;
        };
        let mut returned = desk.returned.lock();
        returned.items[self.index] = Some((mem::take(&mut self.item), result));
        returned.missing -= 1;
        if returned.missing == 0 {
            returned.completed = Instant::now();
            drop(returned);
            desk.complete.notify_one();
        }
    }
}

impl<R> Drop for Loan<R> {
    fn drop(&mut self) {
        self.settle(None);
    }
}

/// The results of items that were lent together.
pub(super) struct Back<R> {
    /// The value with which each was returned: nothing, if its loan was dropped.
    pub(super) results: Vec<Option<R>>,
    /// The time when the last of them came back.
    pub(super) at: Instant,
}

/// Hands loans of all items over to `accept`, does something `meanwhile`, waits until all are back, and returns
/// what they were returned with. It is woken once, however many they are. Whenever it has waited for as long as
/// its patience once more, it calls `look`, which may see to it that loans come back.
pub(super) fn lend<R>(
    orders: &mut [Order<'_, '_>],
    accept: impl FnOnce(Vec<Loan<R>>),
    meanwhile: impl FnOnce(),
    patience: Duration,
    look: impl Fn(),
) -> Back<R> {
    let count = orders.len();
    let desk = Arc::new(Desk {
        returned: Mutex::new(Returned {
            items: (0..count).map(|_| None).collect(),
            missing: count,
            completed: Instant::now(),
        }),
        complete: Condvar::new(),
    });
    let loan = |(index, (matrix, item)): (usize, &mut Order<'_, '_>)| {
        // SAFETY: only the lifetimes differ. All copies of this item, and of the reference to the matrix, go
        // into the loan, which ends before `Owner` is dropped; that is before this function returns or unwinds.
        // No other code has a loan before there is an `Owner`.
        let item = unsafe { mem::transmute::<Item<'_>, Item<'static>>(mem::take(*item)) };
        // SAFETY: as above.
        let matrix = unsafe { mem::transmute::<&Matrix, &'static Matrix>(*matrix) };
        Loan {
            matrix,
            item,
            index,
            desk: Some(Arc::clone(&desk)),
        }
    };
    let loans: Vec<Loan<R>> = orders.iter_mut().enumerate().map(loan).collect();
    let mut owner = Owner {
        orders,
        desk: Arc::clone(&desk),
        patience,
        look,
    };
    accept(loans);
    meanwhile();
    owner.wait()
}

/// The lender of items, which must not go on, not even unwind, before all of them are back.
struct Owner<'l, 'o, 'a, R, L: Fn()> {
    orders: &'l mut [Order<'o, 'a>],
    desk: Arc<Desk<R>>,
    patience: Duration,
    look: L,
}

impl<R, L: Fn()> Owner<'_, '_, '_, R, L> {
    fn wait(&mut self) -> Back<R> {
        let mut returned = self.desk.returned.lock();
        let mut waited = 0;
        while returned.missing > 0 {
            if waited == PARTS {
                waited = 0;
                MutexGuard::unlocked(&mut returned, &self.look);
            } else {
                let part = self.patience / PARTS;
                let complete = self.desk.complete.wait_for(&mut returned, part);
                waited += u32::from(complete.timed_out());
            }
        }
        let items = returned.items.drain(..);
        let results = items.zip(&mut *self.orders).map(|(back, (_, place))| {
            let (item, result) = back?;
            **place = item;
            result
        });
        Back {
            results: results.collect(),
            at: returned.completed,
        }
    }
}

impl<R, L: Fn()> Drop for Owner<'_, '_, '_, R, L> {
    fn drop(&mut self) {
        // Items that are in their place again are not on the desk any more.
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;
    use crate::codec::{Geometry, Targets};

    const PATIENCE: Duration = Duration::from_secs(3600);

    /// Has `run` lend so many items of one target each; returns these.
    fn with_items(count: usize, run: impl FnOnce(&mut [Order<'_, '_>])) -> Vec<[u8; 8]> {
        let matrix = Matrix::cauchy(Geometry::new(1, 1).expect("valid"));
        let mut targets = vec![[0; 8]; count];
        let item = |target| Item {
            sources: vec![&[1; 8]],
            targets: Targets::Written(vec![target]),
            sums: Vec::new(),
        };
        let mut items: Vec<Item<'_>> = targets.iter_mut().map(|t| item(&mut t[..])).collect();
        run(&mut items
            .iter_mut()
            .map(|item| (&matrix, item))
            .collect::<Vec<_>>());
        let are_back = items.iter().all(|item| item.targets.count() == 1);
        assert!(are_back);
        targets
    }

    fn fill<R>(loan: &mut Loan<R>, byte: u8) {
        assert_eq!(loan.matrix().rows(), loan.item().targets.count());
        let mut item = loan.take_item();
        if let Targets::Written(shards) = &mut item.targets {
            shards[0].fill(byte);
        }
        loan.put_item(item);
    }

    #[test]
    fn items_return_from_other_threads_in_any_order_each_to_its_index_with_its_outcome() {
        let targets = with_items(3, |orders| {
            let accept = |loans: Vec<Loan<u8>>| {
                for (mut loan, byte) in loans.into_iter().zip([5, 6, 7]).rev() {
                    let work = move || {
                        fill(&mut loan, byte);
                        loan.give_back(byte);
                    };
                    thread::spawn(work).join().expect("no panic");
                }
            };
            let back = lend(orders, accept, || {}, PATIENCE, || {});
            assert_eq!(back.results, [Some(5), Some(6), Some(7)]);
        });
        assert_eq!(targets, [[5; 8], [6; 8], [7; 8]]);
    }

    #[test]
    fn loans_that_are_dropped_come_back_with_nothing_and_the_others_with_something() {
        with_items(3, |orders| {
            let accept = |mut loans: Vec<Loan<u8>>| loans.remove(1).give_back(2);
            let back = lend(orders, accept, || {}, PATIENCE, || {});
            assert_eq!(back.results, [None, Some(2), None]);
        });
    }

    #[test]
    fn the_owner_works_meanwhile_and_learns_when_the_last_item_is_back() {
        with_items(2, |orders| {
            let kept = Mutex::new(Vec::new());
            let returned = Mutex::new(None);
            let meanwhile = || {
                kept.lock()
                    .drain(..)
                    .for_each(|loan: Loan<()>| loan.give_back(()));
                *returned.lock() = Some(Instant::now());
            };
            let accept = |loans| *kept.lock() = loans;
            let back = lend(orders, accept, meanwhile, PATIENCE, || {});
            assert!(Some(back.at) <= returned.into_inner());
        });
        with_items(0, |orders| {
            let back = lend::<()>(orders, drop, || {}, PATIENCE, || {});
            assert!(
                back.results.is_empty(),
                "who lends nothing waits for nothing"
            );
        });
    }

    #[test]
    fn an_impatient_owner_collects_the_items_that_its_check_returns() {
        with_items(2, |orders| {
            let kept = Mutex::new(Vec::new());
            let accept = |loans: Vec<Loan<u8>>| *kept.lock() = loans;
            let times = Mutex::new(0);
            let look = || {
                *times.lock() += 1;
                let loan = kept.lock().pop().expect("still there");
                loan.give_back(*times.lock());
            };
            let back = lend(orders, accept, || {}, Duration::from_millis(30), look);
            assert_eq!(back.results, [Some(2), Some(1)]);
        });
    }

    #[test]
    fn an_unwinding_owner_still_waits_for_its_items() {
        let hand_on = |loans: Vec<Loan<()>>| {
            for mut loan in loans {
                thread::spawn(move || {
                    thread::yield_now();
                    fill(&mut loan, 9);
                });
            }
        };
        let targets = with_items(2, |orders| {
            let accept = |loans| {
                hand_on(loans);
                panic!("after the loans were handed on");
            };
            let lend = || lend(orders, accept, || {}, PATIENCE, || {});
            assert!(catch_unwind(AssertUnwindSafe(lend)).is_err());
        });
        assert_eq!(targets, [[9; 8]; 2]);
        let targets = with_items(2, |orders| {
            let meanwhile = || panic!("while the loans are with others");
            let lend = || lend(orders, hand_on, meanwhile, PATIENCE, || {});
            assert!(catch_unwind(AssertUnwindSafe(lend)).is_err());
        });
        assert_eq!(targets, [[9; 8]; 2]);
    }
}
