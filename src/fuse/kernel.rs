//! Kernels with defects that decide which features are used.

/// A kernel's version: its major and minor number, and the number of its patch.
type Version = (u32, u32, u32);

/// Returns whether a kernel with this release, as `uname -r` prints it, may open files without a request.
///
/// From Linux 6.9 on, such a kernel may free an inode while it still reads ahead in the closed file. If a thread that
/// serves the read needs memory meanwhile, it may wait for itself. "fuse: fix readahead reclaim deadlock" removed that
/// in 6.19, and in later patches of 6.12 and 6.18.
pub(super) fn may_open_by_itself(release: &str) -> bool {
    let Some(version) = parse(release) else {
        return false;
    };
    match version {
        (6, 12, patch) => patch >= 70,
        (6, 18, patch) => patch >= 10,
        version => !((6, 9, 0)..(6, 19, 0)).contains(&version),
    }
}

/// Reads a release such as `6.18.44-generic`. The number of the patch may be missing.
fn parse(release: &str) -> Option<Version> {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(str::parse);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
    Some((major, minor, patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_keep_the_inode_of_a_read_open_files_by_themselves() {
        for (release, may) in [
            ("5.15.0-91-generic", true),
            ("6.8.12", true),
            ("6.9.0-rc1", false),
            ("6.12.8-amd64", false),
            ("6.12.70", true),
            ("6.17.13", false),
            ("6.18.3", false),
            ("6.18.44-fc-v657", true),
            ("6.19-rc1", true),
            ("7.0.0", true),
            ("", false),
            ("next", false),
        ] {
            assert_eq!(may_open_by_itself(release), may, "{release}");
        }
    }
}
