//! All engines that were compiled in, and the choice of one.

#[cfg(target_arch = "aarch64")]
use super::arm;
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{Engine, scalar};
use crate::CodecError;

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
