//! Plain files on the filesystems of members: the limit of what a striping filesystem over these can reach.
//!
//! A write goes in parts into a data file for each data shard of a stripe. Each parity shard has a parity file, with as
//! many bytes as the first part. There are no checksums, no code and no metadata. A read takes as many bytes from the data
//! files as a stripe there would give, whichever bytes these are.
//!
//! # Invariants
//!
//! - The files have no names, so that none is left behind: [`PlainFiles::create`] removes each name at once.
//! - No file becomes longer than [`PlainShape::file_bytes`], because offsets start again at [`PlainShape::reuse_bytes`].
//! - After a failure every call fails, because bytes of other callers may be lost with those of the failed one.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use uuid::Uuid;

use crate::codec::WorkerPool;
use crate::fs::FsError;
use crate::fuse::device::MAX_DATA;
use crate::workers::Workers;

/// The beginning of the name of a file.
const NAME: &str = "cauchyfs-bench-plain-";

/// The bytes of the record of a sync, and the unit of offsets.
const BLOCK: usize = 4096;

/// The most bytes for each data file that small writes wait for. More of them would hardly save time, and need more of
/// the CPU's cache.
const MOST_GATHERED: usize = 64 << 10;

/// The numbers that plain files take from a volume, and the bytes that they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainShape {
    /// The data shards of a stripe.
    pub data: usize,
    /// The parity shards of a stripe.
    pub parity: usize,
    /// The most bytes of one shard.
    pub unit_bytes: u32,
    /// The bytes that programs have in files at once. Those that come after them overwrite the first.
    pub bytes: u64,
}

impl PlainShape {
    /// Returns the bytes that each file has at most.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        // The last write may begin just before the end.
        self.reuse_bytes() + (MAX_DATA + BLOCK) as u64
    }

    /// Returns the offset at which offsets of a file start again.
    fn reuse_bytes(&self) -> u64 {
        let share = self.bytes.div_ceil(self.data.max(1) as u64);
        share.max(1).next_multiple_of(BLOCK as u64)
    }

    /// Returns the bytes that go out at once: a stripe, or fewer that cost no more time each. The largest request of the
    /// kernel is enough where whole blocks allow that.
    fn stripe_bytes(&self) -> usize {
        let unit = usize::try_from(self.unit_bytes).unwrap_or(usize::MAX);
        let share = MAX_DATA / self.data / BLOCK * BLOCK;
        self.data * unit.min(MOST_GATHERED).min(share).max(BLOCK)
    }
}

/// The open files. Several threads may write at once.
#[derive(Debug)]
pub struct PlainFiles {
    /// The data files, then the parity files.
    files: Vec<PlainFile>,
    data: usize,
    unit_bytes: u64,
    stripe_bytes: usize,
    reuse_bytes: u64,
    /// The offset of the next write, counted without starting again.
    next: AtomicU64,
    /// Small writes that no file has yet.
    gathered: Mutex<Vec<u8>>,
    /// The lock of the one sync that runs. It is taken before `gathered`.
    syncing: Mutex<()>,
    /// The number of syncs that have begun.
    begun: AtomicU64,
    /// The threads that sync several files at once.
    workers: Workers,
    has_failed: AtomicBool,
}

#[derive(Debug)]
struct PlainFile {
    file: File,
    /// Whether it has bytes that no sync has begun to cover.
    is_dirty: AtomicBool,
}

