//! The agreement with the kernel when a mount starts.

use std::io;

use rustix::io::Errno;

use super::device::MAX_DATA;
use super::protocol::{Fields, MAJOR, MINOR, Malformed};

/// Read-ahead and writeback requests in flight at once: enough 1 MiB reads for every member.
const MAX_BACKGROUND: u16 = 64;

/// From how many on the kernel takes the mount for congested.
const CONGESTION: u16 = 48;

/// The most bytes that a write may carry.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the assertion below excludes it"
)]
const MAX_WRITE: u32 = MAX_DATA as u32;
const _: () = assert!(MAX_WRITE as usize == MAX_DATA);

/// Returns the most pages of a request. The kernel counts in pages of its own, which have 64 KiB on some machines. It
/// takes an answer that is shorter than its request for a hole, so that a request for more than [`MAX_DATA`] would read
/// zeros.
fn max_pages(page_bytes: usize) -> u16 {
    u16::try_from(MAX_DATA / page_bytes)
        .unwrap_or(u16::MAX)
        .max(1)
}

/// The granularity of times, in nanoseconds.
const TIME_GRANULARITY: u32 = 1;

/// The features of the kernel's connection, by their bits in INIT.
mod feature {
    pub(super) const ASYNC_READ: u64 = 1 << 0;
    pub(super) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(super) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(super) const BIG_WRITES: u64 = 1 << 5;
    pub(super) const DONT_MASK: u64 = 1 << 6;
    pub(super) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(super) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(super) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(super) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const POSIX_ACL: u64 = 1 << 20;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    pub(super) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(super) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(super) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(super) const INIT_EXT: u64 = 1 << 30;
    pub(super) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(super) const OVER_IO_URING: u64 = 1 << 41;
}

/// The features that the filesystem cannot do without; its semantics rest on these.
///
/// - `POSIX_ACL`, `DONT_MASK`: ACLs are checked by the kernel and inherited by us. A default ACL takes the place
///   of the umask, so the umask must come to us unapplied.
const NEEDED: u64 = feature::POSIX_ACL | feature::DONT_MASK;

/// The features that make it fast, each taken where the kernel offers it.
///
/// - `EXPORT_SUPPORT`: a file handle, such as an NFS client has, opens its file also after the kernel has forgotten the
///   inode. The kernel then looks up `.` in any inode, and `..` in directories.
/// - `NO_OPENDIR_SUPPORT`: spares OPENDIR and RELEASEDIR. The kernel then caches listings as after an OPENDIR
///   that is answered with `OpenCache::Listing`.
/// - `HANDLE_KILLPRIV_V2`: spares a GETXATTR(security.capability) on every write(2); we drop the
///   setuid and setgid bits ourselves.
/// - Left out on purpose: `ASYNC_DIO`. The kernel leaves the page cache as it is behind an asynchronous direct write.
///   Buffered reads beside it would go on seeing the old bytes (generic/451 of xfstests). The daemon could have the
///   pages dropped before it answers. But such a write is a background request, of which few are under way at once. The
///   drop may wait for pages of reads that are background requests, too, and find no place among the writes.
/// - Left out on purpose: `AUTO_INVAL_DATA` (we are the only writer), `POSIX_LOCKS` and `FLOCK_LOCKS` (the kernel's own
///   locks are right for one mount).
const WISHED: u64 = feature::ASYNC_READ
    | feature::EXPORT_SUPPORT
    | feature::BIG_WRITES
    | feature::PARALLEL_DIROPS
    | feature::DO_READDIRPLUS
    | feature::READDIRPLUS_AUTO
    | feature::HANDLE_KILLPRIV_V2
    | feature::CACHE_SYMLINKS
    | feature::NO_OPENDIR_SUPPORT
    | feature::DIRECT_IO_ALLOW_MMAP
    | feature::MAX_PAGES
    | feature::INIT_EXT;

/// The features where the kernel is to request each open.
///
/// - `ATOMIC_O_TRUNC`: `open(O_TRUNC)` is one request, so it is one change. A kernel that opens without a request would
///   take the file for cut by that request; without the feature it sets the size, which is one change as well.
const OF_OPEN_REQUESTS: u64 = feature::ATOMIC_O_TRUNC;

/// The features where the kernel is to open regular files without a request.
const OF_OPENING_BY_ITSELF: u64 = feature::NO_OPEN_SUPPORT;

/// The way in which the kernel opens and closes regular files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOpening {
    /// With a request for each. So it is known which files are written to, and how they were opened.
    Requested,
    /// Without a request, which saves one of the two or three that reading a small file takes.
    ByKernel,
}

/// The agreement on opening files and directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileOpens {
    /// The way in which the kernel opens and closes them.
    pub(super) opening: FileOpening,
    /// The kernel opens and closes directories without a request.
    pub(super) directories_by_kernel: bool,
    /// Programs can map a file also while it is opened past the page cache.
    pub(super) maps_direct: bool,
}

