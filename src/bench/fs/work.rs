//! The work of the jobs.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags};

use super::error::FsBenchError;
use super::job::Job;
use super::load::{BLOCK, Load, PIECE};
use super::site::{AlignedBlock, FsSite, drop_cache};

/// The large file.
const DATA: &str = "data";

/// The directory of small files.
const FILES: &str = "files";

/// The most listings of the directory.
const MOST_LISTINGS: u32 = 10;

/// Does a job, and returns its rate.
///
/// # Errors
///
/// If the filesystem fails. A job that is stopped returns a rate that means nothing.
pub(super) fn measure(
    job: Job,
    load: &Load,
    site: &mut FsSite,
    stop: &AtomicBool,
) -> Result<f64, FsBenchError> {
    let (data, files) = (site.path(DATA), site.path(FILES));
    let clock = Clock::new(load.seconds, stop);
    match job {
        Job::SequentialWrite(threads) => {
            let path = site.path("");
            write_sequentially(&sequential_files(site, threads), load, stop)
                .map_err(FsBenchError::of("write in", &path))
        }
        Job::SequentialRead(threads) => {
            let path = site.path("");
            read_sequentially(&sequential_files(site, threads), load, stop)
                .map_err(FsBenchError::of("read in", &path))
        }
        Job::RandomRead(threads) => read_at_random(site, &data, load, threads, stop)
            .map_err(FsBenchError::of("read", &data)),
        Job::RandomWrite => {
            write_at_random(&data, load, &clock).map_err(FsBenchError::of("write", &data))
        }
        Job::SyncedWrite(threads) => {
            let path = site.path("");
            write_synced(site, load, threads, stop).map_err(FsBenchError::of("write in", &path))
        }
        Job::Create(1) => {
            let (count, rate) = create(&files, load.most_files(), &clock)
                .map_err(FsBenchError::of("create files in", &files))?;
            site.files = count;
            Ok(rate)
        }
        Job::Create(threads) => {
            let path = site.path("");
            create_apart(site, load, threads, stop)
                .map_err(FsBenchError::of("create files in", &path))
        }
        Job::Stat => stat(&files, site.files, AtFlags::empty(), &clock)
            .map_err(FsBenchError::of("stat files in", &files)),
        Job::StatAnew => stat(&files, site.files, AtFlags::STATX_FORCE_SYNC, &clock)
            .map_err(FsBenchError::of("stat files in", &files)),
        Job::List => list(&files, site.files, &clock).map_err(FsBenchError::of("list", &files)),
        Job::Unlink => {
            unlink(&files, site.files, stop).map_err(FsBenchError::of("remove files in", &files))
        }
    }
}

/// The time that a job has. It begins when the clock is made.
struct Clock<'a> {
    began: Instant,
    limit: Duration,
    stop: &'a AtomicBool,
}

impl<'a> Clock<'a> {
    fn new(limit: Duration, stop: &'a AtomicBool) -> Self {
        Self {
            began: Instant::now(),
            limit,
            stop,
        }
    }

    /// Returns whether the time is over, or the user has stopped the job.
    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.limit || self.stop.load(Ordering::Relaxed)
    }

    /// Returns the rate of so many things.
    fn rate(&self, count: u64) -> f64 {
        per_second(count, self.began.elapsed())
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts stay far below 2^52, and a few digits are shown"
)]
fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(1e-9)
}

/// Runs `work` on a thread for each of `items`, and returns the rate of what they count together.
fn at_once<T: Send>(
    items: Vec<T>,
    limit: Duration,
    stop: &AtomicBool,
    work: impl Fn(T, &Clock<'_>) -> io::Result<u64> + Sync,
) -> io::Result<f64> {
    let clock = Clock::new(limit, stop);
    thread::scope(|scope| {
        let threads: io::Result<Vec<_>> = items
            .into_iter()
            .map(|item| {
                let work = &work;
                let work = move || work(item, &Clock::new(limit, stop));
                thread::Builder::new().spawn_scoped(scope, work)
            })
            .collect();
        let mut total = 0;
        for thread in threads? {
            let counted = thread.join();
            total += counted.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        }
        Ok(clock.rate(total))
    })
}

/// Numbers that look random, the same in every run.
struct RandomNumbers(SmallRng);

impl RandomNumbers {
    fn new(seed: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed))
    }

    /// Returns the offset of one of so many blocks.
    fn offset(&mut self, blocks: u64) -> u64 {
        self.0.random_range(0..blocks) * BLOCK as u64
    }

    /// Returns bytes that no filesystem can compress.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// Returns the files for sequential jobs: the large one, or one for each thread.
