//! Layouts of answers and notices.

use std::num::TryFromIntError;
use std::time::Duration;

use super::handle::number;
use crate::format::Ino;
use crate::format::record::{FileKind, Timestamp};
use crate::fs::{Attr, DirItem, Handle, SpaceReport};

/// The time for which the kernel may trust names and attributes, missing names included. We are the only
/// writer and every change passes through the kernel, so the answer is: as long as it likes.
const TTL: Duration = Duration::from_secs(3600);

/// The generation of the root, as the kernel takes it to be.
const ROOT_GENERATION: u32 = 0;

/// A multiplier that spreads a difference in any bit over the upper half of the product: 2⁶⁴ divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The part that the kernel's cache takes for what is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse) enum OpenCache {
    /// Pages of a file, which stay valid from one open to the next.
    Pages,
    /// The listing of a directory, which stays valid from one opendir to the next.
    Listing,
    /// None: reads and writes come here at once.
    None,
}

impl OpenCache {
    /// Returns the flags of the answer.
    fn flags(self) -> u32 {
        match self {
            Self::Pages => KEEP_CACHE,
            Self::Listing => KEEP_CACHE | CACHE_DIRECTORY,
            Self::None => KEEP_CACHE | DIRECT_IO,
        }
    }
}

const DIRECT_IO: u32 = 1 << 0;
const KEEP_CACHE: u32 = 1 << 1;
const CACHE_DIRECTORY: u32 = 1 << 3;

/// The number of the notice that an inode is not to be trusted.
pub(in crate::fuse) const INVALIDATE_INODE: i32 = 2;

/// The number of the notice that a name in a directory is not to be trusted.
pub(in crate::fuse) const INVALIDATE_NAME: i32 = 3;

/// The number of the notice that puts bytes into the page cache of an inode.
pub(in crate::fuse) const STORE: i32 = 4;

/// The number of the notice that asks for cached bytes of an inode.
pub(in crate::fuse) const RETRIEVE: i32 = 5;

/// The bytes of the longest answer of fixed length: extended attributes up to their spare fields.
const LONGEST: usize = STATX - STATX_SPARE;
/// The bytes of an answer with extended attributes: 32 before them, and 256 as `statx(2)` has them.
const STATX: usize = 32 + 256;
/// The bytes at their end that have no meaning.
const STATX_SPARE: usize = 14 * 8;
const ATTRIBUTES: usize = 88;
const ENTRY: usize = 40 + ATTRIBUTES;
const DIRECTORY_ENTRY: usize = 24;

/// Bytes of an answer, behind its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fuse) enum Answer {
    /// Bytes of a fixed layout.
    Fixed(Layout),
    /// Bytes of any length.
    Bytes(Vec<u8>),
}

impl Answer {
    /// The answer that says nothing but success.
    pub(in crate::fuse) const EMPTY: Self = Self::Bytes(Vec::new());

