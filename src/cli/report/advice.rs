//! Advice on the next step for a volume.

use std::path::Path;

use crate::membership::AbsenceReason;

use super::super::sentences::mountpoint_word;
use super::super::shell::{quoted, quoted_words};
use super::super::size::format_size;
use crate::control::report::{IndexReport, MemberReport, MemberState, StatusReport, VolumeState};
use crate::maintenance::RebuildState;
use crate::store::StoreErrorKind;
use crate::transaction::FullMembers;

#[cfg(test)]
mod tests;

impl StatusReport {
    /// Says in one sentence what to do next; `mountpoint` is where the volume is mounted.
    pub(in crate::cli) fn next_step(&self, mountpoint: Option<&Path>) -> String {
        let place = mountpoint_word(mountpoint);
        let report = self;
        NextStep { report, place }.sentence()
    }
}

/// The step to take next for a volume.
struct NextStep<'a> {
    report: &'a StatusReport,
    /// The mountpoint as a word of a command.
    place: String,
}

impl NextStep<'_> {
    fn sentence(&self) -> String {
        let away: Vec<&MemberReport> = self.report.absentees().collect();
        if let Some(elsewhere) = self.report.elsewhere.as_ref()
            && elsewhere.went_on == Some(true)
            && !self.report.is_parted()
        {
            return format!(
                "give all directories, {} too: what these hold is older, and a mount of all brings it up to date",
                elsewhere.paths.join(" ")
            );
        }
        match self.report.state {
            VolumeState::Healthy | VolumeState::Degraded if self.report.mounted_read_only && !self.is_fine() => {
                "unmount it, and mount it with all directories and without `-o ro`: while it is read only, nothing \
                 can be made up for"
                    .to_owned()
            }
            VolumeState::Healthy | VolumeState::Degraded if self.report.has_stopped() => {
                "unmount the volume, and mount it again with all directories: a write failed, and nothing is written \
                 until then"
                    .to_owned()
            }
            VolumeState::Healthy if self.report.interlock.as_ref().is_some_and(|it| it.refuses) => format!(
                "look for the program that removes files; if they were to go, `cauchyfs resume {}` lets more go",
                self.place
            ),
            VolumeState::Healthy => self.of_whole_volume(),
            VolumeState::Failed if away.is_empty() && self.report.redundancy.is_none() => {
                self.where_nothing_can_be_read()
            }
            VolumeState::Failed if away.is_empty() => self.after_loss(),
            VolumeState::Failed if !self.report.mounted && self.recovery(&away).is_some() => {
                self.recovery(&away).unwrap_or_default()
            }
            VolumeState::Failed => self.where_too_many_are_away(&away),
            VolumeState::Degraded if away.is_empty() && !self.report.mounted => {
                "mount it: what is missing is made up for then, by itself, as far as there is room".to_owned()
            }
            VolumeState::Degraded if away.is_empty() => self.with_all_members(),
            VolumeState::Degraded if self.report.mounted => {
                let step = self.without(&away);
                match self.caution() {
                    Some(caution) => format!("{step}; {caution}"),
                    None => step,
                }
            }
            VolumeState::Degraded => self.before_mount(&away),
        }
    }

    /// Says what to do where all members are there, and their records cannot be read.
    fn where_nothing_can_be_read(&self) -> String {
        if self.report.mounted {
            return "wait: the volume goes on by itself once enough of its members answer; if it does not within a minute, \
                    unmount it, and mount it with all directories"
                .to_owned();
        }
        let paths = self.report.members.iter().filter_map(|it| it.path.clone());
        let paths: Vec<String> = paths.collect();
        format!(
            "look for directories of the volume that were there last and are not among these, such as copies from a \
             backup; `cauchyfs check {}` says what is damaged",
            quoted_words(&paths)
        )
    }

    fn where_too_many_are_away(&self, away: &[&MemberReport]) -> String {
        let is_left_out = |member: &&MemberReport| member.reason == Some(AbsenceReason::NotGiven);
        // A mounted volume that fails, with fewer members than it takes to read anything, is opened again when enough are
        // back.
        let has_failed = self.report.present().count() < self.report.geometry.data;
        let step_of = |member: &MemberReport| {
            // A mount takes a member in again that comes and goes.
            let is_left_alone = has_failed && member.reason == Some(AbsenceReason::Flapping);
            self.step_by_reason(member).filter(|_| !is_left_alone)
        };
        let step = away.iter().find_map(|member| step_of(member));
        let others = away.iter().copied();
        let others: Vec<&MemberReport> =
            others.filter(|member| step_of(member).is_none()).collect();
        let again = if !self.report.mounted {
            ""
        } else if self.report.mounted_read_only && !has_failed || others.iter().any(is_left_out) {
            ", unmount the volume and mount it with all directories"
        } else if has_failed {
            " (the volume then goes on by itself)"
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
        let place = &self.place;
        let suspects: Vec<&MemberReport> = self
            .report
            .present()
            .filter(|member| member.suspect)
            .collect();
        (!suspects.is_empty()).then(|| {
            format!(
                "{} gave wrong bytes: before anybody is given up for good, `cauchyfs scrub {place}` shows what is \
                 still right",
                names_of(&suspects)
            )
        })
    }

    /// Says whether nothing is missing, and nothing under way.
    fn is_fine(&self) -> bool {
        let is_well =
            |member: &MemberReport| !member.suspect && member.state == MemberState::Online;
        self.report.state == VolumeState::Healthy && self.report.members.iter().all(is_well)
    }

    fn of_whole_volume(&self) -> String {
        let place = &self.place;
        let of = |choose: &dyn Fn(&MemberReport) -> bool| {
            let members: Vec<&MemberReport> =
                self.report.members.iter().filter(|m| choose(m)).collect();
            (!members.is_empty()).then(|| names_of(&members))
        };
        if let Some(names) = of(&MemberReport::is_leaving) {
            return if self.report.rebuild.bytes_waiting > 0 {
                format!(
                    "`cauchyfs member add {place} DIR` makes room for what {names} still holds; \
                     leave it in its place until then"
                )
            } else {
                format!(
                    "leave {names} in place until it is empty and listed no more; `cauchyfs member add {place} DIR` \
                     keeps it after all"
                )
            };
        }
        match of(&|member| member.suspect) {
            Some(names) if self.report.is_scrubbing() => {
                format!("wait: everything is being verified; {names} gave wrong bytes")
            }
            Some(names) => format!(
                "{names} gave wrong bytes: `cauchyfs scrub {place}` finds what there is more of it, and repairs \
                 what it can; where that happens again, `cauchyfs member replace {place} {} DIR`",
                self.report
                    .members
                    .iter()
                    .find(|member| member.suspect)
                    .map_or(0, |member| member.index)
            ),
            None if self.report.rebuild.bytes_waiting > 0 => self.make_room(),
            None if !self.blocking().is_empty() => self.unblock(),
            None if self.is_nearly_full() && !self.report.mounted_read_only => format!(
                "nothing is missing, but there is room for {} more: remove files, or add a directory with `cauchyfs \
                 member add {place} DIR`",
                format_size(self.room())
            ),
            None => "nothing to do".to_owned(),
        }
    }

    fn with_all_members(&self) -> String {
        let place = &self.place;
        if self.report.redundancy.is_none() {
            let check = self.check_command();
            return format!("unmount it, and have its records repaired: {check}");
        }
        let step = if self
            .report
            .index
            .as_ref()
            .is_some_and(IndexReport::is_short)
        {
            "wait: a mounted volume copies its index in the background; if it does not, make room on its members"
        } else if self.report.rebuild.state == RebuildState::Running {
            "wait: what is missing is being rebuilt"
        } else if self.report.is_scrubbing() || self.is_to_be_verified() {
            "wait: everything is being verified; what turns out to be missing is rebuilt then"
        } else if self.report.rebuild.bytes_waiting > 0 {
            return self.make_room();
        } else if !self.blocking().is_empty() {
            return self.unblock();
        } else if self.report.rebuild.bytes_unreadable > 0 {
            return format!(
                "`cauchyfs scrub {place}` names the files of which parts cannot be read; once they are removed, or \
                 restored from a backup, `cauchyfs rebuild {place}` can go on"
            );
        } else {
            return format!("`cauchyfs rebuild {place}` restores what is missing");
        };
        step.to_owned()
    }

    fn make_room(&self) -> String {
        let place = &self.place;
        let waiting = format_size(self.report.rebuild.bytes_waiting);
        if !self.blocking().is_empty() {
            return format!("there is no room to rebuild {waiting}: {}", self.unblock());
        }
        if self.report.rebuild.waits_for_members() {
            return format!(
                "{waiting} of shards wait for one more directory, because each shard of a stripe needs one of its own: \
                 `cauchyfs member add {place} DIR` adds one"
            );
        }
        format!(
            "there is no room to rebuild {waiting}: `cauchyfs member add {place} DIR` makes some, with a directory that \
             has so much, and so does removing files"
        )
    }

    /// Returns the full members without which there would be room: the others have some, and are too few for a stripe.
    fn blocking(&self) -> Vec<&MemberReport> {
        let homes = self.report.present().filter(|member| !member.is_leaving());
        let (full, others): (Vec<&MemberReport>, Vec<_>) = homes.partition(|member| member.full);
        let width = self.report.geometry.width();
        let are_needed = others.len() < width.min(full.len() + others.len());
        if others.is_empty() || !are_needed {
            return Vec::new();
        }
        full
    }

    /// Says what to do about full members that keep the others from taking new data.
    fn unblock(&self) -> String {
        let (place, full) = (&self.place, self.blocking());
        let index = full.first().map_or(0, |member| member.index);
        let losses = self.report.geometry.losses_survived();
        let losses = losses.saturating_sub(full.len());
        let consequence = match self.report.full_member {
            FullMembers::Degrade if full.len() <= self.report.geometry.parity => match losses {
                0 => "new data would not survive another loss".to_owned(),
                1 => "new data survives the loss of 1 more member only".to_owned(),
                _ => format!("new data survives the loss of {losses} more members only"),
            },
            _ => "nothing new can be written".to_owned(),
        };
        format!(
            "{consequence}, because there is no room on {}: free some on that disk, or `cauchyfs member \
             replace {place} {index} DIR` with a larger one, or `cauchyfs member add {place} DIR`",
            names_of(&full)
        )
    }

    fn room(&self) -> u64 {
        let capacity = &self.report.capacity;
        let usable = capacity.bytes_usable.unwrap_or_default();
        usable.saturating_sub(capacity.bytes_used.unwrap_or_default())
    }

    /// Says whether less than a twentieth of the room for data is left.
    fn is_nearly_full(&self) -> bool {
        let usable = self.report.capacity.bytes_usable;
        usable.is_some_and(|usable| self.room() < usable / 20)
    }

    fn without(&self, away: &[&MemberReport]) -> String {
        let place = &self.place;
        let names = names_of(away);
        let (it, them) = if away.len() == 1 {
            ("it is", "it")
        } else {
            ("they are", "them")
        };
        let replace = format!("`cauchyfs member replace {place} {} DIR`", away[0].index);
        let remove = format!("`cauchyfs member remove {place} {}`", away[0].index);
        let here = self.report.members.len() - away.len();
        if away[0].reason == Some(AbsenceReason::NotGiven) {
            let own = self.replace_in_place(away[0]);
            return format!(
                "the volume was mounted without {names}: {own} takes it in, or {replace} puts another in its place"
            );
        }
        if let Some(step) = away.iter().find_map(|member| self.step_by_reason(member)) {
            return step;
        }
        if here < self.report.geometry.width() {
            return format!(
                "bring back {names}: {it} taken in again within seconds; for one that is gone for good, \
                 {replace} puts another in its place"
            );
        }
        if self.report.rebuild.state == RebuildState::Running && self.lacks_shards() {
            return format!("wait: what {names} held is being rebuilt onto the others");
        }
        let leaving: Vec<&MemberReport> = self
            .report
            .present()
            .filter(|member| member.is_leaving())
            .collect();
        if self.report.rebuild.state == RebuildState::Running && !leaving.is_empty() {
            let leaving = names_of(&leaving);
            return format!(
                "wait: {leaving} is being drained; all data is whole without {names}: bring {them} back, or remove \
                 {them} with {remove}"
            );
        }
        if self.report.rebuild.waits_for_members() {
            return format!(
                "too few directories are left for {} that make up for {names}: bring {them} back, put another in the place with \
                 {replace}, or add one with `cauchyfs member add {place} DIR`",
                format_size(self.report.rebuild.bytes_waiting)
            );
        }
        if self.report.rebuild.bytes_waiting > 0 {
            return format!(
                "there is no room for {} to make up for {names} on the others: bring {them} back, put another in the \
                 place with {replace}, or make room with `cauchyfs member add {place} DIR`, or by removing files",
                format_size(self.report.rebuild.bytes_waiting)
            );
        }
        if self.lacks_shards() {
            return format!(
                "bring back {names}: {it} taken in again within seconds; if {it} gone for good, \
                 `cauchyfs rebuild {place}` makes up for {them} on the others"
            );
        }
        format!(
            "all data is whole without {names}: bring {them} back, or remove {them} with {remove}, or put \
             another in the place with {replace}"
        )
    }

    /// Says whether a member is a stale copy: a scrub begins by itself.
    fn is_to_be_verified(&self) -> bool {
        self.stale_copies().next().is_some()
    }

    /// Returns the members that are stale copies.
    fn stale_copies(&self) -> impl Iterator<Item = &MemberReport> {
        self.report
            .present()
            .filter(|member| member.reason == Some(AbsenceReason::Unverified))
    }

    /// Says what to do where data is lost although all members are there.
    fn after_loss(&self) -> String {
        let old: Vec<&MemberReport> = self.stale_copies().collect();
        if old.is_empty() {
            return "restore the files listed above from a backup".to_owned();
        }
        let names = names_of(&old);
        let unmount = if self.report.mounted {
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
        let full = self.report.geometry.full_redundancy();
        let mut rows = self.report.rows().iter();
        rows.any(|row| row.reduced_stripes(full) > 0)
    }

    /// Says what to do about members of an unmounted volume that are there but for their superblocks.
    fn recovery(&self, away: &[&MemberReport]) -> Option<String> {
        let lost: Vec<&MemberReport> = away
            .iter()
            .copied()
            .filter(|member| member.has_lost_superblock())
            .collect();
        (!lost.is_empty()).then(|| {
            format!(
                "{} recovers the superblock of {}",
                self.check_command(),
                names_of(&lost)
            )
        })
    }

    /// Says what to do about members that are away from a volume that is not mounted.
    fn before_mount(&self, away: &[&MemberReport]) -> String {
        if let Some(step) = self.recovery(away) {
            return step;
        }
        let steps: Vec<String> = away
            .iter()
            .filter_map(|member| self.step_by_reason(member))
            .collect();
        let gone: Vec<&MemberReport> = away
            .iter()
            .copied()
            .filter(|member| self.step_by_reason(member).is_none())
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
                format!(
                    "{mount}; what is gone for good is made up for after a mount with the others"
                )
            }
        }
    }

    /// Says what to do about a member of which something is there that cannot be taken in as it is.
    fn step_by_reason(&self, member: &MemberReport) -> Option<String> {
        let place = &self.place;
        let (name, index) = (member.name(), member.index);
        let path = member.path.as_deref().unwrap_or("DIR");
        let replace = self.replace_in_place(member);
        let step = match member.reason.as_ref()? {
            AbsenceReason::MountedApart => format!(
                "{name} was mounted apart from the others: `cauchyfs extract` copies out what is needed of it; then empty \
                 {path}, and {replace} takes it in"
            ),
            AbsenceReason::Flapping => format!(
                "{name} came and went three times within an hour, and is left alone for the rest of it: see to its disk \
                 and cable, and {replace} takes it in at once"
            ),
            AbsenceReason::FormerMember => format!(
                "what is in the place of {name} was removed long ago, and is of no use any more: empty {path}, and \
                 {replace} fills it again"
            ),
            reason @ AbsenceReason::InUse { .. } => {
                format!(
                    "{name}: {reason}, which ends once the disk answers; with that it comes back"
                )
            }
            AbsenceReason::Failed {
                error: StoreErrorKind::Overwritten,
                ..
            } if self.report.mounted => format!(
                "{name} is there, but another program wrote to its journal: the volume takes it in again and verifies it within \
                 seconds; if it does not, {replace} does that at once, or `cauchyfs rebuild {place}` makes up for it on the \
                 others; if it happens again, look for the program that writes to {path}"
            ),
            AbsenceReason::SuperblockGone
            | AbsenceReason::SuperblockDamaged { .. }
            | AbsenceReason::SuperblockUnrecoverable { .. } => format!(
                "{name} is there, but its superblock cannot be read: once the volume is unmounted, {} recovers it; or \
                 `cauchyfs member replace {place} {index} NEW_DIR` rebuilds what it holds, and {path} is left as it is \
                 until all is whole",
                self.check_command()
            ),
            AbsenceReason::NotGiven
            | AbsenceReason::NoDirectory
            | AbsenceReason::Silent
            | AbsenceReason::Empty
            | AbsenceReason::Removed
            | AbsenceReason::ForeignContent { .. }
            | AbsenceReason::OtherVolume { .. }
            | AbsenceReason::ContentOfOtherVolume
            | AbsenceReason::AwayTooLong
            | AbsenceReason::Unverified
            | AbsenceReason::Stale { .. }
            | AbsenceReason::Failed { .. }
            | AbsenceReason::Refused { .. } => return None,
        };
        Some(step)
    }

    /// Returns the command that takes the directory of a member into its own place.
    fn replace_in_place(&self, member: &MemberReport) -> String {
        let path = member.path.as_deref().map(quoted);
        let path = path.as_deref().unwrap_or("DIR");
        let (place, index) = (&self.place, member.index);
        format!("`cauchyfs member replace {place} {index} {path}`")
    }

    /// Returns the command that recovers superblocks. It names no path at which another directory may lie by now.
    fn check_command(&self) -> String {
        let is_there = |member: &MemberReport| member.is_here() || member.has_lost_superblock();
        let paths = self.report.members.iter();
        let paths = paths.map(|member| member.path.clone().filter(|_| is_there(member)));
        match paths.collect::<Option<Vec<String>>>() {
            Some(paths) => format!("`cauchyfs check --repair {}`", quoted_words(&paths)),
            None => "`cauchyfs check --repair` with all directories".to_owned(),
        }
    }
}

fn names_of(members: &[&MemberReport]) -> String {
    let names: Vec<String> = members.iter().map(|member| member.name()).collect();
    names.join(", ")
}
