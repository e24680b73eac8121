//! The properties of filesystems by their kind, as `statfs(2)` numbers them.

/// Filesystems that take an operation and answer later, as `statfs(2)` numbers them: ext2 to ext4, XFS, Btrfs,
/// tmpfs, F2FS, ZFS, bcachefs. Others may wait for a server, or for something unknown, in the very call that hands
/// an operation over; FUSE does before the first write to a file.
pub(super) const LOCAL_FILESYSTEMS: [u32; 7] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

/// Filesystems of [`LOCAL_FILESYSTEMS`] in which a write with `RWF_DSYNC` is durable when it returns: ext2 to ext4, XFS,
/// tmpfs. Btrfs before Linux 6.1 lost the sync of such a direct write without waiting (commit 8184620ae212). F2FS may
/// keep the place of a first write in memory. ZFS and bcachefs were not tested.
pub(super) const DURABLE_WRITE_FILESYSTEMS: [u32; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// Filesystems of [`LOCAL_FILESYSTEMS`] that mark reserved space as used when it is first written: ext4, with the number of
/// ext2 and ext3, and XFS. A first durable write of 8 KiB took 1.2 to 2.3 times as long there. On btrfs, space that was
/// written before was no quicker.
pub(super) const MARKING_FILESYSTEMS: [u32; 2] = [0xef53, 0x5846_5342];

/// Filesystems of [`LOCAL_FILESYSTEMS`] that keep everything in memory: tmpfs. Memory that was swapped out has to be
/// waited for, as all memory of this process has.
pub(super) const MEMORY_FILESYSTEMS: [u32; 1] = [0x0102_1994];
