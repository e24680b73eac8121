//! Widths of the symbols of the codes `crs-w4` to `crs-w8`, and arithmetic on such symbols.

/// A width of the symbols, 4 to 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Width(u8);

impl Width {
    /// Returns the width of `bits`, or `None` unless that is 4 to 8.
    pub(super) const fn new(bits: u8) -> Option<Self> {
        match bits {
            4..=8 => Some(Self(bits)),
            _ => None,
        }
    }

    /// Returns how many bits a symbol has, and so how many packets a block has.
    pub(super) fn bits(self) -> usize {
        usize::from(self.0)
    }

    /// Returns how many elements the field has, and so how many shards a stripe can.
    pub(super) fn elements(self) -> usize {
        1 << self.0
    }

    /// Returns the primitive polynomial of the field, without its highest term.
    fn reduction(self) -> u8 {
        match self.0 {
            4 | 6 => 0b11,
            5 => 0b101,
            7 => 0b1001,
            _ => 0b1_1101,
        }
    }

    pub(super) fn times_two(self, a: u8) -> u8 {
        let top = 1 << (self.0 - 1);
        let mask = u8::MAX >> (8 - self.0);
        let doubled = (a << 1) & mask;
        if a & top == 0 {
            doubled
        } else {
            doubled ^ self.reduction()
        }
    }

    pub(super) fn mul(self, a: u8, b: u8) -> u8 {
        let (mut power, mut product) = (a, 0);
        for bit in 0..self.0 {
            if b >> bit & 1 == 1 {
                product ^= power;
            }
            power = self.times_two(power);
        }
        product
    }

    /// Returns the element whose product with `a`, which is not 0, is 1: a^(2ʷ−2).
    pub(super) fn inv(self, a: u8) -> u8 {
        let squares = std::iter::successors(Some(a), |&power| Some(self.mul(power, power)));
        squares
            .take(self.bits())
            .skip(1)
            .fold(1, |product, power| self.mul(product, power))
    }

    /// Returns how many bits are set in the bit matrix of an element.
    pub(super) fn ones(self, element: u8) -> u32 {
        let powers = std::iter::successors(Some(element), |&power| Some(self.times_two(power)));
        powers.take(self.bits()).map(u8::count_ones).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths() -> impl Iterator<Item = Width> {
        (0..=u8::MAX).filter_map(Width::new)
    }

    #[test]
    fn two_generates_every_field() {
        for width in widths() {
            let mut power = 1;
            for exponent in 1..width.elements() {
                power = width.times_two(power);
                assert_eq!(
                    power == 1,
                    exponent == width.elements() - 1,
                    "{width:?} {exponent}"
                );
            }
        }
    }

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        for width in widths() {
            for a in (1..=u8::MAX).take(width.elements() - 1) {
                assert_eq!(width.mul(a, width.inv(a)), 1, "{width:?} {a}");
            }
        }
    }
}
