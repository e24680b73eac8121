//! Measuring filesystems by the usual jobs: large and small reads and writes, and work on names.
//!
//! Up to four directories take turns at each job, so all of them see the same machine. The first is the directory in
//! question, the second one on a filesystem below it. The third is on a filesystem that costs no more than FUSE itself. That
//! of the fourth costs no more than FUSE and plain files. Every job works in a new directory with a unique name
//! ([`FsSite`]), and on nothing that was there before.

mod columns;
mod error;
mod job;
mod load;
mod report;
mod site;
mod wake;
mod work;

pub use self::{
    columns::Columns,
    error::FsBenchError,
    job::Job,
    load::Load,
    report::{ColumnReport, FsReport, JobRow, LeftOut},
    site::{FsSite, check_room},
    wake::Wake,
};

use std::sync::atomic::{AtomicBool, Ordering};

/// Runs all jobs in all columns, and tells `progress` of each job before it runs and how many there are.
///
/// # Errors
///
/// [`FsBenchError`] if a job fails somewhere, or `stop` was set.
pub fn run(
    load: &Load,
    sites: &mut Columns<FsSite>,
    stop: &AtomicBool,
    mut progress: impl FnMut(Job, usize),
) -> Result<Vec<JobRow>, FsBenchError> {
    let jobs = Job::all(load.jobs);
    let mut rows = Vec::with_capacity(jobs.len());
    for &job in &jobs {
        progress(job, jobs.len());
        let rates = sites.try_map(|site| {
            let rate = work::measure(job, load, site, stop);
            if stop.load(Ordering::Relaxed) {
                return Err(FsBenchError::Interrupted);
            }
            rate
        })?;
        rows.push(JobRow::new(job, rates));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tiny() -> Load {
        Load {
            size: 1 << 20,
            seconds: Duration::from_millis(2),
            jobs: 3,
        }
    }

    fn sites(home: &std::path::Path) -> Columns<FsSite> {
        Columns {
            directory: FsSite::create(home, &tiny()).unwrap(),
            below: Some(FsSite::create(home, &tiny()).unwrap()),
            fuse: None,
            plain: Some(FsSite::create(home, &tiny()).unwrap()),
        }
    }

    #[test]
    fn every_job_has_a_rate_in_every_column_and_nothing_is_left() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("before"), "kept").unwrap();
        let mut sites = sites(home.path());
        let mut told = Vec::new();
        let rows = run(
            &tiny(),
            &mut sites,
            &AtomicBool::new(false),
            |job, total| {
                told.push((job, total));
            },
        )
        .unwrap();
        assert_eq!(told.len(), rows.len());
        assert!(told.iter().all(|(_, total)| *total == rows.len()));
        for row in &rows {
            let (below, plain) = (row.rates.below.unwrap(), row.rates.plain.unwrap());
            assert!(row.rates.directory > 0.0 && below > 0.0, "{row:?}");
            assert!(plain > 0.0 && row.of_plain.unwrap() > 0.0, "{row:?}");
            assert_eq!(row.rates.fuse, None);
            assert!(row.of_below.unwrap() > 0.0 && row.of_fuse.is_none());
        }
        drop(sites);
        let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let kept = std::fs::read(home.path().join("before")).unwrap();
        assert_eq!(kept, b"kept");
    }

    #[test]
    fn a_run_that_is_stopped_reports_so_and_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let mut sites = sites(home.path());
        let stop = AtomicBool::new(false);
        let mut told = 0;
        let stopped = run(&tiny(), &mut sites, &stop, |_, _| {
            told += 1;
            stop.store(told == 4, Ordering::Relaxed);
        });
        assert!(matches!(stopped, Err(FsBenchError::Interrupted)));
        assert_eq!(told, 4);
        drop(sites);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
