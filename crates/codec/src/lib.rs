#![doc = include_str!("CODING.md")]

mod bitmatrix;
mod bitset;
mod block;
mod chosen_rows;
mod code;
mod coder;
mod coding_task;
mod cpu_pass;
mod decode;
mod engine;
mod error;
mod fft;
pub mod field;
mod geometry;
mod horner;
mod job;
mod matrix;
mod mismatch;
mod packets;
mod pass;
mod plan;
mod points;
mod random;
pub mod rateless;
mod run;
mod schedule;
mod search;
mod shard_columns;
mod shard_set;
mod study;
mod subspace;
mod survival;
mod syndromes;
mod transforms;
mod width;
mod worker_pool;

pub use self::{
    block::BLOCK_BYTES,
    code::CodeId,
    coder::Codec,
    coding_task::{Accelerator, CodingTask, Item, Targets},
    engine::{Candidate, Engine, candidates, engines, select},
    error::CodecError,
    geometry::Geometry,
    job::{Job, Mode, Stores},
    matrix::Matrix,
    mismatch::Mismatch,
    pass::Pass,
    plan::Plan,
    search::{Freedom, SearchResult, search},
    study::{Studied, study},
    survival::Survival,
    transforms::Transforms,
    worker_pool::WorkerPool,
};
