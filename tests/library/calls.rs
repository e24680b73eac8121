//! Calls that most tests of the filesystem make.

use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{Caller, Fs, FsError, FsOptions, Handle, OpenFlags, WriteFlags, check};

use crate::volume;

pub(crate) const ROOT: &Caller = &Caller::ROOT;
pub(crate) const BLOCK: u64 = 4096;

pub(crate) fn fs() -> Arc<Fs> {
    Fs::open(volume::maintenance(), FsOptions::default()).unwrap()
}

pub(crate) fn exclusive() -> OpenFlags {
    OpenFlags {
        exclusive: true,
        ..OpenFlags::read_write()
    }
}

pub(crate) fn create(fs: &Fs, name: &str) -> (Ino, Handle) {
    let made = fs
        .names()
        .create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, exclusive());
    let (attr, handle) = made.unwrap();
    (attr.ino, handle)
}

pub(crate) fn write(fs: &Fs, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, FsError> {
    fs.writer()
        .write(handle, offset, data, WriteFlags::default())
}

pub(crate) fn read(fs: &Fs, handle: Handle, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xaa; len];
    let len = fs.reader().read(handle, offset, &mut out).unwrap();
    out.truncate(len);
    out
}

pub(crate) fn sound(fs: &Fs) -> check::CheckReport {
    fs.wait_for_removal();
    let report = check::check(fs.maintenance(), false).unwrap();
    assert_eq!((&report.findings, report.unclaimed), (&vec![], 0));
    report
}

/// A way to open a directory.
pub(crate) type Opener = fn(&Fs, Ino) -> Handle;

/// Opens it by the caller itself.
pub(crate) const BY_CALLER: Opener = |_, ino| Handle::ByCaller {
    ino,
    flags: OpenFlags::read_only(),
};

/// All ways; the other one is under a number.
pub(crate) const OPENERS: [Opener; 2] = [|fs, dir| fs.directories().open(dir).unwrap(), BY_CALLER];

/// Reads at most `limit` names from `offset` on; returns them and where to go on.
pub(crate) fn list(fs: &Fs, dir: Handle, offset: u64, limit: usize) -> (Vec<Vec<u8>>, u64) {
    let (mut names, mut next) = (Vec::new(), offset);
    fs.directories()
        .read(dir, offset, false, &mut |item| {
            if names.len() == limit {
                return false;
            }
            names.push(item.name.to_vec());
            next = item.next;
            true
        })
        .unwrap();
    (names, next)
}
