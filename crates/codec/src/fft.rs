//! The steps by which additive Fourier transforms compute the targets of a plan of `rs-fft`.
//!
//! A transform of M = 2ˡ places takes the coefficients of a polynomial of degree below M. It turns them into the values
//! at M neighbouring points. Its inverse does the opposite. The coefficients are those of the basis of
//! Lin, Chung and Han: element i is the product of the polynomials of the subspaces of 2ʲ points, for all
//! bits j that are set in i. So each transform is l layers of M/2 butterflies.
//!
//! Every step reads and writes [`Place`]s. Engines follow the steps for a few columns of all shards at a
//! time, and keep the slots in the cache.

mod decode;
mod encode;

use std::ops::Range;

use crate::subspace::point;

pub(super) use self::{decode::decode_program, encode::encode_program};

/// The most places that one step transforms, so that engines can keep all of them in registers.
pub(super) const MOST_PLACES: usize = 1 << MOST_LAYERS;

/// The most layers of one step.
const MOST_LAYERS: usize = 4;

/// Something that steps read or write: columns of a source, a target or a slot, or one of two constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u16);

impl Place {
    /// A place of zeros, which no step writes.
    pub(super) const ZERO: Self = Self(0);
    /// A place that no step reads.
    pub(super) const UNUSED: Self = Self(1);
    /// The index of the first source.
    pub(super) const FIRST_SHARD: usize = 2;

    fn new(index: usize) -> Self {
        Self(u16::try_from(index).expect("a few places for each of at most 256 points"))
    }

    /// Returns the index among all places of the program.
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The direction of a transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Values into coefficients.
    Inverse,
    /// Values into coefficients, which are added to what the outputs hold.
    AddingInverse,
    /// Coefficients into values.
    Forward,
}

/// A few layers of a transform, on places that keep to themselves in these layers.
#[derive(Debug)]
pub(super) struct Transform {
    pub(super) kind: Kind,
    /// True if the first factor of each layer is 0.
    pub(super) starts_at_zero: bool,
    /// True if the inputs of an inverse are sources, or the outputs of another transform are targets.
    /// Constants may be among them, but no slots.
    pub(super) has_shards: bool,
    /// The places to read: 2, 4, 8 or 16.
    pub(super) inputs: Vec<Place>,
    /// The places to write, as many.
    pub(super) outputs: Vec<Place>,
    /// The factors, as many. Those of the layer with n of them have the indices n to 2n−1.
    pub(super) factors: Vec<u8>,
}

/// A product to be computed: `output` = `added` + `factor` · (`input` + `other`).
#[derive(Debug)]
pub(super) struct Product {
    pub(super) input: Place,
    pub(super) other: Place,
    pub(super) factor: u8,
    pub(super) added: Place,
    pub(super) output: Place,
}

/// One step of a program.
#[derive(Debug)]
pub(super) enum Step {
    /// Butterflies.
    Transform(Transform),
    /// A product.
    Product(Product),
    /// The sum of some places, to replace the content of another.
    Sum(Vec<Place>, Place),
}

/// The steps that compute all targets. Only targets and slots are written, and each slot before it is read.
#[derive(Debug)]
pub(super) struct Program {
    shards: usize,
    slots: usize,
    products: usize,
    steps: Vec<Step>,
}

impl Program {
    /// Returns how many sources and targets there are. They are the places from [`Place::FIRST_SHARD`] on,
    /// sources first; slots follow.
    pub(super) fn shards(&self) -> usize {
        self.shards
    }

    /// Returns how many slots there are.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns how many products it takes for each column of all shards.
    pub(super) fn products(&self) -> usize {
        self.products
    }
}

/// A place for each of some neighbouring points.
type Places = Vec<Place>;

/// The draft of a program.
struct Draft {
    sources: usize,
    targets: usize,
    program: Program,
}

impl Draft {
    fn new(sources: usize, targets: usize) -> Self {
        Self {
            sources,
            targets,
            program: Program {
                shards: sources + targets,
                slots: 0,
                products: 0,
                steps: Vec::new(),
            },
        }
    }

    fn source(&self, index: usize) -> Place {
        assert!(index < self.sources, "source {index}");
        Place::new(Place::FIRST_SHARD + index)
    }

    fn target(&self, index: usize) -> Place {
        assert!(index < self.targets, "target {index}");
        Place::new(Place::FIRST_SHARD + self.sources + index)
    }

    fn is_shard(&self, place: Place) -> bool {
        let first = Place::FIRST_SHARD;
        (first..first + self.program.shards).contains(&place.index())
    }

    /// Returns so many slots that nothing uses yet.
    fn new_slots(&mut self, count: usize) -> Places {
        let first = Place::FIRST_SHARD + self.program.shards + self.program.slots;
        self.program.slots += count;
        (first..first + count).map(Place::new).collect()
    }

    /// Returns slots for what lies between the passes of a transform, if it has several.
    fn new_work(&mut self, places: usize) -> Places {
        let has_several = passes(places).len() > 1;
        self.new_slots(if has_several { places } else { 0 })
    }

