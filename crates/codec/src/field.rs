//! Arithmetic in GF(2⁸) with the polynomial x⁸ + x⁴ + x³ + x² + 1 (0x11d).
//!
//! Addition is XOR. Everything here is `const`, works on single bytes, and makes the tables that
//! the engines multiply with.

/// The field polynomial, x⁸ included.
pub const POLYNOMIAL: u16 = 0x11d;

/// Powers of the generator 2, twice in a row so that a sum of two logarithms needs no reduction,
/// and their logarithms. `LOG[0]` is meaningless.
const TABLES: ([u8; 510], [u8; 256]) = {
    let mut exp = [0u8; 510];
    let mut log = [0u8; 256];
    let mut power = 1u8;
    let mut exponent = 0usize;
    while exponent < 255 {
        exp[exponent] = power;
        exp[exponent + 255] = power;
        log[power as usize] = exponent.to_le_bytes()[0];
        power = times_two(power);
        exponent += 1;
    }
    (exp, log)
};
static EXP: [u8; 510] = TABLES.0;
static LOG: [u8; 256] = TABLES.1;

/// Row `c` maps every byte to its product with `c`.
pub(super) static PRODUCTS: [[u8; 256]; 256] = {
    let mut products = [[0u8; 256]; 256];
    let mut bit = 0;
    while bit < 8 {
        let mut row = 0;
        while row < 256 {
            let mut column = 1usize << bit;
            let power = product_by_shifts(row, column);
            // The product is linear in its second factor: extend from below 2^bit to below 2^(bit+1).
            while column < 2 << bit {
                products[row][column] = products[row][column - (1 << bit)] ^ power;
                column += 1;
            }
            row += 1;
        }
        bit += 1;
    }
    products
};

/// Returns the product of a byte and x, the field's generator 2.
#[must_use]
pub const fn times_two(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1d }
}

const fn product_by_shifts(a: usize, b: usize) -> u8 {
    let mut power = a.to_le_bytes()[0];
    let mut product = 0;
    let mut bits = b;
    while bits > 0 {
        if bits & 1 == 1 {
            product ^= power;
        }
        power = times_two(power);
        bits >>= 1;
    }
    product
}

/// Returns the product of two bytes.
#[must_use]
pub fn mul(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

/// Returns the byte whose product with `a` is 1.
///
/// # Panics
///
/// If `a` is 0, which has no inverse.
#[must_use]
pub fn inv(a: u8) -> u8 {
    assert_ne!(a, 0, "0 has no inverse");
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// Returns `a / b`.
///
/// # Panics
///
/// If `b` is 0.
#[must_use]
pub fn div(a: u8, b: u8) -> u8 {
    mul(a, inv(b))
}

/// Returns multiplication by `c` as the 8×8 bit matrix that `gf2p8affineqb` takes: bit j of byte
/// 7−i says whether bit j of the factor flips bit i of the product.
#[must_use]
pub const fn affine_map(c: u8) -> u64 {
    let mut rows = [0u8; 8];
    let mut column = c;
    let mut j = 0;
    while j < 8 {
        let mut i = 0;
        while i < 8 {
            rows[7 - i] |= (column >> i & 1) << j;
            i += 1;
        }
        column = times_two(column);
        j += 1;
    }
    u64::from_le_bytes(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polynomial product and long division by 0x11d, with nothing shared with the tables.
    fn schoolbook(a: u8, b: u8) -> u8 {
        let mut product = (0..8)
            .filter(|bit| b >> bit & 1 == 1)
            .fold(0u16, |sum, bit| sum ^ (u16::from(a) << bit));
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= POLYNOMIAL << (bit - 8);
            }
        }
        u8::try_from(product).expect("the remainder has degree 7 at most")
    }

    #[test]
    fn every_product_equals_the_schoolbook_product() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), schoolbook(a, b), "{a} * {b}");
            }
        }
    }

    #[test]
    fn every_byte_but_zero_has_an_inverse() {
        for a in 1..=255 {
            assert_eq!(mul(a, inv(a)), 1, "{a}");
            assert_eq!(div(mul(a, 77), a), 77, "{a}");
        }
    }

    #[test]
    fn two_generates_the_whole_field() {
        let mut seen = [false; 256];
        for exponent in 0..255 {
            seen[usize::from(EXP[exponent])] = true;
        }
        assert_eq!(seen.iter().filter(|&&s| s).count(), 255);
    }

    #[test]
    fn affine_maps_multiply_when_applied_as_the_instruction_does() {
        for c in 0..=255 {
            let rows = affine_map(c).to_le_bytes();
            for x in 0..=255u8 {
                let product = (0..8).fold(0u8, |sum, i| {
                    let odd = (rows[7 - i] & x).count_ones() & 1 == 1;
                    sum | u8::from(odd) << i
                });
                assert_eq!(product, mul(c, x), "{c} * {x}");
            }
        }
    }
}