fn sequential_files(site: &FsSite, threads: usize) -> Vec<PathBuf> {
    match threads {
        1 => vec![site.path(DATA)],
        _ => names_for(site, "data", threads),
    }
}

/// Returns a path for each thread.
fn names_for(site: &FsSite, prefix: &str, threads: usize) -> Vec<PathBuf> {
    let name = |number| site.path(&format!("{prefix}-{number}"));
    (0..threads).map(name).collect()
}

/// Writes to all files at once, so that they are as long as the large file together.
fn write_sequentially(paths: &[PathBuf], load: &Load, stop: &AtomicBool) -> io::Result<f64> {
    let piece = RandomNumbers::new(1).bytes(PIECE);
    let share = load.share(paths.len());
    let files: io::Result<Vec<File>> = paths.iter().map(File::create_new).collect();
    let rate = at_once(files?, Duration::MAX, stop, |mut file, clock| {
        let mut left = share;
        while left > 0 && !clock.is_over() {
            let len = piece.len().min(usize::try_from(left).unwrap_or(PIECE));
            file.write_all(&piece[..len])?;
            left -= len as u64;
        }
        file.sync_all()?;
        Ok(share)
    })?;
    Ok(rate / 1e6)
}

/// Reads all files at once. Those that no later job uses are removed.
fn read_sequentially(paths: &[PathBuf], load: &Load, stop: &AtomicBool) -> io::Result<f64> {
    let share = load.share(paths.len());
    let open = |path: &PathBuf| {
        let file = File::open(path)?;
        drop_cache(&file)?;
        Ok(file)
    };
    let files: io::Result<Vec<File>> = paths.iter().map(open).collect();
    let rate = at_once(files?, Duration::MAX, stop, |mut file, clock| {
        let mut piece = vec![0; PIECE];
        let mut left = share;
        while left > 0 && !clock.is_over() {
            match file.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => left = left.saturating_sub(len as u64),
            }
        }
        Ok(share)
    })?;
    if paths.len() > 1 {
        paths.iter().try_for_each(fs::remove_file)?;
    }
    Ok(rate / 1e6)
}

fn read_at_random(
    site: &mut FsSite,
    path: &Path,
    load: &Load,
    threads: usize,
    stop: &AtomicBool,
) -> io::Result<f64> {
    let open = |number| Ok((site.open_past_cache(path)?, RandomNumbers::new(number)));
    let files: io::Result<Vec<(File, RandomNumbers)>> = (0..threads as u64).map(open).collect();
    at_once(files?, load.seconds, stop, |(file, mut numbers), clock| {
        let mut block = AlignedBlock::new();
        let mut count = 0;
        loop {
            file.read_exact_at(block.bytes(), numbers.offset(load.blocks()))?;
            count += 1;
            if clock.is_over() {
                return Ok(count);
            }
        }
    })
}

/// Writes no more blocks than the file has.
fn write_at_random(path: &Path, load: &Load, clock: &Clock<'_>) -> io::Result<f64> {
    let mut numbers = RandomNumbers::new(2);
    let block = numbers.bytes(BLOCK);
    let file = File::options().write(true).open(path)?;
    let mut count = 0;
    while count < load.blocks() {
        file.write_all_at(&block, numbers.offset(load.blocks()))?;
        count += 1;
        if clock.is_over() {
            break;
        }
    }
    file.sync_all()?;
    let rate = clock.rate(count);
    drop(file);
    // No later job uses it.
    fs::remove_file(path)?;
    Ok(rate)
}

