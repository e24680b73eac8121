//! Every decoder of bytes on disk, under libFuzzer.
//!
//! The first byte of an input chooses the decoder, in the order of `crates/format/tests/decoders.rs`, which has the table
//! and watches allocations. The rest is decoded as it is, and again with its checksum made right.

#![no_main]

#[path = "../../crates/format/tests/decoders.rs"]
#[allow(dead_code, unused_imports, reason = "its tests are left out here")]
mod table;

use std::cell::LazyCell;

use table::{Decoder, decoders};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static DECODERS: LazyCell<Vec<Decoder>> = LazyCell::new(decoders);
}

fuzz_target!(|input: &[u8]| {
    DECODERS.with(|decoders| table::try_input(decoders, input));
});
