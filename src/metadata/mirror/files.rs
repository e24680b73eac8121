//! The files of the copies of the index: one in each member that has a copy.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::format::frame::{self, FRAME_BYTES, Frame, FramePlace, HEAD_BYTES, Head, PAGE_BYTES};
use crate::format::{MemberIndex, VolumeId, files};
use crate::membership::{Members, Wait};
use crate::metadata::disk::{Disk, MemberAnswer, write_op};
use crate::store::{Buffer, Op, StoreError};

/// Bytes of a page of the database.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;

/// Pages of a new index file.
pub(super) const FIRST_PAGES: u64 = 512;

/// A page of the database.
pub(super) type Page = Arc<[u8; PAGE_BYTES]>;

/// A copy of the index on one member.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexCopy {
    pub(super) member: MemberIndex,
    pub(super) file_bytes: u64,
    /// The slot of its last durable head.
    pub(super) slot: u8,
}

/// A copy that was found, with its newest head.
pub(super) struct FoundCopy {
    pub(super) copy: IndexCopy,
    pub(super) head: Head,
}

/// Operations on the index files of any members.
#[derive(Debug)]
pub(super) struct CopyFiles {
    disk: Arc<Disk>,
    name: Arc<str>,
    volume: VolumeId,
    tag: u32,
}

impl CopyFiles {
    pub(super) fn new(disk: &Arc<Disk>) -> Self {
        let volume = disk.members().shape().volume_id();
        Self {
            disk: Arc::clone(disk),
            name: files::INDEX.into(),
            volume,
            tag: frame::volume_tag(volume),
        }
    }

    pub(super) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    pub(super) fn members(&self) -> &Members {
        self.disk.members()
    }

    pub(super) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Returns the path of a member's file.
    pub(super) fn path(&self, member: MemberIndex) -> String {
        format!("{}/{}", self.members().membership().path(member), self.name)
    }

    /// Returns where the frame of a page belongs.
    pub(super) fn place(&self, page: u64) -> FramePlace {
        FramePlace {
            tag: self.tag,
            page,
        }
    }

    /// Encodes pages that follow one another, each with its number and its sequence.
    pub(super) fn encode<'a>(
        &self,
        run: impl Iterator<Item = (u64, u64, &'a [u8; PAGE_BYTES])>,
    ) -> Bytes {
        let mut data = BytesMut::with_capacity(run.size_hint().0 * FRAME_BYTES);
        for (page, sequence, bytes) in run {
            Frame { sequence, bytes }.put(self.place(page), &mut data);
        }
        data.freeze()
    }

    /// Returns the operation that writes `data` at an offset of the file.
    pub(super) fn write_op(&self, offset: u64, data: &Bytes) -> Op {
        write_op(&self.name, offset, data)
    }

    /// Runs operations in parallel.
    pub(super) fn run(&self, ops: Vec<(MemberIndex, Op)>) -> Vec<MemberAnswer> {
        self.disk.run(ops)
    }

    /// Makes the files of members durable.
    pub(super) fn sync(&self, members: &[MemberIndex]) -> Vec<MemberAnswer> {
        self.disk.sync(members, &self.name)
    }

    /// Makes a new file in the place of what a member has.
    pub(super) fn create(&self, member: MemberIndex, len: u64) -> Result<(), StoreError> {
        self.disk.create(member, &self.name, len)
    }

    /// Returns the length of a member's file, or `None` if the member has none.
    pub(super) fn len(&self, member: MemberIndex) -> Result<Option<u64>, StoreError> {
        self.disk.len(member, &self.name)
    }

    /// Sets the length of a member's file.
    pub(super) fn truncate(&self, member: MemberIndex, len: u64) -> Result<(), StoreError> {
        self.disk.truncate(member, &self.name, len)
    }

    /// Reserves the space of a range of a member's file, and makes the file that long.
    pub(super) fn reserve(&self, member: MemberIndex, range: Range<u64>) -> Result<(), StoreError> {
        self.disk.reserve(member, &self.name, range)
    }

    /// Reads from the same offset of many members at once, from each as many bytes as are named.
    pub(super) fn read_each(
        &self,
        reads: impl Iterator<Item = (MemberIndex, usize)>,
        offset: u64,
        patience: Wait,
    ) -> Vec<(MemberIndex, Result<Buffer, StoreError>)> {
        self.disk.read_each(reads, &self.name, offset, patience)
    }

    /// Fails a member that no longer has its file.
    pub(super) fn fail(&self, member: MemberIndex, error: &StoreError) {
        self.disk.fail(member, error);
    }

    /// Reads both head slots of a member's file.
    pub(super) fn head_slots(&self, member: MemberIndex) -> Result<Buffer, StoreError> {
        self.disk.read(member, &self.name, 0, 2 * HEAD_BYTES)
    }

    /// Looks for a copy on a member.
    pub(super) fn find(&self, member: MemberIndex) -> Option<FoundCopy> {
        let file_bytes = self.len(member).ok()??;
        if file_bytes < frame::FRAMES_START {
            return None;
        }
        let bytes = self.head_slots(member).ok()?;
        let slots = bytes.as_chunks::<HEAD_BYTES>().0.iter().zip(0u8..);
        let heads = slots.filter_map(|(slot, number)| {
            let head = Head::decode(slot)
                .ok()
                .filter(|head| head.volume == self.volume)?;
            Some(FoundCopy {
                copy: IndexCopy {
                    member,
                    file_bytes,
                    slot: number,
                },
                head,
            })
        });
        heads.max_by_key(|found| found.head.sequence)
    }

    /// Makes sure that the file of a member is never taken for a copy. Needs no space there. A member on which that
    /// fails is marked faulted.
    pub(super) fn wipe(&self, member: MemberIndex) {
        if matches!(self.len(member), Ok(None)) {
            return;
        }
        let cut = self.truncate(member, 0);
        let synced = self.sync(&[member]);
        for answer in [cut]
            .into_iter()
            .chain(synced.into_iter().map(|(_, answer)| answer))
        {
            if let Err(error) = answer
                && !error.kind().lacks_file()
            {
                self.fail(member, &error);
                return;
            }
        }
        if let Err(error) = self.disk.remove(member, &self.name) {
            tracing::warn!(journal.member = %member, "member {member} keeps an index file that is of no use: {error}");
        }
    }
}

/// Returns how long a file is that holds a database of so many bytes.
pub(super) fn file_bytes(db_bytes: u64) -> u64 {
    frame::frame_offset(db_bytes.div_ceil(PAGE))
}
