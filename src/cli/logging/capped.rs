//! An unattended log file: it keeps its end, and not more than so much of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::control::log_file;

/// The most bytes of the file, and of the one before it that is kept beside it.
const MOST_BYTES: u64 = 4 << 20;

/// A file that is put aside as `.old`, in the place of the one before, when it is full.
#[derive(Debug)]
pub(super) struct Capped {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Capped {
    /// Opens a file to be added to; it is made if absent.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = log_file::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
        })
    }

    fn begin_again(&mut self) -> io::Result<()> {
        fs::rename(&self.path, self.path.with_extension("old"))?;
        *self = Self::open(&self.path)?;
        Ok(())
    }
}

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_full = self.len > 0 && self.len + bytes.len() as u64 > MOST_BYTES;
        if is_full && self.begin_again().is_err() {
            // It was deleted, or its directory takes no more files: what there is goes.
            self.file.set_len(0)?;
            self.len = 0;
        }
        let written = self.file.write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_end_and_stays_small_over_any_number_of_lines_and_openings() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("0123.log");
        let line = |number: u32| format!("{number:099}\n");
        let last = 3 * u32::try_from(MOST_BYTES).unwrap() / 100;
        for numbers in [0..last / 2, last / 2..last] {
            let mut log = Capped::open(&path).unwrap();
            for number in numbers {
                log.write_all(line(number).as_bytes()).unwrap();
            }
        }
        let kept = fs::read_to_string(&path).unwrap();
        let before = fs::read_to_string(path.with_extension("old")).unwrap();
        let found = before.lines().chain(kept.lines()).map(str::to_owned);
        let found: Vec<u32> = found.map(|line| line.parse().unwrap()).collect();
        assert!(
            found.iter().copied().eq(found[0]..last),
            "from {}",
            found[0]
        );
        for text in [kept, before] {
            assert!(text.len() as u64 <= MOST_BYTES);
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_log_that_was_deleted_stays_small_too() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("0123.log");
        let mut log = Capped::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..10 {
            log.write_all(&piece).unwrap();
            assert!(log.file.metadata().unwrap().len() <= MOST_BYTES);
        }
    }
}
