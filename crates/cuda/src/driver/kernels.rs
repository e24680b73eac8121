//! The choice of the kernel that applies a matrix.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use parking_lot::Mutex;

use super::{
    context::Context,
    memory::DeviceMemory,
    module::{Function, Module},
};
use crate::{DeviceError, Program, ptx, ptx::Kind};
use cauchyfs_codec::Matrix;

/// Matrices whose kernels are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// Bytes after which a matrix gets a kernel of its own. Compiling one takes as long as the bus takes for
/// some gigabytes, while the kernel for all matrices is fast enough for the bus.
const WORTH_COMPILING: u64 = 1 << 30;

/// Kernels of a device.
pub(super) struct Kernels {
    context: Arc<Context>,
    checksums: OnceLock<Arc<Module>>,
    random_code: OnceLock<Arc<Module>>,
    /// Those for all matrices: that writes targets, and that compares them.
    for_any: [OnceLock<Arc<Module>>; 2],
    by_matrix: Mutex<LruCache<(Matrix, Kind), KernelEntry>>,
}

/// The knowledge of a matrix.
struct KernelEntry {
    applied: Arc<Applied>,
    bytes: u64,
    /// True if a thread has begun to compile a kernel for it.
    is_compiled: bool,
}

/// A matrix, ready to be applied.
pub(super) struct Applied {
    program: Program,
    module: Arc<Module>,
    /// For the kernel that reads them.
    coefficients: Option<DeviceMemory>,
    layers: usize,
}

impl Applied {
    /// Returns what tells it from all others.
    pub(super) fn program(&self) -> Program {
        self.program
    }

    /// Returns the kernels, to be run one after the other.
    pub(super) fn functions(&self) -> &[Function] {
        self.module.functions()
    }

    /// Returns how many blocks along z each takes.
    pub(super) fn layers(&self) -> usize {
        self.layers
    }

    /// Returns how many blocks that need a multiprocessor each run at once.
    pub(super) fn resident_blocks(&self) -> usize {
        self.module.resident_blocks()
    }

    /// Returns where the coefficients lie, if the kernel reads them.
    pub(super) fn coefficients(&self) -> u64 {
        self.coefficients.as_ref().map_or(0, DeviceMemory::address)
    }

    /// Lets the driver compile a kernel for one matrix.
    ///
    /// # Errors
    ///
    /// As for [`Module::new`].
    pub(super) fn compile(
        context: &Arc<Context>,
        matrix: &Matrix,
        kind: Kind,
    ) -> Result<Self, DeviceError> {
        let limits = (context.compute_capability(), context.most_shared_bytes());
        let text = ptx::Module::for_transforms(matrix, kind, limits)
            .unwrap_or_else(|| ptx::Module::for_matrix(matrix, kind));
        let module = Module::new(context, &text)?;
        Ok(Self {
            program: Program::of((context.index(), matrix, kind, true)),
            module: Arc::new(module),
            coefficients: None,
            layers: 1,
        })
    }
}

impl Kernels {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::clone(context),
            checksums: OnceLock::new(),
            random_code: OnceLock::new(),
            for_any: [OnceLock::new(), OnceLock::new()],
            by_matrix: Mutex::new(LruCache::new(KEPT)),
        }
    }

    /// Returns the kernel for checksums.
    ///
    /// # Errors
    ///
    /// If it must be compiled first and cannot be.
    pub(super) fn checksums(&self) -> Result<Arc<Module>, DeviceError> {
        self.compiled(&self.checksums, ptx::Module::for_checksums)
    }

    /// Returns the kernels of the random code.
    ///
    /// # Errors
    ///
    /// As for [`Self::checksums`].
    pub(super) fn random_code(&self) -> Result<Arc<Module>, DeviceError> {
        self.compiled(&self.random_code, ptx::Module::for_random_code)
    }

    /// Returns what applies a matrix best, now that it is to be applied to so many bytes more.
    ///
    /// # Errors
    ///
    /// If it must be compiled first and cannot be, or the device is lost.
    pub(super) fn applying(
        &self,
        matrix: &Matrix,
        kind: Kind,
        bytes: u64,
    ) -> Result<Arc<Applied>, DeviceError> {
        let key = (matrix.clone(), kind);
        if let Some(entry) = self.by_matrix.lock().get_mut(&key) {
            entry.bytes += bytes;
            if entry.is_compiled || entry.bytes < WORTH_COMPILING {
                return Ok(Arc::clone(&entry.applied));
            }
            // Others go on with what there is meanwhile.
            entry.is_compiled = true;
        } else {
            let applied = Arc::new(self.for_any(matrix, kind)?);
            let entry = KernelEntry {
                applied: Arc::clone(&applied),
                bytes,
                is_compiled: false,
            };
            self.by_matrix.lock().put(key, entry);
            return Ok(applied);
        }
        let applied = Arc::new(Applied::compile(&self.context, matrix, kind)?);
        let entry = KernelEntry {
            applied: Arc::clone(&applied),
            bytes,
            is_compiled: true,
        };
        self.by_matrix.lock().put(key, entry);
        Ok(applied)
    }

    /// Gives a matrix a kernel of its own now, if it has none yet.
    ///
    /// # Errors
    ///
    /// As for [`Self::applying`].
    pub(super) fn prepare(&self, matrix: &Matrix, kind: Kind) -> Result<(), DeviceError> {
        self.applying(matrix, kind, 0)?;
        self.applying(matrix, kind, WORTH_COMPILING).map(drop)
    }

    /// Returns the kernel for all matrices with the coefficients of one.
    fn for_any(&self, matrix: &Matrix, kind: Kind) -> Result<Applied, DeviceError> {
        let place = match kind {
            Kind::Write => &self.for_any[0],
            Kind::Compare => &self.for_any[1],
        };
        let module = self.compiled(place, || ptx::Module::for_any(kind))?;
        let words = ptx::coefficients(matrix);
        let coefficients = DeviceMemory::with_words(&self.context, &words)?;
        Ok(Applied {
            program: Program::of((self.context.index(), matrix, kind, false)),
            module,
            coefficients: Some(coefficients),
            layers: matrix.rows().div_ceil(ptx::Module::ANY_ROWS),
        })
    }

    /// Returns a module that is compiled once. Two threads may both do so; one result stays.
    fn compiled(
        &self,
        place: &OnceLock<Arc<Module>>,
        module: impl FnOnce() -> ptx::Module,
    ) -> Result<Arc<Module>, DeviceError> {
        if let Some(compiled) = place.get() {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(Module::new(&self.context, &module())?);
        Ok(Arc::clone(place.get_or_init(|| compiled)))
    }
}
