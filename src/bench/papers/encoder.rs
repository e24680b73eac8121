//! The ways to encode stripes of one code: workers for a [`Pool`](super::queue::Pool).

use parking_lot::Mutex;

use super::queue::{Stripe, Worker};
use crate::bench::{BenchError, Isal};
use crate::codec::{
    Accelerator, CodeId, Codec, CodecError, CodingTask, Engine, Geometry, Item, Job, Matrix, Mode,
    Plan, Stores, Targets,
};
use crate::cuda::{Lane, MatrixBatch};

/// Shards of a stripe with their indices: its data, then its parity.
type Erasure<'s> = (Vec<(usize, &'s [u8])>, Vec<(usize, &'s mut [u8])>);

/// A code, ready to encode stripes that come from memory.
pub(super) struct Encoder {
    codec: Codec,
    /// Reads and writes the same shards, with nothing but XOR.
    plain: Plan,
}

impl Encoder {
    /// Returns the default code with so many data and parity shards.
    ///
    /// # Errors
    ///
    /// [`CodecError`] if it has no such geometry.
    pub(super) fn new(
        (data, parity): (usize, usize),
        engine: &'static dyn Engine,
    ) -> Result<Self, CodecError> {
        let geometry = Geometry::new(data, parity)?;
        Ok(Self {
            codec: Codec::new(CodeId::RS_CAUCHY, geometry, engine)?,
            plain: Plan::new(Matrix::from_fn(parity, data, |_, _| 1)),
        })
    }

    /// Returns the codec.
    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Returns a thread that encodes.
    pub(super) fn on_cpu(&self) -> Worker<'_> {
        let encode = |stripe: &mut Stripe<'_>| {
            let (data, parity) = self.split(stripe);
            let pass = self.codec.pass().stores(Stores::Streaming);
            Ok(pass.encode(&data, parity)?)
        };
        Worker {
            encodes: true,
            work: Box::new(move |stripes| stripes.iter_mut().try_for_each(encode)),
        }
    }

    /// Returns a thread that only computes the XOR of the data, and writes it to each parity shard.
    pub(super) fn plain(&self) -> Worker<'_> {
        let add = |stripe: &mut Stripe<'_>| {
            let (data, parity) = self.split(stripe);
            let job = Job::new(&self.plain, &data, parity, Mode::Assign)?;
            let engine = self.codec.engine();
            engine.run_plain(&mut job.with_stores(Stores::Streaming));
            Ok(())
        };
        Worker {
            encodes: false,
            work: Box::new(move |stripes| stripes.iter_mut().try_for_each(add)),
        }
    }

    /// Returns a thread that encodes by ISA-L, with the same matrix.
    pub(super) fn on_isal(&self, isal: &Isal) -> Worker<'_> {
        let tables = isal.tables(self.codec.generator());
        let encode = move |stripe: &mut Stripe<'_>| {
            let (data, parity) = self.split(stripe);
            tables.run(&data, parity);
        };
        Worker {
            encodes: true,
            work: Box::new(move |stripes| {
                stripes.iter_mut().for_each(&encode);
                Ok(())
            }),
        }
    }

    /// Returns a thread that hands batches over to an accelerator, and waits for them.
    pub(super) fn on_accelerator<'w>(&'w self, accelerator: &'w dyn Accelerator) -> Worker<'w> {
        Worker {
            encodes: true,
            work: Box::new(move |stripes| self.hand_over(accelerator, stripes)),
        }
    }

    /// Has an accelerator compute the parity of stripes, all by one call.
    fn hand_over(
        &self,
        accelerator: &dyn Accelerator,
        stripes: &mut [Stripe<'_>],
    ) -> Result<(), BenchError> {
        let k = self.codec.geometry().data_shards();
        let parts = stripes.iter_mut().map(|stripe| {
            let shards = stripe.iter_mut().map(|shard| &mut **shard);
            let mut data: Vec<(usize, &mut [u8])> = shards.enumerate().collect();
            let parity = data.split_off(k);
            let data = data.into_iter().map(|(index, shard)| (index, &*shard));
            (data.collect(), parity)
        });
        let mut parts: Vec<Erasure<'_>> = parts.collect();
        let pass = self.codec.pass().accelerator(Some(accelerator));
        let mut tasks = Vec::new();
        for (data, parity) in &mut parts {
            // Parity that is lost is encoded again. Unlike encoding, this computes no checksums.
            tasks.extend(pass.reconstruction(data, parity)?);
        }
        CodingTask::compute_all(&mut tasks);
        Ok(())
    }

    /// Returns a thread that has a lane of a device to itself.
    pub(super) fn in_lane(&self, lane: Box<dyn Lane>) -> Worker<'_> {
        let lane = Mutex::new(lane);
        let encode = move |stripes: &mut [Stripe<'_>]| {
            let items = stripes.iter_mut().map(|stripe| {
                let (sources, parity) = self.split(stripe);
                let targets = parity.iter_mut().map(|shard| &mut **shard).collect();
                Item {
                    sources,
                    targets: Targets::Written(targets),
                    sums: Vec::new(),
                }
            });
            let mut items: Vec<Item<'_>> = items.collect();
            lane.lock().run(&mut MatrixBatch {
                matrix: self.codec.generator(),
                items: &mut items,
            })?;
            Ok(())
        };
        Worker {
            encodes: true,
            work: Box::new(encode),
        }
    }

    /// Returns data and parity of a stripe.
    fn split<'s, 'a>(&self, stripe: &'s mut Stripe<'a>) -> (Vec<&'s [u8]>, &'s mut [&'a mut [u8]]) {
        let (data, parity) = stripe.split_at_mut(self.codec.geometry().data_shards());
        (data.iter().map(|shard| &**shard).collect(), parity)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::bench::lane::Arena;
    use crate::bench::papers::queue::{Goal, Pool};
    use crate::codec::select;
    use crate::coding::Dispatch;
    use crate::cuda::{Device, Simulated};

    const SHARD_BYTES: usize = 5000;

    fn encoder() -> Encoder {
        Encoder::new((3, 2), select("auto").expect("there is one")).expect("a code")
    }

    /// Runs workers on a pool of seven batches of two stripes, and one stripe more.
    fn on_pool<R>(work: impl FnOnce(&Encoder, &Pool<'_>) -> R) -> R {
        let encoder = encoder();
        let mut arena = Arena::default();
        let geometry = encoder.codec().geometry();
        let mut lanes = arena.lanes(1, geometry, SHARD_BYTES, 15).expect("memory");
        work(&encoder, &Pool::new(&mut lanes[0], 3, 2))
    }

    #[test]
    fn every_worker_encodes_what_the_code_calls_for() {
        let device = Simulated::default();
        let dispatch = Dispatch::all_to_devices(vec![Arc::new(device.clone())]).expect("one");
        on_pool(|encoder, pool| {
            assert_eq!(pool.verify(encoder.codec()).expect("sound"), 0);
            for worker in 0..3 {
                let worker = match worker {
                    0 => encoder.on_cpu(),
                    1 => encoder.on_accelerator(&dispatch),
                    _ => encoder.in_lane(device.lane().expect("a lane")),
                };
                pool.clear();
                assert_eq!(pool.verify(encoder.codec()).expect("sound"), 0);
                let done = pool.run(&[worker], Goal::Batches(7)).expect("done");
                assert_eq!(done.batches, [7]);
                assert!(done.gb_per_s > 0.0 && done.seconds > 0.0, "{done:?}");
                assert_eq!(pool.verify(encoder.codec()).expect("sound"), 14);
            }
        });
        assert!(device.batches().iter().sum::<usize>() >= 28, "both ways");
    }

    #[test]
    fn workers_of_all_kinds_share_one_queue_and_each_unit_is_taken_once() {
        let device = Simulated::default();
        let dispatch = Dispatch::all_to_devices(vec![Arc::new(device)]).expect("one");
        on_pool(|encoder, pool| {
            let workers = || {
                [
                    encoder.on_cpu(),
                    encoder.on_cpu(),
                    encoder.on_accelerator(&dispatch),
                ]
            };
            for count in [0, 1, 3, 7, 40] {
                let done = pool.run(&workers(), Goal::Batches(count)).expect("done");
                assert_eq!(done.batches.iter().sum::<usize>(), count);
                let verified = pool.verify(encoder.codec()).expect("sound");
                assert_eq!(verified, 2 * count.min(7));
            }
            let done = pool.run(&workers(), Goal::Time(Duration::ZERO));
            let batches = done.expect("done").batches;
            assert!(batches.iter().all(|&count| count >= 1), "{batches:?}");
            assert!(batches.iter().sum::<usize>() >= 7, "{batches:?}");
            assert_eq!(pool.verify(encoder.codec()).expect("sound"), 14);
        });
        assert_eq!(dispatch.coding().redone, 0);
    }

    #[test]
    fn isal_encodes_the_same_code() {
        let Ok(isal) = Isal::load() else {
            return;
        };
        on_pool(|encoder, pool| {
            let goal = Goal::Batches(7);
            let done = pool.encode(encoder.codec(), &[encoder.on_isal(&isal)], goal);
            assert_eq!(done.expect("the same parity").batches, [7]);
        });
    }

    #[test]
    fn parity_of_an_earlier_run_does_not_pass_for_that_of_the_next() {
        on_pool(|encoder, pool| {
            let goal = Goal::Batches(7);
            let encode = |worker| pool.encode(encoder.codec(), &[worker], goal);
            encode(encoder.on_cpu()).expect("sound");
            let idle = Worker {
                encodes: true,
                work: Box::new(|_| Ok(())),
            };
            let stale = encode(idle);
            assert!(matches!(stale, Err(BenchError::WrongParity)), "{stale:?}");
        });
    }

    #[test]
    fn wrong_parity_and_a_lane_that_fails_are_reported() {
        on_pool(|encoder, pool| {
            let liar = Worker {
                encodes: true,
                ..encoder.plain()
            };
            pool.run(&[liar], Goal::Batches(1)).expect("done");
            let verified = pool.verify(encoder.codec());
            assert!(matches!(verified, Err(BenchError::WrongParity)));

            let device = Simulated::default().failing_at(1);
            let lane = encoder.in_lane(device.lane().expect("operation 0"));
            // Each worker has a turn, however fast the other is.
            let failed = pool.run(&[lane, encoder.on_cpu()], Goal::Time(Duration::ZERO));
            assert!(matches!(failed, Err(BenchError::Device(_))), "{failed:?}");
        });
    }
}
