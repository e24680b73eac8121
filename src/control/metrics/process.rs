//! The daemon's memory, time and descriptors, under the names that all exporters use.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};

/// The use of the machine by this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessUse {
    pub(super) cpu_seconds: f64,
    pub(super) threads: u64,
    pub(super) virtual_bytes: u64,
    pub(super) resident_bytes: u64,
}

/// Counts the open descriptors of this process. None if they cannot be listed.
pub(super) fn open_files() -> Option<u64> {
    let files = fs::read_dir("/proc/self/fd").ok()?;
    // The directory itself is open meanwhile.
    Some((files.count() as u64).saturating_sub(1))
}

impl ProcessUse {
    /// Asks the kernel. Returns none if `/proc` cannot be read.
    pub(super) fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&stat)
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds with few digits")]
    fn parse(stat: &str) -> Option<Self> {
        // The name may have blanks and parentheses. The third field is the first one behind it.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14)?.checked_add(field(15)?)?;
        Some(Self {
            cpu_seconds: ticks as f64 / clock_ticks_per_second() as f64,
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.checked_mul(page_size() as u64)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_the_use_of_this_process() {
        let now = ProcessUse::now().unwrap();
        assert!(now.threads >= 1 && open_files() > Some(0), "{now:?}");
        assert!(
            now.resident_bytes > 0 && now.virtual_bytes >= now.resident_bytes,
            "{now:?}"
        );
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9 0 77 8192 3 0";
        let parsed = ProcessUse::parse(stat).unwrap();
        let ticks_per_second = u32::try_from(clock_ticks_per_second()).unwrap();
        let ticks = parsed.cpu_seconds * f64::from(ticks_per_second);
        assert!((ticks - 300.0).abs() < 1e-6);
        assert_eq!((parsed.threads, parsed.virtual_bytes), (9, 8192));
        assert_eq!(parsed.resident_bytes, 3 * page_size() as u64);
        assert_eq!(ProcessUse::parse("7 (a) S 1"), None);
    }
}
