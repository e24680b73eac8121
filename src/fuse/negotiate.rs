//! The agreement with the kernel when a mount starts.

use std::io;

use fuser::{InitFlags, KernelConfig};

/// Bytes of the largest WRITE and READ; the kernel's own limit is the same by default.
const MAX_WRITE: u32 = 1 << 20;

/// Read-ahead and writeback requests in flight at once: enough 1 MiB reads for every member.
const MAX_BACKGROUND: u16 = 64;

/// From how many on the kernel takes the mount for congested.
const CONGESTION: u16 = 48;

/// The features that the filesystem cannot do without; its semantics rest on these.
///
/// - `POSIX_ACL`, `DONT_MASK`: ACLs are checked by the kernel and inherited by us. A default ACL takes the place
///   of the umask, so the umask must come to us unapplied.
/// - `ATOMIC_O_TRUNC`: `open(O_TRUNC)` is one request, so it is one change.
const NEEDED: InitFlags = InitFlags::FUSE_POSIX_ACL
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_ATOMIC_O_TRUNC);

/// The features that make it fast, each taken where the kernel offers it.
///
/// - `HANDLE_KILLPRIV_V2`: spares a GETXATTR(security.capability) on every write(2); we drop the
///   setuid and setgid bits ourselves.
/// - Left out on purpose: `ASYNC_DIO`. The kernel leaves the page cache as it is behind an asynchronous direct write.
///   Buffered reads beside it would so go on seeing the old bytes (generic/451 of xfstests).
/// - Left out on purpose: `AUTO_INVAL_DATA` (we are the only writer), `SETXATTR_EXT` (fuser 0.18
///   panics), `POSIX_LOCKS` and `FLOCK_LOCKS` (the kernel's own locks are right for one mount).
const WISHED: [InitFlags; 8] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_ASYNC_READ,
];

/// Settles flags and sizes with the kernel.
///
/// # Errors
///
/// `ENOSYS` if the kernel lacks something that the filesystem's semantics rest on.
pub(super) fn negotiate(config: &mut KernelConfig, writeback: bool) -> io::Result<()> {
    config.add_capabilities(NEEDED).map_err(|lacking| {
        log::error!("this kernel's FUSE lacks {lacking:?}; Linux 4.9 or newer is needed");
        io::Error::from_raw_os_error(libc::ENOSYS)
    })?;
    let writeback = writeback.then_some(InitFlags::FUSE_WRITEBACK_CACHE);
    for flag in WISHED.into_iter().chain(writeback) {
        if let Err(lacking) = config.add_capabilities(flag) {
            log::debug!("the kernel does without {lacking:?}");
        }
    }
    let sizes = [
        config.set_max_write(MAX_WRITE),
        config
            .set_max_background(MAX_BACKGROUND)
            .map(u32::from)
            .map_err(u32::from),
        config
            .set_congestion_threshold(CONGESTION)
            .map(u32::from)
            .map_err(u32::from),
    ];
    for nearest in sizes.into_iter().filter_map(Result::err) {
        log::warn!("the kernel connection takes {nearest} at most where more was wanted");
    }
    Ok(())
}
