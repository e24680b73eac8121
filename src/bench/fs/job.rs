//! The jobs.

/// A job, and the number of its threads where that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Write the large file in pieces of 1 MiB, then fsync. Several threads write a file each, as long together.
    SequentialWrite(usize),
    /// Read what was written like this in pieces of 1 MiB.
    SequentialRead(usize),
    /// Read blocks of it at random, past the page cache where possible.
    RandomRead(usize),
    /// Overwrite blocks of it at random, then fsync.
    RandomWrite,
    /// Append blocks to a file for each thread, each block with an fdatasync.
    SyncedWrite(usize),
    /// Create files of one block. Several threads create them in a directory each.
    Create(usize),
    /// Stat them.
    Stat,
    /// Stat them, and have the filesystem asked each time.
    StatAnew,
    /// List their directory.
    List,
    /// Remove them.
    Unlink,
}

impl Job {
    /// Returns all jobs in their order, with up to so many threads.
    #[must_use]
    pub fn all(jobs: usize) -> Vec<Self> {
        let all = vec![
            Self::SequentialWrite(1),
            Self::SequentialRead(1),
            Self::SequentialWrite(jobs),
            Self::SequentialRead(jobs),
            Self::RandomRead(1),
            Self::RandomRead(jobs),
            Self::RandomWrite,
            Self::SyncedWrite(1),
            Self::SyncedWrite(jobs),
            Self::Create(jobs),
            Self::Create(1),
            Self::Stat,
            Self::StatAnew,
            Self::List,
            Self::Unlink,
        ];
        // With one thread, some are there twice.
        let mut distinct = Vec::with_capacity(all.len());
        for job in all {
            if !distinct.contains(&job) {
                distinct.push(job);
            }
        }
        distinct
    }

    /// Returns the number of threads.
    #[must_use]
    pub fn threads(self) -> usize {
        match self {
            Self::SequentialWrite(threads)
            | Self::SequentialRead(threads)
            | Self::RandomRead(threads)
            | Self::SyncedWrite(threads)
            | Self::Create(threads) => threads,
            _ => 1,
        }
    }

    /// Returns the name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SequentialWrite(_) => "sequential-write",
            Self::SequentialRead(_) => "sequential-read",
            Self::RandomRead(_) => "random-read",
            Self::RandomWrite => "random-write",
            Self::SyncedWrite(_) => "write-fdatasync",
            Self::Create(_) => "create",
            Self::Stat => "stat",
            Self::StatAnew => "stat-anew",
            Self::List => "list",
            Self::Unlink => "unlink",
        }
    }

    /// Returns the unit of its rate.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::SequentialWrite(_) | Self::SequentialRead(_) => "MB/s",
            Self::RandomRead(_) => "reads/s",
            Self::RandomWrite | Self::SyncedWrite(_) => "writes/s",
            Self::Create(_) | Self::Unlink => "files/s",
            Self::Stat | Self::StatAnew => "calls/s",
            Self::List => "names/s",
        }
    }

    /// Returns its title in the table.
    pub(super) fn title(self) -> String {
        let title = match self {
            Self::SequentialWrite(_) => "sequential write with fsync",
            Self::SequentialRead(_) => "sequential read",
            Self::RandomRead(_) => "4 KiB random read",
            Self::RandomWrite => "4 KiB random write, one fsync",
            Self::SyncedWrite(_) => "4 KiB write, fdatasync each",
            Self::Create(_) => "create 4 KiB files",
            Self::Stat => "stat",
            Self::StatAnew => "stat, not from the kernel's cache",
            Self::List => "list",
            Self::Unlink => "unlink",
        };
        match self.threads() {
            1 => title.to_owned(),
            threads => format!("{title}, {threads} jobs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_there_once_and_with_several_threads_where_that_makes_a_difference() {
        assert_eq!(Job::all(8).len(), 15);
        assert_eq!(Job::all(1).len(), 10);
        let threads: Vec<usize> = Job::all(8).iter().map(|job| job.threads()).collect();
        assert_eq!(threads.iter().filter(|threads| **threads == 8).count(), 5);
        assert_eq!(Job::RandomRead(8).title(), "4 KiB random read, 8 jobs");
        assert_eq!(Job::RandomRead(1).title(), "4 KiB random read");
    }
}
