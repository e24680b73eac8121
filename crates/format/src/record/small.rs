//! Values of one field.

use bytes::BufMut;

use super::{Record, VERSION, Value};
use crate::{FormatError, wire::Reader};

/// A mark that says all by being there: `b'o' ino` (orphan), `b'q' stripe` (perhaps dead).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marker;

impl Record for Marker {
    fn encode(&self) -> Value {
        Value::from(&[VERSION])
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("marker", bytes);
        reader.version(VERSION)?;
        reader.finish()?;
        Ok(Self)
    }
}

/// A high-water mark: `b'n' name`. Numbers below it may have been given out, numbers from it on
/// never were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter(pub u64);

impl Record for Counter {
    fn encode(&self) -> Value {
        let mut value = [VERSION; 9];
        value[1..].copy_from_slice(&self.0.to_le_bytes());
        Value::from(&value)
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("counter", bytes);
        reader.version(VERSION)?;
        let counter = Self(reader.count("value")?);
        reader.finish()?;
        Ok(counter)
    }
}

/// An extended attribute's value, any bytes: `b'x' ino name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xattr(pub Vec<u8>);

impl Record for Xattr {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(1 + self.0.len());
        value.put_u8(VERSION);
        value.put_slice(&self.0);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("xattr", bytes);
        reader.version(VERSION)?;
        Ok(Self(reader.rest().to_vec()))
    }
}