    /// Returns the bytes.
    pub(in crate::fuse) fn bytes(&self) -> &[u8] {
        match self {
            Self::Fixed(layout) => layout.bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Numbers in a row, at most as many as the longest answer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::fuse) struct Layout {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Layout {
    const fn new() -> Self {
        Self {
            bytes: [0; LONGEST],
            len: 0,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put<const N: usize>(mut self, number: [u8; N]) -> Self {
        self.bytes[self.len..self.len + N].copy_from_slice(&number);
        self.len += N;
        self
    }

    fn u32(self, number: u32) -> Self {
        self.put(number.to_ne_bytes())
    }

    fn u64(self, number: u64) -> Self {
        self.put(number.to_ne_bytes())
    }

    fn i64(self, number: i64) -> Self {
        self.put(number.to_ne_bytes())
    }

    fn u16(self, number: u16) -> Self {
        self.put(number.to_ne_bytes())
    }

    fn time(self, time: Timestamp) -> Self {
        self.i64(time.seconds).u32(time.nanos).u32(0)
    }

    fn attributes(self, attr: &Attr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime];
        let with_seconds = times.iter().fold(
            self.u64(attr.ino.0).u64(attr.size).u64(attr.blocks_512),
            |layout, time| layout.i64(time.seconds),
        );
        let with_times = times
            .iter()
            .fold(with_seconds, |layout, time| layout.u32(time.nanos));
        with_times
            .u32(mode(attr.kind, attr.permissions))
            .u32(attr.links)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev)
            .u32(attr.block_size)
            .u32(0)
    }

    fn entry(self, attr: &Attr) -> Self {
        self.u64(attr.ino.0)
            .u64(u64::from(generation(attr)))
            .u64(TTL.as_secs())
            .u64(TTL.as_secs())
            .u32(0)
            .u32(0)
            .attributes(attr)
    }

    fn opened(self, handle: Handle, flags: u32) -> Self {
        self.u64(number(handle)).u32(flags).u32(0)
    }
}

/// Returns the generation of an inode, by which the kernel tells it from others of the same number. A crash may take the
/// inodes of the last seconds, and their numbers are then given out again. The time of birth tells these apart.
fn generation(attr: &Attr) -> u32 {
    if attr.ino == Ino::ROOT {
        return ROOT_GENERATION;
    }
    let Timestamp { seconds, nanos } = attr.btime;
    let time = seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(i64::from(nanos));
    (time.cast_unsigned().wrapping_mul(SPREAD) >> 32) as u32
}

/// Returns the type and permission bits of an inode, as `stat(2)` has them.
fn mode(kind: FileKind, permissions: u16) -> u32 {
    let kind = match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    };
    kind | u32::from(permissions)
}

/// Returns the major number of a device, whose number is as MKNOD brings it.
fn device_major(device: u32) -> u32 {
    device >> 8 & 0xfff
}

/// Returns the minor number of such a device.
fn device_minor(device: u32) -> u32 {
    device & 0xff | device >> 12 & 0xf_ff00
}

/// Answers with an entry of a directory.
pub(in crate::fuse) fn entry(attr: &Attr) -> Answer {
    Answer::Fixed(Layout::new().entry(attr))
}

/// Answers that a name does not exist, which the kernel remembers: an entry of inode 0.
pub(in crate::fuse) fn negative_entry() -> Answer {
    Answer::Fixed(Layout::new().entry(&bare(Ino(0), FileKind::Regular)))
}

/// Answers with the entry of a file and a handle of it.
pub(in crate::fuse) fn created(attr: &Attr, handle: Handle, cache: OpenCache) -> Answer {
    Answer::Fixed(Layout::new().entry(attr).opened(handle, cache.flags()))
}

/// Answers with attributes.
pub(in crate::fuse) fn attributes(attr: &Attr) -> Answer {
    let validity = Layout::new().u64(TTL.as_secs()).u32(0).u32(0);
    Answer::Fixed(validity.attributes(attr))
}

/// Answers with extended attributes: those of [`attributes`], and the time of birth.
pub(in crate::fuse) fn statx(attr: &Attr) -> Answer {
    let validity = Layout::new().u64(TTL.as_secs()).u32(0).u32(0);
    let known = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    let fields = validity
        // Spare fields.
        .u64(0)
        .u64(0)
        .u32(known)
        .u32(attr.block_size)
        // Attributes such as those of chattr(1), none of which is known.
        .u64(0)
        .u32(attr.links)
        .u32(attr.uid)
        .u32(attr.gid)
        .u16((mode(attr.kind, attr.permissions) & 0xffff) as u16)
        .u16(0)
        .u64(attr.ino.0)
        .u64(attr.size)
        .u64(attr.blocks_512)
        .u64(0)
        .time(attr.atime)
        .time(attr.btime)
        .time(attr.ctime)
        .time(attr.mtime)
        .u32(device_major(attr.rdev))
        .u32(device_minor(attr.rdev))
        // The kernel knows the device of the mount.
        .u32(0)
        .u32(0);
    let mut bytes = fields.bytes().to_vec();
    bytes.resize(STATX, 0);
    Answer::Bytes(bytes)
}

/// Answers with a handle.
pub(in crate::fuse) fn opened(handle: Handle, cache: OpenCache) -> Answer {
    Answer::Fixed(Layout::new().opened(handle, cache.flags()))
}

/// Answers how many bytes were written.
pub(in crate::fuse) fn written(bytes: u64) -> Answer {
    // A request is at most 1 MiB for writes; for copies the kernel takes a short count.
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Answer::Fixed(Layout::new().u32(bytes).u32(0))
}

/// Answers how many bytes an extended attribute has.
pub(in crate::fuse) fn size_needed(bytes: u32) -> Answer {
    Answer::Fixed(Layout::new().u32(bytes).u32(0))
}

/// Answers where data or a hole was found.
pub(in crate::fuse) fn offset_found(offset: u64) -> Answer {
    Answer::Fixed(Layout::new().u64(offset))
}

/// Answers with the total and free space.
pub(in crate::fuse) fn space(space: &SpaceReport) -> Answer {
    let numbers = Layout::new()
        .u64(space.blocks)
        .u64(space.blocks_free)
        .u64(space.blocks_available)
        .u64(space.files)
        .u64(space.files_free)
        .u32(space.block_size)
        .u32(space.name_max)
        .u32(space.block_size);
    // Padding and spare fields.
    Answer::Fixed(numbers.put([0; 28]))
}

/// Returns the body of the notice that the kernel is not to trust what it caches of an inode: its attributes, and with
/// an offset that is not negative its pages of `len` bytes from there on; 0 stands for all of them.
pub(in crate::fuse) fn invalidation(ino: Ino, offset: i64, len: i64) -> Answer {
    Answer::Fixed(Layout::new().u64(ino.0).i64(offset).i64(len))
}

/// Returns the body of the notice that the kernel is not to trust what it knows of a name in a directory.
///
/// # Errors
///
/// If the name is longer than any.
pub(in crate::fuse) fn name_invalidation(
    parent: Ino,
    name: &[u8],
) -> Result<Vec<u8>, TryFromIntError> {
    let len = u32::try_from(name.len())?;
    let mut body = Vec::with_capacity(17 + name.len());
    body.extend(parent.0.to_ne_bytes());
    body.extend(len.to_ne_bytes());
    // No flags: the name goes at once.
    body.extend(0_u32.to_ne_bytes());
    body.extend(name);
    body.push(0);
    Ok(body)
}

/// Returns the body, without its bytes, of the notice that puts `len` bytes into the page cache of an inode.
pub(in crate::fuse) fn storage(ino: Ino, offset: u64, len: u32) -> Answer {
    Answer::Fixed(Layout::new().u64(ino.0).u64(offset).u32(len).u32(0))
}

/// Returns the body of the notice that asks for no bytes of a regular file. The kernel sends them as request `unique`.
pub(in crate::fuse) fn retrieval(unique: u64, file: Ino) -> Answer {
    Answer::Fixed(Layout::new().u64(unique).u64(file.0).u64(0).u64(0))
}

/// Attributes that say what an inode is and nothing more.
fn bare(ino: Ino, kind: FileKind) -> Attr {
    let never = Timestamp {
        seconds: 0,
        nanos: 0,
    };
    Attr {
        ino,
        kind,
        permissions: 0,
        links: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks_512: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
        block_size: 0,
    }
}

/// A listing that is written where the answer goes.
#[derive(Debug)]
pub(in crate::fuse) struct Listing<'a> {
    out: &'a mut [u8],
    len: usize,
    with_attributes: bool,
}

impl<'a> Listing<'a> {
    /// Begins a listing that is at most as long as `out`.
    pub(in crate::fuse) fn new(out: &'a mut [u8], with_attributes: bool) -> Self {
        Self {
            out,
            len: 0,
            with_attributes,
        }
    }

