//! Advice on the next step for a volume.

use crate::members::AbsenceReason;

use super::super::size::format_size;
use super::{IndexReport, MemberReport, MemberState, RebuildState, Report, ScrubState, State};

#[cfg(test)]
mod tests;

impl Report {
    /// Says in one sentence what to do next.
    pub(in crate::cli) fn next_step(&self) -> String {
        let away: Vec<&MemberReport> = self.absentees().collect();
        if let Some(elsewhere) = self.elsewhere.as_ref()
            && elsewhere.went_on == Some(true)
            && !self.is_parted()
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
        let is_left_out = |member: &&MemberReport| member.reason == Some(AbsenceReason::NotGiven);
        // A mounted volume that fails, with fewer members than it takes to read anything, takes no member back.
        let has_failed = self.present().count() < self.geometry.data;
        let step_of = |member: &MemberReport| {
            // A mount takes a member in again that comes and goes.
            let is_left_alone = has_failed && member.reason == Some(AbsenceReason::Flapping);
            step_by_reason(member).filter(|_| !is_left_alone)
        };
        let step = away.iter().find_map(|member| step_of(member));
        let others = away.iter().copied();
        let others: Vec<&MemberReport> =
            others.filter(|member| step_of(member).is_none()).collect();
        let again = if !self.mounted {
            ""
        } else if has_failed || self.read_only || others.iter().any(is_left_out) {
            ", unmount the volume and mount it with all directories"
        } else {
            " (taken in again within seconds)"
        };
        let why = "what is left is not enough to read everything";
        match (others.as_slice(), step) {
            (others, None) => format!("bring back {}{again}: {why}", names_of(others)),
            ([], Some(step)) => format!("{why}: {step}"),
            (others, Some(step)) => {
                format!("bring back {}{again}: {why}; {step}", names_of(others))
            }
        }
    }

    /// Names the members whose wrong bytes may be all that is left of some data, once an absent member is given up.
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
            None if self.is_nearly_full() && !self.read_only => format!(
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
        if away[0].reason == Some(AbsenceReason::NotGiven) {
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
        if here < self.geometry.width() {
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

    /// Says whether a member is a stale copy: a scrub begins by itself.
    fn is_to_be_verified(&self) -> bool {
        self.put_back().next().is_some()
    }

    /// Returns the members that are stale copies.
    fn put_back(&self) -> impl Iterator<Item = &MemberReport> {
        self.present()
            .filter(|member| member.reason == Some(AbsenceReason::Unverified))
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
    match member.reason.as_ref()? {
        AbsenceReason::MountedApart => Some(format!(
            "{name} was mounted apart from the others: `cauchyfs extract` copies out what is needed of it; then empty \
             {path}, and {replace} takes it in"
        )),
        AbsenceReason::Flapping => Some(format!(
            "{name} came and went three times within an hour, and is left alone for the rest of it: see to its disk and \
             cable, and {replace} takes it in at once"
        )),
        AbsenceReason::FormerMember => Some(format!(
            "what is in the place of {name} was let go long ago, and is of no use any more: empty {path}, and \
             {replace} fills it again"
        )),
        reason @ AbsenceReason::InUse { .. } => Some(format!(
            "{name}: {reason}, which ends once the disk answers; with that it comes back"
        )),
        reason if reason.is_missing_superblock() => Some(format!(
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
