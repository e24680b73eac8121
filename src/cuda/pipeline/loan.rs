//! Lending an item to another thread for as long as its owner waits.

#![expect(
    unsafe_code,
    reason = "no safe way is known to share borrowed memory with threads that outlive the borrow"
)]

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::PARTS;
use crate::codec::{Item, Matrix};

/// Where an item comes back to.
struct Desk<R> {
    returned: Mutex<Option<(Item<'static>, Option<R>)>>,
    arrived: Condvar,
}

/// An item on loan, and the matrix to apply to it. It comes back to its owner, who waits, when it is
/// returned or dropped.
pub(super) struct Loan<R> {
    matrix: &'static Matrix,
    item: Item<'static>,
    desk: Option<Arc<Desk<R>>>,
}

impl<R> Loan<R> {
    pub(super) fn matrix(&self) -> &Matrix {
        self.matrix
    }

    pub(super) fn item(&self) -> &Item<'static> {
        &self.item
    }

    /// Takes the item out, to be put back in any case.
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
        if let Some(desk) = self.desk.take() {
            *desk.returned.lock() = Some((mem::take(&mut self.item), result));
            desk.arrived.notify_one();
        }
    }
}

impl<R> Drop for Loan<R> {
    fn drop(&mut self) {
        self.settle(None);
    }
}

/// Hands a loan of the item over to `accept`, waits until it is back, and returns what it was returned
/// with: nothing, if it was dropped. Whenever it has waited for as long as its patience once more, it calls
/// `look`, which may see to it that the loan comes back.
pub(super) fn lend<R>(
    matrix: &Matrix,
    item: &mut Item<'_>,
    accept: impl FnOnce(Loan<R>),
    patience: Duration,
    look: impl Fn(),
) -> Option<R> {
    let desk = Arc::new(Desk {
        returned: Mutex::new(None),
        arrived: Condvar::new(),
    });
    // SAFETY: only the lifetimes differ. All copies of this item, and of the reference to the matrix, go
    // into the loan, which ends before `Owner` is dropped; that is before this function returns or unwinds.
    let lent = unsafe { mem::transmute::<Item<'_>, Item<'static>>(mem::take(item)) };
    // SAFETY: as above.
    let matrix = unsafe { mem::transmute::<&Matrix, &'static Matrix>(matrix) };
    let mut owner = Owner {
        item,
        desk: Arc::clone(&desk),
        is_back: false,
        result: None,
        patience,
        look,
    };
    accept(Loan {
        matrix,
        item: lent,
        desk: Some(desk),
    });
    owner.wait();
    owner.result.take()
}

/// Someone who must not go on, not even unwind, before his item is back.
struct Owner<'i, 'a, R, L: Fn()> {
    item: &'i mut Item<'a>,
    desk: Arc<Desk<R>>,
    is_back: bool,
    result: Option<R>,
    patience: Duration,
    look: L,
}

impl<R, L: Fn()> Owner<'_, '_, R, L> {
    fn wait(&mut self) {
        let mut returned = self.desk.returned.lock();
        let mut waited = 0;
        while !self.is_back {
            match returned.take() {
                Some((item, result)) => {
                    *self.item = item;
                    self.result = result;
                    self.is_back = true;
                }
                None if waited == PARTS => {
                    waited = 0;
                    MutexGuard::unlocked(&mut returned, &self.look);
                }
                None => {
                    let part = self.patience / PARTS;
                    let arrived = self.desk.arrived.wait_for(&mut returned, part);
                    waited += u32::from(arrived.timed_out());
                }
            }
        }
    }
}

impl<R, L: Fn()> Drop for Owner<'_, '_, R, L> {
    fn drop(&mut self) {
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::codec::{Geometry, Targets};

    const PATIENCE: Duration = Duration::from_secs(3600);

    fn with_item(run: impl FnOnce(&Matrix, &mut Item<'_>)) -> Vec<u8> {
        let matrix = Matrix::cauchy(Geometry::new(1, 1).expect("valid"));
        let mut target = vec![0; 8];
        let mut item = Item {
            sources: vec![&[1; 8]],
            targets: Targets::Written(vec![&mut target]),
            sums: Vec::new(),
        };
        run(&matrix, &mut item);
        assert_eq!(item.targets.count(), 1, "the item is back");
        target
    }

    fn fill(item: &mut Item<'_>, byte: u8) {
        if let Targets::Written(shards) = &mut item.targets {
            shards[0].fill(byte);
        }
    }

    #[test]
    fn an_item_comes_back_from_another_thread_with_what_became_of_it() {
        let target = with_item(|matrix, item| {
            let result = lend(
                matrix,
                item,
                |mut loan: Loan<&str>| {
                    thread::spawn(move || {
                        assert_eq!(loan.matrix().rows(), loan.item().targets.count());
                        let mut item = loan.take_item();
                        fill(&mut item, 5);
                        loan.put_item(item);
                        loan.give_back("done");
                    });
                },
                PATIENCE,
                || {},
            );
            assert_eq!(result, Some("done"));
        });
        assert_eq!(target, [5; 8]);
    }

    #[test]
    fn a_loan_that_is_dropped_comes_back_with_nothing() {
        with_item(|matrix, item| {
            assert_eq!(lend::<()>(matrix, item, drop, PATIENCE, || {}), None);
        });
    }

    #[test]
    fn an_owner_looks_around_when_he_has_lost_patience_and_gets_what_that_brings_back() {
        with_item(|matrix, item| {
            let kept = Mutex::new(None);
            let accept = |loan: Loan<u8>| *kept.lock() = Some(loan);
            let times = Mutex::new(0);
            let look = || {
                *times.lock() += 1;
                if *times.lock() == 2 {
                    kept.lock().take().expect("still there").give_back(7);
                }
            };
            let result = lend(matrix, item, accept, Duration::from_millis(30), look);
            assert_eq!((result, *times.lock()), (Some(7), 2));
        });
    }

    #[test]
    fn an_owner_who_unwinds_waits_for_his_item_all_the_same() {
        let target = with_item(|matrix, item| {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                lend(
                    matrix,
                    item,
                    |mut loan: Loan<()>| {
                        thread::spawn(move || {
                            let mut item = loan.take_item();
                            thread::yield_now();
                            fill(&mut item, 9);
                            loan.put_item(item);
                        });
                        panic!("after the loan was handed on");
                    },
                    PATIENCE,
                    || {},
                );
            }));
            assert!(caught.is_err());
        });
        assert_eq!(target, [9; 8]);
    }
}
