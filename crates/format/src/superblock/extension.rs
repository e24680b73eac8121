//! The extension: fields, each a number, a length and that many bytes. Those that this build does not know stay as
//! they are.

use bytes::BufMut;

use super::{MAX_EXTENSION, Superblock, narrow};
use crate::{FormatError, wire::Reader};

/// Bytes of a field's number and length.
const HEAD_LEN: usize = 4;

impl Superblock {
    /// Returns the content of a field; `None` if it is not there, or the extension does not consist of
    /// fields.
    pub(super) fn field(&self, wanted: u16) -> Option<&[u8]> {
        let fields = fields(&self.extension).unwrap_or_default();
        let mut fields = fields.into_iter();
        fields.find_map(|(number, bytes)| (number == wanted).then_some(bytes))
    }

    /// Replaces the content of a field. The field is left out if `bytes` is empty, or there is no room for it
    /// beside the others.
    pub(super) fn set_field(&mut self, number: u16, bytes: &[u8]) {
        // An extension that does not consist of fields stays as it is.
        let Ok(fields) = fields(&self.extension) else {
            return;
        };
        let mut extension = Vec::with_capacity(self.extension.len());
        for (other, bytes) in fields {
            if other != number {
                put_field(&mut extension, other, bytes);
            }
        }
        if !bytes.is_empty() && extension.len() + HEAD_LEN + bytes.len() <= MAX_EXTENSION {
            put_field(&mut extension, number, bytes);
        }
        self.extension = extension;
    }
}

fn put_field(extension: &mut Vec<u8>, number: u16, bytes: &[u8]) {
    extension.put_u16_le(number);
    extension.put_u16_le(narrow(bytes.len()));
    extension.put_slice(bytes);
}

/// Takes the fields of an extension apart.
fn fields(extension: &[u8]) -> Result<Vec<(u16, &[u8])>, FormatError> {
    let mut reader = Reader::new("field of the superblock", extension);
    let mut fields = Vec::new();
    while !reader.is_empty() {
        let number = reader.u16()?;
        let len = reader.u16()?;
        fields.push((number, reader.bytes(len.into())?));
    }
    Ok(fields)
}
