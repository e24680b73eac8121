//! What to do next about a volume.

use crate::members::{
    BAD_SUPERBLOCK, FLAPPING, FORMER_MEMBER, IN_USE, MOUNTED_APART, NOT_GIVEN, UNVERIFIED,
};

use super::super::size::format_size;
use super::{IndexReport, MemberReport, MemberState, RebuildState, Report, ScrubState, State};

impl Report {
    /// Says in one sentence what to do next.
    pub(super) fn next_step(&self) -> String {
        let away: Vec<&MemberReport> = self.absentees().collect();
        if let Some(elsewhere) = self.elsewhere.as_ref()
            && elsewhere.went_on == Some(true)
        {
            return format!(
                "give all directories, {} too: what these hold is older, and a mount of all brings it up to date",
                elsewhere.paths.join(" ")
            );
        }
        match self.state {
            State::Healthy | State::Degraded if self.read_only && !self.is_fine() => {
                "unmount it, and mount it with all directories and without `-o ro`: while it is read only, nothing \
                 can be made up for"
                    .to_owned()
            }
            State::Healthy => self.next_step_of_a_whole_volume(),
            State::Failed if away.is_empty() => self.next_step_after_a_loss(),
            State::Failed if !self.mounted && restore_step(&away).is_some() => {
                restore_step(&away).unwrap_or_default()
            }
            State::Failed => self.next_step_where_too_many_are_away(&away),
            State::Degraded if away.is_empty() && !self.mounted => {
                "mount it: what is missing is made up for then, by itself, as far as there is room".to_owned()
            }
            State::Degraded if away.is_empty() => self.next_step_with_all_members(),
            State::Degraded if self.mounted => {
                let step = self.next_step_without(&away);
                match self.caution() {
                    Some(caution) => format!("{step}; {caution}"),
                    None => step,
                }
            }
            State::Degraded => next_step_before_a_mount(&away),
        }
    }

    fn next_step_where_too_many_are_away(&self, away: &[&MemberReport]) -> String {
        let names = names_of(away);
        let is_left_out = |member: &&MemberReport| member.reason.as_deref() == Some(NOT_GIVEN);
        // A mounted volume that fails, with fewer members than it takes to read anything, takes nobody back.
        let has_failed = self.present().count() < self.geometry.data;
        let again = if !self.mounted {
            ""
        } else if has_failed || self.read_only || away.iter().any(is_left_out) {
            ", unmount the volume and mount it with all directories"
        } else {
            " (taken in again within seconds)"
        };
        format!("bring back {names}{again}: what is left is not enough to read everything")
    }

    /// Says whose wrong bytes may be what is missing, once somebody who is away is given up.
    fn caution(&self) -> Option<String> {
        let suspects: Vec<&MemberReport> = self.present().filter(|member| member.suspect).collect();
        (!suspects.is_empty()).then(|| {
            format!(
                "{} gave wrong bytes: before anybody is given up for good, `cauchyfs scrub MOUNTPOINT` shows what is \
                 still right",
                names_of(&suspects)
            )
        })
    }

    /// Says whether nothing is missing, and nothing under way.
    fn is_fine(&self) -> bool {
        let is_well =
            |member: &MemberReport| !member.suspect && member.state == MemberState::Online;
        self.state == State::Healthy && self.members.iter().all(is_well)
    }

    fn next_step_of_a_whole_volume(&self) -> String {
        let of = |choose: &dyn Fn(&MemberReport) -> bool| {
            let members: Vec<&MemberReport> = self.members.iter().filter(|m| choose(m)).collect();
            (!members.is_empty()).then(|| names_of(&members))
        };
        if let Some(names) = of(&MemberReport::is_leaving) {
            return if self.rebuild.bytes_waiting > 0 {
                format!(
                    "`cauchyfs member add MOUNTPOINT DIR` makes room for what {names} still holds; \
                     leave it in its place until then"
                )
            } else {
                format!(
                    "leave {names} in place until it is empty and listed no more; `cauchyfs member add MOUNTPOINT DIR` \
                     keeps it after all"
                )
            };
        }
        match of(&|member| member.suspect) {
            Some(names) if self.scrub.state == ScrubState::Running => {
                format!("wait: everything is being verified; {names} gave wrong bytes")
            }
            Some(names) => format!(
                "{names} gave wrong bytes: `cauchyfs scrub MOUNTPOINT` finds what there is more of it, and mends what \
                 can be mended; where that happens again, `cauchyfs member replace MOUNTPOINT {} DIR`",
                self.members
                    .iter()
                    .find(|member| member.suspect)
                    .map_or(0, |member| member.index)
            ),
            None if self.rebuild.bytes_waiting > 0 => self.make_room(),
            None if self.is_nearly_full() => format!(
                "nothing is missing, but there is room for {} more: remove files, or add a directory with `cauchyfs \
                 member add MOUNTPOINT DIR`",
                format_size(self.room())
            ),
            None => "nothing to do".to_owned(),
        }
    }

