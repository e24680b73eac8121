//! The codes, with their numbers and names.

use std::fmt;

use crate::{CodecError, Geometry, subspace::Layout, width::Width};

/// The number of a code, as superblocks and segments record it. More are added, none is changed.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::CodeId;
/// assert_eq!(CodeId::from_name("rs-cauchy")?, CodeId::RS_CAUCHY);
/// assert_eq!(CodeId(1).name()?, "rs-cauchy");
/// # Ok::<(), cauchyfs_codec::CodecError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeId(pub u16);

/// All codes with the names that `create --code` takes. Codes that XOR packets have the width of their
/// symbols as number.
const NAMES: &[(CodeId, &str)] = &[
    (CodeId::RS_CAUCHY, "rs-cauchy"),
    (CodeId::RS_FFT, "rs-fft"),
    (CodeId(4), "crs-w4"),
    (CodeId(5), "crs-w5"),
    (CodeId(6), "crs-w6"),
    (CodeId(7), "crs-w7"),
    (CodeId(8), "crs-w8"),
];

impl CodeId {
    /// Reed–Solomon over GF(2⁸) with the normalised Cauchy generator: the default. Of the other codes,
    /// which XOR packets, `crs-w4` for example has number 4.
    pub const RS_CAUCHY: Self = Self(1);

    /// Reed–Solomon over GF(2⁸) at the points of subspaces, which additive Fourier transforms compute.
    pub const RS_FFT: Self = Self(2);

    /// Returns all codes, by number.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(id, _)| *id)
    }

    /// Returns the most shards, data and parity together, that a stripe of this code can have.
    ///
    /// # Errors
    ///
    /// As for [`Self::name`].
    pub fn max_shards(self) -> Result<usize, CodecError> {
        let elements = self.packet_width()?.map_or(usize::MAX, Width::elements);
        Ok(elements.min(Geometry::MAX_TOTAL_SHARDS))
    }

    /// Returns whether this code takes less time than the default for a geometry, on CPUs with GFNI.
    #[must_use]
    pub fn is_proposed_for(self, geometry: Geometry) -> bool {
        const FEWEST_PARITIES: usize = 8;
        self == Self::RS_FFT
            && geometry.parity_shards() >= FEWEST_PARITIES
            && Layout::new(geometry).has_transforms()
    }

    /// Returns whether the parity shards of a stripe stay as they are when more are added to it: each depends on its own
    /// number and on the data alone.
    #[must_use]
    pub fn takes_more_parity(self) -> bool {
        self == Self::RS_CAUCHY
    }

    /// Refuses a geometry with more shards than the code can tell apart.
    ///
    /// # Errors
    ///
    /// [`CodecError::GeometryTooWide`] if it has; else as for [`Self::name`].
    pub fn check(self, geometry: Geometry) -> Result<(), CodecError> {
        let max = self.max_shards()?;
        if geometry.total_shards() > max {
            return Err(CodecError::GeometryTooWide {
                code: self.name()?,
                data: geometry.data_shards(),
                parity: geometry.parity_shards(),
                max,
            });
        }
        Ok(())
    }

    /// Returns how many packets a block has, for codes that work on packets.
    ///
    /// # Errors
    ///
    /// As for [`Self::name`].
    pub(super) fn packet_width(self) -> Result<Option<Width>, CodecError> {
        self.name()?;
        Ok(u8::try_from(self.0).ok().and_then(Width::new))
    }

    /// Returns the name of the code.
    ///
    /// # Errors
    ///
    /// [`CodecError::UnknownCodeNumber`] if this version knows no code with this number.
    pub fn name(self) -> Result<&'static str, CodecError> {
        let found = NAMES.iter().find(|(id, _)| *id == self);
        found
            .map(|(_, name)| *name)
            .ok_or(CodecError::UnknownCodeNumber { number: self.0 })
    }

    /// Returns the code of this name.
    ///
    /// # Errors
    ///
    /// [`CodecError::UnknownCodeName`] if there is none.
    pub fn from_name(name: &str) -> Result<Self, CodecError> {
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found
            .map(|(id, _)| *id)
            .ok_or_else(|| CodecError::UnknownCodeName {
                name: name.to_owned(),
                known: NAMES
                    .iter()
                    .map(|(_, name)| *name)
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }
}

/// Shows the name, or the bare number of a code that this version does not know.
impl fmt::Display for CodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Ok(name) => f.write_str(name),
            Err(_) => write!(f, "code {}", self.0),
        }
    }
}
