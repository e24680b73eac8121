//! The locks of shuttle with the interface of `parking_lot`, as far as the modelled sources use it.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use shuttle::sync;

/// The state of a guard: [`Condvar::wait`] and [`MutexGuard::unlocked`] take its lock away, and give it back.
const LOCKED: &str = "a guard has its lock whenever its owner can use it";

/// A lock at which the scheduler may switch threads.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// The right to use what a [`Mutex`] protects.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    inner: Option<sync::MutexGuard<'a, T>>,
}

/// A queue of threads that wait for a change.
#[derive(Debug)]
pub struct Condvar(sync::Condvar);

impl<T> Mutex<T> {
    /// Makes an unlocked mutex.
    #[must_use]
    #[track_caller]
    pub fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            mutex: self,
            inner: Some(self.lock_inner()),
        }
    }

    fn lock_inner(&self) -> sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect(LOCKED)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(LOCKED)
    }
}

impl<T> MutexGuard<'_, T> {
    /// Gives the lock away while `work` runs.
    pub fn unlocked<U>(guard: &mut Self, work: impl FnOnce() -> U) -> U {
        guard.inner = None;
        let result = work();
        guard.inner = Some(guard.mutex.lock_inner());
        result
    }
}

impl Condvar {
    /// Makes a queue without threads.
    #[must_use]
    #[track_caller]
    #[expect(
        clippy::new_without_default,
        reason = "as in `parking_lot`, sources name it"
    )]
    pub fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Gives the lock away until a wake-up.
    ///
    /// # Panics
    ///
    /// Never: the guard has its lock.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.inner.take().expect(LOCKED);
        let inner = self.0.wait(inner).unwrap_or_else(PoisonError::into_inner);
        guard.inner = Some(inner);
    }

    /// Wakes one of the threads that wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
