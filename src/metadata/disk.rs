//! The members, as this layer uses them: the same operation on many, and files that must be there.

use std::sync::Arc;

use bytes::Bytes;

use crate::format::MemberIndex;
use crate::membership::{Members, Wait};
use crate::store::{Buffer, Op, Pool, Store, StoreError};

/// Memory kept for later use, in bytes: a few journal records.
const POOL_BYTES: usize = 4 << 20;

/// The answer of one member.
pub(super) type MemberAnswer = (MemberIndex, Result<(), StoreError>);

/// Operations on members. A member that fails one has been failed by the time it returns.
#[derive(Debug)]
pub(super) struct Disk {
    members: Arc<Members>,
    pool: Pool,
}

impl Disk {
    pub(super) fn new(members: Arc<Members>) -> Self {
        Self {
            members,
            pool: Pool::new(POOL_BYTES),
        }
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// Lends memory fit for [`Disk::write_durably`] and [`Disk::read`].
    pub(super) fn buffer(&self, len: usize) -> Buffer {
        self.pool.buffer(len)
    }

    /// Runs operations in parallel, and returns the answer of each member.
    pub(super) fn run(&self, ops: Vec<(MemberIndex, Op)>) -> Vec<MemberAnswer> {
        let asked: Vec<MemberIndex> = ops.iter().map(|(member, _)| *member).collect();
        let outcomes = self
            .members
            .io()
            .run(ops)
            .into_iter()
            .map(|outcome| outcome.map(|_| ()));
        asked.into_iter().zip(outcomes).collect()
    }

    fn each(&self, members: &[MemberIndex], op: impl Fn() -> Op) -> Vec<MemberAnswer> {
        self.run(members.iter().map(|member| (*member, op())).collect())
    }

    /// Writes the same bytes to the same place on many members, durably.
    pub(super) fn write_durably(
        &self,
        members: &[MemberIndex],
        name: &Arc<str>,
        offset: u64,
        data: &Bytes,
    ) -> Vec<MemberAnswer> {
        self.each(members, || Op::WriteDurably {
            name: Arc::clone(name),
            offset,
            data: data.clone(),
        })
    }

    /// Makes a file durable on many members.
    pub(super) fn sync(&self, members: &[MemberIndex], name: &Arc<str>) -> Vec<MemberAnswer> {
        self.each(members, || Op::Sync {
            name: Arc::clone(name),
        })
    }

    /// Makes a new file, in the place of what may be there under its name.
    pub(super) fn create(
        &self,
        member: MemberIndex,
        name: &Arc<str>,
        len: u64,
    ) -> Result<(), StoreError> {
        self.one(
            member,
            Op::Remove {
                name: Arc::clone(name),
            },
        )?;
        self.one(
            member,
            Op::Create {
                name: Arc::clone(name),
                len,
            },
        )?;
        Ok(())
    }

    /// Removes a file. That need not be durable.
    pub(super) fn remove(&self, member: MemberIndex, name: &Arc<str>) -> Result<(), StoreError> {
        self.one(
            member,
            Op::Remove {
                name: Arc::clone(name),
            },
        )
        .map(|_| ())
    }

    /// Reads from the same place on many members at once, from each as many bytes as are named.
    pub(super) fn read_each(
        &self,
        reads: impl Iterator<Item = (MemberIndex, usize)>,
        name: &Arc<str>,
        offset: u64,
        patience: Wait,
    ) -> Vec<(MemberIndex, Result<Buffer, StoreError>)> {
        let read = |(member, len)| {
            let name = Arc::clone(name);
            let buf = self.pool.buffer(len);
            (member, Op::Read { name, offset, buf })
        };
        let ops: Vec<_> = reads.map(read).collect();
        let asked: Vec<MemberIndex> = ops.iter().map(|(member, _)| *member).collect();
        let outcomes = self.members.io().read(ops, patience).into_iter();
        let read = |outcome: Result<Option<Buffer>, StoreError>| {
            outcome.map(|buffer| buffer.expect("a read answers with its buffer"))
        };
        asked.into_iter().zip(outcomes.map(read)).collect()
    }

    /// Reads `len` bytes that the file is known to have.
    pub(super) fn read(
        &self,
        member: MemberIndex,
        name: &Arc<str>,
        offset: u64,
        len: usize,
    ) -> Result<Buffer, StoreError> {
        let buf = self.pool.buffer(len);
        let read = self.one(
            member,
            Op::Read {
                name: Arc::clone(name),
                offset,
                buf,
            },
        )?;
        Ok(read.expect("a read answers with its buffer"))
    }

    fn one(&self, member: MemberIndex, op: Op) -> Result<Option<Buffer>, StoreError> {
        self.members
            .io()
            .run(vec![(member, op)])
            .pop()
            .expect("one outcome for one operation")
    }

    /// Returns a file's length, or `None` if the member has none of its own.
    pub(super) fn len(
        &self,
        member: MemberIndex,
        name: &Arc<str>,
    ) -> Result<Option<u64>, StoreError> {
        let file = Arc::clone(name);
        match self
            .members
            .io()
            .call(member, "open", move |store| store.open_len(&file))
        {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind().lacks_file() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the bytes that the files in a member's top directory take on disk.
    pub(super) fn taken(&self, member: MemberIndex) -> Result<u64, StoreError> {
        self.members
            .io()
            .call(member, "measure", |store| store.taken(""))
    }

    /// Makes a file at least `len` bytes long, with the space for it where that can be had.
    pub(super) fn reserve(
        &self,
        member: MemberIndex,
        name: &Arc<str>,
        range: std::ops::Range<u64>,
    ) -> Result<(), StoreError> {
        let file = Arc::clone(name);
        let work =
            move |store: &dyn Store| store.reserve(&file, range.start, range.end - range.start);
        self.members.io().call(member, "reserve", work)
    }

    /// Sets a file's length.
    pub(super) fn truncate(
        &self,
        member: MemberIndex,
        name: &Arc<str>,
        len: u64,
    ) -> Result<(), StoreError> {
        let file = Arc::clone(name);
        self.members
            .io()
            .call(member, "truncate", move |store| store.truncate(&file, len))
    }

    /// Returns the free bytes of a member.
    pub(super) fn free_bytes(&self, member: MemberIndex) -> Result<u64, StoreError> {
        self.members.io().call(member, "measure", |store| {
            store.space().map(|space| space.free_bytes)
        })
    }

    /// Returns the size of a member's filesystem.
    pub(super) fn total_bytes(&self, member: MemberIndex) -> Result<u64, StoreError> {
        self.members.io().call(member, "measure", |store| {
            store.space().map(|space| space.total_bytes)
        })
    }

    /// Fails a member for an error that is not one of the member's failures by itself, but leaves
    /// it without something that it must hold.
    pub(super) fn fail(&self, member: MemberIndex, error: &StoreError) {
        self.members.io().fail(member, error);
    }
}

/// Returns the operation that writes `data` to a file.
pub(super) fn write_op(name: &Arc<str>, offset: u64, data: &Bytes) -> Op {
    Op::Write {
        name: Arc::clone(name),
        offset,
        data: data.clone(),
    }
}