    fn next_step_with_all_members(&self) -> String {
        if self.index.as_ref().is_some_and(IndexReport::is_short) {
            "wait: a mounted volume copies its index in the background; if it does not, make room on its members"
        } else if self.rebuild.state == RebuildState::Running {
            "wait: what is missing is being rebuilt"
        } else if self.scrub.state == ScrubState::Running || self.is_to_be_verified() {
            "wait: everything is being verified; what turns out to be missing is rebuilt then"
        } else if self.rebuild.bytes_waiting > 0 {
            return self.make_room();
        } else if self.rebuild.bytes_unreadable > 0 {
            "`cauchyfs scrub MOUNTPOINT` names the files of which parts cannot be read; once they are removed, \
             or restored from a backup, `cauchyfs rebuild MOUNTPOINT` can go on"
        } else {
            "`cauchyfs rebuild MOUNTPOINT` restores what is missing"
        }
        .to_owned()
    }

    fn make_room(&self) -> String {
        format!(
            "there is no room to rebuild {}: `cauchyfs member add MOUNTPOINT DIR` makes some, with a directory that has \
             so much, and so does removing files",
            format_size(self.rebuild.bytes_waiting)
        )
    }

    fn room(&self) -> u64 {
        let capacity = &self.capacity;
        capacity.bytes_usable.saturating_sub(capacity.bytes_used)
    }

    /// Says whether less than a twentieth of the room for data is left.
    fn is_nearly_full(&self) -> bool {
        self.room() < self.capacity.bytes_usable / 20
    }

    fn next_step_without(&self, away: &[&MemberReport]) -> String {
        let names = names_of(away);
        let (it, them) = if away.len() == 1 {
            ("it is", "it")
        } else {
            ("they are", "them")
        };
        let replace = format!("`cauchyfs member replace MOUNTPOINT {} DIR`", away[0].index);
        let remove = format!("`cauchyfs member remove MOUNTPOINT {}`", away[0].index);
        let here = self.members.len() - away.len();
        if away[0].reason.as_deref() == Some(NOT_GIVEN) {
            let path = away[0].path.as_deref().unwrap_or("DIR");
            let index = away[0].index;
            return format!(
                "the volume was mounted without {names}: `cauchyfs member replace MOUNTPOINT {index} {path}` \
                 takes it in, or {replace} puts another in its place"
            );
        }
        if let Some(step) = away.iter().find_map(|member| step_by_reason(member)) {
            return step;
        }
        if here < self.geometry.data + self.geometry.parity {
            return format!(
                "bring back {names}: {it} taken in again within seconds; for one that is gone for good, \
                 {replace} puts another in its place"
            );
        }
        if self.rebuild.state == RebuildState::Running && self.lacks_shards() {
            return format!("wait: what {names} held is being rebuilt onto the others");
        }
        let leaving: Vec<&MemberReport> = self
            .present()
            .filter(|member| member.is_leaving())
            .collect();
        if self.rebuild.state == RebuildState::Running && !leaving.is_empty() {
            let leaving = names_of(&leaving);
            return format!(
                "wait: {leaving} is being emptied; all data is whole without {names}: bring {them} back, or let \
                 {them} go with {remove}"
            );
        }
        if self.rebuild.bytes_waiting > 0 {
            return format!(
                "there is no room for {} to make up for {names} on the others: bring {them} back, put another in the \
                 place with {replace}, or make room with `cauchyfs member add MOUNTPOINT DIR`, or by removing files",
                format_size(self.rebuild.bytes_waiting)
            );
        }
        if self.lacks_shards() {
            return format!(
                "bring back {names}: {it} taken in again within seconds; if {it} gone for good, \
                 `cauchyfs rebuild MOUNTPOINT` makes up for {them} on the others"
            );
        }
        format!(
            "all data is whole without {names}: bring {them} back, or let {them} go with {remove}, or put \
             another in the place with {replace}"
        )
    }

