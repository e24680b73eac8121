//! Checking what was read against its checksums, on all threads that compute.

use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;

use super::Inspector;
use super::findings::FoundShard;
use super::gather::Raw;
use crate::membership::ErrorClass;
use crate::stripes::damage::Finding;
use crate::stripes::error::StripeError;
use crate::stripes::layout;
use crate::stripes::locator::{Located, Rows, mismatches};

/// Bytes that are worth handing to another thread.
const CHUNK_BYTES: usize = 1 << 20;

/// A shard that was read, and what is known of it.
struct ShardCheck {
    stripe: usize,
    shard: usize,
    bytes: Bytes,
    /// `None` if there are no checksums.
    bad: OnceLock<Result<Option<Vec<Range<usize>>>, StripeError>>,
}

impl Inspector {
    /// Says how each shard of some stripes was found.
    ///
    /// # Errors
    ///
    /// If checksums cannot be looked up.
    pub(super) fn verify_all(
        &self,
        stripes: &[Located],
        raw: Vec<Vec<Raw>>,
    ) -> Result<Vec<Vec<FoundShard>>, StripeError> {
        let mut found = Vec::with_capacity(stripes.len());
        let mut checks = Vec::new();
        for (stripe, (located, raw)) in stripes.iter().zip(raw).enumerate() {
            let mut of_stripe = Vec::with_capacity(raw.len());
            for (shard, raw) in raw.into_iter().enumerate() {
                of_stripe.push(match raw {
                    _ if located.is_implied(layout::shard(shard)) => {
                        FoundShard::Right(self.pool.zeroed(located.height()).freeze())
                    }
                    Raw::Read(bytes) => {
                        let bad = OnceLock::new();
                        checks.push(ShardCheck {
                            stripe,
                            shard,
                            bytes,
                            bad,
                        });
                        FoundShard::Away
                    }
                    Raw::Gone => FoundShard::Gone,
                    Raw::Away => FoundShard::Away,
                });
            }
            found.push(of_stripe);
        }
        self.run_checks(stripes, &checks);
        for check in checks {
            let bad = check.bad.into_inner().expect("every check was done");
            let located = &stripes[check.stripe];
            if let Some(bad) = bad? {
                found[check.stripe][check.shard] = if bad.is_empty() {
                    FoundShard::Right(check.bytes)
                } else {
                    self.note_wrong(located, check.shard, &bad);
                    FoundShard::Wrong(check.bytes, bad)
                };
            }
        }
        Ok(found)
    }

    fn run_checks(&self, stripes: &[Located], checks: &[ShardCheck]) {
        let mut chunks: Vec<Range<usize>> = Vec::new();
        let mut bytes = CHUNK_BYTES;
        for (at, check) in checks.iter().enumerate() {
            match chunks.last_mut() {
                Some(chunk) if bytes < CHUNK_BYTES => chunk.end = at + 1,
                _ => {
                    chunks.push(at..at + 1);
                    bytes = 0;
                }
            }
            bytes += check.bytes.len();
        }
        self.coder.run(chunks.len(), &|chunk| {
            for check in &checks[chunks[chunk].clone()] {
                let done = self.bad_ranges(&stripes[check.stripe], check.shard, &check.bytes);
                check.bad.get_or_init(|| done);
            }
        });
    }

    /// Returns the ranges of a whole shard that do not match their checksums; `None` if it has none.
    fn bad_ranges(
        &self,
        located: &Located,
        shard: usize,
        bytes: &[u8],
    ) -> Result<Option<Vec<Range<usize>>>, StripeError> {
        let rows = Rows {
            shard: layout::shard(shard),
            range: 0..bytes.len(),
        };
        let sums = self.locator.sums_of(located, &rows)?;
        if sums.is_none() {
            self.damage
                .warn((located.id, rows.shard), Finding::NoChecksums, || {
                    "there are no checksums".to_owned()
                });
        }
        Ok(sums.map(|sums| mismatches(&rows, bytes, &sums)))
    }

    /// Says whether some rows of a shard do not match their checksums; not if there are none.
    pub(super) fn is_wrong(
        &self,
        located: &Located,
        rows: &Rows,
        bytes: &[u8],
    ) -> Result<bool, StripeError> {
        let sums = self.locator.sums_of(located, rows)?;
        Ok(sums.is_some_and(|sums| !mismatches(rows, bytes, &sums).is_empty()))
    }

    fn note_wrong(&self, located: &Located, shard: usize, bad: &[Range<usize>]) {
        let shard = layout::shard(shard);
        let Some(member) = located.member_of(shard) else {
            return;
        };
        self.members.io().count_error(member, ErrorClass::Checksum);
        self.damage
            .warn((located.id, shard), Finding::WrongBytes, || {
                format!("wrong bytes on member {member}, first at {:?}", bad[0])
            });
    }
}
