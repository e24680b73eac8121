//! The numbers of codes, as superblocks and segments store them: 16 bits, and 48 more for codes with parameters.
//!
//! In memory both are one number of 64 bits, whose lowest 16 bits are the code. This crate does not know what parameters
//! mean: `CodeId` of the crate `cauchyfs-codec` does.

/// Bytes of the parameters of a code.
pub const PARAMETER_BYTES: usize = 6;

/// The code `random-gf2`, the only one with parameters.
const RANDOM_GF2: u16 = 3;

/// Says whether segments store parameters behind the number of this code.
#[must_use]
pub fn has_parameters(code: u16) -> bool {
    code == RANDOM_GF2
}

/// Returns the 16 bits of a number that name the code, and its parameters.
#[must_use]
pub fn split(number: u64) -> (u16, [u8; PARAMETER_BYTES]) {
    let [low, high, parameters @ ..] = number.to_le_bytes();
    (u16::from_le_bytes([low, high]), parameters)
}

/// Returns the number of a code with parameters.
#[must_use]
pub fn join(code: u16, parameters: [u8; PARAMETER_BYTES]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&code.to_le_bytes());
    bytes[2..].copy_from_slice(&parameters);
    u64::from_le_bytes(bytes)
}
