//! The values of the index, as types. How they are encoded is in the modules named beside them.

use super::{Cookie, Ino, MemberIndex, SegmentId, ShardIndex, StripeId};

/// Nanoseconds and seconds since the epoch; `nanos < 1_000_000_000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01T00:00:00Z, negative before.
    pub seconds: i64,
    /// Nanoseconds after `seconds`.
    pub nanos: u32,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// Bytes that an inode carries in its own record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inline {
    /// None: a regular file's bytes are in extents, a directory's entries under their own keys.
    None,
    /// All bytes of a small regular file, as long as the file's size or shorter (the rest is zeros).
    Data(Vec<u8>),
    /// A symbolic link's target.
    Target(Vec<u8>),
}

/// An inode: `b'i' ino`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, setuid, setgid and sticky: the low 12 bits of `st_mode`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; for a directory 2 plus its subdirectories; 0 once unlinked and still open.
    pub links: u32,
    /// Device number of a device node, as `makedev` packs it; else 0.
    pub rdev: u32,
    /// Size in bytes, up to 2⁶³−1.
    pub size: u64,
    /// Bytes held in extents (for `st_blocks`).
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// A directory's parent; for anything else [`Ino`] 0.
    pub parent: Ino,
    /// A directory's next free readdir cookie; else 0.
    pub next_cookie: Cookie,
    /// Bytes carried in this record.
    pub inline: Inline,
}

/// A directory entry by name: `b'd' parent name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent {
    /// The inode it names.
    pub ino: Ino,
    /// What that inode is.
    pub kind: FileKind,
    /// Its position for readdir.
    pub cookie: Cookie,
}

/// A directory entry by position: `b'c' parent cookie`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The inode it names.
    pub ino: Ino,
    /// What that inode is.
    pub kind: FileKind,
    /// The name: 1 to 255 bytes without `/` and NUL.
    pub name: Vec<u8>,
}

/// A run of a file's bytes inside a stripe: `b'e' ino end`, keyed by where it *ends*, so that the
/// extent covering byte `o`, or the next one after it, is the first with `end > o`: one forward seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, never 0; the run starts at `end - len`.
    pub len: u64,
    /// The stripe that holds it.
    pub stripe: StripeId,
    /// Where in the stripe's payload it starts.
    pub stripe_offset: u32,
}

/// Stripe → extent, for compaction and for naming the files hit by a loss: `b'r' stripe ino end`.
/// Written and removed in the same batch as its extent. A stripe without any is dead, and stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backref {
    /// Length of the extent in bytes.
    pub len: u64,
    /// Where in the stripe's payload it starts.
    pub stripe_offset: u32,
}

/// A set of shards of one stripe, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardSet(pub [u64; 4]);

impl ShardSet {
    /// Adds a shard.
    pub fn insert(&mut self, shard: ShardIndex) {
        self.0[usize::from(shard.0 >> 6)] |= 1 << (shard.0 & 63);
    }

    /// Takes a shard out.
    pub fn remove(&mut self, shard: ShardIndex) {
        self.0[usize::from(shard.0 >> 6)] &= !(1 << (shard.0 & 63));
    }

    /// Says whether a shard is in.
    #[must_use]
    pub fn contains(&self, shard: ShardIndex) -> bool {
        self.0[usize::from(shard.0 >> 6)] >> (shard.0 & 63) & 1 == 1
    }

    /// Counts its shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Says whether it has no shard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }
}

/// A stripe: `b't' stripe`. Data shard `i` is the slice `[i·height, (i+1)·height)` of the payload,
/// padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Where it lies now.
    pub segment: SegmentId,
    /// Offset of every one of its shards in the segment's files; a multiple of the block size.
    pub offset: u64,
    /// Bytes of each shard; a multiple of the block size.
    pub height: u32,
    /// Bytes of data, at most `height × data shards`.
    pub payload_len: u32,
    /// How far the shards rotate: shard `i` lies in slot `(i + rotation) % total` of the segment.
    pub rotation: u8,
    /// Shards that were written and synced. One beyond the payload's end is all zeros and is never
    /// written nor counted as missing (see [`Stripe::is_implied`]).
    pub written: ShardSet,
}

impl Stripe {
    /// Says whether data shard `shard` lies wholly beyond the payload: it is zeros, lies on no member
    /// and is never lost.
    #[must_use]
    pub fn is_implied(&self, shard: ShardIndex, data_shards: usize) -> bool {
        let index = usize::from(shard.0);
        index < data_shards && index as u64 * u64::from(self.height) >= u64::from(self.payload_len)
    }
}

/// Checksums of one shard of a stripe: `b'k' stripe shard`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSums(pub Vec<u32>);

/// A segment: `b's' segment`. Which stripes are in it is under `b'g' segment offset` → [`StripeId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Data shards of each stripe in it.
    pub data_shards: u8,
    /// Parity shards of each stripe in it.
    pub parity_shards: u8,
    /// The code's number ([`crate::codec::CodeId`]).
    pub code: u16,
    /// Bytes of each of its files.
    pub len: u64,
    /// The member that holds each slot, or `None` where there was no member left to take it.
    pub slots: Vec<Option<MemberIndex>>,
}

/// A stripe that lacks shards: `b'l' (255 − losses still tolerated) stripe`, so that the most endangered come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairNote {
    /// The shards that were never written or are known to be bad.
    pub missing: ShardSet,
}
