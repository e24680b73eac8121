//! Codecs, and the threads and devices that run them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::StripeError;
use crate::codec::{Accelerator, CodeId, Codec, CodecError, Geometry, Pass, WorkerPool as _};
use crate::format::record::Segment;
use crate::workers::Workers;

/// The codecs of a volume's stripes, and the threads and the accelerator that compute with them.
pub(crate) struct StripeCoder {
    /// The codec of stripes that are written.
    codec: Arc<Codec>,
    /// Codecs of segments that were written with another geometry or code.
    others: Mutex<HashMap<(CodeId, Geometry), Arc<Codec>>>,
    workers: Arc<Workers>,
    accelerator: Option<Arc<dyn Accelerator>>,
}

impl StripeCoder {
    /// Creates the part; `codec` codes the stripes that are written.
    pub(super) fn new(
        codec: Codec,
        workers: Arc<Workers>,
        accelerator: Option<Arc<dyn Accelerator>>,
    ) -> Self {
        Self {
            codec: Arc::new(codec),
            others: Mutex::default(),
            workers,
            accelerator,
        }
    }

    /// Returns the name of the engine that codes on the CPU.
    pub(crate) fn engine_name(&self) -> &'static str {
        self.codec.engine().name()
    }

    /// Returns the codec of stripes with the code of the volume.
    pub(super) fn codec_of_volume(&self) -> Arc<Codec> {
        Arc::clone(&self.codec)
    }

    /// Returns the codec of a segment's stripes.
    ///
    /// # Errors
    ///
    /// If this program has no such code.
    pub(super) fn codec_of(&self, segment: &Segment) -> Result<Arc<Codec>, CodecError> {
        let (data, parity) = (segment.data_shards, segment.parity_shards);
        let geometry = Geometry::new(usize::from(data), usize::from(parity))?;
        self.codec_for(CodeId(segment.code), geometry)
    }

    /// Returns the codec of a code and geometry.
    ///
    /// # Errors
    ///
    /// If this program has no such code.
    pub(super) fn codec_for(
        &self,
        code: CodeId,
        geometry: Geometry,
    ) -> Result<Arc<Codec>, CodecError> {
        if (code, geometry) == (self.codec.code(), self.codec.geometry()) {
            return Ok(Arc::clone(&self.codec));
        }
        if let Some(codec) = self.others.lock().get(&(code, geometry)) {
            return Ok(Arc::clone(codec));
        }
        let codec = Arc::new(Codec::new(code, geometry, self.codec.engine())?);
        self.others
            .lock()
            .insert((code, geometry), Arc::clone(&codec));
        Ok(codec)
    }

    /// Returns a pass over a stripe, with all threads and the accelerator to compute it with.
    pub(super) fn pass<'a>(&'a self, codec: &'a Codec) -> Pass<'a> {
        self.single_threaded_pass(codec).workers(&*self.workers)
    }

    /// Returns a pass over a stripe for a caller that keeps all threads busy with other stripes.
    pub(super) fn single_threaded_pass<'a>(&'a self, codec: &'a Codec) -> Pass<'a> {
        codec.pass().accelerator(self.accelerator.as_deref())
    }

    /// Runs `compute` and verifies the result; repeats it on the CPU if verification fails, because a device may be
    /// wrong while checksums are right. A device that was wrong is not trusted any more. `compute` returns whether its
    /// result is right; so does this.
    ///
    /// # Errors
    ///
    /// Those of `compute`.
    pub(super) fn compute_verified(
        &self,
        codec: &Codec,
        mut compute: impl FnMut(Pass<'_>) -> Result<bool, StripeError>,
    ) -> Result<bool, StripeError> {
        Ok(compute(self.pass(codec))? || self.repeat_on_cpu(codec, compute)?)
    }

    /// Runs `compute` on the CPU after a result that is wrong, as [`Self::compute_verified`] does. Without an
    /// accelerator the CPU computed that result, and nothing is repeated.
    ///
    /// # Errors
    ///
    /// Those of `compute`.
    pub(super) fn repeat_on_cpu(
        &self,
        codec: &Codec,
        mut compute: impl FnMut(Pass<'_>) -> Result<bool, StripeError>,
    ) -> Result<bool, StripeError> {
        let Some(accelerator) = &self.accelerator else {
            return Ok(false);
        };
        let is_right = compute(self.pass(codec).accelerator(None))?;
        if is_right {
            accelerator.distrust();
        }
        Ok(is_right)
    }

    /// Returns whether several stripes are better computed by one call than one by each thread.
    pub(super) fn prefers_batches(&self) -> bool {
        let accelerator = self.accelerator.as_ref();
        accelerator.is_some_and(|accelerator| accelerator.prefers_many())
    }

    /// Calls `work` once with every number below `count`, on all threads, and returns when all calls have returned.
    pub(super) fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.workers.run(count, work);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::codec::{self, CodingTask};
    use crate::format::StripeClass;

    /// Device that is never asked to compute in these tests.
    #[derive(Debug, Default)]
    struct Device {
        is_distrusted: AtomicBool,
    }

    impl Accelerator for Device {
        fn compute(&self, _: &mut [CodingTask<'_, '_>]) {}

        fn prefers_many(&self) -> bool {
            true
        }

        fn distrust(&self) {
            self.is_distrusted.store(true, Ordering::Relaxed);
        }
    }

    fn coder(device: Option<&Arc<Device>>) -> StripeCoder {
        let geometry = Geometry::new(2, 1).unwrap();
        let engine = codec::select("auto").unwrap();
        let codec = Codec::new(CodeId::RS_CAUCHY, geometry, engine).unwrap();
        let workers = Arc::new(Workers::new(1).unwrap());
        StripeCoder::new(codec, workers, device.map(|device| Arc::clone(device) as _))
    }

    /// Computes with results that are right or wrong in this order; returns the final verdict and the number of calls.
    fn compute(coder: &StripeCoder, results: &[bool]) -> (bool, usize) {
        let mut calls = 0;
        let verdict = coder.compute_verified(&coder.codec, |_| {
            calls += 1;
            Ok(results[calls - 1])
        });
        (verdict.unwrap(), calls)
    }

    #[test]
    fn a_wrong_result_is_repeated_only_if_a_device_may_have_computed_it() {
        let device = Arc::new(Device::default());
        assert_eq!(compute(&coder(None), &[false]), (false, 1));
        assert_eq!(compute(&coder(Some(&device)), &[true]), (true, 1));
        assert_eq!(compute(&coder(Some(&device)), &[false, false]), (false, 2));
        assert!(!device.is_distrusted.load(Ordering::Relaxed));
        assert_eq!(compute(&coder(Some(&device)), &[false, true]), (true, 2));
        assert!(device.is_distrusted.load(Ordering::Relaxed));
    }

    #[test]
    fn a_segment_with_another_geometry_gets_its_own_codec_and_only_one() {
        let coder = coder(None);
        let mut segment = Segment {
            class: StripeClass::VOLUME,
            data_shards: 2,
            parity_shards: 1,
            code: CodeId::RS_CAUCHY.0,
            len: 4096,
            slots: Vec::new(),
            rotating: 3,
        };
        assert!(Arc::ptr_eq(
            &coder.codec_of(&segment).unwrap(),
            &coder.codec
        ));
        segment.data_shards = 4;
        let (first, second) = (coder.codec_of(&segment), coder.codec_of(&segment));
        assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
        segment.data_shards = 0;
        assert!(coder.codec_of(&segment).is_err());
    }
}