    /// Adds an entry if there is room for it, and returns whether there was.
    pub(in crate::fuse) fn add(&mut self, item: &DirItem<'_>) -> bool {
        let entry = if self.with_attributes { ENTRY } else { 0 };
        let end = entry + DIRECTORY_ENTRY + item.name.len();
        // Each begins at a multiple of eight bytes.
        let Some(out) = self.out[self.len..].get_mut(..end.next_multiple_of(8)) else {
            return false;
        };
        if self.with_attributes {
            // Only "." and ".." may lack attributes, and the kernel uses none of theirs.
            let attr = item.attr.unwrap_or_else(|| bare(item.ino, item.kind));
            out[..ENTRY].copy_from_slice(Layout::new().entry(&attr).bytes());
        }
        let name_len = u32::try_from(item.name.len()).unwrap_or(u32::MAX);
        let fixed = Layout::new()
            .u64(item.ino.0)
            .u64(item.next)
            .u32(name_len)
            .u32(mode(item.kind, 0) >> 12);
        out[entry..entry + DIRECTORY_ENTRY].copy_from_slice(fixed.bytes());
        out[entry + DIRECTORY_ENTRY..end].copy_from_slice(item.name);
        out[end..].fill(0);
        self.len += out.len();
        true
    }

    /// Returns the length of the listing.
    pub(in crate::fuse) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        Attr {
            permissions: 0o4751,
            links: 3,
            uid: 4,
            gid: 5,
            rdev: 6,
            size: 7,
            blocks_512: 8,
            atime: at(-2, 800_000_000),
            mtime: at(10, 11),
            ctime: at(12, 13),
            btime: at(14, 15),
            block_size: 4096,
            ..bare(Ino(9), FileKind::Regular)
        }
    }

