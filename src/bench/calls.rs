//! Stripes that are handed over to an accelerator, several by one call, as the filesystem does.

use super::lane::Lane;
use super::row::{LANES_FIT, RowPlan};
use super::setting::Operation;
use crate::codec::{Accelerator, BLOCK_BYTES, CodingTask};

/// Data, parity and sums of a stripe.
type Encoding<'s> = (Vec<&'s [u8]>, Vec<&'s mut [u8]>, Vec<&'s mut [u32]>);

/// Shards of a stripe: those that are left, then those that are lost.
type Erasure<'s> = (Vec<(usize, &'s [u8])>, Vec<(usize, &'s mut [u8])>);

impl RowPlan {
    /// Does the operation to as many of the lane's next stripes as the setting has to a call.
    pub(super) fn call(&self, lane: &mut Lane<'_>, accelerator: &dyn Accelerator) {
        let stripes = lane.next_stripes(self.setting.stripes);
        match self.setting.operation {
            Operation::Encode => self.encode(stripes, accelerator),
            Operation::Decode => self.decode(stripes, accelerator),
            Operation::Verify => self.verify(stripes, accelerator),
        }
    }

    /// Encodes as the filesystem does, which needs a checksum of each block of each shard. GPUs have to read all
    /// of them once more for these; CPUs compute them as they go.
    fn encode(&self, stripes: Vec<Vec<&mut [u8]>>, accelerator: &dyn Accelerator) {
        let blocks = self.setting.shard_bytes.div_ceil(BLOCK_BYTES);
        let total = self.geometry().total_shards();
        let mut sums = vec![0; stripes.len() * total * blocks];
        let stripes = stripes.into_iter().zip(sums.chunks_mut(total * blocks));
        let parts = stripes.map(|(mut shards, sums)| {
            let parity = shards.split_off(self.geometry().data_shards());
            let data = shards.into_iter().map(|shard| &*shard);
            (data.collect(), parity, sums.chunks_mut(blocks).collect())
        });
        let mut parts: Vec<Encoding<'_>> = parts.collect();
        let pass = self.pass().accelerator(Some(accelerator));
        let tasks = parts.iter_mut().map(|(data, parity, sums)| {
            let task = pass.encoding(data, parity, sums);
            task.expect(LANES_FIT)
        });
        CodingTask::compute_all(&mut tasks.collect::<Vec<_>>());
    }

    /// Computes as many lost shards as can be: the first ones.
    fn decode(&self, stripes: Vec<Vec<&mut [u8]>>, accelerator: &dyn Accelerator) {
        let (k, m) = (
            self.geometry().data_shards(),
            self.geometry().parity_shards(),
        );
        let parts = stripes.into_iter().map(|shards| {
            let mut lost: Vec<(usize, &mut [u8])> = shards.into_iter().enumerate().collect();
            let left = lost.split_off(k.min(m)).into_iter().take(k);
            (left.map(|(index, shard)| (index, &*shard)).collect(), lost)
        });
        let mut parts: Vec<Erasure<'_>> = parts.collect();
        let pass = self.pass().accelerator(Some(accelerator));
        let tasks = parts.iter_mut().filter_map(|(present, lost)| {
            let task = pass.reconstruction(present, lost);
            task.expect(LANES_FIT)
        });
        CodingTask::compute_all(&mut tasks.collect::<Vec<_>>());
    }

    fn verify(&self, stripes: Vec<Vec<&mut [u8]>>, accelerator: &dyn Accelerator) {
        let pass = self.pass().accelerator(Some(accelerator));
        let tasks = stripes.into_iter().map(|shards| {
            let shards: Vec<&[u8]> = shards.into_iter().map(|shard| &*shard).collect();
            pass.comparison(&shards).expect(LANES_FIT)
        });
        CodingTask::compute_all(&mut tasks.collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::bench::lane::Arena;
    use crate::bench::{Setting, WorkingSet};
    use crate::codec::{CodeId, Codec, Geometry, select};

    /// Computes on the CPU, and notes how many stripes each call brought.
    #[derive(Debug, Default)]
    struct Counting {
        calls: Mutex<Vec<usize>>,
    }

    impl Accelerator for Counting {
        fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
            for task in &mut *tasks {
                task.compute_on_cpu();
            }
            self.calls.lock().push(tasks.len());
        }

        fn prefers_many(&self) -> bool {
            true
        }

        fn distrust(&self) {}
    }

    #[test]
    fn a_call_brings_as_many_stripes_as_asked_for_and_each_is_gone_over_in_turn() {
        const STRIPES: usize = 3;
        let geometry = Geometry::new(3, 2).expect("valid");
        for operation in Operation::ALL {
            let engine = select("auto").expect("there is one");
            let codec = Codec::new(CodeId::RS_CAUCHY, geometry, engine).expect("a code");
            let setting = Setting {
                shard_bytes: 5000,
                threads: 1,
                working_set: WorkingSet::Pinned,
                stripes: STRIPES,
                operation,
            };
            let plan = RowPlan::new(codec, setting);
            let mut arena = Arena::default();
            // Seven stripes: after two calls, what is left does not do for a third.
            let mut lanes = arena.lanes(1, geometry, 5000, 7).expect("memory");
            let lane = &mut lanes[0];
            let counting = Counting::default();
            for _ in 0..4 {
                plan.call(lane, &counting);
            }
            assert_eq!(*counting.calls.lock(), [STRIPES; 4], "{operation:?}");
            let sound = |shards: &Vec<&mut [u8]>| {
                let shards: Vec<&[u8]> = shards.iter().map(|shard| &**shard).collect();
                plan.pass().verify(&shards).expect("fits").is_empty()
            };
            let mut lanes = arena.lanes(1, geometry, 5000, 7).expect("memory");
            let sound: Vec<bool> = lanes[0].next_stripes(7).iter().map(sound).collect();
            let expected = operation != Operation::Verify;
            assert_eq!(
                sound[..2 * STRIPES],
                [expected; 2 * STRIPES],
                "{operation:?}"
            );
            assert!(!sound[2 * STRIPES], "{operation:?}: it is never reached");
        }
    }
}
