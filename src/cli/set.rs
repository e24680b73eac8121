//! `cauchyfs set`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;

use super::args::SetArguments;
use super::client::LiveMount;
use super::create::stripe_unit;
use super::failure::{Failure, Outcome, warn};
use super::rebuild::{follow_for, leave};
use super::report::{code_and_unit, codes_lines, rewriting};
use super::shell::quoted_path;
use super::size::format_size;
use super::terminal;
use crate::control::protocol::{
    Answer, CodeChange, DirectoryCodeEntry, DirectoryCodeRequest, Request,
};
use crate::control::report::{CodeReport, GeometryReport, StatusReport};

/// The outcome of a change that had nothing to write.
const NOTHING_TO_CHANGE: &str = "no data that is there had to be changed";

/// The document that `set --show --json` prints about the volume.
#[derive(Debug, Serialize)]
struct Document<'a> {
    geometry: &'a GeometryReport,
    codes: &'a [CodeReport],
    /// Null if the directories are not known.
    directories: Option<Vec<ShownDirectory<'a>>>,
    has_more_directories: bool,
    /// The reason why they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    directories_problem: Option<&'a str>,
}

/// The directories with codes of their own, and whether there are more.
type Listed = (Vec<DirectoryCodeEntry>, bool);

/// A directory with a code of its own in the document.
#[derive(Debug, Serialize)]
struct ShownDirectory<'a> {
    path: Option<String>,
    inode: u64,
    class: u8,
    geometry: Option<&'a GeometryReport>,
}

/// The document that is printed about a directory.
#[derive(Debug, Serialize)]
struct DirectoryDocument<'a> {
    geometry: &'a GeometryReport,
}

/// Has the daemon change the code of its volume, shows how far it is, and says what was counted afterwards.
///
/// # Errors
///
/// If nothing of ours is mounted there, the code is refused, or the daemon cannot go on.
pub(super) fn run(arguments: &SetArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    if let Some(path) = &arguments.path {
        return set_directory(&mount, arguments, path);
    }
    if arguments.show {
        return show(&mount, arguments.rebuild.json);
    }
    let change = CodeChange {
        data: arguments.data,
        parity: arguments.parity,
        code: arguments.code.clone(),
        unit_bytes: arguments.stripe_unit.map(stripe_unit).transpose()?,
    };
    if change == CodeChange::default() {
        let place = quoted_path(&arguments.mountpoint);
        return Err(Failure::usage(
            "nothing to change: give --data, --parity, --code or --stripe-unit",
        )
        .advise(format!("`cauchyfs set --show {place}` shows how it is")));
    }
    let request = Request::SetCode {
        change,
        bytes_per_second: arguments.rebuild.rate,
    };
    let before = mount.report()?.geometry;
    let Answer::Ordered(order) = mount.ask(&request)? else {
        return Err(mount.beside_the_point());
    };
    let now = mount.report()?.geometry;
    if let Some(warning) = fewer_losses(&before, &now) {
        warn(warning);
    }
    if let Some(lines) = other_unit(&before, &now).filter(|_| !arguments.rebuild.json) {
        terminal::report(&terminal::join_lines(&lines));
    }
    let followed = follow_for(NOTHING_TO_CHANGE, &mount, order, arguments.rebuild.json)?;
    Ok(followed.unwrap_or_else(|| leave("the change goes on", &mount, None)))
}

/// Returns a warning if data of a code survives fewer losses than that of the code before.
fn fewer_losses(before: &GeometryReport, now: &GeometryReport) -> Option<String> {
    let (before, now) = (before.losses(), now.losses());
    (now < before).then(|| {
        format!(
            "new data survives fewer losses, any {now} in place of {before}, and the data that is there follows"
        )
    })
}

/// Says which stripes have another stripe unit, and which get it, if it was changed.
fn other_unit(before: &GeometryReport, now: &GeometryReport) -> Option<[String; 2]> {
    let (old, new) = (before.stripe_unit_bytes?, now.stripe_unit_bytes?);
    let sizes = [old, new].map(|bytes| format_size(bytes.into()));
    let [old, new] = sizes;
    (old != new).then(|| {
        [
            format!("new stripes have a unit of {new} from now on, in place of {old}"),
            "data with another unit is rewritten, and can be used meanwhile".to_owned(),
        ]
    })
}