    /// Says whether a member was put back from an earlier time: a scrub begins by itself.
    fn is_to_be_verified(&self) -> bool {
        self.put_back().next().is_some()
    }

    /// Returns the members that were put back from an earlier time.
    fn put_back(&self) -> impl Iterator<Item = &MemberReport> {
        self.present()
            .filter(|member| member.reason.as_deref() == Some(UNVERIFIED))
    }

    /// Says what to do where data is lost although all members are there.
    fn next_step_after_a_loss(&self) -> String {
        let old: Vec<&MemberReport> = self.put_back().collect();
        if old.is_empty() {
            return "restore the files listed above from a backup".to_owned();
        }
        let names = names_of(&old);
        let unmount = if self.mounted {
            "unmount the volume, and "
        } else {
            ""
        };
        format!(
            "what is in the place of {names} is from an earlier time: look for the directories that were there last, \
             {unmount}mount it with these; what cannot be read without them only a backup has"
        )
    }

    fn lacks_shards(&self) -> bool {
        let full = i64::try_from(self.geometry.parity).unwrap_or(i64::MAX);
        let mut rows = self.redundancy.iter();
        rows.any(|row| row.losses_tolerated < full && row.stripes > 0)
    }
}

/// Says what to do about members of an unmounted volume that are there but for their superblocks.
fn restore_step(away: &[&MemberReport]) -> Option<String> {
    let bereft: Vec<&MemberReport> = away
        .iter()
        .copied()
        .filter(|member| member.has_lost_superblock())
        .collect();
    (!bereft.is_empty()).then(|| {
        format!(
            "`cauchyfs check --repair` with all directories writes anew the superblock of {}",
            names_of(&bereft)
        )
    })
}

/// Says what to do about members that are away from a volume that is not mounted.
fn next_step_before_a_mount(away: &[&MemberReport]) -> String {
    if let Some(step) = restore_step(away) {
        return step;
    }
    let steps: Vec<String> = away
        .iter()
        .filter_map(|member| step_by_reason(member))
        .collect();
    let gone: Vec<&MemberReport> = away
        .iter()
        .copied()
        .filter(|member| step_by_reason(member).is_none())
        .collect();
    let mount = match gone.as_slice() {
        [] => "mount it with the others".to_owned(),
        gone => format!(
            "bring back {} (are the disks mounted?), then mount with all directories",
            names_of(gone)
        ),
    };
    match steps.first() {
        Some(step) => format!("{mount}; {step}"),
        None => {
            format!("{mount}; what is gone for good is made up for after a mount with the others")
        }
    }
}

/// Says what to do about a member of which something is there that cannot be taken in as it is.
fn step_by_reason(member: &MemberReport) -> Option<String> {
    let (name, index) = (member.name(), member.index);
    let path = member.path.as_deref().unwrap_or("DIR");
    let replace = format!("`cauchyfs member replace MOUNTPOINT {index} {path}`");
    match member.reason.as_deref()? {
        MOUNTED_APART => Some(format!(
            "{name} was mounted apart from the others: `cauchyfs extract` copies out what is needed of it; then empty \
             {path}, and {replace} takes it in"
        )),
        FLAPPING => Some(format!(
            "{name} came and went three times within an hour, and is left alone for the rest of it: see to its disk and \
             cable, and {replace} takes it in at once"
        )),
        FORMER_MEMBER => Some(format!(
            "what is in the place of {name} was let go long ago, and is of no use any more: empty {path}, and \
             {replace} fills it again"
        )),
        reason if reason.starts_with(IN_USE) => Some(format!(
            "{name}: {reason}, which ends once the disk answers; with that it comes back"
        )),
        reason if reason.starts_with(BAD_SUPERBLOCK) => Some(format!(
            "{name} is there, but its superblock cannot be read: once the volume is unmounted, `cauchyfs check --repair` \
             with all directories makes it anew; or `cauchyfs member replace MOUNTPOINT {index} NEW_DIR` makes anew what \
             it holds, and {path} is left as it is until all is whole"
        )),
        _ => None,
    }
}

