#![doc = include_str!("CODING.md")]

mod bitmatrix;
mod bitset;
mod code;
mod coder;
mod coding_task;
mod decode;
mod engine;
mod error;
pub mod field;
mod geometry;
mod horner;
mod matrix;
mod packets;
mod pass;
mod plan;
mod points;
mod random;
mod schedule;
mod search;
mod shard_columns;
mod study;
mod syndromes;
mod worker_pool;

pub use self::{
    code::CodeId,
    coder::Codec,
    coding_task::{Accelerator, CodingTask, Item, Targets},
    engine::{Candidate, Engine, candidates, engines, select},
    error::CodecError,
    geometry::Geometry,
    matrix::Matrix,
    pass::{Mismatch, Pass},
    plan::{Job, Mode, Plan, Stores},
    search::{Freedom, SearchResult, search},
    shard_columns::BLOCK_BYTES,
    study::{Studied, study},
    worker_pool::WorkerPool,
};