/// Changes the code of a directory, or shows it. Waits until its files are rewritten, if they are to be.
fn set_directory(
    mount: &LiveMount,
    arguments: &SetArguments,
    path: &Path,
) -> Result<Outcome, Failure> {
    let directory = inode_of(mount, path)?;
    let json = arguments.rebuild.json;
    if arguments.show {
        let request = Request::DirectoryCode(DirectoryCodeRequest::Show { directory });
        return print_code(mount, path, &request, json);
    }
    let change = CodeChange {
        data: arguments.data,
        parity: arguments.parity,
        code: arguments.code.clone(),
        unit_bytes: None,
    };
    if change == CodeChange::default() && !arguments.rewrite {
        return Err(Failure::usage(
            "nothing to change: give --data, --parity, --code or --rewrite",
        )
        .advise(format!(
            "`cauchyfs set --path {} --show {}` shows how it is",
            quoted_path(path),
            quoted_path(&arguments.mountpoint)
        )));
    }
    if arguments.rebuild.rate.is_some() && !arguments.rewrite {
        return Err(Failure::usage("--rate limits what --rewrite writes")
            .advise("give --rewrite as well, or leave --rate out"));
    }
    let request = Request::DirectoryCode(DirectoryCodeRequest::Set {
        directory,
        change,
        rewrite: arguments.rewrite,
        bytes_per_second: arguments.rebuild.rate,
    });
    if !arguments.rewrite {
        return print_code(mount, path, &request, json);
    }
    let Answer::Ordered(order) = mount.ask(&request)? else {
        return Err(mount.beside_the_point());
    };
    let Some(outcome) = follow_for(NOTHING_TO_CHANGE, mount, order, json)? else {
        return Ok(leave("the rewriting goes on", mount, None));
    };
    // It may wait for members or room, or leave what cannot be read.
    let report = mount.report()?;
    if !json {
        terminal::report(&terminal::join_lines(&rewriting(&report)));
    }
    Ok(outcome_of_rewriting(outcome, &report))
}

/// Returns the outcome of a command that had files rewritten, after the rebuild for it had this one.
fn outcome_of_rewriting(rebuilt: Outcome, report: &StatusReport) -> Outcome {
    if report.awaits_rewrite || report.rewriting.stripes_left > 0 {
        return rebuilt.max(Outcome::Degraded);
    }
    rebuilt
}

/// Sends a request that is answered with the code of a directory, and prints that.
fn print_code(
    mount: &LiveMount,
    path: &Path,
    request: &Request,
    json: bool,
) -> Result<Outcome, Failure> {
    let Answer::DirectoryCode(code) = mount.ask(request)? else {
        return Err(mount.beside_the_point());
    };
    if json {
        terminal::json(&DirectoryDocument { geometry: &code }).map_err(Failure::environment)?;
    } else {
        let shown = path.display();
        terminal::line(format_args!(
            "new data in {shown}: {}",
            code_and_unit(&code)
        ));
    }
    Ok(Outcome::Done)
}

/// Returns the inode number of a directory of a mount.
fn inode_of(mount: &LiveMount, path: &Path) -> Result<u64, Failure> {
    let shown = path.display();
    let look = |path: &Path| {
        fs::metadata(path).map_err(|error| {
            let failure = Failure::usage(format!("cannot look at {}: {error}", path.display()));
            match error.kind() {
                io::ErrorKind::NotFound => failure.advise(format!(
                    "name a directory of the volume; `mkdir {}` makes this one",
                    quoted_path(path)
                )),
                _ => failure,
            }
        })
    };
    let (found, root) = (look(path)?, look(mount.mountpoint())?);
    if !found.is_dir() {
        return Err(Failure::usage(format!("{shown} is no directory")).advise(
            "name the directory in which it lies: a file has the code that its directory had when it was made",
        ));
    }
    if found.dev() != root.dev() {
        let mountpoint = mount.mountpoint().display();
        return Err(
            Failure::usage(format!("{shown} does not lie in {mountpoint}"))
                .advise("give a directory of the volume, and where that is mounted"),
        );
    }
    Ok(found.ino())
}

