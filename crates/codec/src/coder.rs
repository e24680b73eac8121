//! The codec: a code, a geometry and an engine.

use std::sync::{Arc, OnceLock};

use crate::{
    CodeId, CodecError, Engine, Geometry, Matrix, Plan, Survival, bitmatrix, chosen_rows,
    decode::{Decoder, decode_matrix},
    fft::encode_program,
    packets::Packets,
    points,
    subspace::Layout,
};

/// A code with a geometry, ready to run on an engine. Share one among all threads.
///
/// Shards are numbered 0 to k−1 for data and k to k+m−1 for parity. They may have any length,
/// also none, and any alignment; within a call all are equally long.
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{self as codec, CodeId, Codec, CodecError, Geometry};
/// let codec = Codec::new(CodeId::RS_CAUCHY, Geometry::new(2, 2)?, codec::select("auto")?)?;
/// let (a, b) = (b"left half", b"and right");
/// let (mut p, mut q) = ([0; 9], [0; 9]);
/// codec.encode(&[a, b], &mut [&mut p, &mut q])?;
///
/// let (mut lost_a, mut lost_b) = ([0; 9], [0; 9]);
/// codec.reconstruct(&[(2, &p), (3, &q)], &mut [(0, &mut lost_a), (1, &mut lost_b)])?;
/// assert_eq!((&lost_a, &lost_b), (a, b));
/// # Ok::<(), CodecError>(())
/// ```
#[derive(Debug)]
pub struct Codec {
    code: CodeId,
    geometry: Geometry,
    survival: Survival,
    engine: &'static dyn Engine,
    pub(super) encode: Arc<Plan>,
    /// Per data shard, the plan that turns a change of it into changes of all parities, once it has
    /// been asked for.
    updates: Vec<OnceLock<Plan>>,
    pub(super) decoder: Decoder,
}

impl Codec {
    /// Returns the codec of a code, a geometry and an engine.
    ///
    /// # Errors
    ///
    /// [`CodecError::UnknownCodeNumber`] if this version does not know the code;
    /// [`CodecError::GeometryTooWide`] if the code cannot tell that many shards apart; for `random-gf2` any error of
    /// [`CodeId::check`], also if its rows are not chosen.
    pub fn new(
        code: CodeId,
        geometry: Geometry,
        engine: &'static dyn Engine,
    ) -> Result<Self, CodecError> {
        code.check(geometry)?;
        let layout = (code == CodeId::RS_FFT).then(|| Layout::new(geometry));
        let generator = match layout {
            Some(layout) => layout.generator(),
            None if code.is_random() => {
                let rows = chosen_rows::rows(code.seed(), geometry);
                // 0 and 1 are elements of GF(2⁸), so this code runs wherever others do.
                let bit = |row: usize, column: usize| u8::from(rows[row] >> column & 1 == 1);
                Matrix::from_fn(geometry.parity_shards(), geometry.data_shards(), bit)
            }
            None => Matrix::cauchy(geometry),
        };
        let packets = code
            .packet_width()?
            .map(|width| (width, bitmatrix::generator(width, geometry)));
        let encode = match &packets {
            None => {
                let program = layout.and_then(encode_program);
                Plan::new(generator.clone()).with_program(program)
            }
            Some((width, bits)) => {
                let packets = Packets::new(*width, bits, points::effort(*width, geometry));
                Plan::with_packets(generator.clone(), packets)
            }
        };
        let decoder = Decoder::new(code, geometry, generator, packets, layout);
        Ok(Self {
            code,
            geometry,
            survival: Survival::of(code, geometry),
            engine,
            encode: Arc::new(encode),
            updates: std::iter::repeat_with(OnceLock::new)
                .take(geometry.data_shards())
                .collect(),
            decoder,
        })
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> CodeId {
        self.code
    }

    /// Returns the geometry.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the losses that its stripes survive.
    #[must_use]
    pub fn survival(&self) -> Survival {
        self.survival
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &'static dyn Engine {
        self.engine
    }

    /// Returns the m×k matrix that turns data into parity: what packets leave over with the codes that XOR them, and
    /// all of it with the others.
    #[must_use]
    pub fn generator(&self) -> &Matrix {
        self.encode.matrix()
    }

    /// Returns how many XORs and copies of packets it takes to encode a block of every shard, counted
    /// as the literature does: a sum of t packets is one copy and t−1 XORs. `None` for codes that know no packets.
    #[must_use]
    pub fn packet_operations(&self) -> Option<usize> {
        self.encode
            .packets()
            .map(|packets| packets.schedule().operations())
    }

    /// Returns the plan that turns a change of a data shard into changes of all parities, or `None` if
    /// there is no such shard.
    pub(super) fn update_plan(&self, data_shard: usize) -> Option<&Plan> {
        let plan = self.updates.get(data_shard)?;
        Some(plan.get_or_init(|| self.decoder.update_plan(data_shard)))
    }

    /// Returns the matrix whose rows give the `lost` shards, in the order given, as sums over the
    /// `used` ones, in ascending order. With `rs-cauchy` and `rs-fft`, any
    /// Reed–Solomon library can recover a stripe by it.
    ///
    /// # Errors
    ///
    /// [`CodecError::TooFewShards`] unless exactly k shards are used, and suffice; [`CodecError::ShardIndex`] or
    /// [`CodecError::DuplicateShard`] if the lists make no sense.
    pub fn decode_matrix(&self, used: &[usize], lost: &[usize]) -> Result<Matrix, CodecError> {
        self.geometry
            .check_indices(used.iter().chain(lost).copied())?;
        let needed = self.geometry.data_shards();
        if used.len() != needed {
            return Err(CodecError::TooFewShards {
                present: used.len(),
                needed,
            });
        }
        let mut used = used.to_vec();
        used.sort_unstable();
        self.survival.choose(used.iter().copied())?;
        Ok(decode_matrix(self.generator(), &used, lost))
    }
}
