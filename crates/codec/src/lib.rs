#![doc = include_str!("CODING.md")]

mod bitmatrix;
mod bitset;
mod code;
mod coder;
mod crew;
mod decode;
mod engine;
mod error;
pub mod field;
mod geometry;
mod horner;
mod matrix;
mod offer;
mod packets;
mod pass;
mod piece;
mod plan;
mod points;
mod random;
mod schedule;
mod search;
mod study;
mod syndromes;

pub use self::{
    code::CodeId,
    coder::Codec,
    crew::Crew,
    engine::{Candidate, Engine, candidates, engines, select},
    error::CodecError,
    geometry::Geometry,
    matrix::Matrix,
    offer::{Accelerator, Item, Offer, Targets},
    pass::{Mismatch, Pass},
    piece::BLOCK_BYTES,
    plan::{Job, Mode, Plan, Stores},
    search::{Found, Freedom, search},
    study::{Studied, study},
};
