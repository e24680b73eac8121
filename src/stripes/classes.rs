//! Classes of stripes. The stripes of one class have the same code: that of the volume, or one that directories were given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use super::stripe_coder::StripeCoder;
use crate::codec::{CodeId, Codec, CodecError, Geometry, Survival};
use crate::format::{BLOCK_SIZE, StripeClass};
use crate::membership::VolumeShape;

/// The code of one class of stripes, as new ones get it.
#[derive(Debug)]
pub(crate) struct ClassCode {
    class: StripeClass,
    codec: Arc<Codec>,
    /// The greatest height of a stripe.
    height: usize,
}

impl ClassCode {
    /// Returns the class.
    pub(crate) fn class(&self) -> StripeClass {
        self.class
    }

    /// Returns the codec.
    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Returns the code.
    pub(crate) fn code(&self) -> CodeId {
        self.codec.code()
    }

    /// Returns the numbers of shards.
    pub(crate) fn geometry(&self) -> Geometry {
        self.codec.geometry()
    }

    /// Returns the losses that its stripes survive.
    pub(crate) fn survival(&self) -> Survival {
        Survival::of(self.code(), self.geometry())
    }

    /// Returns the greatest height of a stripe.
    pub(crate) fn step(&self) -> u64 {
        self.height as u64
    }

    /// Returns the payload bytes of a full stripe.
    pub(crate) fn capacity(&self) -> usize {
        self.height * self.geometry().data_shards()
    }
}

/// The classes of a volume.
pub(crate) struct Classes {
    coder: Arc<StripeCoder>,
    /// The class with the code of the volume.
    volume: Arc<ClassCode>,
    others: RwLock<BTreeMap<StripeClass, Arc<ClassCode>>>,
    /// False while every stripe has the code of the volume: then writes look no class up.
    has_others: AtomicBool,
}

impl Classes {
    /// Creates the part, with the class of the volume's own code.
    pub(super) fn new(coder: &Arc<StripeCoder>, shape: &VolumeShape) -> Self {
        let volume = ClassCode {
            class: StripeClass::VOLUME,
            codec: coder.codec_of_volume(),
            height: shape.greatest_height() as usize,
        };
        Self {
            coder: Arc::clone(coder),
            volume: Arc::new(volume),
            others: RwLock::default(),
            has_others: AtomicBool::new(false),
        }
    }

    /// Returns the class with the code of the volume.
    pub(crate) fn volume(&self) -> &Arc<ClassCode> {
        &self.volume
    }

    /// Returns a class; `None` if there is no such.
    pub(crate) fn get(&self, class: StripeClass) -> Option<Arc<ClassCode>> {
        if class == StripeClass::VOLUME {
            return Some(Arc::clone(&self.volume));
        }
        self.others.read().get(&class).cloned()
    }

    /// Returns the classes with codes of directories.
    pub(crate) fn of_directories(&self) -> Vec<Arc<ClassCode>> {
        self.others.read().values().cloned().collect()
    }

    /// Returns the payload bytes of the full stripe of any class that holds least.
    pub(crate) fn least_capacity(&self) -> usize {
        let others = self.others.read();
        let capacities = others.values().map(|code| code.capacity());
        capacities.fold(self.volume.capacity(), usize::min)
    }

    /// Returns whether all stripes have the code of the volume.
    pub(crate) fn is_plain(&self) -> bool {
        !self.has_others.load(Ordering::Acquire)
    }

    /// Notes that inodes may name a class without a code, because its record cannot be read.
    pub(crate) fn note_unknown(&self) {
        self.has_others.store(true, Ordering::Release);
    }

    /// Returns the payload bytes of the longest stripe of any class.
    pub(crate) fn greatest_capacity(&self) -> usize {
        let others = self.others.read();
        let capacities = others.values().map(|code| code.capacity());
        capacities.fold(self.volume.capacity(), usize::max)
    }

    /// Adds a class. Nothing is changed if there is one of this number.
    ///
    /// # Errors
    ///
    /// If no stripe can have this geometry or code.
    pub(crate) fn add(
        &self,
        class: StripeClass,
        (geometry, code): (Geometry, CodeId),
    ) -> Result<(), CodecError> {
        let codec = self.coder.codec_for(code, geometry)?;
        let height = self.height_for(geometry);
        let code = ClassCode {
            class,
            codec,
            height,
        };
        let mut others = self.others.write();
        others.entry(class).or_insert_with(|| Arc::new(code));
        // Before the first inode that names the class.
        self.has_others.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the greatest height of stripes of this geometry. They take no more memory than those of the volume, and hold
    /// no more, unless even stripes of one block do.
    fn height_for(&self, geometry: Geometry) -> usize {
        let volume = self.volume.geometry();
        let by_memory = self.volume.height * volume.total_shards() / geometry.total_shards();
        let by_payload = self.volume.capacity() / geometry.data_shards();
        let height = self.volume.height.min(by_memory).min(by_payload);
        (height / BLOCK_SIZE * BLOCK_SIZE).max(BLOCK_SIZE)
    }
}
