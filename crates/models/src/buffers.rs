//! Writers that fill stripe buffers, and threads that flush them.
//!
//! A volume without threads that flush is left out: there the caller that syncs flushes, and there is one caller.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use shuttle::thread::{self, JoinHandle};

use crate::Mutex;
use crate::format::{StripeClass, StripeId};
use crate::store::Pool;
use crate::stripes::StripeError;
use crate::stripes::buffers::{Buffers, Opening, Placed, Sealed};
use crate::stripes::classes::ClassCode;
use crate::stripes::segments::Reservation;

/// Bytes of a stripe.
const CAPACITY: usize = 4096;

/// Lengths of the writes, in turn. Two of the shorter ones fill a stripe, and the longer one leaves no room in it.
const LENGTHS: [usize; 3] = [2048, 3000, 2048];

/// Threads that flush.
const FLUSHERS: usize = 2;

/// Calls of the thread that waits until all is flushed.
const SYNCS: usize = 2;

/// Memory of stripes, kept from run to run: to map it takes longer than a run.
static POOL: LazyLock<Pool> = LazyLock::new(|| Pool::new(1 << 20));

/// The circumstances of a run.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    /// Buffers that may be in use.
    limit: usize,
    /// Whether a thread that flushes takes further stripes out of the queue, to encode them.
    in_batches: bool,
    /// Whether every other stripe finds no space when it is flushed for the first time.
    is_short_of_space: bool,
    /// Threads that write.
    writers: u8,
    /// Classes of stripes. The writers take turns at them.
    classes: u8,
}

/// Bytes of one write, all of them alike.
#[derive(Clone, Copy, Debug)]
struct Written {
    placed: Placed,
    byte: u8,
}

impl Written {
    /// Checks bytes that were read in the place of the write.
    fn check(self, found: &[u8]) {
        assert_eq!(found.len(), self.placed.len as usize, "{self:?}");
        assert!(
            found.iter().all(|byte| *byte == self.byte),
            "{self:?} reads as other bytes"
        );
    }
}

/// The code of all classes.
static CODE: LazyLock<Arc<ClassCode>> =
    LazyLock::new(|| Arc::new(ClassCode { capacity: CAPACITY }));

/// A volume with nothing but stripe buffers and the records of flushed stripes.
struct BuffersModel {
    circumstances: Circumstances,
    buffers: Arc<Buffers>,
    last_stripe: Mutex<u64>,
    /// The payload of each recorded stripe.
    records: Mutex<HashMap<StripeId, Vec<u8>>>,
    /// The stripes that are being flushed.
    flushing: Mutex<HashSet<StripeId>>,
    /// The stripes that found no space.
    refused: Mutex<HashSet<StripeId>>,
    written: Mutex<Vec<Written>>,
}