/// Prints the code of new data, how much data has which, and the directories with codes of their own. The volume may be
/// away, or its daemon too old to name them: the rest is printed all the same.
fn show(mount: &LiveMount, json: bool) -> Result<Outcome, Failure> {
    let report = mount.report()?;
    let request = Request::DirectoryCode(DirectoryCodeRequest::List);
    let listed = match mount.ask(&request) {
        Ok(Answer::DirectoryCodes {
            directories,
            has_more,
        }) => Ok((directories, has_more)),
        Ok(_) => Err(mount.beside_the_point()),
        Err(failure) => Err(failure),
    };
    if json {
        let document = document(&report, listed.as_ref(), mount.mountpoint());
        terminal::json(&document).map_err(Failure::environment)?;
    } else {
        terminal::report(&codes_lines(&report));
        terminal::report(&directories_lines(listed.as_ref(), mount.mountpoint()));
    }
    Ok(match listed {
        Ok(_) => Outcome::Done,
        Err(_) => Outcome::Degraded,
    })
}

fn document<'a>(
    report: &'a StatusReport,
    listed: Result<&'a Listed, &'a Failure>,
    mountpoint: &Path,
) -> Document<'a> {
    let shown = |entry: &'a DirectoryCodeEntry| ShownDirectory {
        path: path_of(entry, mountpoint),
        inode: entry.directory,
        class: entry.class,
        geometry: entry.geometry.as_ref(),
    };
    let directories = listed.map(|(directories, _)| directories.iter().map(shown).collect());
    Document {
        geometry: &report.geometry,
        codes: &report.codes,
        directories: directories.ok(),
        has_more_directories: listed.is_ok_and(|(_, has_more)| *has_more),
        directories_problem: listed.err().map(|failure| failure.message.as_str()),
    }
}

/// Returns a line about each directory with a code of its own, or one that says why they are not known.
fn directories_lines(listed: Result<&Listed, &Failure>, mountpoint: &Path) -> String {
    let lines = match listed {
        Ok((directories, has_more)) => {
            let lines = directories.iter();
            let lines = lines.map(|entry| directory_line(entry, path_of(entry, mountpoint)));
            let more = "and more directories with codes of their own".to_owned();
            lines.chain(has_more.then_some(more)).collect()
        }
        Err(Failure { message, .. }) => vec![format!(
            "the directories with codes of their own are not known: {message}"
        )],
    };
    terminal::join_lines(&lines)
}

/// Returns the path of a directory, if it is known.
fn path_of(entry: &DirectoryCodeEntry, mountpoint: &Path) -> Option<String> {
    let path = entry.path.as_deref()?;
    // An empty path would leave a slash behind the mountpoint.
    Some(if path.is_empty() {
        mountpoint.display().to_string()
    } else {
        mountpoint.join(path).display().to_string()
    })
}

