//! The daemon as a service of systemd: what it is started with, and what it reports.

mod supervision;
mod waiting;

use std::io;

use clap::Args;
use clap_mangen::roff::{Roff, bold, roman};

use super::manual::{MANUAL, Page, SOURCE, add_verbatim};
use super::time::parse_time;

pub(super) use supervision::Supervision;
pub(super) use waiting::{is_probe, probe, wait_for_members};

use super::time::Wait;

/// The word for a wait without an end.
const FOREVER: &str = "forever";

/// The unit of a volume.
const UNIT: &str = include_str!("../../packaging/systemd/cauchyfs@.service");

/// The options of `cauchyfs mount` that are meant for services.
#[derive(Debug, Args)]
pub(super) struct ServiceArguments {
    /// Take directories, mountpoint and options from `/etc/cauchyfs/volumes/NAME.conf`, or from the file NAME if that
    /// has a slash; see cauchyfs-volumes(5).
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    pub(super) volume: Option<String>,
    /// How long to wait while fewer directories are there than the volume needs: 90s, 10m, or forever. It is mounted
    /// as soon as enough are there. Without this option the mount fails at once.
    #[arg(long, value_name = "TIME", value_parser = parse_patience)]
    pub(super) wait_for_members: Option<Wait>,
    /// Say whether enough directories are there, and mount nothing.
    #[arg(long, hide = true)]
    pub(super) probe: bool,
}

/// Parses a time to wait, or `forever`.
fn parse_patience(text: &str) -> Result<Wait, String> {
    if text == FOREVER {
        return Ok(Wait(None));
    }
    let time = parse_time(text);
    let time =
        time.map_err(|_| format!("`{text}` is no time; write it like 90s, 10m or {FOREVER}"))?;
    Ok(Wait(Some(time)))
}

/// Returns the manual page of the unit.
///
/// # Errors
///
/// If it cannot be written to memory.
pub(super) fn page() -> io::Result<Page> {
    let mut roff = Roff::new();
    roff.control("TH", ["CAUCHYFS@.SERVICE", "8", "", SOURCE, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(
        "cauchyfs@.service - CauchyFS volumes as services of systemd",
    )]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("systemctl enable --now cauchyfs@NAME.service")]);
    roff.control("SH", ["DESCRIPTION"]);
    for text in [
        "cauchyfs@NAME.service mounts the volume that /etc/cauchyfs/volumes/NAME.conf describes, and unmounts it when it \
         is stopped. It counts as started once the mount is usable.",
        "The generator cauchyfs-generator orders the service after the mounts of the disks that hold its directories. \
         It does so for lines of /etc/fstab with the type cauchyfs or fuse.cauchyfs too. A disk that is missing delays \
         the service only as long as its own line in /etc/fstab says: give such lines `nofail` and a short \
         `x-systemd.device-timeout`.",
        "With `wait-for-members` in its file, a service waits while fewer disks are there than the volume needs, and \
         mounts it as soon as enough are. Without that key the start fails, and systemd tries again every five seconds.",
        "The daemon proves three times in each watchdog interval that it serves: its control socket and a statfs(2) of the \
         mount answer. A daemon that does not is killed and started again, and takes the place of the dead mount.",
        "Messages in the journal have the field CAUCHYFS_VOLUME with the id of the volume, and those about a member \
         CAUCHYFS_MEMBER with its number.",
    ] {
        roff.control("PP", []);
        roff.text([roman(text)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    add_verbatim(
        &mut roff,
        "journalctl CAUCHYFS_MEMBER=2\njournalctl -u cauchyfs@photos -o json",
    );
    roff.control("SH", ["UNIT"]);
    add_verbatim(&mut roff, UNIT);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("cauchyfs-volumes"),
        roman("(5), "),
        bold("cauchyfs-mount"),
        roman("(1)"),
    ]);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(Page {
        name: "cauchyfs@.service".to_owned(),
        section: 8,
        text,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wait_is_a_time_or_has_no_end() {
        assert_eq!(parse_patience("forever"), Ok(Wait(None)));
        assert_eq!(
            parse_patience("90s"),
            Ok(Wait(Some(Duration::from_secs(90))))
        );
        for wrong in ["never", "0s", "soon", ""] {
            assert!(
                parse_patience(wrong).unwrap_err().contains("forever"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_unit_starts_what_the_command_line_takes_and_has_no_namespace_of_its_own() {
        let start = UNIT
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/"));
        assert_eq!(start, Some("cauchyfs mount --foreground --volume %i"));
        for private in [
            "PrivateTmp",
            "ProtectSystem",
            "ProtectHome",
            "PrivateMounts",
            "ReadOnlyPaths",
        ] {
            assert!(!UNIT.contains(private), "{private} hides the mount");
        }
    }
}
