//! A few columns of all places of a program.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use std::marker::PhantomData;

use crate::{
    fft::{Kind, Place, Product, Program, Step, Transform},
    job::Job,
};

use super::{
    columns::Columns,
    symbols::Symbols,
    transform::{Butterflies, follow_in_memory},
};

/// A line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// The places of a program, at the columns that are next.
pub(super) struct Tile<'a> {
    /// The address of each place. Those of shards move with the columns.
    pointers: Vec<*mut u8>,
    shards: usize,
    memory: PhantomData<&'a mut [Line]>,
}

impl<'a> Tile<'a> {
    /// Starts with the first columns of a job's shards. All places but the shards lie in `memory`, which is
    /// zeroed, `place_bytes` apart.
    ///
    /// # Panics
    ///
    /// If the program is one for other numbers of shards, or the memory does not suffice.
    pub(super) fn new(
        job: &mut Job<'_, '_>,
        program: &Program,
        memory: &'a mut [Line],
        place_bytes: usize,
    ) -> Self {
        let shards = job.sources().len() + job.target_count();
        assert_eq!(shards, program.shards(), "a program for these shards");
        let constants = Place::FIRST_SHARD;
        assert!((constants + program.slots()) * place_bytes <= size_of_val(memory));
        let base: *mut u8 = memory.as_mut_ptr().cast();
        let place = |index: usize| base.wrapping_add(index * place_bytes);
        let mut pointers: Vec<*mut u8> = (0..constants).map(place).collect();
        let sources = job.sources().iter();
        // Programs never write to sources.
        pointers.extend(sources.map(|source| source.as_ptr().cast_mut()));
        pointers.extend((0..job.target_count()).map(|row| job.target(row).as_mut_ptr()));
        pointers.extend((constants..constants + program.slots()).map(place));
        Self {
            pointers,
            shards,
            memory: PhantomData,
        }
    }

    /// Returns where the shards' columns lie.
    pub(super) fn shards(&mut self) -> &mut [*mut u8] {
        &mut self.pointers[Place::FIRST_SHARD..][..self.shards]
    }

    /// Goes on by so many columns.
    pub(super) fn advance(&mut self, bytes: usize) {
        for shard in self.shards() {
            *shard = shard.wrapping_add(bytes);
        }
    }

    /// Goes back by so many columns.
    pub(super) fn retreat(&mut self, bytes: usize) {
        for shard in self.shards() {
            *shard = shard.wrapping_sub(bytes);
        }
    }

    /// Follows all steps of the program.
    ///
    /// # Safety
    ///
    /// The CPU must have the instructions of `S`. So many columns must be left of all shards, and fit the
    /// other places. The program must be that of [`Self::new`]. If columns are to be streamed, all targets
    /// must be aligned.
    #[expect(unsafe_code, reason = "passes on what the caller vouches for")]
    #[inline(always)]
    pub(super) unsafe fn run<S: Symbols>(&mut self, program: &Program, columns: Columns) {
        for step in program.steps() {
            match step {
                Step::Transform(transform) => {
                    // SAFETY: the caller vouches for all of it.
                    unsafe { self.transform::<S>(transform, columns) };
                }
                Step::Product(product) => {
                    // SAFETY: as above.
                    unsafe { self.multiply::<S>(product, columns) };
                }
                Step::Sum(terms, output) => {
                    // SAFETY: as above.
                    unsafe { self.add::<S>(terms, *output, columns) };
                }
            }
        }
    }

    /// Follows one step of butterflies.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    ///
    /// # Panics
    ///
    /// If the step has other than 2, 4, 8 or 16 places.
    #[expect(unsafe_code, reason = "passes on what the caller vouches for")]
    #[inline(always)]
    unsafe fn transform<S: Symbols>(&mut self, step: &Transform, columns: Columns) {
        if !S::IS_REGISTER {
            // SAFETY: the caller vouches for all of it.
            unsafe { follow_in_memory::<S>(step, &self.pointers, columns) };
            return;
        }
        macro_rules! run {
            ($radix:literal, $zero:literal, $shards:literal, $method:ident) => {{
                let butterflies =
                    Butterflies::<S, $radix, $zero, $shards>::new(step, &self.pointers);
                // SAFETY: the caller vouches for all of it.
                unsafe { butterflies.$method(columns) };
            }};
        }
        macro_rules! run_with_radix {
            ($radix:literal) => {
                match (step.kind, step.starts_at_zero, step.has_shards) {
                    (Kind::Forward, true, false) => run!($radix, true, false, evaluate),
                    (Kind::Forward, true, true) => run!($radix, true, true, evaluate),
                    (Kind::Forward, false, false) => run!($radix, false, false, evaluate),
                    (Kind::Forward, false, true) => run!($radix, false, true, evaluate),
                    (_, true, false) => run!($radix, true, false, invert),
                    (_, false, false) => run!($radix, false, false, invert),
                    (_, _, true) => run!($radix, false, true, invert),
                }
            };
        }
        match step.inputs.len() {
            2 => run_with_radix!(2),
            4 => run_with_radix!(4),
            8 => run_with_radix!(8),
            16 => run_with_radix!(16),
            count => unreachable!("a step of {count} places"),
        }
    }

    /// Computes a product.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    #[expect(unsafe_code, reason = "reads and writes through pointers")]
    #[inline(always)]
    unsafe fn multiply<S: Symbols>(&mut self, product: &Product, columns: Columns) {
        let pointer = |place: Place| self.pointers[place.index()];
        let [input, other] = [product.input, product.other].map(pointer);
        let [added, output] = [product.added, product.output].map(pointer);
        let writes_target = self.is_shard(product.output);
        let factor = S::factor(product.factor);
        for offset in (0..columns.bytes).step_by(S::BYTES) {
            // SAFETY: the caller vouches for the CPU and for these columns.
            let input = unsafe { S::load(input.wrapping_add(offset)) };
            // SAFETY: as above.
            let other = unsafe { S::load_shard(other.wrapping_add(offset)) };
            // SAFETY: as above.
            let added = unsafe { S::load(added.wrapping_add(offset)) };
            // SAFETY: as above.
            let sum = unsafe { added.add_product(input.add(other), factor) };
            let to = output.wrapping_add(offset);
            if writes_target {
                // SAFETY: the caller vouches for these columns and their alignment.
                unsafe { columns.write_shard(sum, to) };
            } else {
                // SAFETY: as above; nothing else borrows slots.
                unsafe { sum.store(to) };
            }
        }
    }

    /// Adds places up.
    ///
    /// # Safety
    ///
    /// As for [`Self::run`].
    #[expect(unsafe_code, reason = "reads and writes through pointers")]
    #[inline(always)]
    unsafe fn add<S: Symbols>(&mut self, terms: &[Place], output: Place, columns: Columns) {
        for offset in (0..columns.bytes).step_by(S::BYTES) {
            let at = |place: Place| self.pointers[place.index()].wrapping_add(offset);
            // SAFETY: the caller vouches for the CPU and for these columns.
            let mut sum = unsafe { S::load(at(Place::ZERO)) };
            for &term in terms {
                // SAFETY: as above.
                sum = sum.add(unsafe { S::load(at(term)) });
            }
            // SAFETY: as above; nothing else borrows slots.
            unsafe { sum.store(at(output)) };
        }
    }

    fn is_shard(&self, place: Place) -> bool {
        (Place::FIRST_SHARD..Place::FIRST_SHARD + self.shards).contains(&place.index())
    }
}
