//! The codes, with their numbers and names.

use std::fmt;

use crate::{CodecError, Geometry, chosen_rows, subspace::Layout, width::Width};

/// The number of a code, as superblocks and segments record it. More are added, none is changed.
///
/// The lowest 16 bits name the code. The rest are its parameters, which `random-gf2` alone has: bits 16 to 23 are the
/// number of losses that every stripe survives, bits 24 to 63 the seed of its rows.
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
pub struct CodeId(pub u64);

/// All codes with the names that `create --code` takes. Codes that XOR packets have the width of their
/// symbols as number.
const NAMES: &[(CodeId, &str)] = &[
    (CodeId::RS_CAUCHY, "rs-cauchy"),
    (CodeId::RS_FFT, "rs-fft"),
    (CodeId::RANDOM_GF2, chosen_rows::NAME),
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

    /// Rows of the systematic random code over GF(2). This is only the name of the code:
    /// [`for_geometry`](Self::for_geometry) chooses rows, and returns the number that stores them.
    pub const RANDOM_GF2: Self = Self(3);

    /// Returns the number of this code with rows for a geometry. A search chooses them, which may take seconds. A code
    /// without such rows, or whose rows are chosen, keeps its number.
    ///
    /// # Errors
    ///
    /// [`CodecError::RandomGeometry`] or [`CodecError::NoRows`] if there are no rows for this geometry; else as for
    /// [`Self::check`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use cauchyfs_codec::{CodeId, Geometry, Survival};
    /// let geometry = Geometry::new(4, 4)?;
    /// let code = CodeId::RANDOM_GF2.for_geometry(geometry)?;
    /// assert_eq!(Survival::of(code, geometry).guaranteed(), 3);
    /// # Ok::<(), cauchyfs_codec::CodecError>(())
    /// ```
    pub fn for_geometry(self, geometry: Geometry) -> Result<Self, CodecError> {
        if self == Self::RANDOM_GF2 {
            return chosen_rows::search(geometry).map(|(seed, survived)| {
                Self(Self::RANDOM_GF2.0 | u64::from(survived) << 16 | seed << 24)
            });
        }
        self.check(geometry)?;
        Ok(self)
    }

    /// Returns whether the number has more than the 16 bits that name the code.
    #[must_use]
    pub fn has_parameters(self) -> bool {
        self.0 > 0xffff
    }

    /// Returns whether the code is `random-gf2`, with rows chosen or not.
    pub(super) fn is_random(self) -> bool {
        self.0 & 0xffff == Self::RANDOM_GF2.0
    }

    /// Returns the number of losses that every stripe of `random-gf2` survives, as stored.
    pub(super) fn stored_survived(self) -> usize {
        usize::try_from(self.0 >> 16 & 0xff).unwrap_or(0)
    }

    /// Returns the seed of the rows of `random-gf2`.
    pub(super) fn seed(self) -> u64 {
        self.0 >> 24
    }

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
        let elements = match self.packet_width()? {
            Some(width) => width.elements(),
            None if self.is_random() => chosen_rows::MOST_SHARDS,
            None => usize::MAX,
        };
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

    /// Refuses a geometry with more shards than the code can tell apart, and rows that do not survive what is stored.
    ///
    /// # Errors
    ///
    /// [`CodecError::GeometryTooWide`], [`CodecError::RandomGeometry`] or [`CodecError::WrongRows`]; else as for
    /// [`Self::name`].
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
        if self.is_random() {
            return chosen_rows::check(self.seed(), self.stored_survived(), geometry);
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
        let named = if self.is_random() {
            Self::RANDOM_GF2
        } else {
            self
        };
        let found = NAMES.iter().find(|(id, _)| *id == named);
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
