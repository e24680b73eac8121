//! A filesystem in memory behind the kernel's protocol: the limit of what any volume can reach over it.
//!
//! `cauchyfs bench fs` mounts it beside a volume. Requests take the same way as those of a volume, over the same
//! transport. Their work is one copy, into memory in use, and nothing is durable. So the time that they take is the time
//! that FUSE takes. A file of more than a mebibyte has its length, and not its bytes.
//! It has files, directories and their attributes, as the benchmark needs them. Other requests get `ENOSYS`.
//!
//! With [`PlainFiles`] the bytes also go into files on the filesystems of members, as plainly as redundancy allows. Files
//! of more than a mebibyte are then read from those.

mod content;
mod plain_files;
mod tree;

pub use plain_files::{PlainFiles, PlainShape};

use parking_lot::Mutex;
use rustix::io::Errno;

use self::tree::{NewKind, Tree};
use super::negotiate::{FileOpening, FileOpens};
use super::protocol::{
    Answer, Listing, OpenCache, Operation, attributes, by_kernel, created, entry, negative_entry,
    opened, size_needed, space, written,
};
use super::request::{InFlight, Request, Service};
use crate::format::Ino;
use crate::fs::{FsError, Handle, OpenFlags};

/// Serves one mount.
#[derive(Debug)]
pub(super) struct MemoryService {
    tree: Mutex<Tree>,
    opens: FileOpens,
    plain_files: Option<PlainFiles>,
    in_flight: InFlight,
}

impl MemoryService {
    /// Makes an empty filesystem with room for so many bytes of files. The kernel opens these, and directories, as `opens`
    /// says. The bytes of files also go into `plain_files`.
    pub(super) fn new(capacity: u64, opens: FileOpens, plain_files: Option<PlainFiles>) -> Self {
        Self {
            tree: Mutex::new(Tree::new(capacity)),
            opens,
            plain_files,
            in_flight: InFlight::default(),
        }
    }

    fn forget(&self, ino: Ino, operation: Operation<'_>) {
        let mut tree = self.tree.lock();
        match operation {
            Operation::Forget { lookups } => tree.forget(ino, lookups),
            Operation::BatchForget(forgets) => {
                for (ino, lookups) in forgets.pairs() {
                    tree.forget(ino, lookups);
                }
            }
            _ => {}
        }
    }

