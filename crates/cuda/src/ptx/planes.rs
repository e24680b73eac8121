//! Arithmetic on bytes whose bits lie in eight words: a sum takes an instruction for each word, a product two at most.

use std::collections::HashMap;

use super::{
    products::{BITS, ProductSums},
    writer::{PtxWriter, lut},
};

/// The stages of a transposition: the distance between words, which is a shift as well, and the bits that stay.
const STAGES: [(usize, u32); 3] = [(4, 0x0F0F_0F0F), (2, 0x3333_3333), (1, 0x5555_5555)];

/// Eight registers: 32 bytes of a shard as they lie in memory, or their bits, those of equal weight in one register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planes([String; BITS]);

impl Planes {
    /// Returns eight registers of a declared array, from `index` times eight on.
    pub(super) fn new(array: &str, index: usize) -> Self {
        Self(std::array::from_fn(|bit| {
            format!("%{array}{}", index * BITS + bit)
        }))
    }

    /// Returns the names of the registers.
    pub(super) fn names(&self) -> &[String] {
        &self.0
    }
}

/// Lines that compute with planes. All results replace what is in their registers.
pub(super) struct PlanesWriter {
    pub(super) lines: PtxWriter,
    products: HashMap<u8, ProductSums>,
}

impl PlanesWriter {
    pub(super) fn new(lines: PtxWriter) -> Self {
        Self {
            lines,
            products: HashMap::new(),
        }
    }

    /// Turns bytes into bits, or bits into bytes: the transposition of matrices of 8×8 bits.
    pub(super) fn transpose(&mut self, planes: &Planes) {
        for (distance, low) in STAGES {
            for first in (0..BITS).filter(|index| index & distance == 0) {
                let (a, b) = (&planes.0[first], &planes.0[first | distance]);
                let (up, down) = (self.lines.fresh(), self.lines.fresh());
                self.lines.line(&format!("shl.b32 {up}, {b}, {distance};"));
                self.lines
                    .line(&format!("shr.u32 {down}, {a}, {distance};"));
                let low = format!("{low:#x}");
                self.lines.lop3(a, [a, &up, &low], lut::SELECT);
                self.lines.lop3(b, [&down, b, &low], lut::SELECT);
            }
        }
    }

    /// Sets registers to zero.
    pub(super) fn clear(&mut self, planes: &Planes) {
        for plane in &planes.0 {
            self.lines.line(&format!("mov.u32 {plane}, 0;"));
        }
    }

    /// Copies registers.
    pub(super) fn set(&mut self, into: &Planes, from: &Planes) {
        for (into, from) in into.0.iter().zip(&from.0) {
            self.lines.line(&format!("mov.u32 {into}, {from};"));
        }
    }

    /// Adds bytes.
    pub(super) fn add(&mut self, into: &Planes, from: &Planes) {
        for (into, from) in into.0.iter().zip(&from.0) {
            self.lines.line(&format!("xor.b32 {into}, {into}, {from};"));
        }
    }

    /// Adds a product of bytes.
    pub(super) fn add_product(&mut self, into: &Planes, from: &Planes, factor: u8) {
        match factor {
            0 => {}
            1 => self.add(into, from),
            _ => self.product(into, from, factor, true),
        }
    }

    /// Replaces bytes by a product.
    pub(super) fn set_product(&mut self, into: &Planes, from: &Planes, factor: u8) {
        match factor {
            0 => self.clear(into),
            1 => self.set(into, from),
            _ => self.product(into, from, factor, false),
        }
    }

    fn product(&mut self, into: &Planes, from: &Planes, factor: u8, is_added: bool) {
        let sums = self.products.entry(factor);
        let sums = sums.or_insert_with(|| ProductSums::new(factor)).clone();
        let mut terms = from.0.to_vec();
        for sum in &sums.partial {
            let partial = self.lines.fresh();
            let parts: Vec<&str> = sum.iter().map(|&term| &*terms[term]).collect();
            self.sum(&partial, &parts);
            terms.push(partial);
        }
        for (into, bit) in into.0.iter().zip(&sums.bits) {
            let own = is_added.then_some(&**into);
            let parts = own.into_iter().chain(bit.iter().map(|&term| &*terms[term]));
            let parts: Vec<&str> = parts.collect();
            self.sum(into, &parts);
        }
    }

    /// Sets a register to the sum of others.
    fn sum(&mut self, into: &str, parts: &[&str]) {
        let (first, rest) = parts.split_first().expect("a product has terms");
        let mut sum = *first;
        for more in rest.chunks(2) {
            match *more {
                [a, b] => self.lines.lop3(into, [sum, a, b], lut::XOR3),
                _ => self
                    .lines
                    .line(&format!("xor.b32 {into}, {sum}, {};", more[0])),
            }
            sum = into;
        }
        if rest.is_empty() {
            self.lines.line(&format!("mov.u32 {into}, {sum};"));
        }
    }
}
