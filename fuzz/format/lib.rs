//! The format of CauchyFS, under the crate's name, as its tests know it.

#[path = "../../src"]
mod src {
    pub mod format;
}

pub use src::format;