    fn read(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        // Bound first: the tree must be free while bytes are copied.
        let content = self.tree.lock().content(ino)?;
        match &self.plain_files {
            Some(files) if content.is_partly_kept() => {
                let len = content.available(offset, out.len());
                files.read(offset, &mut out[..len])?;
                Ok(len)
            }
            _ => Ok(content.read(offset, out)),
        }
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<Answer, FsError> {
        let content = self.tree.lock().content(ino)?;
        content.write(offset, data)?;
        if let Some(files) = &self.plain_files {
            files.write(data)?;
        }
        Ok(written(data.len() as u64))
    }

    fn list(
        &self,
        ino: Ino,
        offset: u64,
        with_attributes: bool,
        out: &mut [u8],
    ) -> Result<usize, FsError> {
        let mut listing = Listing::new(out, with_attributes);
        let mut tree = self.tree.lock();
        tree.list(ino, offset, with_attributes, |item| listing.add(item))?;
        Ok(listing.len())
    }

    fn open(&self, ino: Ino, flags: i32) -> Result<Answer, FsError> {
        let content = self.tree.lock().content(ino)?;
        if OpenFlags::from_raw(flags).truncate {
            content.resize(0)?;
        }
        Ok(opened(Handle::Numbered(ino.0), OpenCache::Pages))
    }

    /// Carries out an operation that has an answer of its own.
    fn perform(&self, request: &Request, operation: Operation<'_>) -> Result<Answer, FsError> {
        let ino = request.ino();
        match operation {
            Operation::Write { offset, data, .. } => return self.write(ino, offset, data),
            Operation::Open { flags } => return self.open(ino, flags),
            _ => {}
        }
        if let (Operation::Fsync, Some(files)) = (&operation, &self.plain_files) {
            files.sync()?;
            return Ok(Answer::EMPTY);
        }
        let mut tree = self.tree.lock();
        match operation {
            Operation::Lookup { name } => match tree.look_up(ino, name) {
                Err(FsError::NotFound) => Ok(negative_entry()),
                found => found.map(|attr| entry(&attr)),
            },
            Operation::GetAttr { .. } => tree.attr(ino).map(|attr| attributes(&attr)),
            Operation::SetAttr(wanted) => tree.set(ino, &wanted).map(|attr| attributes(&attr)),
            Operation::MkDir { name, mode, umask } => {
                let caller = request.caller(umask);
                let made = tree.make(&caller, ino, name, mode, NewKind::Directory)?;
                Ok(entry(&made))
            }
            Operation::Create {
                name,
                flags,
                mode,
                umask,
            } => {
                let caller = request.caller(umask);
                let made = tree.make(&caller, ino, name, mode, NewKind::File)?;
                let handle = match self.opens.opening {
                    FileOpening::Requested => Handle::Numbered(made.ino.0),
                    FileOpening::ByKernel => by_kernel(made.ino, flags),
                };
                Ok(created(&made, handle, OpenCache::Pages))
            }
            Operation::Unlink { name } => {
                tree.unlink(ino, name, NewKind::File)?;
                Ok(Answer::EMPTY)
            }
            Operation::RmDir { name } => {
                tree.unlink(ino, name, NewKind::Directory)?;
                Ok(Answer::EMPTY)
            }
            Operation::OpenDir => Ok(opened(Handle::Numbered(ino.0), OpenCache::Listing)),
            Operation::StatFs => Ok(space(&tree.report())),
            // There are no attributes, which the kernel is to ask about as it does of a volume.
            Operation::GetXattr { .. } => Err(FsError::NoData),
            Operation::ListXattr { room: 0 } => Ok(size_needed(0)),
            // Nothing is to be done for a file that is closed, or synced without plain files.
            _ => Ok(Answer::EMPTY),
        }
    }
}

impl Service for MemoryService {
    fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    fn serve(&self, mut request: Request) {
        let Ok(operation) = request.operation() else {
            return request.answer(Err(Errno::INVAL));
        };
        let ino = request.ino();
        let context = self.in_flight.begin(operation.kind(), request.header());
        match operation {
            Operation::Forget { .. } | Operation::BatchForget(_) => {
                context.guard(|| self.forget(ino, operation));
                request.end();
            }
            Operation::Read { offset, size, .. } => {
                let out = request.memory(size as usize);
                let outcome = context.attempt(|| self.read(ino, offset, out));
                request.answer_memory(outcome);
            }
            Operation::ReadDir { offset, room, .. } => {
                let out = request.memory(room as usize);
                let outcome = context.attempt(|| self.list(ino, offset, false, out));
                request.answer_memory(outcome);
            }
            Operation::ReadDirPlus { offset, room, .. } => {
                let out = request.memory(room as usize);
                let outcome = context.attempt(|| self.list(ino, offset, true, out));
                request.answer_memory(outcome);
            }
            Operation::Open { .. } if self.opens.opening == FileOpening::ByKernel => {
                request.answer(Err(Errno::NOSYS));
            }
            Operation::OpenDir if self.opens.directories_by_kernel => {
                request.answer(Err(Errno::NOSYS));
            }
            Operation::Flush
            | Operation::ReadLink
            | Operation::Statx { .. }
            | Operation::Tmpfile { .. }
            | Operation::Symlink { .. }
            | Operation::MkNod { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::SetXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Interrupt { .. }
            | Operation::Ioctl
            | Operation::Fallocate { .. }
            | Operation::LSeek { .. }
            | Operation::CopyFileRange { .. }
            | Operation::Unknown => request.answer(Err(Errno::NOSYS)),
            operation => {
                let outcome = context.attempt(|| self.perform(&request, operation));
                request.answer(outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Caller;

    const MIB: usize = 1 << 20;

    /// The first mebibyte of a long file is kept nowhere else, because the second took its place.
    #[test]
    fn reads_of_long_files_come_from_plain_files_and_those_of_short_ones_from_memory() {
        let home = tempfile::tempdir().unwrap();
        let shape = PlainShape {
            data: 2,
            parity: 1,
            unit_bytes: 1 << 19,
            bytes: 8 << 20,
        };
        let directories = vec![home.path().to_owned(); 3];
        let plain = PlainFiles::create(&directories, shape).unwrap();
        let opens = FileOpens {
            opening: FileOpening::Requested,
            directories_by_kernel: false,
            maps_direct: false,
        };
        let service = MemoryService::new(8 << 20, opens, Some(plain));
        let make = |name: &[u8]| {
            let mut tree = service.tree.lock();
            let made = tree.make(&Caller::ROOT, Ino::ROOT, name, 0o600, NewKind::File);
            made.unwrap().ino
        };
        let (long, short) = (make(b"long"), make(b"short"));
        for (number, byte) in [(0, 1), (1, 2)] {
            let offset = (number * MIB) as u64;
            service.write(long, offset, &vec![byte; MIB]).unwrap();
        }
        service.write(short, 0, &vec![3; MIB]).unwrap();
        let read = |ino, offset: usize| {
            let mut out = vec![9; MIB];
            let count = service.read(ino, offset as u64, &mut out).unwrap();
            out.truncate(count);
            out
        };
        assert!(read(long, 0) == vec![1; MIB]);
        assert!(read(long, MIB + MIB / 2) == vec![2; MIB / 2]);
        assert!(read(long, 3 * MIB).is_empty());
        assert!(read(short, 0) == vec![3; MIB]);
    }
}