    fn product(&mut self, product: Product) {
        self.program.products += 1;
        self.program.steps.push(Step::Product(product));
    }

    /// Adds the steps that turn the values at the points from index `first` on into coefficients. `work` are
    /// places for what lies between, which may be the outputs unless these are added to.
    fn invert(
        &mut self,
        first: usize,
        values: Places,
        work: &[Place],
        outputs: &[Place],
        adds: bool,
    ) {
        let passes = passes(outputs.len());
        let mut state = values;
        for (number, layers) in passes.iter().enumerate() {
            let is_last = number + 1 == passes.len();
            let to = if is_last { outputs } else { work };
            let adds = is_last && adds;
            for (places, factors) in groups(first, outputs.len(), layers) {
                let inputs: Places = places.iter().map(|&place| state[place]).collect();
                let zero = inputs.iter().all(|&place| place == Place::ZERO);
                if zero && (adds || !is_last) {
                    continue;
                }
                let outputs: Places = places.iter().map(|&place| to[place]).collect();
                for (&place, &output) in places.iter().zip(&outputs) {
                    state[place] = output;
                }
                let kind = if adds {
                    Kind::AddingInverse
                } else {
                    Kind::Inverse
                };
                self.transform(kind, inputs, outputs, factors);
            }
        }
    }

    /// Adds the steps that turn coefficients into the values at the points from index `first` on. `work` are
    /// places for what lies between. Values of which none is used are not computed.
    fn evaluate(&mut self, first: usize, coefficients: &[Place], work: &[Place], values: &[Place]) {
        let mut state = coefficients.to_vec();
        let passes = passes(values.len());
        for (number, layers) in passes.iter().enumerate().rev() {
            let to = if number == 0 { values } else { work };
            for (places, factors) in groups(first, values.len(), layers) {
                let outputs: Places = places.iter().map(|&place| to[place]).collect();
                if outputs.iter().all(|&place| place == Place::UNUSED) {
                    continue;
                }
                let inputs = places.iter().map(|&place| state[place]).collect();
                for (&place, &output) in places.iter().zip(&outputs) {
                    state[place] = output;
                }
                self.transform(Kind::Forward, inputs, outputs, factors);
            }
        }
    }

    fn transform(&mut self, kind: Kind, inputs: Places, outputs: Places, factors: Vec<u8>) {
        let mut starts = (0..factors.len().ilog2()).map(|layer| factors[1 << layer]);
        let (shards, slots) = if kind == Kind::Forward {
            (&outputs, &inputs)
        } else {
            (&inputs, &outputs)
        };
        let has_shards = shards.iter().any(|&place| self.is_shard(place));
        let fits = |place| self.is_shard(place) == has_shards || place.index() < Place::FIRST_SHARD;
        assert!(shards.iter().all(|&place| fits(place)), "shards or slots");
        assert!(!slots.iter().any(|&place| self.is_shard(place)), "no shard");
        let starts_at_zero = starts.all(|factor| factor == 0);
        let butterflies = factors.len() / 2 * factors.len().ilog2() as usize;
        let without = if starts_at_zero { factors.len() - 1 } else { 0 };
        self.program.products += butterflies - without;
        self.program.steps.push(Step::Transform(Transform {
            kind,
            starts_at_zero,
            has_shards,
            inputs,
            outputs,
            factors,
        }));
    }
}

/// Returns the factor of the butterflies of a block, of which there are `block` blocks of its size before it.
///
/// The value of the polynomial of a subspace is had by halving the index, as often as it has dimensions; two of its
/// cosets are a block.
///
/// # Panics
///
/// If the index of the block is 128 or more: only blocks of two points are so many.
pub(super) fn factor(block: usize) -> u8 {
    point(block * 2)
}

/// Returns the layers of each pass over so many places, those with the smallest distances first. As few
/// passes as can be, and these as even as can be.
fn passes(places: usize) -> Vec<Range<usize>> {
    let layers = places.ilog2() as usize;
    let count = layers.div_ceil(MOST_LAYERS).max(1);
    let start = |pass: usize| (pass * layers).div_ceil(count);
    (0..count)
        .map(|pass| start(pass)..start(pass + 1))
        .collect()
}

/// Returns the places that keep to themselves in these layers, of `count` ones for the points from index
/// `first` on, each group with its factors.
fn groups(
    first: usize,
    count: usize,
    layers: &Range<usize>,
) -> impl Iterator<Item = (Vec<usize>, Vec<u8>)> {
    let (distance, radix) = (1 << layers.start, 1 << layers.len());
    let (depth, end) = (layers.len(), layers.end);
    let starts = (0..count).step_by(distance * radix);
    let starts = starts.flat_map(move |start| start..start + distance);
    starts.map(move |start| {
        let places = (0..radix).map(|i| start + i * distance).collect();
        let block = (first + start) >> end;
        let factors =
            (0..depth).flat_map(|level| (0..1 << level).map(move |i| factor((block << level) + i)));
        (places, std::iter::once(0).chain(factors).collect())
    })
}