/// Appends to a file for each thread. One that has its share of the size continues at its start.
fn write_synced(site: &FsSite, load: &Load, threads: usize, stop: &AtomicBool) -> io::Result<f64> {
    let names = names_for(site, "synced", threads);
    let files: io::Result<Vec<File>> = names.iter().map(File::create_new).collect();
    let block = RandomNumbers::new(3).bytes(BLOCK);
    let blocks = (load.blocks() / threads as u64).max(1);
    let rate = at_once(files?, load.seconds, stop, |file, clock| {
        let mut count = 0;
        loop {
            file.write_all_at(&block, count % blocks * BLOCK as u64)?;
            file.sync_data()?;
            count += 1;
            if clock.is_over() {
                return Ok(count);
            }
        }
    })?;
    names.iter().try_for_each(fs::remove_file)?;
    Ok(rate)
}

/// Opens a directory, for calls that name files in it.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn name_of(number: u64) -> String {
    format!("file-{number:06}")
}

fn create_file(directory: impl AsFd, name: &str) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::openat(directory, name, flags, mode)?.into())
}

/// Creates up to so many files, and returns their number and the rate.
fn create(path: &Path, most: u64, clock: &Clock<'_>) -> io::Result<(u64, f64)> {
    fs::create_dir(path)?;
    let directory = open_directory(path)?;
    let block = RandomNumbers::new(4).bytes(BLOCK);
    let mut count = 0;
    while count < most {
        create_file(&directory, &name_of(count))?.write_all(&block)?;
        count += 1;
        if clock.is_over() {
            break;
        }
    }
    Ok((count, clock.rate(count)))
}

/// Creates files in a directory for each thread, and returns the rate. Then removes all of them.
fn create_apart(site: &FsSite, load: &Load, threads: usize, stop: &AtomicBool) -> io::Result<f64> {
    let paths = names_for(site, FILES, threads);
    let most = (load.most_files() / threads as u64).max(1);
    let rate = at_once(paths.clone(), load.seconds, stop, |path, clock| {
        Ok(create(&path, most, clock)?.0)
    })?;
    paths.iter().try_for_each(fs::remove_dir_all)?;
    Ok(rate)
}

fn stat(path: &Path, files: u64, flags: AtFlags, clock: &Clock<'_>) -> io::Result<f64> {
    let directory = open_directory(path)?;
    let names: Vec<String> = (0..files).map(name_of).collect();
    let mut count = 0;
    for name in names.iter().cycle() {
        let flags = flags | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statx(&directory, name, flags, StatxFlags::BASIC_STATS)?;
        count += 1;
        if clock.is_over() {
            break;
        }
    }
    Ok(clock.rate(count))
}

/// Lists the directory a few times. A change before each makes the kernel forget the listing that it holds.
fn list(path: &Path, files: u64, clock: &Clock<'_>) -> io::Result<f64> {
    let directory = open_directory(path)?;
    let (mut names, mut took) = (0, Duration::ZERO);
    for _ in 0..MOST_LISTINGS {
        drop(create_file(&directory, "changed")?);
        rustix::fs::unlinkat(&directory, "changed", AtFlags::empty())?;
        let began = Instant::now();
        let listed = count_names(path)?;
        took += began.elapsed();
        if listed != files {
            let what = format!("{listed} of {files} files are listed");
            return Err(io::Error::other(what));
        }
        names += listed;
        if clock.is_over() {
            break;
        }
    }
    Ok(per_second(names, took))
}

fn count_names(path: &Path) -> io::Result<u64> {
    let mut count = 0;
    for entry in Dir::new(open_directory(path)?)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            count += 1;
        }
    }
    Ok(count)
}

fn unlink(path: &Path, files: u64, stop: &AtomicBool) -> io::Result<f64> {
    let directory = open_directory(path)?;
    let began = Instant::now();
    for number in 0..files {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        rustix::fs::unlinkat(&directory, name_of(number), AtFlags::empty())?;
    }
    Ok(per_second(files, began.elapsed()))
}
