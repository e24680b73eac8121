//! The choice of the kernel that applies a matrix.

use std::ffi::c_int;
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

/// Bytes after which a matrix gets a kernel of its own. As a rule, compiling one takes as long as the bus takes for some
/// gigabytes. For one that computes by transforms, it takes as long as for some tens of gigabytes. One batch waits
/// for it, once for each kind. The kernel for all matrices is fast enough for the bus, but keeps more of the device busy.
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
    pub(super) fn concurrent_blocks(&self) -> usize {
        self.module.concurrent_blocks()
    }

    /// Returns where the coefficients lie, if the kernel reads them.
    pub(super) fn coefficients(&self) -> u64 {
        self.coefficients.as_ref().map_or(0, DeviceMemory::address)
    }

    /// Lets the driver compile kernels for one matrix: the fastest that it takes.
    ///
    /// # Errors
    ///
    /// As for [`Module::new`], if it takes none.
    pub(super) fn compile(
        context: &Arc<Context>,
        matrix: &Matrix,
        kind: Kind,
    ) -> Result<Self, DeviceError> {
        let limits = (context.compute_capability(), context.most_shared_bytes());
        let compile = |text: &ptx::Module| Module::new(context, text);
        let (text, module) = compile_fastest(matrix, kind, limits, compile)?;
        Ok(Self {
            program: program(context.index(), matrix, kind, &text),
            module: Arc::new(module),
            coefficients: None,
            layers: 1,
        })
    }
}

/// Has kernels for one matrix compiled: the one that computes by transforms, for devices with these `limits`. If there is
/// none for the matrix, or it is refused, those that know the matrix alone are compiled. Returns their text, too.
///
/// # Errors
///
/// If the device is lost, or refuses both.
fn compile_fastest<C>(
    matrix: &Matrix,
    kind: Kind,
    limits: (usize, usize),
    compile: impl Fn(&ptx::Module) -> Result<C, DeviceError>,
) -> Result<(ptx::Module, C), DeviceError> {
    if let Some(text) = ptx::Module::for_transforms(matrix, kind, limits) {
        match compile(&text) {
            Ok(compiled) => return Ok((text, compiled)),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::debug!("{error}; transforms are not used"),
        }
    }
    let text = ptx::Module::for_matrix(matrix, kind);
    let compiled = compile(&text)?;
    Ok((text, compiled))
}

/// Returns what tells a matrix with kernels of this text from all others. Kernels of different sorts have different names.
fn program(device: c_int, matrix: &Matrix, kind: Kind, text: &ptx::Module) -> Program {
    let names = text.kernels.iter().map(|kernel| &kernel.name);
    Program::of((device, matrix, kind, names.collect::<Vec<_>>()))
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
        let text = ptx::Module::for_any(kind);
        let program = program(self.context.index(), matrix, kind, &text);
        let module = self.compiled(place, || text)?;
        let words = ptx::coefficients(matrix);
        let coefficients = DeviceMemory::with_words(&self.context, &words)?;
        Ok(Applied {
            program,
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

#[cfg(test)]
mod tests {
    use super::*;
    use cauchyfs_codec::{CodeId, Codec, Geometry, select};
    use std::cell::RefCell;

    /// The limits of an NVIDIA A100.
    const LIMITS: (usize, usize) = (8, 163 << 10);

    fn generator(code: CodeId) -> Matrix {
        let geometry = Geometry::new(9, 9).expect("valid");
        let engine = select("scalar").expect("everywhere");
        let codec = Codec::new(code, geometry, engine).expect("valid");
        codec.generator().clone()
    }

    #[test]
    fn a_kernel_that_is_refused_makes_room_for_the_next_unless_the_device_is_lost() {
        let (operation, reason) = ("compile a kernel", String::new());
        let lost = DeviceError::Lost {
            operation,
            reason: reason.clone(),
        };
        let refused = DeviceError::Failed { operation, reason };
        let matrix = generator(CodeId::RS_FFT);
        let by_transforms = ptx::Module::for_transforms(&matrix, Kind::Write, LIMITS);
        let by_transforms = by_transforms.expect("there is such a kernel");
        let for_matrix = ptx::Module::for_matrix(&matrix, Kind::Write);
        let answers = [Ok(()), Err(refused), Err(lost)];
        for first in &answers {
            for second in &answers {
                let asked = RefCell::new(Vec::new());
                let compile = |text: &ptx::Module| {
                    let answer = if *text == by_transforms {
                        first
                    } else {
                        second
                    };
                    asked.borrow_mut().push(text.clone());
                    answer.clone()
                };
                let found = compile_fastest(&matrix, Kind::Write, LIMITS, compile);
                let goes_on = first.as_ref().is_err_and(|error| !error.is_final());
                let (final_text, answer) = if goes_on {
                    (&for_matrix, second)
                } else {
                    (&by_transforms, first)
                };
                let expected = answer.clone().map(|()| (final_text.clone(), ()));
                assert_eq!(found, expected, "{first:?}, {second:?}");
                let mut texts = vec![by_transforms.clone()];
                texts.extend(goes_on.then(|| for_matrix.clone()));
                assert_eq!(asked.into_inner(), texts, "{first:?}, {second:?}");
            }
        }
        let found = compile_fastest(&generator(CodeId::RS_CAUCHY), Kind::Write, LIMITS, |_| {
            Ok(())
        });
        assert_ne!(found.expect("compiled").0, by_transforms);
    }

    #[test]
    fn programs_of_one_matrix_differ_by_kernel() {
        let matrix = generator(CodeId::RS_FFT);
        let texts = [
            ptx::Module::for_transforms(&matrix, Kind::Write, LIMITS).expect("there is one"),
            ptx::Module::for_matrix(&matrix, Kind::Write),
            ptx::Module::for_any(Kind::Write),
        ];
        let [a, b, c] = texts.map(|text| program(0, &matrix, Kind::Write, &text));
        assert!(a != b && b != c && a != c);
    }
}
