//! `cauchyfs scrub`.

use std::fmt;
use std::path::Path;

use super::args::ScrubArguments;
use super::client::LiveMount;
use super::failure::{Failure, Outcome};
use super::progress;
use super::sentences::mountpoint_word;
use super::size::{format_count, format_size};
use super::terminal;
use crate::control::protocol::{Answer, Request};
use crate::control::report::{MemberReport, StatusReport};
use crate::control::scrubbed::{MemberDefects, Progress, Scrubbed, UnverifiedMember};
use crate::maintenance::ScrubState;

impl fmt::Display for UnverifiedMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, path } = self;
        write!(
            f,
            "member {index} ({path}) is from an earlier time, and not verified: what it holds counts once a scrub could \
             read all of it"
        )
    }
}

impl fmt::Display for MemberDefects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}", self.index)?;
        if let Some(path) = &self.path {
            write!(f, " ({path})")?;
        }
        write!(f, ": {} wrong, or gone", format_count(self.pieces, "piece"))
    }
}

/// The members that are away, and what there is to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Away {
    /// No member.
    None,
    /// No member, but these are being emptied, to be removed: their names.
    Leaving(String),
    /// Some, and their data can be restored on the others.
    Few,
    /// So many that no other has a place for what they held: this is to be done.
    TooMany(String),
}

impl Away {
    /// Returns the absent members of a mounted volume, and the advice of `status`.
    fn of(report: &StatusReport, mountpoint: &Path) -> Self {
        let wanted = report.geometry.width();
        let away = report.absentees().count();
        if away == 0 {
            let leaving = report.members.iter().filter(|member| member.is_leaving());
            let names: Vec<String> = leaving.map(MemberReport::name).collect();
            if names.is_empty() {
                Self::None
            } else {
                Self::Leaving(names.join(", "))
            }
        } else if report.members.len() - away < wanted {
            Self::TooMany(report.next_step(Some(mountpoint)))
        } else {
            Self::Few
        }
    }
}

impl Scrubbed {
    pub(super) fn outcome(&self) -> Outcome {
        if self.bytes_lost > 0 || !self.lost.is_empty() {
            Outcome::Lost
        } else if (self.wrong, self.missing, self.unverified) != (0, 0, 0)
            || self.stripes_waiting > 0
            || !self.unverified_members.is_empty()
            || self.state != ScrubState::Finished
        {
            Outcome::Degraded
        } else {
            Outcome::Done
        }
    }

    /// Writes it for people; absent members may have what is missing. `mountpoint` is where the volume is mounted.
    pub(super) fn for_people(&self, away: &Away, mountpoint: Option<&Path>) -> String {
        let place = mountpoint_word(mountpoint);
        let mut lines = vec![format!(
            "{}: {} read, {} repaired",
            match self.state {
                ScrubState::Finished => "finished",
                _ => "stopped half way",
            },
            format_size(self.bytes_read),
            format_count(self.repaired, "piece"),
        )];
        if self.wrong > 0 {
            lines.push(format!(
                "{} could not be repaired",
                format_count(self.wrong, "piece")
            ));
        }
        if self.stripes_waiting > 0 {
            let (wait, their) = match self.stripes_waiting {
                1 => ("1 stripe waits".to_owned(), "its"),
                stripes => (format!("{stripes} stripes wait"), "their"),
            };
            let remedy = match away {
                _ if self.waiting_for_space => "make room".to_owned(),
                Away::None => "make room, or add members".to_owned(),
                Away::Leaving(names) => format!(
                    "wait until this is removed, or keep it with `cauchyfs member add {place} DIR`: {names}"
                ),
                Away::Few | Away::TooMany(_) => {
                    "bring back what is away, or add members".to_owned()
                }
            };
            lines.push(format!(
                "{wait} to be rewritten, because {their} bytes would survive fewer losses now: {remedy}; then run `cauchyfs \
                 scrub {place}`"
            ));
        }
        lines.extend(self.defects.iter().map(ToString::to_string));
        let are_missing = |missing: u64, rest: &str| {
            let shards = match missing {
                1 => "1 shard is".to_owned(),
                missing => format!("{missing} shards are"),
            };
            (missing > 0).then(|| format!("{shards} on no online member{rest}"))
        };
        let remedy = match away {
            Away::None | Away::Leaving(_) | Away::Few => {
                format!("; `cauchyfs rebuild {place}` restores them")
            }
            Away::TooMany(step) => format!(": {step}"),
        };
        lines.extend(are_missing(
            self.missing.saturating_sub(self.missing_for_now),
            &remedy,
        ));
        lines.extend(are_missing(
            self.missing_for_now,
            match away {
                Away::None | Away::Leaving(_) => " whose stripes have too few left to restore them",
                Away::Few | Away::TooMany(_) => {
                    " whose stripes have too few left to restore them: bring back what is away"
                }
            },
        ));
        if self.unverified > 0 {
            let were = match self.unverified {
                1 => "1 shard was".to_owned(),
                unverified => format!("{unverified} shards were"),
            };
            lines.push(format!(
                "{were} not verified, being away or unreadable when passed; `cauchyfs scrub {place}` tries again"
            ));
        }
        if self.state == ScrubState::Finished {
            let members = self.unverified_members.iter();
            lines.extend(members.map(ToString::to_string));
        }
        if self.bytes_lost > 0 {
            lines.push(format!("{} are lost", format_size(self.bytes_lost)));
        }
        lines.extend(self.lost.lines());
        if self.state != ScrubState::Finished {
            lines.push(format!(
                "the next `cauchyfs scrub {place}` goes on from there"
            ));
        }
        terminal::join_lines(&lines)
    }
}