fn names_of(members: &[&MemberReport]) -> String {
    let names: Vec<String> = members.iter().map(|member| member.name()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    fn advice(change: impl FnOnce(&mut Report), away: &[u16], rows: &[(i64, u64)]) -> String {
        let mut report = report(away, rows, &[0, 1, 3]);
        change(&mut report);
        report.next_step()
    }

    /// Makes do with 3+2 shards for six members.
    fn spare(report: &mut Report) {
        report.geometry.data = 3;
    }

    #[test]
    fn whole_volumes_need_nothing() {
        assert_eq!(advice(|_| {}, &[], &[(2, 7)]), "nothing to do");
    }

    #[test]
    fn a_volume_that_is_nearly_full_or_has_no_room_for_what_waits_is_said_to_be() {
        let used = |bytes_used| {
            move |report: &mut Report| {
                report.capacity.bytes_usable = 100 << 20;
                report.capacity.bytes_used = bytes_used;
            }
        };
        assert_eq!(advice(used(90 << 20), &[], &[(2, 7)]), "nothing to do");
        let said = advice(used(98 << 20), &[], &[(2, 7)]);
        assert!(said.contains("room for 2.0 MiB more"), "{said}");
        assert!(
            said.contains("`cauchyfs member add MOUNTPOINT DIR`"),
            "{said}"
        );
        let waiting = |report: &mut Report| report.rebuild.bytes_waiting = 3 << 20;
        for row in [(2, 7), (1, 7)] {
            let said = advice(waiting, &[], &[row]);
            assert!(
                said.starts_with("there is no room to rebuild 3.0 MiB"),
                "{said}"
            );
            assert!(
                said.contains("`cauchyfs member add MOUNTPOINT DIR`"),
                "{said}"
            );
        }
    }

    #[test]
    fn who_is_being_emptied_stays_in_place_until_it_is() {
        let leaving = |report: &mut Report| report.members[3].state = MemberState::Removing;
        let said = advice(leaving, &[], &[(2, 7)]);
        assert!(
            said.starts_with("leave member 3 (/srv/d3) in place"),
            "{said}"
        );
        assert!(said.ends_with("`cauchyfs member add MOUNTPOINT DIR` keeps it after all"));
        let stuck = |report: &mut Report| {
            leaving(report);
            report.rebuild.bytes_waiting = 1;
        };
        let said = advice(stuck, &[], &[(2, 7)]);
        assert!(
            said.contains("cauchyfs member add MOUNTPOINT DIR"),
            "{said}"
        );
    }

    #[test]
    fn who_is_there_but_cannot_be_told_is_replaced_and_kept_until_all_is_whole() {
        let damaged = |report: &mut Report| {
            report.members[2].reason = Some("its superblock is damaged: no magic".to_owned());
        };
        let said = advice(damaged, &[2], &[(1, 7)]);
        assert!(
            said.contains("`cauchyfs member replace MOUNTPOINT 2 NEW_DIR`"),
            "{said}"
        );
        assert!(said.contains("/srv/d2 is left as it is"), "{said}");
        assert!(said.contains("`cauchyfs check --repair`"), "{said}");
    }

    #[test]
    fn who_is_kept_by_a_process_that_cannot_end_is_not_brought_back_by_anybody_else() {
        for mounted in [true, false] {
            let kept = |report: &mut Report| {
                report.mounted = mounted;
                report.members[2].reason = Some("it is in use by process 9 (cauchyfs)".to_owned());
            };
            let said = advice(kept, &[2], &[(1, 7)]);
            assert!(said.contains("process 9 (cauchyfs), which ends"), "{said}");
            assert!(!said.contains("bring back"), "{said}");
        }
    }

    #[test]
    fn wrong_bytes_that_were_mended_call_for_a_scrub() {
        let rotten = |report: &mut Report| report.members[1].suspect = true;
        let said = advice(rotten, &[], &[(2, 7)]);
        assert!(
            said.starts_with("member 1 (/srv/d1) gave wrong bytes"),
            "{said}"
        );
        assert!(said.contains("`cauchyfs scrub MOUNTPOINT`"), "{said}");
        let under_way = |report: &mut Report| {
            rotten(report);
            report.scrub.state = ScrubState::Running;
        };
        let said = advice(under_way, &[], &[(2, 7)]);
        assert!(
            said.starts_with("wait: everything is being verified"),
            "{said}"
        );
    }

    #[test]
    fn a_volume_that_is_only_read_gets_no_advice_that_would_be_refused() {
        let read_only = |report: &mut Report| report.read_only = true;
        assert_eq!(advice(read_only, &[], &[(2, 7)]), "nothing to do");
        for (away, rows) in [(&[][..], (1, 7)), (&[2], (1, 7)), (&[2], (2, 7))] {
            let said = advice(read_only, away, &[rows]);
            assert!(said.starts_with("unmount it"), "{said}");
            assert!(!said.contains("cauchyfs"), "{said}");
        }
        let rotten = |report: &mut Report| {
            read_only(report);
            report.members[1].suspect = true;
        };
        let said = advice(rotten, &[], &[(2, 7)]);
        assert!(said.starts_with("unmount it"), "{said}");
    }

    #[test]
    fn who_is_away_is_not_said_to_be_rebuilt_while_another_is_emptied() {
        let emptied = |report: &mut Report| {
            spare(report);
            report.members[3].state = MemberState::Removing;
            report.rebuild.state = RebuildState::Running;
        };
        let said = advice(emptied, &[2], &[(2, 7)]);
        assert!(
            said.starts_with("wait: member 3 (/srv/d3) is being emptied"),
            "{said}"
        );
        let said = advice(emptied, &[2], &[(1, 1), (2, 7)]);
        assert!(
            said.starts_with("wait: what member 2 (/srv/d2) held"),
            "{said}"
        );
    }

    #[test]
    fn what_is_not_mounted_is_made_whole_by_mounting_it() {
        let unmounted = |report: &mut Report| report.mounted = false;
        let said = advice(unmounted, &[], &[(1, 7)]);
        assert!(said.starts_with("mount it"), "{said}");
    }

    #[test]
    fn an_old_copy_that_was_put_back_waits_for_the_scrub_that_begins_by_itself() {
        let said = advice(
            |report| report.members[1].reason = Some(UNVERIFIED.to_owned()),
            &[],
            &[(1, 7)],
        );
        assert!(
            said.starts_with("wait: everything is being verified"),
            "{said}"
        );
    }

    #[test]
    fn current_directories_are_looked_for_before_a_backup_where_old_copies_are_in_their_places() {
        let said = advice(|_| {}, &[], &[(-1, 7)]);
        assert!(said.ends_with("from a backup"), "{said}");
        for mounted in [true, false] {
            let old = |report: &mut Report| {
                report.mounted = mounted;
                report.members[1].reason = Some(UNVERIFIED.to_owned());
            };
            let said = advice(old, &[], &[(-1, 7)]);
            let place = "what is in the place of member 1 (/srv/d1) is from an earlier time: look";
            assert!(said.starts_with(place), "{said}");
            assert_eq!(said.contains("unmount"), mounted, "{said}");
        }
    }

    #[test]
    fn who_is_away_may_come_back_or_get_a_successor() {
        let said = advice(|_| {}, &[2, 4], &[(0, 7)]);
        assert!(
            said.starts_with("bring back member 2 (/srv/d2), member 4 (/srv/d4): they are"),
            "{said}"
        );
        assert!(
            said.ends_with("`cauchyfs member replace MOUNTPOINT 2 DIR` puts another in its place"),
            "{said}"
        );
        let said = advice(|report| report.mounted = false, &[2], &[(1, 7)]);
        assert!(said.contains("then mount with all directories"), "{said}");
        let damaged = |report: &mut Report| {
            report.mounted = false;
            report.members[2].reason = Some("its superblock is damaged: no magic".to_owned());
        };
        for (away, losses) in [(&[2][..], 1), (&[2, 4], 0), (&[1, 2, 4], -1)] {
            let said = advice(damaged, away, &[(losses, 7)]);
            assert!(said.starts_with("`cauchyfs check --repair`"), "{said}");
            assert!(said.ends_with("member 2 (/srv/d2)"), "{said}");
        }
        let said = advice(|_| {}, &[1, 2, 4], &[(-1, 7)]);
        assert!(said.ends_with("not enough to read everything"), "{said}");
    }

    #[test]
    fn to_mount_it_again_is_advised_only_where_nobody_is_taken_back() {
        let again = "unmount the volume and mount it";
        let said = advice(|_| {}, &[1, 2, 4], &[(-1, 7)]);
        assert!(said.contains(again), "three of 4+2 read nothing: {said}");
        let more = |report: &mut Report| report.geometry.data = 2;
        let said = advice(more, &[1, 2, 4], &[(-1, 7)]);
        assert!(!said.contains(again), "{said}");
        assert!(said.contains("taken in again within seconds"), "{said}");
        let left_out = |report: &mut Report| {
            more(report);
            report.members[2].reason = Some(NOT_GIVEN.to_owned());
        };
        assert!(advice(left_out, &[1, 2, 4], &[(-1, 7)]).contains(again));
        let unmounted = |report: &mut Report| report.mounted = false;
        assert!(!advice(unmounted, &[1, 2, 4], &[(-1, 7)]).contains(again));
    }

    #[test]
    fn who_was_mounted_apart_is_emptied_first() {
        let apart = |report: &mut Report| {
            report.members[4].reason = Some(MOUNTED_APART.to_owned());
        };
        let said = advice(apart, &[2, 4], &[(0, 7)]);
        assert!(
            said.starts_with("member 4 (/srv/d4) was mounted apart"),
            "{said}"
        );
        assert!(
            said.ends_with(
                "empty /srv/d4, and `cauchyfs member replace MOUNTPOINT 4 /srv/d4` takes it in"
            ),
            "{said}"
        );
    }

    #[test]
    fn what_was_let_go_is_emptied_before_it_is_filled_again() {
        let former = |report: &mut Report| {
            report.members[2].reason = Some(FORMER_MEMBER.to_owned());
        };
        let said = advice(former, &[2], &[(1, 7)]);
        assert!(
            said.ends_with(
                "empty /srv/d2, and `cauchyfs member replace MOUNTPOINT 2 /srv/d2` fills it again"
            ),
            "{said}"
        );
    }

    #[test]
    fn who_was_left_out_comes_back_when_it_is_told_to() {
        let said = advice(
            |report| report.members[2].reason = Some(NOT_GIVEN.to_owned()),
            &[2],
            &[(1, 7)],
        );
        assert!(
            said.contains("`cauchyfs member replace MOUNTPOINT 2 /srv/d2`"),
            "{said}"
        );
    }

    #[test]
    fn the_others_make_up_for_it_where_there_are_enough() {
        let said = advice(spare, &[2], &[(1, 7), (2, 1)]);
        assert!(
            said.contains("`cauchyfs rebuild MOUNTPOINT` makes up for it"),
            "{said}"
        );
        let running = |report: &mut Report| {
            spare(report);
            report.rebuild.state = RebuildState::Running;
        };
        let said = advice(running, &[2], &[(1, 7)]);
        assert!(
            said.starts_with("wait: what member 2 (/srv/d2) held"),
            "{said}"
        );
        let rotting = |report: &mut Report| {
            spare(report);
            report.members[4].suspect = true;
        };
        let said = advice(rotting, &[2], &[(1, 7)]);
        assert!(said.starts_with("bring back member 2"), "{said}");
        assert!(
            said.contains("member 4 (/srv/d4) gave wrong bytes"),
            "{said}"
        );
        let waiting = |report: &mut Report| {
            spare(report);
            report.rebuild.bytes_waiting = 1;
        };
        let said = advice(waiting, &[2], &[(1, 7)]);
        assert!(said.starts_with("there is no room"), "{said}");
        let said = advice(spare, &[2], &[(2, 7)]);
        assert!(
            said.contains("`cauchyfs member remove MOUNTPOINT 2`"),
            "{said}"
        );
    }

    #[test]
    fn missing_shards_and_copies_are_made_where_there_is_room() {
        let said = advice(|_| {}, &[], &[(1, 7)]);
        assert!(said.starts_with("`cauchyfs rebuild MOUNTPOINT`"), "{said}");
        let said = advice(
            |report| report.rebuild.state = RebuildState::Running,
            &[],
            &[(1, 7)],
        );
        assert!(said.starts_with("wait: what is missing"), "{said}");
        let said = advice(|report| report.rebuild.bytes_waiting = 1, &[], &[(1, 7)]);
        assert!(
            said.starts_with(
                "there is no room to rebuild 1 B: `cauchyfs member add MOUNTPOINT DIR`"
            ),
            "{said}"
        );
        let unreadable = |report: &mut Report| report.rebuild.bytes_unreadable = 1;
        let said = advice(unreadable, &[], &[(1, 7)]);
        assert!(said.starts_with("`cauchyfs scrub MOUNTPOINT`"), "{said}");
        let short = |report: &mut Report| report.index.as_mut().unwrap().members.truncate(1);
        let said = advice(
            |report| {
                short(report);
                report.state = State::Degraded;
            },
            &[],
            &[(2, 7)],
        );
        assert!(said.contains("copies its index"), "{said}");
    }
}
