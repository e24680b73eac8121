//! Listings of directories that callers opened by themselves.
//!
//! Nothing tells when such a directory is opened. A listing begins when it is read from 0, or where none runs. It runs until
//! a reader meets its end, or the caller forgets the directory. All readers of a directory share it: where one rewinds, the
//! others see what was made since they began.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::format::{Cookie, Ino};

use super::handles::OpenDir;

/// Parts of the table. A part is locked for one access to a map.
const SHARDS: u64 = 64;

type Shard = Mutex<HashMap<Ino, Arc<OpenDir>>>;

/// The listings that run.
pub(super) struct Listings {
    shards: Box<[CachePadded<Shard>]>,
}

impl Listings {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Returns the listing of a directory. If none runs, one begins, without the entries from `next_cookie` on.
    pub(super) fn of(&self, ino: Ino, next_cookie: Cookie) -> Arc<OpenDir> {
        let mut shard = self.shard(ino).lock();
        let listing = shard
            .entry(ino)
            .or_insert_with(|| Arc::new(OpenDir::new(ino, next_cookie)));
        Arc::clone(listing)
    }

    /// Ends the listing of a directory, if one runs.
    pub(super) fn end(&self, ino: Ino) {
        self.shard(ino).lock().remove(&ino);
    }

    fn shard(&self, ino: Ino) -> &Shard {
        let place = usize::try_from(ino.0 % SHARDS).expect("less than a length");
        &self.shards[place]
    }
}
