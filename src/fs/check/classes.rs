//! Codes of directories, and the inodes that name them.

use std::collections::BTreeSet;

use crate::format::record::{DirectoryCode, Inode};
use crate::format::{Record, StripeClass, key};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;

use super::checker::Checker;
use super::report::FindingKind;

/// Checks that each class of stripes that an inode names has a code. Files of others cannot be written to.
pub(super) fn check_classes(check: &mut Checker<'_>) -> Result<(), FsError> {
    let mut known = BTreeSet::from([StripeClass::VOLUME]);
    check.each(key::directory_codes(), |check, key, value| {
        let class = check.decoded(key::parse_directory_code(key), None);
        if let Some(class) = class
            && check.decoded(DirectoryCode::decode(value), None).is_some()
        {
            known.insert(class);
        }
        Ok(())
    })?;
    check.each(key::inodes(), |check, key, value| {
        let (Ok(ino), Ok(inode)) = (key::parse_inode(key), Inode::decode(value)) else {
            return Ok(());
        };
        if known.contains(&inode.class) {
            return Ok(());
        }
        let mut repair = Edit::default();
        let class = StripeClass::VOLUME;
        repair.put_inode(ino, &Inode { class, ..inode });
        check.repairable(FindingKind::ClassWithoutCode, Some(ino), repair)
    })
}
