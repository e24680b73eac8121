//! `cauchyfs member`.

use std::fs;
use std::io;
use std::path::Path;

use super::args::{MemberArguments, MemberChange, RebuildOptions};
use super::client::LiveMount;
use super::directories::{check_newcomer, make_member, spell};
use super::failure::{Failure, Outcome, warn, warn_and_advise};
use super::rebuild::{follow, leave};
use super::shell::{quoted, quoted_path};
use super::terminal;
use crate::control::protocol::{Answer, Request};
use crate::control::report::{MemberReport, MemberState, RebuildReport, StatusReport};

/// Changes the members of a mounted volume.
///
/// # Errors
///
/// If nothing of ours is mounted there, or the directory does not do.
pub(super) fn run(arguments: &MemberArguments) -> Result<Outcome, Failure> {
    match &arguments.change {
        MemberChange::Add(add) => {
            let mount = LiveMount::at(&add.mountpoint)?;
            join(&mount, None, &add.directory, add.balance, &add.rebuild)
        }
        MemberChange::Replace(replace) => {
            let mount = LiveMount::at(&replace.mountpoint)?;
            let old = name_of(&replace.old);
            join(&mount, Some(old), &replace.new, false, &replace.rebuild)
        }
        MemberChange::Remove(remove) => {
            let mount = LiveMount::at(&remove.mountpoint)?;
            let request = Request::Remove {
                member: name_of(&remove.member),
                bytes_per_second: remove.rebuild.rate,
            };
            let Answer::Leaving {
                member: leaving,
                order,
            } = mount.ask(&request)?
            else {
                return Err(mount.beside_the_point());
            };
            let Some(outcome) = follow(&mount, order, remove.rebuild.json)? else {
                let what = format!("member {leaving} is being drained, to be removed,");
                let place = quoted_path(mount.mountpoint());
                let keep =
                    format!("and `cauchyfs member add {place} DIR`, with its directory, keeps it");
                return Ok(leave(&what, &mount, Some(&keep)));
            };
            let report = mount.report()?;
            let mut members = report.members.iter();
            match members.find(|member| member.index == leaving) {
                None => Ok(outcome),
                Some(member) => {
                    warn_that_it_stays(member, &report, mount.mountpoint());
                    Ok(Outcome::Degraded)
                }
            }
        }
    }
}

/// Says why a member is one still that was to be removed.
fn warn_that_it_stays(member: &MemberReport, report: &StatusReport, mountpoint: &Path) {
    let place = quoted_path(mountpoint);
    let path = member.path.as_deref().map(quoted);
    let path = path.as_deref().unwrap_or("DIR");
    match member.state {
        MemberState::Online | MemberState::Rebuilding => {
            warn("it is a member still: `cauchyfs member add` has kept it meanwhile");
        }
        MemberState::Removing | MemberState::Missing | MemberState::Faulted => {
            let (obstacle, step) = obstacle_to_removal(member.index, report, &place);
            warn_and_advise(
                format_args!("it is a member still: {obstacle}"),
                format_args!("{step}, or keep it with `cauchyfs member add {place} {path}`"),
            );
        }
    }
}

/// Returns what keeps a member from being removed, and what to do about it.
fn obstacle_to_removal(member: u16, report: &StatusReport, place: &str) -> (&'static str, String) {
    let RebuildReport {
        bytes_waiting,
        bytes_without_member,
        bytes_unreadable,
        ..
    } = report.rebuild;
    let index = report.index.as_ref();
    let has_copy = index.is_some_and(|index| index.members.contains(&member));
    let (obstacle, step) = if bytes_waiting > bytes_without_member {
        let obstacle = "there are shards on it that the others have no room for";
        (obstacle, "make room for them".to_owned())
    } else if bytes_waiting > 0 {
        (
            "there are shards on it that need one more directory, because each shard of a stripe needs one of its own",
            format!("add one with `cauchyfs member add {place} DIR`"),
        )
    } else if bytes_unreadable > 0 {
        (
            "there are shards on it beside data that cannot be read",
            format!("have `cauchyfs scrub {place}` name the files"),
        )
    } else if has_copy {
        (
            "there is a copy of the index on it that no other has room for",
            "make room for it".to_owned(),
        )
    } else {
        (
            "the work ended before it was empty",
            format!("go on with `cauchyfs rebuild {place}`"),
        )
    };
    (obstacle, step)
}

fn join(
    mount: &LiveMount,
    old: Option<String>,
    directory: &Path,
    balance: bool,
    options: &RebuildOptions,
) -> Result<Outcome, Failure> {
    check_newcomer(directory, mount.mountpoint())?;
    let made = make(directory)?;
    let canonical = directory.canonicalize().map_err(|error| {
        Failure::environment(format!("cannot find {}: {error}", directory.display()))
    })?;
    let replaced = old.clone();
    let request = Request::Join {
        old,
        directory: canonical.clone(),
        balance,
        bytes_per_second: options.rate,
    };
    let asked = mount.ask(&request);
    if asked.is_err() && made {
        match fs::remove_dir(&canonical) {
            // It is a member by now.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => warn(format_args!("{} stays: {error}", canonical.display())),
            Ok(()) => {}
        }
    }
    match asked? {
        Answer::Joined { member, order } => {
            if !options.json {
                terminal::line(format_args!("member {member} is {}", canonical.display()));
            }
            let Some(outcome) = follow(mount, order, options.json)? else {
                let what = format!("member {member} gets what it was taken in for");
                return Ok(leave(&what, mount, None));
            };
            let report = mount.report()?;
            let judged = judge_newcomer(&report, member, mount.mountpoint());
            let replaced = replaced.and_then(|old| still_a_member(&report, &old, member));
            Ok(match replaced {
                None => outcome.max(judged),
                Some(stays) => {
                    warn_that_it_stays(stays, &report, mount.mountpoint());
                    outcome.max(judged).max(Outcome::Degraded)
                }
            })
        }
        _ => Err(mount.beside_the_point()),
    }
}