impl BuffersModel {
    fn new(circumstances: Circumstances) -> Self {
        Self {
            circumstances,
            buffers: Buffers::new(POOL.clone(), circumstances.limit),
            last_stripe: Mutex::default(),
            records: Mutex::default(),
            flushing: Mutex::default(),
            refused: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Writes, and reads each write back at once and after the next one.
    fn write(&self, byte: u8) {
        let mut before = None;
        let class = StripeClass(byte % self.circumstances.classes);
        for len in LENGTHS {
            let data = vec![byte; len];
            let (placed, hold) = loop {
                if let Some(placed) = self.buffers.append(class, &data) {
                    break placed;
                }
                self.open_stripe(class);
            };
            assert_eq!(placed.len as usize, len);
            let written = Written { placed, byte };
            assert!(self.buffers.is_busy(placed.stripe));
            drop(hold);
            self.written.lock().push(written);
            self.check(written);
            if let Some(before) = before.replace(written) {
                self.check(before);
            }
        }
    }

    fn open_stripe(&self, class: StripeClass) {
        let opened = self.buffers.open_stripe(
            class,
            || false,
            || {
                let mut last = self.last_stripe.lock();
                *last += 1;
                Ok(Opening {
                    stripe: StripeId(*last),
                    code: Arc::clone(&CODE),
                    reservation: Reservation,
                })
            },
        );
        self.make_space(opened);
    }

    /// Lets stripes without space try again if one of them is the reason of a failure.
    fn make_space(&self, outcome: Result<(), StripeError>) {
        match outcome {
            Ok(()) => {}
            Err(StripeError::NoSpace { .. }) if self.circumstances.is_short_of_space => {
                self.buffers.retry();
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Flushes until the buffers are closed.
    fn flush_forever(&self) {
        while let Some(sealed) = self.buffers.next(true) {
            if self.circumstances.in_batches {
                let others = self.buffers.take_unencoded(&sealed.code);
                // Here a device encodes them.
                thread::yield_now();
                self.buffers.requeue(others);
            }
            self.flush(&sealed);
        }
    }

    fn flush(&self, sealed: &Arc<Sealed>) {
        let stripe = sealed.stripe;
        let is_first = self.flushing.lock().insert(stripe);
        assert!(is_first, "two threads flush {stripe}");
        assert!(self.buffers.has(stripe), "{stripe} left before its record");
        let finds_none = self.circumstances.is_short_of_space && stripe.0.is_multiple_of(2);
        let outcome = if finds_none && self.refused.lock().insert(stripe) {
            Err(StripeError::NoSpace { needed: 1 })
        } else {
            assert!(sealed.take_reservation().is_some());
            let payload = sealed.data[..sealed.payload_len].to_vec();
            let before = self.records.lock().insert(stripe, payload);
            assert_eq!(before, None, "{stripe} was flushed twice");
            Ok(())
        };
        self.flushing.lock().remove(&stripe);
        self.buffers.done(sealed, outcome);
    }

    /// Waits until all that was written before is flushed, and checks that it is.
    fn sync(&self) {
        let before = self.written.lock().clone();
        loop {
            self.buffers.seal();
            let flushed = self.buffers.wait_flushed();
            if flushed.is_ok() {
                break;
            }
            self.make_space(flushed);
        }
        for written in before {
            let found = self.recorded(written.placed);
            let found = found.unwrap_or_else(|| panic!("{written:?} has no record"));
            written.check(&found);
        }
    }

    /// Checks that a write can be read, from its buffer or by its record.
    fn check(&self, written: Written) {
        let placed = written.placed;
        let mut found = vec![0; placed.len as usize];
        let is_in_memory = self
            .buffers
            .read(placed.stripe, placed.offset as usize, &mut found)
            .expect("the stripe has these bytes");
        if !is_in_memory {
            let recorded = self.recorded(placed);
            found = recorded.unwrap_or_else(|| panic!("{written:?} is nowhere"));
        }
        written.check(&found);
    }

    fn recorded(&self, placed: Placed) -> Option<Vec<u8>> {
        let records = self.records.lock();
        let bytes = records.get(&placed.stripe)?.iter().copied();
        let bytes = bytes.skip(placed.offset as usize);
        Some(bytes.take(placed.len as usize).collect())
    }
}

fn spawn(
    volume: &Arc<BuffersModel>,
    work: impl FnOnce(&BuffersModel) + Send + 'static,
) -> JoinHandle<()> {
    let volume = Arc::clone(volume);
    thread::spawn(move || work(&volume))
}

fn run(circumstances: Circumstances) {
    let volume = Arc::new(BuffersModel::new(circumstances));
    let writers: Vec<_> = (1..=circumstances.writers)
        .map(|byte| spawn(&volume, move |volume| volume.write(byte)))
        .collect();
    let flushers: Vec<_> = (0..FLUSHERS)
        .map(|_| spawn(&volume, BuffersModel::flush_forever))
        .collect();
    let syncing = spawn(&volume, |volume| (0..SYNCS).for_each(|_| volume.sync()));
    for thread in writers.into_iter().chain([syncing]) {
        thread.join().expect("the thread ends well");
    }
    volume.sync();
    let total = usize::from(circumstances.writers) * LENGTHS.len();
    assert_eq!(volume.written.lock().len(), total);
    volume.buffers.close();
    for flusher in flushers {
        flusher.join().expect("the thread ends well");
    }
    for written in volume.written.lock().iter() {
        assert!(
            !volume.buffers.is_busy(written.placed.stripe),
            "{written:?}"
        );
    }
}

/// Threads of their own flush what others write.
///
/// # Panics
///
/// If a write cannot be read back at any time, or if a sync returns before its writes are flushed. If two threads flush
/// one buffer. Threads that wait forever make the scheduler panic.
pub fn threads_flush_stripes() {
    run(Circumstances {
        limit: 2,
        in_batches: false,
        is_short_of_space: false,
        writers: 2,
        classes: 1,
    });
}

/// Threads flush stripes, and take others out of the queue meanwhile.
///
/// # Panics
///
/// As for [`threads_flush_stripes`].
pub fn threads_flush_stripes_in_batches() {
    run(Circumstances {
        limit: 6,
        in_batches: true,
        is_short_of_space: false,
        writers: 2,
        classes: 1,
    });
}

/// Stripes find no space at first, and are flushed later.
///
/// # Panics
///
/// As for [`threads_flush_stripes`].
pub fn stripes_without_space_are_flushed_later() {
    run(Circumstances {
        limit: 3,
        in_batches: false,
        is_short_of_space: true,
        writers: 2,
        classes: 1,
    });
}

/// Writers fill stripes of two classes with so few buffers that one of them has to be sealed for the other.
///
/// # Panics
///
/// As for [`threads_flush_stripes`].
pub fn threads_flush_stripes_of_two_classes() {
    run(Circumstances {
        limit: 2,
        in_batches: false,
        is_short_of_space: false,
        writers: 2,
        classes: 2,
    });
}

/// Several writers fill stripes of one of three classes, and there are fewer buffers than classes.
///
/// # Panics
///
/// As for [`threads_flush_stripes`].
pub fn threads_flush_stripes_of_more_classes_than_there_are_buffers() {
    run(Circumstances {
        limit: 2,
        in_batches: false,
        is_short_of_space: false,
        writers: 4,
        classes: 3,
    });
}

/// Stripes of two classes find no space at first, and are flushed later.
///
/// # Panics
///
/// As for [`threads_flush_stripes`].
pub fn stripes_of_two_classes_without_space_are_flushed_later() {
    run(Circumstances {
        limit: 5,
        in_batches: true,
        is_short_of_space: true,
        writers: 2,
        classes: 2,
    });
}