/// The things that a mount asks of the kernel beyond its own needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// Let the kernel collect small writes.
    pub(super) writeback: bool,
    /// Send requests over `io_uring`.
    pub(super) uring: bool,
    /// Open regular files in this way.
    pub(super) opening: FileOpening,
}

/// The kernel's side of the agreement, as its INIT states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    major: u32,
    minor: u32,
    max_read_ahead: u32,
    features: u64,
}

/// Returns the lower and the upper half of features, as INIT has them.
fn halves(features: u64) -> [u32; 2] {
    let bytes = features.to_le_bytes();
    let half = |start: usize| std::array::from_fn(|i| bytes[start + i]);
    [u32::from_le_bytes(half(0)), u32::from_le_bytes(half(4))]
}

/// The body of an answer to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    body: [u8; 64],
    features: u64,
}

impl Agreement {
    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.body
    }

    /// Returns the way in which the kernel opens regular files.
    pub(super) fn opening(&self) -> FileOpening {
        if self.features & feature::NO_OPEN_SUPPORT == 0 {
            FileOpening::Requested
        } else {
            FileOpening::ByKernel
        }
    }

    /// Returns the agreement on opening files and directories.
    pub(super) fn file_opens(&self) -> FileOpens {
        FileOpens {
            opening: self.opening(),
            directories_by_kernel: self.features & feature::NO_OPENDIR_SUPPORT != 0,
            maps_direct: self.features & feature::DIRECT_IO_ALLOW_MMAP != 0,
        }
    }

    /// Returns whether the kernel writes back and reports failed writes when a file is closed, also without FLUSH. Before
    /// Linux 5.8 it does not; the feature is of 5.11.
    pub(super) fn closes_by_itself(&self) -> bool {
        self.features & feature::HANDLE_KILLPRIV_V2 != 0
    }

    /// Returns whether requests come over `io_uring`, once every queue is registered.
    pub(super) fn is_over_uring(&self) -> bool {
        self.features & feature::OVER_IO_URING != 0
    }
}