/// Has the daemon of a mount scrub it, and waits for that.
///
/// # Errors
///
/// If nothing of ours is mounted there, or it cannot scrub.
pub(super) fn run(arguments: &ScrubArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    let request = Request::Scrub {
        bytes_per_second: arguments.rate,
    };
    let bar = progress::bar();
    let show = |scrub: Progress| {
        progress::show(&bar, scrub.bytes_passed, scrub.bytes_total);
        let left = if scrub.wrong > 0 {
            format!(", {} not", scrub.wrong)
        } else {
            String::new()
        };
        bar.set_message(format!("{} repaired{left}", scrub.repaired));
    };
    let answered = mount.ask_and_heed(&request, |answer| {
        if let Answer::Scrubbing(progress) = answer {
            show(*progress);
        }
    });
    bar.finish_and_clear();
    let Answer::Scrubbed(scrubbed) = answered? else {
        return Err(mount.beside_the_point());
    };
    if arguments.json {
        terminal::json(&scrubbed).map_err(Failure::environment)?;
    } else {
        let mountpoint = mount.mountpoint();
        let away = Away::of(&mount.report()?, mountpoint);
        terminal::report(&scrubbed.for_people(&away, Some(mountpoint)));
    }
    Ok(scrubbed.outcome())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{LostFiles, MemberState, report_without};

    fn scrubbed() -> Scrubbed {
        Scrubbed {
            state: ScrubState::Finished,
            progress: 1.0,
            bytes_read: 3 << 20,
            repaired: 1,
            wrong: 0,
            stripes_waiting: 0,
            waiting_for_space: false,
            missing: 0,
            missing_for_now: 0,
            unverified: 0,
            unverified_members: Vec::new(),
            defects: Vec::new(),
            bytes_lost: 0,
            began_at: None,
            finished_at: None,
            lost: LostFiles::default(),
        }
    }

    #[test]
    fn the_exit_code_says_whether_all_is_whole_now() {
        let clean = scrubbed();
        assert_eq!(clean.outcome(), Outcome::Done);
        assert_eq!(
            clean.for_people(&Away::None, None),
            "finished: 3.0 MiB read, 1 piece repaired"
        );
        let missing = Scrubbed {
            missing: 2,
            ..scrubbed()
        };
        assert_eq!(missing.outcome(), Outcome::Degraded);
        assert!(
            missing
                .for_people(&Away::Few, None)
                .contains("2 shards are on no online member; `cauchyfs rebuild MOUNTPOINT`")
        );
        let for_now = Scrubbed {
            missing_for_now: 2,
            ..missing
        };
        for away in [Away::None, Away::Few, Away::TooMany("wait".to_owned())] {
            let said = for_now.for_people(&away, None);
            assert!(!said.contains("cauchyfs rebuild"), "{said}");
            assert!(said.contains("2 shards are on no"), "{said}");
            assert_eq!(said.contains("bring back"), away != Away::None, "{said}");
        }
        let waiting = Scrubbed {
            stripes_waiting: 1,
            ..scrubbed()
        };
        assert_eq!(waiting.outcome(), Outcome::Degraded);
        let said = waiting.for_people(&Away::Few, None);
        assert!(said.contains("1 stripe waits to be rewritten"), "{said}");
        assert!(said.contains("bring back what is away"), "{said}");
        let unverified = Scrubbed {
            unverified: 1,
            ..scrubbed()
        };
        assert_eq!(unverified.outcome(), Outcome::Degraded);
        assert!(
            unverified
                .for_people(&Away::None, None)
                .contains("1 shard was not verified")
        );
        let member = UnverifiedMember {
            index: 3,
            path: "/srv/d3".to_owned(),
        };
        let unverified = Scrubbed {
            unverified_members: vec![member],
            ..scrubbed()
        };
        assert_eq!(unverified.outcome(), Outcome::Degraded);
        let said = "member 3 (/srv/d3) is from an earlier time, and not verified";
        assert!(unverified.for_people(&Away::None, None).contains(said));
        let defects = |index, pieces| MemberDefects {
            index,
            path: Some(format!("/srv/d{index}")),
            pieces,
        };
        let defects = Scrubbed {
            defects: vec![defects(1, 1), defects(4, 20)],
            ..scrubbed()
        };
        assert_eq!(
            defects
                .for_people(&Away::None, None)
                .lines()
                .skip(1)
                .collect::<Vec<_>>(),
            [
                "member 1 (/srv/d1): 1 piece wrong, or gone",
                "member 4 (/srv/d4): 20 pieces wrong, or gone"
            ]
        );
        let stopped = Scrubbed {
            state: ScrubState::Stopped,
            ..scrubbed()
        };
        assert_eq!(stopped.outcome(), Outcome::Degraded);
        let lost = Scrubbed {
            bytes_lost: 4096,
            lost: LostFiles {
                paths: Some(vec!["/a".to_owned()]),
                are_all: true,
            },
            ..stopped
        };
        assert_eq!(lost.outcome(), Outcome::Lost);
        assert!(
            lost.for_people(&Away::None, None)
                .contains("cannot be read in full: /a")
        );
    }

    /// Members that come back make no room, and no room replaces members.
    #[test]
    fn the_remedy_for_stripes_that_wait_follows_the_cause() {
        let waiting = Scrubbed {
            stripes_waiting: 1,
            ..scrubbed()
        };
        for away in [Away::None, Away::Few, Away::Leaving("member 3".to_owned())] {
            let full = Scrubbed {
                waiting_for_space: true,
                ..waiting.clone()
            };
            let said = full.for_people(&away, None);
            assert!(said.contains("fewer losses now: make room;"), "{said}");
            let said = waiting.for_people(&away, None);
            let waits = "wait until this is removed, or keep it with `cauchyfs member add MOUNTPOINT DIR`: member 3;";
            assert_eq!(
                said.contains(waits),
                matches!(away, Away::Leaving(_)),
                "{said}"
            );
            assert_eq!(said.contains("make room"), away == Away::None, "{said}");
        }
    }

    /// A stripe of 4+2 has no other place to go where five of six directories are.
    #[test]
    fn a_rebuild_is_not_advised_where_no_other_directory_could_take_what_is_missing() {
        let missing = Scrubbed {
            missing: 2,
            ..scrubbed()
        };
        let mountpoint = Path::new("/mnt");
        let report = report_without(&[3], &[(1, 9)], &[0, 1, 2]);
        let said = missing.for_people(&Away::of(&report, mountpoint), Some(mountpoint));
        assert!(!said.contains("cauchyfs rebuild"), "{said}");
        let as_status_says = format!(
            "2 shards are on no online member: {}",
            report.next_step(Some(mountpoint))
        );
        assert!(said.contains(&as_status_says), "{said}");
        assert!(said.contains("member replace '/mnt' 3 DIR"), "{said}");
        let mut larger = report_without(&[3], &[(1, 9)], &[0, 1, 2]);
        larger.members.push(larger.members[0].clone());
        let said = missing.for_people(&Away::of(&larger, mountpoint), Some(mountpoint));
        assert!(
            said.contains("`cauchyfs rebuild '/mnt'` restores them"),
            "{said}"
        );
        let mut whole = report_without(&[], &[(2, 9)], &[0, 1, 2]);
        assert_eq!(Away::of(&whole, mountpoint), Away::None);
        whole.members[1].state = MemberState::Removing;
        let leaving = Away::Leaving(whole.members[1].name());
        assert_eq!(Away::of(&whole, mountpoint), leaving);
    }
}
