//! The plan of an engine's work: a matrix of coefficients.

use std::sync::OnceLock;

use crate::{Matrix, fft::Program, field, horner::Horner, packets::Packets, syndromes::Syndromes};

/// Coefficients that turn sources into targets, in the forms that the engines want them in.
///
/// Target r is the sum over all c of `matrix[r][c]` times source c. A plan is made once per
/// generator or erasure pattern and used for many stripes.
#[derive(Debug)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only GFNI, an extension of x86-64, takes maps")
)]
pub struct Plan {
    matrix: Matrix,
    maps: Vec<u64>,
    leading_ones: bool,
    syndromes: Option<Syndromes>,
    horner: OnceLock<Horner>,
    packets: Option<Packets>,
    program: Option<Program>,
}

impl Plan {
    /// Returns the plan that applies `matrix`: one row per target, one column per source.
    #[must_use]
    pub fn new(matrix: Matrix) -> Self {
        let mut maps = Vec::with_capacity(matrix.rows() * matrix.columns());
        for column in 0..matrix.columns() {
            maps.extend((0..matrix.rows()).map(|row| field::affine_map(matrix.at(row, column))));
        }
        let leading_ones = (0..matrix.rows()).all(|row| matrix.row(row).first() == Some(&1));
        Self {
            matrix,
            maps,
            leading_ones,
            syndromes: None,
            horner: OnceLock::new(),
            packets: None,
            program: None,
        }
    }

    /// Returns the plan that applies `bits` to the packets of whole blocks, and `matrix` to what is
    /// left of them.
    pub(super) fn with_packets(matrix: Matrix, packets: Packets) -> Self {
        Self {
            packets: Some(packets),
            ..Self::new(matrix)
        }
    }

    /// Returns the same plan with a shorter way to go about it.
    pub(super) fn with_syndromes(self, syndromes: Option<Syndromes>) -> Self {
        Self { syndromes, ..self }
    }

    /// Returns the same plan with transforms that replace all targets.
    pub(super) fn with_program(self, program: Option<Program>) -> Self {
        Self { program, ..self }
    }

    /// Returns the transforms that replace all targets, if there are any.
    pub(super) fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// Returns the shorter way to replace all targets, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn syndromes(&self) -> Option<&Syndromes> {
        self.syndromes.as_ref()
    }

    /// Returns what to do to packets, if this plan is one for packets.
    pub(super) fn packets(&self) -> Option<&Packets> {
        self.packets.as_ref()
    }

    /// Returns the coefficients.
    #[must_use]
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Returns the coefficients as `gf2p8affineqb` takes them: those of source 0, one per target,
    /// then those of source 1, and so on.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn maps(&self) -> &[u64] {
        &self.maps
    }

    /// Returns whether source 0 enters every target unscaled, as in the normalised generator.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn leading_ones(&self) -> bool {
        self.leading_ones
    }

    /// Returns whether every source enters target `row` unscaled: plain XOR.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn row_is_ones(&self, row: usize) -> bool {
        self.matrix
            .row(row)
            .iter()
            .all(|&coefficient| coefficient == 1)
    }

    /// Returns the coefficients taken apart into bits.
    pub(super) fn horner(&self) -> &Horner {
        self.horner.get_or_init(|| Horner::new(&self.matrix))
    }
}