/// Returns a line about a directory with a code of its own.
fn directory_line(entry: &DirectoryCodeEntry, path: Option<String>) -> String {
    let place = path.unwrap_or_else(|| format!("the directory of inode {}", entry.directory));
    let code = match &entry.geometry {
        Some(code) => code_and_unit(code),
        None => format!(
            "a code that is not known, because the record of class {} of stripes is missing or damaged",
            entry.class
        ),
    };
    format!("new data in {place}: {code}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{SurvivalReport, report_without};

    #[test]
    fn a_code_that_survives_fewer_losses_is_warned_of() {
        let code = |parity, losses: Option<usize>| GeometryReport {
            data: 4,
            parity,
            code: "random-gf2".to_owned(),
            stripe_unit_bytes: None,
            survives: losses.map(|losses| SurvivalReport {
                losses,
                sets_beyond_survived: 0,
                sets_beyond: 1,
            }),
        };
        let warning = fewer_losses(&code(2, None), &code(2, Some(1))).unwrap();
        assert!(warning.contains("any 1 in place of 2"), "{warning}");
        assert_eq!(fewer_losses(&code(2, Some(1)), &code(3, Some(2))), None);
        assert_eq!(fewer_losses(&code(2, None), &code(2, None)), None);
    }

    #[test]
    fn another_stripe_unit_is_told_with_the_data_that_follows() {
        let of_unit = |bytes: Option<u32>| {
            let mut geometry = report_without(&[], &[(2, 9)], &[0, 1, 2]).geometry;
            geometry.stripe_unit_bytes = bytes;
            geometry
        };
        let (small, large) = (of_unit(Some(64 << 10)), of_unit(Some(1 << 20)));
        let [new, old] = other_unit(&large, &small).unwrap();
        assert_eq!(
            new,
            "new stripes have a unit of 64.0 KiB from now on, in place of 1.0 MiB"
        );
        assert!(
            old.contains("another unit") && old.contains("rewritten"),
            "{old}"
        );
        assert_eq!(other_unit(&small, &small), None);
        assert_eq!(other_unit(&of_unit(None), &small), None, "an older daemon");
    }

    /// Scripts go on once all files have their code.
    #[test]
    fn a_command_whose_rewriting_waits_or_left_something_ends_as_degraded() {
        let whole = || report_without(&[], &[(2, 9)], &[0, 1, 2]);
        let mut waits = whole();
        waits.awaits_rewrite = true;
        let mut left = whole();
        left.rewriting.stripes_left = 1;
        let all = [Outcome::Done, Outcome::Degraded, Outcome::Lost];
        for rebuilt in all {
            assert_eq!(outcome_of_rewriting(rebuilt, &whole()), rebuilt);
        }
        for report in [&waits, &left] {
            let outcomes = all.map(|rebuilt| outcome_of_rewriting(rebuilt, report));
            assert_eq!(
                outcomes,
                [Outcome::Degraded, Outcome::Degraded, Outcome::Lost]
            );
        }
    }

    #[test]
    fn a_directory_is_shown_with_its_code_or_with_the_reason_why_that_is_not_known() {
        let mut entry = DirectoryCodeEntry {
            directory: 17,
            path: Some("scratch".to_owned()),
            class: 9,
            geometry: Some(GeometryReport {
                data: 5,
                parity: 1,
                code: "rs-cauchy".to_owned(),
                stripe_unit_bytes: Some(65_536),
                survives: None,
            }),
        };
        let path = || Some("/mnt/scratch".to_owned());
        assert_eq!(
            directory_line(&entry, path()),
            "new data in /mnt/scratch: 5+1 rs-cauchy, stripe unit 64.0 KiB"
        );
        entry.geometry = None;
        let said = directory_line(&entry, None);
        assert!(
            said.starts_with("new data in the directory of inode 17: a code that is not known"),
            "{said}"
        );
        assert!(said.contains("class 9"), "{said}");
    }

    fn entry(path: &str) -> DirectoryCodeEntry {
        DirectoryCodeEntry {
            directory: 17,
            path: Some(path.to_owned()),
            class: 9,
            geometry: None,
        }
    }

    /// Users that may make directories in the volume choose their names.
    #[test]
    fn a_name_with_control_characters_forges_no_line() {
        let listed = (
            vec![
                entry("a\nnew data in /mnt/thesis: 4+3\r\n\x1b[2J"),
                entry("b"),
            ],
            true,
        );
        let said = directories_lines(Ok(&listed), Path::new("/mnt"));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 3, "{said}");
        assert!(lines[0].starts_with("new data in /mnt/a\\nnew data in /mnt/thesis"));
        assert!(lines[1].starts_with("new data in /mnt/b: "), "{said}");
        assert!(!said.contains(['\r', '\x1b']), "{said}");
    }

    #[test]
    fn the_part_of_the_volume_is_shown_where_directories_are_not_known() {
        let report = crate::control::report::report_without(&[], &[(2, 9)], &[0, 1, 2]);
        let away = Failure::environment("the volume is away\nfor now").advise("wait");
        let said = directories_lines(Err(&away), Path::new("/mnt"));
        let expected =
            "the directories with codes of their own are not known: the volume is away\\nfor now";
        assert_eq!(said, expected);
        let document = serde_json::to_value(document(&report, Err(&away), Path::new("/mnt")));
        let document = document.unwrap();
        assert_eq!(document["geometry"]["data"], report.geometry.data);
        assert!(document["directories"].is_null(), "{document}");
        assert_eq!(document["directories_problem"], away.message);
        let listed = (vec![entry("a")], false);
        let known = self::document(&report, Ok(&listed), Path::new("/mnt"));
        let known = serde_json::to_value(known).unwrap();
        assert_eq!(known["directories"][0]["path"], "/mnt/a");
        assert!(known.get("directories_problem").is_none(), "{known}");
    }
}
