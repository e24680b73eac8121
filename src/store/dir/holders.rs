//! Who has a file locked: `/proc/locks`.

use std::fs;
use std::os::fd::AsFd;

use rustix::fs as sys;

/// Names a process that has the `flock` of a file; none if it is not to be found, as on a filesystem whose files have
/// other device numbers than it has itself.
pub(super) fn holder_of(file: &impl AsFd) -> Option<String> {
    let stat = sys::fstat(file).ok()?;
    let place = format!(
        "{:02x}:{:02x}:{}",
        sys::major(stat.st_dev),
        sys::minor(stat.st_dev),
        stat.st_ino
    );
    let table = fs::read_to_string("/proc/locks").ok()?;
    let pid = table.lines().find_map(|line| holder_in(line, &place))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(match name.trim() {
        "" => format!("process {pid}"),
        name => format!("process {pid} ({name})"),
    })
}

/// Returns the process that a line of the table says has the lock of the file at `place`; those that wait for it are
/// marked by an arrow.
fn holder_in(line: &str, place: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let (pid, found) = (words.nth(2)?, words.next()?);
    (found == place).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_is_told_from_who_waits_for_it_and_from_other_locks() {
        let place = "fd:01:77";
        let holder = |line: &str| holder_in(line, place);
        assert_eq!(
            holder("1: FLOCK  ADVISORY  WRITE 4711 fd:01:77 0 EOF"),
            Some(4711)
        );
        assert_eq!(
            holder("1: FLOCK  ADVISORY  WRITE 4711 fd:01:78 0 EOF"),
            None
        );
        assert_eq!(
            holder("1: -> FLOCK  ADVISORY  WRITE 4712 fd:01:77 0 EOF"),
            None
        );
        assert_eq!(
            holder("2: POSIX  ADVISORY  WRITE 4711 fd:01:77 0 EOF"),
            None
        );
        assert_eq!(holder("3: FLOCK"), None);
    }
}