/// Returns the member that `old` names, by its number or its path, if it is one still beside the one that replaces it.
fn still_a_member<'a>(
    report: &'a StatusReport,
    old: &str,
    newcomer: u16,
) -> Option<&'a MemberReport> {
    let number = old.parse::<u16>().ok();
    let canonical = Path::new(old).canonicalize().ok();
    let canonical = canonical.as_deref().and_then(Path::to_str);
    let mut members = report.members.iter();
    members.find(|member| {
        let path = member.path.as_deref();
        let is_at = path.is_some() && (path == Some(old) || path == canonical);
        let is_named = number == Some(member.index) || is_at;
        is_named && member.index != newcomer
    })
}

/// Says whether a directory that was taken in is there still, now that it is to have what it was taken in for.
fn judge_newcomer(report: &StatusReport, member: u16, mountpoint: &Path) -> Outcome {
    let mut present = report.present();
    if present.any(|present| present.index == member) {
        return Outcome::Done;
    }
    let mut away = report.absentees();
    let reason = away.find(|away| away.index == member);
    let reason = reason.and_then(|away| away.reason.as_ref());
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    warn_and_advise(
        format_args!(
            "member {member} is gone again{reason}: what it was to have went to the others as far as they have room"
        ),
        format_args!(
            "`cauchyfs status {}` says how things are",
            quoted_path(mountpoint)
        ),
    );
    Outcome::Degraded
}

/// Makes a directory if there is none; says whether it did.
fn make(directory: &Path) -> Result<bool, Failure> {
    if directory.exists() {
        return Ok(false);
    }
    make_member(directory, &mut Vec::new()).map_err(|error| {
        Failure::environment(format!("cannot make {}: {error}", directory.display()))
    })?;
    Ok(true)
}

/// Returns how the daemon is to be told of a member that is gone: its number as it is, a path as it was spelled while
/// it was there.
fn name_of(old: &str) -> String {
    if old.parse::<u16>().is_ok() {
        return old.to_owned();
    }
    spell(Path::new(old)).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{IndexReport, report_without};

    #[test]
    fn a_replaced_member_that_stays_is_found_by_number_and_by_path() {
        let mut report = report_without(&[], &[(2, 9)], &[0, 1, 2]);
        report.members[1].state = MemberState::Removing;
        let stays = |old: &str, newcomer| {
            let member = still_a_member(&report, old, newcomer);
            member.map(|member| member.index)
        };
        assert_eq!(stays("1", 5), Some(1));
        assert_eq!(stays("/srv/d1", 5), Some(1));
        assert_eq!(stays("1", 1), None, "another directory has its place");
        assert_eq!(stays("9", 5), None);
        assert_eq!(stays("/srv/d9", 5), None);
    }

    #[test]
    fn a_member_that_stays_is_said_to_have_the_shards_or_the_copy_that_keep_it() {
        let said = |(waiting, without_member, unreadable), holders: &[u16]| {
            let mut report = report_without(&[], &[(2, 7)], &[0, 1, 2]);
            report.rebuild.bytes_waiting = waiting;
            report.rebuild.bytes_without_member = without_member;
            report.rebuild.bytes_unreadable = unreadable;
            report.index = Some(IndexReport {
                copies_wanted: 3,
                members: holders.to_vec(),
            });
            let (obstacle, step) = obstacle_to_removal(2, &report, "/mnt");
            format!("{obstacle}; {step}")
        };
        for (bytes, holders, expected) in [
            (
                (5, 0, 0),
                &[0, 1, 2][..],
                "the others have no room for; make",
            ),
            ((5, 5, 0), &[0, 1, 2], "need one more directory"),
            ((0, 0, 5), &[0, 1, 2], "cannot be read; have"),
            ((0, 0, 0), &[0, 1, 2], "a copy of the index on it"),
            ((0, 0, 0), &[0, 1, 3], "ended before it was empty"),
        ] {
            let said = said(bytes, holders);
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn a_member_that_is_gone_is_named_by_number_or_as_it_was_spelled_when_it_was_there() {
        assert_eq!(name_of("12"), "12");
        assert_eq!(name_of("/no/such/d2"), "/no/such/d2");
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(name_of("d2"), here.join("d2").to_str().unwrap());
        let home = tempfile::tempdir().unwrap();
        let base = home.path().canonicalize().unwrap();
        fs::create_dir(base.join("disk")).unwrap();
        std::os::unix::fs::symlink(base.join("disk"), base.join("link")).unwrap();
        let gone = base.join("disk/d2");
        assert_eq!(
            name_of(base.join("link/d2").to_str().unwrap()),
            gone.to_str().unwrap()
        );
    }
}
