//! Codes that directories were given.

use bytes::BufMut;

use super::{Record, VERSION, Value};
use crate::{FormatError, code_number, wire::Reader};

/// A code that directories were given: `b'a' class`. Its numbers of shards and its code never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryCode {
    /// Data shards of each stripe of the class.
    pub data_shards: u8,
    /// Parity shards of each stripe of the class.
    pub parity_shards: u8,
    /// The code's number, as in a [`Segment`](super::Segment).
    pub code: u64,
}

impl Record for DirectoryCode {
    fn encode(&self) -> Value {
        let (code, parameters) = code_number::split(self.code);
        let mut value = Vec::with_capacity(5 + parameters.len());
        value.put_u8(VERSION);
        value.put_u8(self.data_shards);
        value.put_u8(self.parity_shards);
        value.put_u16_le(code);
        if code_number::has_parameters(code) {
            value.put_slice(&parameters);
        }
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("directory code", bytes);
        reader.version(VERSION)?;
        let (data_shards, parity_shards) = (reader.u8()?, reader.u8()?);
        if data_shards == 0 {
            return Err(reader.bad("data shards", data_shards));
        }
        if data_shards.checked_add(parity_shards).is_none() {
            return Err(reader.bad("parity shards", parity_shards));
        }
        let code = reader.u16()?;
        let code = if code_number::has_parameters(code) {
            code_number::join(code, reader.array()?)
        } else {
            u64::from(code)
        };
        reader.finish()?;
        Ok(Self {
            data_shards,
            parity_shards,
            code,
        })
    }
}