impl Offer {
    /// Reads the body of an INIT.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if something is missing.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(body);
        let (major, minor) = (fields.u32()?, fields.u32()?);
        let (max_read_ahead, low) = (fields.u32()?, u64::from(fields.u32()?));
        let high = if low & feature::INIT_EXT == 0 {
            0
        } else {
            u64::from(fields.u32()?)
        };
        Ok(Self {
            major,
            minor,
            max_read_ahead,
            features: high << 32 | low,
        })
    }

    /// Returns whether the kernel speaks a later major version. Then it has to be told ours, and asks once more.
    pub(super) fn is_of_later_version(&self) -> bool {
        self.major > MAJOR
    }

    /// Settles features and sizes. A wish that the kernel cannot meet is left out.
    ///
    /// # Errors
    ///
    /// `ENOSYS` if the kernel lacks something that the filesystem's semantics rest on.
    pub(super) fn agree(&self, wish: Wish) -> io::Result<Agreement> {
        let opens_by_itself =
            wish.opening == FileOpening::ByKernel && self.features & OF_OPENING_BY_ITSELF != 0;
        let of_opening = if opens_by_itself {
            OF_OPENING_BY_ITSELF
        } else {
            OF_OPEN_REQUESTS
        };
        let needed = NEEDED | of_opening;
        let lacking = needed & !self.features;
        if self.major < MAJOR || lacking != 0 {
            tracing::error!(
                "this kernel's FUSE ({}.{}) lacks features {lacking:#x}; Linux 4.9 or newer is needed",
                self.major,
                self.minor
            );
            return Err(Errno::NOSYS.into());
        }
        let if_wished = |is_wished, feature| if is_wished { feature } else { 0 };
        let writeback = if_wished(wish.writeback, feature::WRITEBACK_CACHE);
        let uring = if_wished(wish.uring, feature::OVER_IO_URING);
        let wanted = needed | WISHED | writeback | uring;
        let left_out = wanted & !self.features;
        if left_out != 0 {
            tracing::debug!("the kernel does without features {left_out:#x}");
        }
        Ok(self.reply(wanted & self.features))
    }

    /// Returns the answer that names the version and nothing else.
    pub(super) fn version_only(&self) -> Agreement {
        self.reply(0)
    }

    fn reply(&self, features: u64) -> Agreement {
        let [low, high] = halves(features);
        let mut reply = [0; 64];
        let mut len = 0;
        let mut put = |bytes: &[u8]| {
            reply[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        put(&MAJOR.to_ne_bytes());
        put(&self.minor.min(MINOR).to_ne_bytes());
        put(&self.max_read_ahead.to_ne_bytes());
        put(&low.to_ne_bytes());
        put(&MAX_BACKGROUND.to_ne_bytes());
        put(&CONGESTION.to_ne_bytes());
        put(&MAX_WRITE.to_ne_bytes());
        put(&TIME_GRANULARITY.to_ne_bytes());
        put(&max_pages(rustix::param::page_size()).to_ne_bytes());
        // The alignment of DAX mappings, which are not used.
        put(&0u16.to_ne_bytes());
        put(&high.to_ne_bytes());
        Agreement {
            body: reply,
            features,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_request_has_as_many_bytes_whatever_the_size_of_a_page() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            assert_eq!(usize::from(max_pages(page_bytes)) * page_bytes, MAX_DATA);
        }
    }

    fn offer(features: u64) -> Offer {
        let mut body = Vec::new();
        let [low, high] = halves(features);
        for number in [7, 45, 131_072, low, high] {
            body.extend(number.to_ne_bytes());
        }
        Offer::parse(&body).unwrap()
    }

    fn agreed(agreement: &Agreement) -> u64 {
        let at = |offset: usize| {
            let bytes = agreement.bytes()[offset..offset + 4].try_into().unwrap();
            u64::from(u32::from_ne_bytes(bytes))
        };
        at(32) << 32 | at(12)
    }

    const WISH: Wish = Wish {
        writeback: true,
        uring: false,
        opening: FileOpening::Requested,
    };

    #[test]
    fn only_what_both_sides_have_is_agreed_on() {
        let needed = NEEDED | OF_OPEN_REQUESTS;
        let all = offer(u64::MAX).agree(WISH).unwrap();
        assert_eq!(agreed(&all), needed | WISHED | feature::WRITEBACK_CACHE);
        let writeback = false;
        let without = offer(u64::MAX).agree(Wish { writeback, ..WISH }).unwrap();
        assert_eq!(agreed(&without), needed | WISHED);
        let old = offer(needed | feature::ASYNC_READ).agree(WISH).unwrap();
        assert_eq!(agreed(&old), needed | feature::ASYNC_READ);
    }

    #[test]
    fn an_old_kernel_is_not_trusted_to_report_failed_writes_without_being_asked() {
        for (features, is_trusted) in [(u64::MAX, true), (!feature::HANDLE_KILLPRIV_V2, false)] {
            let agreement = offer(features).agree(WISH).unwrap();
            assert_eq!(agreement.closes_by_itself(), is_trusted);
        }
    }

    #[test]
    fn a_kernel_opens_without_requests_if_both_sides_want_that_and_then_no_request_cuts_a_file() {
        let opening = FileOpening::ByKernel;
        for (features, is_without) in [(u64::MAX, true), (!feature::NO_OPEN_SUPPORT, false)] {
            let agreement = offer(features).agree(Wish { opening, ..WISH }).unwrap();
            assert_eq!(agreement.opening() == opening, is_without);
            let is_cut = agreed(&agreement) & feature::ATOMIC_O_TRUNC != 0;
            assert_eq!(is_cut, !is_without);
        }
        let asked = offer(u64::MAX).agree(WISH).unwrap();
        assert_eq!(asked.opening(), FileOpening::Requested);
    }

    #[test]
    fn a_kernel_opens_directories_by_itself_if_it_can() {
        for (features, can) in [(u64::MAX, true), (!feature::NO_OPENDIR_SUPPORT, false)] {
            let agreement = offer(features).agree(WISH).unwrap();
            assert_eq!(agreement.file_opens().directories_by_kernel, can);
        }
    }

    #[test]
    fn requests_come_over_io_uring_only_if_both_sides_want_that() {
        let agree = |features, uring| offer(features).agree(Wish { uring, ..WISH }).unwrap();
        for (offered, wanted) in [(true, true), (true, false), (false, true), (false, false)] {
            let features = if offered {
                u64::MAX
            } else {
                !feature::OVER_IO_URING
            };
            let agreement = agree(features, wanted);
            let told = agreed(&agreement) & feature::OVER_IO_URING != 0;
            assert_eq!(told, offered && wanted);
            assert_eq!(agreement.is_over_uring(), told);
        }
    }

    #[test]
    fn a_kernel_without_a_needed_feature_is_refused() {
        for bit in (0..64)
            .map(|bit| 1u64 << bit)
            .filter(|bit| (NEEDED | OF_OPEN_REQUESTS) & bit != 0)
        {
            let refused = offer(!bit).agree(WISH).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS), "{bit:#x}");
        }
    }

    #[test]
    fn features_beyond_32_count_only_if_the_kernel_says_that_it_has_such() {
        let old = offer(!feature::INIT_EXT);
        assert_eq!(old.features >> 32, 0);
    }

    #[test]
    fn sizes_stand_where_the_kernel_reads_them() {
        let agreement = offer(u64::MAX).agree(WISH).unwrap();
        let bytes = agreement.bytes();
        assert_eq!(bytes[..4], 7u32.to_ne_bytes());
        assert_eq!(bytes[4..8], 42u32.to_ne_bytes());
        assert_eq!(bytes[16..18], 64u16.to_ne_bytes());
        assert_eq!(bytes[18..20], 48u16.to_ne_bytes());
        assert_eq!(bytes[20..24], (1u32 << 20).to_ne_bytes());
        assert_eq!(bytes[24..28], 1u32.to_ne_bytes());
        assert_eq!(bytes[28..30], 256u16.to_ne_bytes());
    }
}
