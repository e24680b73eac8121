//! Directory entries: once by name, once by position.

use bytes::BufMut;

use super::{FileKind, Record, VERSION, Value};
use crate::wire::{MAX_COUNT, Reader};
use crate::{Cookie, FormatError, Ino, NameFault};

/// A directory entry by name: `b'd' parent name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// The inode it names.
    pub ino: Ino,
    /// The type of that inode.
    pub kind: FileKind,
    /// Its position for readdir.
    pub cookie: Cookie,
}

impl Record for Dirent {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(18);
        value.put_u8(VERSION);
        value.put_u8(self.kind.number());
        value.put_u64_le(self.ino.0);
        value.put_u64_le(self.cookie.0);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("dirent", bytes);
        reader.version(VERSION)?;
        let kind = FileKind::take(&mut reader)?;
        let ino = Ino(reader.u64()?);
        let cookie = reader.u64()?;
        // The directory's next cookie is greater, and is a count.
        if cookie >= MAX_COUNT {
            return Err(reader.bad("cookie", cookie));
        }
        reader.finish()?;
        Ok(Self {
            ino,
            kind,
            cookie: Cookie(cookie),
        })
    }
}

/// A directory entry by position: `b'c' parent cookie`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The inode it names.
    pub ino: Ino,
    /// The type of that inode.
    pub kind: FileKind,
    /// The name: 1 to 255 bytes without `/` and NUL, and neither `.` nor `..`.
    pub name: Vec<u8>,
}

impl Record for Position {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(10 + self.name.len());
        value.put_u8(VERSION);
        value.put_u8(self.kind.number());
        value.put_u64_le(self.ino.0);
        value.put_slice(&self.name);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("position", bytes);
        reader.version(VERSION)?;
        let kind = FileKind::take(&mut reader)?;
        let ino = Ino(reader.u64()?);
        let name = reader.rest().to_vec();
        if let Some(fault) = NameFault::of_entry(&name) {
            return Err(FormatError::Name {
                what: "position",
                fault,
            });
        }
        Ok(Self { ino, kind, name })
    }
}