    /// Returns the numbers of 32 bits at the offsets that the kernel's header gives them.
    fn at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    #[test]
    fn answers_have_the_lengths_that_the_kernel_demands() {
        let report = SpaceReport {
            block_size: 1,
            blocks: 2,
            blocks_free: 3,
            blocks_available: 4,
            files: 5,
            files_free: 6,
            name_max: 7,
        };
        for (answer, len) in [
            (entry(&attr()), 128),
            (negative_entry(), 128),
            (created(&attr(), Handle::Numbered(1), OpenCache::Pages), 144),
            (attributes(&attr()), 104),
            (statx(&attr()), 288),
            (opened(Handle::Numbered(1), OpenCache::Pages), 16),
            (written(1), 8),
            (size_needed(1), 8),
            (offset_found(1), 8),
            (space(&report), 80),
            (invalidation(Ino(1), 0, 0), 24),
            (Answer::EMPTY, 0),
        ] {
            assert_eq!(answer.bytes().len(), len, "{answer:?}");
        }
    }

    #[test]
    fn inodes_that_got_the_same_number_have_different_generations() {
        let generation_of = |ino, btime| {
            let answer = entry(&Attr {
                ino,
                btime,
                ..attr()
            });
            (at(answer.bytes(), 8), at(answer.bytes(), 12))
        };
        let at = |seconds, nanos| Timestamp { seconds, nanos };
        let times = [
            at(0, 0),
            at(14, 15),
            at(14, 4_000_015),
            at(18, 15),
            at(-1, 15),
        ];
        let all = times.map(|time| generation_of(Ino(9), time));
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{all:?}");
            assert_eq!(one.1, 0, "the kernel keeps 32 bits");
        }
        for time in times {
            assert_eq!(generation_of(Ino::ROOT, time), (0, 0));
        }
    }

    #[test]
    fn attributes_stand_where_the_kernel_reads_them() {
        let answer = attributes(&attr());
        // `fuse_attr` begins behind the time for which it is valid.
        let bytes = &answer.bytes()[16..];
        assert_eq!(bytes[24..32], (-2i64).to_ne_bytes());
        for (offset, expected) in [
            (0, 9),
            (8, 7),
            (16, 8),
            (32, 10),
            (40, 12),
            (48, 800_000_000),
            (52, 11),
            (56, 13),
            (60, 0o104_751),
            (64, 3),
            (68, 4),
            (72, 5),
            (76, 6),
            (80, 4096),
        ] {
            assert_eq!(at(bytes, offset), expected, "offset {offset}");
        }
    }

    #[test]
    fn extended_attributes_stand_where_the_kernel_reads_them() {
        let attr = Attr {
            rdev: 0x1234_5678,
            ..attr()
        };
        let answer = statx(&attr);
        // `fuse_statx` begins behind the time for which it is valid.
        let bytes = &answer.bytes()[32..];
        assert_eq!(bytes[28..30], 0o104_751_u16.to_ne_bytes());
        assert_eq!(bytes[64..72], (-2i64).to_ne_bytes());
        for (offset, expected) in [
            (0, libc::STATX_BASIC_STATS | libc::STATX_BTIME),
            (4, 4096),
            (16, 3),
            (20, 4),
            (24, 5),
            (32, 9),
            (40, 7),
            (48, 8),
            (72, 800_000_000),
            (80, 14),
            (88, 15),
            (96, 12),
            (104, 13),
            (112, 10),
            (120, 11),
            (128, 0x456),
            (132, 0x1_2378),
        ] {
            assert_eq!(at(bytes, offset), expected, "offset {offset}");
        }
        assert_eq!(bytes[136..], [0; 120]);
    }

    #[test]
    fn a_listing_takes_entries_while_they_fit_and_aligns_each() {
        let item = DirItem {
            ino: Ino(5),
            kind: FileKind::Symlink,
            next: 77,
            name: b"abc",
            attr: Some(attr()),
        };
        for (with_attributes, len) in [(false, 32), (true, 160)] {
            for room in 0..3 * len {
                let mut out = vec![0xff; room];
                let mut listing = Listing::new(&mut out, with_attributes);
                let mut taken = 0;
                while listing.add(&item) {
                    taken += 1;
                }
                assert_eq!(taken, room / len, "room {room}");
                assert_eq!(listing.len(), taken * len, "room {room}");
                assert!(out[taken * len..].iter().all(|&byte| byte == 0xff));
                for entry in out.chunks_exact(len).take(taken) {
                    let entry = &entry[len - 32..];
                    assert_eq!((at(entry, 0), at(entry, 8)), (5, 77));
                    assert_eq!((at(entry, 16), at(entry, 20)), (3, libc::S_IFLNK >> 12));
                    assert_eq!(entry[24..32], *b"abc\0\0\0\0\0");
                }
            }
        }
    }
}