impl PlainFiles {
    /// Makes a file in each of `directories`, and removes its name. There is one directory for each shard.
    ///
    /// # Errors
    ///
    /// If a file cannot be made, or there are other numbers of shards.
    pub fn create(directories: &[PathBuf], shape: PlainShape) -> io::Result<Self> {
        let PlainShape { data, parity, .. } = shape;
        if data == 0 || data.checked_add(parity) != Some(directories.len()) {
            let given = directories.len();
            let what = format!("{given} directories are not those of {data}+{parity} shards");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let files: io::Result<Vec<File>> = directories.iter().map(|path| nameless(path)).collect();
        Self::over(files?, shape)
    }

    fn over(files: Vec<File>, shape: PlainShape) -> io::Result<Self> {
        let in_memory: io::Result<Vec<bool>> = files.iter().map(is_in_memory).collect();
        // In memory a sync takes less time than the wake of a thread.
        let all_in_memory = in_memory?.into_iter().all(|is_there| is_there);
        let width = if all_in_memory { 1 } else { files.len() };
        let files = files.into_iter().map(|file| PlainFile {
            file,
            is_dirty: AtomicBool::new(false),
        });
        Ok(Self {
            files: files.collect(),
            data: shape.data,
            unit_bytes: u64::from(shape.unit_bytes).max(BLOCK as u64),
            stripe_bytes: shape.stripe_bytes(),
            reuse_bytes: shape.reuse_bytes(),
            next: AtomicU64::new(0),
            gathered: Mutex::new(Vec::with_capacity(2 * shape.stripe_bytes())),
            syncing: Mutex::new(()),
            begun: AtomicU64::new(0),
            workers: Workers::new(width).map_err(io::Error::other)?,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Writes bytes. Those of small writes wait for a sync, or until they are enough for a stripe.
    ///
    /// # Errors
    ///
    /// `NoSpace`, or another reason why a file cannot be written. Every call after that fails as well.
    pub(super) fn write(&self, data: &[u8]) -> Result<(), FsError> {
        self.check()?;
        if data.len() >= self.stripe_bytes {
            return self.judge(self.put(data, &[]));
        }
        let mut gathered = self.gathered.lock();
        gathered.extend_from_slice(data);
        if gathered.len() < self.stripe_bytes {
            return Ok(());
        }
        let put = self.put(&gathered, &[]);
        gathered.clear();
        self.judge(put)
    }

    /// Reads units of stripes from the data files in turn, as many bytes as `out` takes. The units from `offset` on are those
    /// that a file of which all bytes are in order would have. They hold what the last writes left there, or zeros.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or as [`Self::write`] after a failure.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), FsError> {
        self.check()?;
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (unit, within) = (at / self.unit_bytes, at % self.unit_bytes);
            let of_unit = usize::try_from(self.unit_bytes - within).unwrap_or(usize::MAX);
            let (part, others) = rest.split_at_mut(of_unit.min(rest.len()));
            let (row, column) = (unit / self.data as u64, unit % self.data as u64);
            let place = (row * self.unit_bytes + within) % self.reuse_bytes;
            let file = &self.files[usize::try_from(column).unwrap_or_default()];
            file.read(place, part).map_err(FsError::Io)?;
            at += part.len() as u64;
            rest = others;
        }
        Ok(())
    }

    /// Makes durable what was written before. The bytes that wait go out, with a record beside them that survives the
    /// loss of as many files as there are parity files. One sync runs at a time, and serves all that were called before
    /// it began.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    pub(super) fn sync(&self) -> Result<(), FsError> {
        self.sync_since(self.begun.load(Ordering::Acquire))
    }

    /// Does the same for a caller at whose call `begun_before` syncs had begun.
    fn sync_since(&self, begun_before: u64) -> Result<(), FsError> {
        let _alone = self.syncing.lock();
        self.check()?;
        // No other runs now, so one that began since that call has ended.
        if self.begun.load(Ordering::Acquire) > begun_before {
            return Ok(());
        }
        let begun = self.begin_sync();
        self.judge(begun.and_then(|()| self.sync_files()))
    }

    /// Begins a sync: writes the bytes that wait and a record beside them, if any file has or gets new bytes.
    fn begin_sync(&self) -> io::Result<()> {
        // Counted before it takes bytes, because a caller that counts it may have written others.
        self.begun.fetch_add(1, Ordering::AcqRel);
        let mut gathered = self.gathered.lock();
        let is_dirty = |file: &PlainFile| file.is_dirty.load(Ordering::Acquire);
        if gathered.is_empty() && !self.files.iter().any(is_dirty) {
            return Ok(());
        }
        let put = self.put(&gathered, &[0; BLOCK]);
        gathered.clear();
        put
    }

    /// Syncs the files that have new bytes, all of them at once.
    fn sync_files(&self) -> io::Result<()> {
        let is_due = |file: &&PlainFile| file.is_dirty.swap(false, Ordering::AcqRel);
        let due: Vec<&PlainFile> = self.files.iter().filter(is_due).collect();
        let failure = Mutex::new(None);
        self.workers.run(due.len(), &|index| {
            if let Err(error) = due[index].file.sync_data() {
                *failure.lock() = Some(error);
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Writes bytes to the data files in equal parts of whole blocks, and as many as the first part to each parity file.
    /// `record` follows in the first data file and in the parity files.
    fn put(&self, data: &[u8], record: &[u8]) -> io::Result<()> {
        let height = data.len().div_ceil(self.data).next_multiple_of(BLOCK);
        let taken = (height + record.len()) as u64;
        let offset = self.next.fetch_add(taken, Ordering::Relaxed) % self.reuse_bytes;
        let (data_files, parity_files) = self.files.split_at(self.data);
        let mut parts = data.chunks(height.max(BLOCK));
        let first = parts.next().unwrap_or_default();
        data_files[0].write(offset, first, record)?;
        for (file, part) in data_files[1..].iter().zip(parts) {
            file.write(offset, part, &[])?;
        }
        let mut parity_files = parity_files.iter();
        parity_files.try_for_each(|file| file.write(offset, first, record))
    }

    fn check(&self) -> Result<(), FsError> {
        if self.has_failed.load(Ordering::Acquire) {
            let what = "an earlier write to the plain files failed";
            return Err(FsError::Io(io::Error::other(what)));
        }
        Ok(())
    }

    /// Has all later calls fail after a failure.
    fn judge(&self, outcome: io::Result<()>) -> Result<(), FsError> {
        outcome.map_err(|error| {
            if !self.has_failed.swap(true, Ordering::AcqRel) {
                tracing::error!("a plain file beside a member cannot be written: {error}");
            }
            match error.kind() {
                io::ErrorKind::StorageFull => FsError::NoSpace,
                io::ErrorKind::QuotaExceeded => FsError::QuotaExceeded,
                _ => FsError::Io(error),
            }
        })
    }
}

impl PlainFile {
    /// Fills `out` from `offset` on, with zeros behind the end.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => {
                    out[done..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes two parts, one after the other.
    fn write(&self, mut offset: u64, first: &[u8], second: &[u8]) -> io::Result<()> {
        let mut parts = [IoSlice::new(first), IoSlice::new(second)];
        let mut left = &mut parts[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match rustix::io::pwritev(&self.file, left, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    IoSlice::advance_slices(&mut left, count);
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // After the bytes: a sync that clears the flag covers them.
        self.is_dirty.store(true, Ordering::Release);
        Ok(())
    }
}

/// Makes a file that has no name in `directory`.
fn nameless(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!("{NAME}{}", Uuid::new_v4()));
    let named = |error: io::Error| {
        let what = format!("cannot make {}: {error}", path.display());
        io::Error::new(error.kind(), what)
    };
    let mut options = File::options();
    options.read(true).write(true);
    options.create_new(true).mode(0o600);
    let file = options.open(&path).map_err(named)?;
    fs::remove_file(&path).map_err(named)?;
    Ok(file)
}

/// Returns whether a file lies in memory, so that a sync has nothing to do.
fn is_in_memory(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == libc::TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    const UNIT: usize = 8192;

    /// The bytes of a write that waits for others.
    const SMALL: usize = 100;

    const SHAPE: PlainShape = PlainShape {
        data: 4,
        parity: 2,
        unit_bytes: 8192,
        bytes: 1 << 20,
    };

    fn plain(home: &Path, shape: PlainShape) -> PlainFiles {
        let count = shape.data + shape.parity;
        let directories: Vec<PathBuf> = (0..count).map(|n| home.join(format!("d{n}"))).collect();
        for path in &directories {
            fs::create_dir(path).unwrap();
        }
        let files = PlainFiles::create(&directories, shape).unwrap();
        for path in &directories {
            assert_eq!(fs::read_dir(path).unwrap().count(), 0, "a name is left");
        }
        files
    }

    /// Returns the bytes of each file.
    fn bytes(plain: &PlainFiles) -> Vec<Vec<u8>> {
        let files = plain.files.iter();
        let read = |file: &PlainFile| {
            fs::read(format!("/proc/self/fd/{}", file.file.as_raw_fd())).unwrap()
        };
        files.map(read).collect()
    }

    fn lengths(plain: &PlainFiles) -> Vec<usize> {
        bytes(plain).iter().map(Vec::len).collect()
    }

    /// Returns bytes that tell their place.
    fn pattern(len: usize) -> Vec<u8> {
        let runs = (1..=251).cycle().flat_map(|byte| [byte; 100]);
        runs.take(len).collect()
    }

    #[test]
    fn a_stripe_goes_out_at_once_in_equal_parts_and_half_as_much_again_to_the_parity_files() {
        let home = tempfile::tempdir().unwrap();
        let plain = plain(home.path(), SHAPE);
        let data = pattern(8 * UNIT);
        plain.write(&data).unwrap();
        let parts: Vec<&[u8]> = data.chunks(2 * UNIT).collect();
        let expected = [parts[0], parts[1], parts[2], parts[3], parts[0], parts[0]];
        assert_eq!(bytes(&plain), expected);
        assert_eq!(lengths(&plain).iter().sum::<usize>(), data.len() * 3 / 2);
        // It is followed by the next.
        plain.write(&data[..4 * UNIT]).unwrap();
        assert_eq!(lengths(&plain), [3 * UNIT; 6]);
        assert_eq!(bytes(&plain)[1][2 * UNIT..], data[UNIT..2 * UNIT]);
    }

    #[test]
    fn a_read_takes_units_of_the_data_files_in_turn_and_zeros_behind_their_ends() {
        let home = tempfile::tempdir().unwrap();
        let plain = plain(home.path(), SHAPE);
        let data = pattern(8 * UNIT);
        // Each goes into a row of units of its own.
        data.chunks(4 * UNIT)
            .for_each(|stripe| plain.write(stripe).unwrap());
        let mut out = vec![9; data.len()];
        plain.read(0, &mut out).unwrap();
        assert!(out == data);
        for (offset, len) in [(0, 1), (UNIT - 1, 2), (100, 5 * UNIT), (4 * UNIT - 1, 4097)] {
            let mut out = vec![9; len];
            plain.read(offset as u64, &mut out).unwrap();
            assert!(out == data[offset..offset + len], "{offset}");
        }
        let mut out = vec![9; 2 * UNIT];
        plain.read(7 * UNIT as u64, &mut out).unwrap();
        assert!(out == [&data[7 * UNIT..], &[0; UNIT]].concat());
        // Far behind the bytes that programs have at once, it starts again.
        let (round, unit) = (SHAPE.reuse_bytes(), UNIT as u64);
        let mut out = vec![9; UNIT];
        plain.read(round / unit * 4 * unit, &mut out).unwrap();
        assert!(out == data[..UNIT]);
    }

    #[test]
    fn small_writes_wait_until_they_are_a_stripe() {
        let home = tempfile::tempdir().unwrap();
        let plain = plain(home.path(), SHAPE);
        let data = pattern(4 * UNIT);
        let (others, last) = data.split_at(data.len() - 100);
        for part in others.chunks(5000) {
            plain.write(part).unwrap();
        }
        assert_eq!(lengths(&plain), [0; 6]);
        plain.write(last).unwrap();
        assert_eq!(lengths(&plain), [UNIT; 6]);
        let found = bytes(&plain);
        assert_eq!(found[..4].concat(), data);
        assert!(found[4..].iter().all(|parity| *parity == data[..UNIT]));
    }

    #[test]
    fn a_sync_writes_what_waits_and_a_record_to_one_file_more_than_may_be_lost() {
        let home = tempfile::tempdir().unwrap();
        let plain = plain(home.path(), SHAPE);
        plain.sync().unwrap();
        assert_eq!(lengths(&plain), [0; 6], "there was nothing to sync");
        let data = pattern(5000);
        plain.write(&data).unwrap();
        plain.sync().unwrap();
        let (first, rest) = data.split_at(BLOCK);
        let with_record = [first, &[0; BLOCK]].concat();
        let (own, parity) = (with_record.as_slice(), with_record.as_slice());
        assert_eq!(bytes(&plain), [own, rest, &[], &[], parity, parity]);
        assert!(is_clean(&plain));
        // Nothing is new.
        plain.sync().unwrap();
        assert_eq!(
            lengths(&plain),
            [2 * BLOCK, 904, 0, 0, 2 * BLOCK, 2 * BLOCK]
        );
        // A stripe that is out already needs the record alone.
        plain.write(&pattern(4 * UNIT)).unwrap();
        plain.sync().unwrap();
        let end = 2 * BLOCK + UNIT;
        let record = end + BLOCK;
        assert_eq!(lengths(&plain), [record, end, end, end, record, record]);
    }

    #[test]
    fn offsets_start_again_so_that_no_file_exceeds_its_bound() {
        let home = tempfile::tempdir().unwrap();
        let shape = PlainShape {
            bytes: 100_000,
            ..SHAPE
        };
        let plain = plain(home.path(), shape);
        assert_eq!(shape.reuse_bytes(), 28_672);
        let stripe = pattern(4 * UNIT);
        for round in 0..100 {
            plain.write(&stripe).unwrap();
            plain.sync().unwrap();
            let longest = lengths(&plain).into_iter().max().unwrap() as u64;
            assert!(longest < 28_672 + (UNIT + BLOCK) as u64, "{round}");
            assert!(longest <= shape.file_bytes());
        }
        // The largest write, at the largest offset.
        let plain = plain_of_one(home.path(), shape);
        let end = shape.bytes.next_multiple_of(BLOCK as u64) - BLOCK as u64;
        plain.next.store(end, Ordering::Relaxed);
        plain.write(&vec![1; MAX_DATA]).unwrap();
        plain.write(&[1]).unwrap();
        plain.sync().unwrap();
        let one = PlainShape { data: 1, ..shape };
        let longest = lengths(&plain)[0] as u64;
        assert!(longest > MAX_DATA as u64 && longest <= one.file_bytes());
    }

    fn plain_of_one(home: &Path, shape: PlainShape) -> PlainFiles {
        let (data, parity) = (1, 0);
        let shape = PlainShape {
            data,
            parity,
            ..shape
        };
        PlainFiles::create(&[home.to_owned()], shape).unwrap()
    }

    #[test]
    fn threads_that_write_at_once_lose_no_byte() {
        let home = tempfile::tempdir().unwrap();
        let shape = PlainShape {
            bytes: 64 << 20,
            ..SHAPE
        };
        let plain = plain(home.path(), shape);
        thread::scope(|scope| {
            for thread in 1..=8 {
                let plain = &plain;
                scope.spawn(move || {
                    for round in 0..20 {
                        let len = [4 * UNIT, 1000][round % 2];
                        plain.write(&vec![thread; len]).unwrap();
                        if round % 5 == 4 {
                            plain.sync().unwrap();
                        }
                    }
                });
            }
        });
        plain.sync().unwrap();
        let found = bytes(&plain);
        let mut counts = [0; 9];
        for byte in found[..4].iter().flatten() {
            counts[usize::from(*byte)] += 1;
        }
        assert_eq!(counts[1..], [10 * (4 * UNIT + 1000); 8]);
    }

    /// The callers that sync at once, by the byte that each of them writes.
    const CALLERS: std::ops::RangeInclusive<u8> = 1..=8;

    /// Has callers write, and sync once all have called. Each runs `check` after that. Returns the outcomes of the syncs.
    fn sync_at_once(plain: &PlainFiles, check: &(dyn Fn(u8) + Sync)) -> Vec<Result<(), FsError>> {
        let all_called = Barrier::new(CALLERS.len());
        let call = |caller| {
            let written = plain.write(&[caller; SMALL]);
            let begun_before = plain.begun.load(Ordering::Acquire);
            all_called.wait();
            written.unwrap();
            let outcome = plain.sync_since(begun_before);
            check(caller);
            outcome
        };
        thread::scope(|scope| {
            let call = &call;
            let callers: Vec<_> = CALLERS
                .map(|caller| scope.spawn(move || call(caller)))
                .collect();
            let outcomes = callers.into_iter().map(|caller| caller.join().unwrap());
            outcomes.collect()
        })
    }

    /// Returns how many bytes of this value the data files have.
    fn count(plain: &PlainFiles, value: u8) -> usize {
        let data = bytes(plain).into_iter().take(plain.data).flatten();
        data.filter(|byte| *byte == value).count()
    }

    fn is_clean(plain: &PlainFiles) -> bool {
        let is_dirty = |file: &PlainFile| file.is_dirty.load(Ordering::Acquire);
        plain.gathered.lock().is_empty() && !plain.files.iter().any(is_dirty)
    }

    #[test]
    fn callers_of_a_sync_that_has_not_begun_share_it_and_none_returns_before_its_bytes_are_out() {
        let home = tempfile::tempdir().unwrap();
        let plain = plain(home.path(), SHAPE);
        // All files have new bytes.
        plain.write(&vec![u8::MAX; 4 * UNIT]).unwrap();
        let outcomes = sync_at_once(&plain, &|caller| {
            assert!(is_clean(&plain), "caller {caller}");
            assert_eq!(count(&plain, caller), SMALL, "caller {caller}");
        });
        assert_eq!(outcomes.len(), CALLERS.len());
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(plain.begun.load(Ordering::Acquire), 1);
        // There is one record.
        let end = UNIT + CALLERS.len() * SMALL + BLOCK;
        assert_eq!(lengths(&plain), [end, UNIT, UNIT, UNIT, end, end]);
    }

    #[test]
    fn a_sync_that_has_begun_is_waited_for_by_callers_before_it_and_serves_none_after_it() {
        let home = tempfile::tempdir().unwrap();
        let plain = plain(home.path(), SHAPE);
        let begun = || plain.begun.load(Ordering::Acquire);
        plain.write(&[1; SMALL]).unwrap();
        let before = begun();
        let (has_called, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let running = plain.syncing.lock();
        plain.begin_sync().unwrap();
        plain.write(&[2; SMALL]).unwrap();
        let after = begun();
        thread::scope(|scope| {
            let caller = scope.spawn(|| {
                has_called.store(true, Ordering::Release);
                plain.sync_since(before).unwrap();
                assert!(has_ended.load(Ordering::Acquire));
            });
            while !has_called.load(Ordering::Acquire) {
                thread::yield_now();
            }
            // A caller that did not wait would return meanwhile.
            for _ in 0..1000 {
                if caller.is_finished() {
                    break;
                }
                thread::yield_now();
            }
            plain.sync_files().unwrap();
            has_ended.store(true, Ordering::Release);
            drop(running);
        });
        assert_eq!((begun(), count(&plain, 1)), (1, SMALL));
        assert_eq!(count(&plain, 2), 0, "the sync came before these");
        plain.sync_since(after).unwrap();
        assert_eq!((begun(), count(&plain, 2)), (2, SMALL));
        assert!(is_clean(&plain));
    }

    #[test]
    fn an_error_of_a_shared_sync_is_told_to_all_its_callers() {
        let shape = PlainShape {
            data: 1,
            parity: 0,
            ..SHAPE
        };
        // One takes no bytes. The other takes them, and cannot be synced.
        for (path, errno) in [("/dev/full", libc::ENOSPC), ("/dev/null", libc::EINVAL)] {
            let file = File::options().write(true).open(path).unwrap();
            let plain = PlainFiles::over(vec![file], shape).unwrap();
            let outcomes = sync_at_once(&plain, &|_| ());
            let errno_of = |outcome: Result<(), FsError>| match outcome.unwrap_err() {
                FsError::NoSpace => Some(libc::ENOSPC),
                FsError::Io(error) => error.raw_os_error(),
                other => panic!("{path}: {other}"),
            };
            // The caller that ran the sync has its error. The others learn that it failed.
            let known: Vec<i32> = outcomes.into_iter().filter_map(errno_of).collect();
            assert_eq!(known, [errno], "{path}");
            assert_eq!(plain.begun.load(Ordering::Acquire), 1, "{path}");
        }
    }

    #[test]
    fn a_write_that_fails_is_told_to_its_caller_and_so_is_every_later_call() {
        let full = || File::options().write(true).open("/dev/full").unwrap();
        let read_only = || File::open("/dev/null").unwrap();
        let shape = PlainShape {
            parity: 0,
            data: 1,
            ..SHAPE
        };
        let plain = |file| PlainFiles::over(vec![file], shape).unwrap();
        let large = [1; UNIT];
        assert!(matches!(plain(full()).write(&large), Err(FsError::NoSpace)));
        let refused = plain(read_only());
        let Err(FsError::Io(error)) = refused.write(&large) else {
            panic!("a file that is open for reading was written");
        };
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert!(matches!(refused.write(b"small"), Err(FsError::Io(_))));
        assert!(matches!(refused.sync(), Err(FsError::Io(_))));
        // Bytes that wait fail with the sync that writes them, or with the write that makes them enough.
        let waiting = plain(full());
        waiting.write(&large[1..]).unwrap();
        assert!(matches!(waiting.sync(), Err(FsError::NoSpace)));
        let waiting = plain(full());
        waiting.write(&large[1..]).unwrap();
        assert!(matches!(waiting.write(&large[1..]), Err(FsError::NoSpace)));
        // A pipe cannot be synced; a file that was written is.
        let (_reader, pipe) = io::pipe().unwrap();
        let unsynced = plain(File::from(std::os::fd::OwnedFd::from(pipe)));
        unsynced.files[0].is_dirty.store(true, Ordering::Release);
        assert!(unsynced.sync_files().is_err());
    }

    #[test]
    fn a_request_of_the_kernel_is_enough_for_a_stripe_unless_it_has_too_few_blocks() {
        for (data, unit_bytes, expected) in [
            (4, 4096, 4 * 4096),
            (4, 1 << 20, 4 * MOST_GATHERED),
            (16, 1 << 20, MAX_DATA),
            (20, 1 << 20, 20 * 12 * BLOCK),
            (255, 1 << 20, 255 * BLOCK),
            (400, 1 << 20, 400 * BLOCK),
        ] {
            let shape = PlainShape {
                data,
                unit_bytes,
                ..SHAPE
            };
            assert_eq!(shape.stripe_bytes(), expected, "{data} of {unit_bytes}");
        }
    }

    #[test]
    fn other_numbers_of_directories_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let directories = vec![home.path().to_owned(); 6];
        for (data, parity) in [(0, 6), (4, 1), (usize::MAX, 7)] {
            let shape = PlainShape {
                data,
                parity,
                ..SHAPE
            };
            assert!(PlainFiles::create(&directories, shape).is_err());
            assert!(shape.file_bytes() > 0);
        }
        let absent = vec![home.path().join("gone"); 6];
        let refused = PlainFiles::create(&absent, SHAPE).unwrap_err().to_string();
        assert!(refused.contains("gone/cauchyfs-bench-plain-"), "{refused}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
