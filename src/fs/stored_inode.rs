//! Reading the record of an inode.

use crate::format::record::Inode;
use crate::format::{Ino, Record, key};
use crate::transaction::Transactions;

use super::error::FsError;

/// Reads the record of an inode; `None` if there is none.
pub(super) fn read_inode(transactions: &Transactions, ino: Ino) -> Result<Option<Inode>, FsError> {
    match transactions.get(&key::inode(ino))? {
        Some(value) => Ok(Some(Inode::decode(&value)?)),
        None => Ok(None),
    }
}
