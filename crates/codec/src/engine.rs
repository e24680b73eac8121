//! Engines: the loops over bytes, one per kind of CPU, all with the same result.

#[cfg(target_arch = "x86_64")]
mod affine;
#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod bitsliced;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod packets;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod plain;
mod scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use crate::{CodecError, Job};

/// A loop over bytes that this machine can run. The choice of an engine never changes a byte of the
/// result, only how soon it is there.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Returns the name by which `--engine` picks it and `status` shows it.
    fn name(&self) -> &'static str;

    /// Computes all targets of the job from its plan's coefficients.
    fn run(&self, job: &mut Job<'_, '_>);

    /// Computes the packets of all whole blocks, replacing what targets held. The bytes behind the
    /// last packet of a block stay as they are. [`Job::run`] does the rest.
    ///
    /// # Panics
    ///
    /// If the job's plan is not one for packets.
    fn run_packets(&self, job: &mut Job<'_, '_>);

    /// Writes the plain XOR of all sources to every target, whatever the plan says: the same memory
    /// traffic as [`Self::run`], with the least arithmetic there can be. Hardly any code can be faster
    /// on these registers, so `bench` holds engines against it.
    fn run_plain(&self, job: &mut Job<'_, '_>);
}

/// An engine that was compiled in, whether or not this machine can run it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    name: &'static str,
    detect: fn() -> Option<&'static dyn Engine>,
}

impl Candidate {
    /// Returns the engine's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the engine if this machine can run it.
    #[must_use]
    pub fn detect(&self) -> Option<&'static dyn Engine> {
        (self.detect)()
    }
}

/// All engines, best first: the one list behind automatic choice, `--engine`, `bench` and tests.
static CANDIDATES: &[Candidate] = &[
    #[cfg(target_arch = "x86_64")]
    Candidate {
        name: "gfni512",
        detect: x86::Gfni512::detect,
    },
    #[cfg(target_arch = "x86_64")]
    Candidate {
        name: "gfni256",
        detect: x86::Gfni256::detect,
    },
    #[cfg(target_arch = "x86_64")]
    Candidate {
        name: "avx512",
        detect: x86::Avx512::detect,
    },
    #[cfg(target_arch = "x86_64")]
    Candidate {
        name: "avx2",
        detect: x86::Avx2::detect,
    },
    #[cfg(target_arch = "x86_64")]
    Candidate {
        name: "sse2",
        detect: x86::Sse2::detect,
    },
    #[cfg(target_arch = "aarch64")]
    Candidate {
        name: "neon",
        detect: arm::Neon::detect,
    },
    Candidate {
        name: "scalar",
        detect: scalar::Scalar::detect,
    },
];

/// Returns all engines that were compiled in, best first.
#[must_use]
pub fn candidates() -> &'static [Candidate] {
    CANDIDATES
}

/// Returns the engines that this machine can run, best first. There is always one.
pub fn engines() -> impl Iterator<Item = &'static dyn Engine> {
    CANDIDATES.iter().filter_map(Candidate::detect)
}

/// Returns the engine that `name` asks for: `auto` and `cpu` stand for the best CPU engine of this
/// machine, anything else is an engine's own name.
///
/// # Errors
///
/// [`CodecError::UnknownEngine`] if there is no such name, [`CodecError::EngineUnavailable`] if
/// this machine cannot run that engine.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec as codec;
/// assert_eq!(codec::select("scalar")?.name(), "scalar");
/// assert!(codec::select("auto").is_ok());
/// assert!(codec::select("abacus").is_err());
/// # Ok::<(), cauchyfs_codec::CodecError>(())
/// ```
pub fn select(name: &str) -> Result<&'static dyn Engine, CodecError> {
    if name == "auto" || name == "cpu" {
        return Ok(engines().next().unwrap_or(&scalar::Scalar));
    }
    let Some(candidate) = CANDIDATES.iter().find(|candidate| candidate.name == name) else {
        let known = CANDIDATES.iter().map(|candidate| candidate.name);
        let known = ["auto", "cpu"]
            .into_iter()
            .chain(known)
            .collect::<Vec<_>>()
            .join(", ");
        return Err(CodecError::UnknownEngine {
            name: name.to_owned(),
            known,
        });
    };
    candidate
        .detect()
        .ok_or_else(|| CodecError::EngineUnavailable {
            name: candidate.name,
            usable: engines().map(Engine::name).collect::<Vec<_>>().join(", "),
        })
}
