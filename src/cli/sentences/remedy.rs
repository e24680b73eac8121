//! The advice for each remedy.

use std::path::Path;

use super::mountpoint_word;
use crate::cli::shell::{quoted, quoted_words};
use crate::membership::{DirectoryChoice, DirectoryStep, Remedy, VolumeStep};

/// Puts a remedy into one line; `mountpoint` is where the volume is mounted.
pub(super) fn advice(remedy: &Remedy, mountpoint: Option<&Path>) -> String {
    let place = mountpoint_word(mountpoint);
    match remedy {
        Remedy::Directory { path, step } => directory_advice(*step, path, &place),
        Remedy::Choice(choice) => choice_advice(choice, &place),
        Remedy::Volume(step) => volume_advice(*step, &place),
    }
}

fn directory_advice(step: DirectoryStep, path: &str, place: &str) -> String {
    match step {
        DirectoryStep::UseEmptyOne => format!(
            "a volume is made in empty directories only: make one below it, such as {path}/member"
        ),
        DirectoryStep::IdentifyVolume => format!(
            "`cauchyfs status {}` says which; only if nothing of that volume is needed any more, empty {path} first",
            quoted(path)
        ),
        DirectoryStep::KeepUnreadable => format!(
            "leave {path} as it is: `cauchyfs member replace {place} OLD NEW_DIR` rebuilds what it held, or, with the \
             volume unmounted, `cauchyfs check --repair` with all directories recovers its superblock; only if nothing \
             of any volume is needed of it any more, empty it first"
        ),
        DirectoryStep::EmptyFormerMember => format!(
            "what it holds is of no use to the volume any more: empty {path}, and it is as good as any other"
        ),
        DirectoryStep::FindOtherUse => {
            format!("a volume with {path} is mounted already, or {path} was given twice")
        }
        DirectoryStep::LeaveOut => {
            format!("leave {path} out, or give the directory that is a member")
        }
        DirectoryStep::ExtractAndEmpty => format!(
            "`cauchyfs extract` of it, and of those that it was mounted with, copies out what is needed; then empty \
             {path}, and the same command takes it in"
        ),
        DirectoryStep::RecoverNewerSuperblock => format!(
            "give all directories of the volume to `cauchyfs check --repair`: with the superblock of one with which \
             {path} was mounted last, or if none is missing, that of {path} can be recovered; without, `mount -o ro` \
             and `cauchyfs extract` show what the others held before; leave {path} as it is"
        ),
        DirectoryStep::GiveToRoot => give_to_root(&[path.to_owned()]),
    }
}

/// Returns the command that gives directories to root alone.
pub(in crate::cli) fn give_to_root(paths: &[String]) -> String {
    let paths = quoted_words(paths);
    format!("chown -R root: {paths} && chmod -R go-w {paths}    {UNLESS}")
}

/// Option without which directories of other users are refused to root, and the reason for which it may be given.
pub(in crate::cli) const UNLESS: &str =
    "# or --trust-members, if their users may do all that root may";

fn choice_advice(choice: &DirectoryChoice, place: &str) -> String {
    match choice {
        DirectoryChoice::OfVolume => "name the directories that make up the volume".to_owned(),
        DirectoryChoice::More { shards, missing } => format!(
            "each of the {shards} shards of a stripe goes to a directory of its own: name {missing} more, or choose \
             fewer shards"
        ),
        DirectoryChoice::AtMost { most } => format!("name at most {most}"),
        DirectoryChoice::NoMember => format!(
            "leave what it holds alone, and name a directory that is no member; `cauchyfs status {place}` lists them"
        ),
        DirectoryChoice::Answering => {
            "a daemon that is unmounted keeps a directory until its disk answers: leave those out that do not".to_owned()
        }
        DirectoryChoice::Mounted => {
            "check the paths, and that the disks are mounted; a new volume is made with `cauchyfs create`, in empty \
             directories"
                .to_owned()
        }
        DirectoryChoice::WithSuperblock => {
            "a missing superblock is recovered from another member's: give `cauchyfs check --repair` a directory of the \
             volume that has its own; without any, only a copy of one from a backup helps; for a volume that never came \
             to be, run `cauchyfs create` again in other directories"
                .to_owned()
        }
        DirectoryChoice::OneVolume {
            volume,
            other_volume,
        } => format!("give directories of {volume} or of {other_volume}, not of both"),
        DirectoryChoice::OneOf { path, other_path } => format!(
            "leave out {other_path} or {path}; if one is a copy of the other, leave out the older one"
        ),
        DirectoryChoice::All {
            recovers_superblocks,
            readable,
            unfinished,
        } => give_all(*recovers_superblocks, *readable, *unfinished),
        DirectoryChoice::Latest => {
            "give all directories of the volume as they were last: one that is missing, or in whose place an old copy \
             is, may have it"
                .to_owned()
        }
        DirectoryChoice::WithSoundIndex => {
            "give all directories of the volume, also those that are missing: a copy of the index on one of them may be \
             sound"
                .to_owned()
        }
        DirectoryChoice::WithRecord { member } => format!(
            "give all directories of the volume: one that is missing may have the record; if the others have all that \
             was acknowledged, leave out the directory of member {member}"
        ),
        DirectoryChoice::OnePart { kept, others } => choose_part(kept, others, place),
        DirectoryChoice::Superseding { paths } => format!(
            "give them all, {} too; or look at these with `mount -o ro` or `cauchyfs extract`; only if nothing of what \
             those hold is needed, move them away or empty them first",
            paths.join(" ")
        ),
    }
}

fn give_all(recovers_superblocks: bool, readable: bool, unfinished: bool) -> String {
    let all = if recovers_superblocks {
        " to `cauchyfs check --repair`: it recovers superblocks that are missing"
    } else {
        ", and check that their disks are mounted"
    };
    let rest = if readable {
        "; if the rest is lost for good, mount it with `-o ro` or save what is left with `cauchyfs extract`"
    } else if unfinished {
        "; nothing was ever written to these: if a `cauchyfs create` was cut off, empty them and run it again"
    } else {
        ""
    };
    format!("give all directories of the volume{all}{rest}")
}

fn choose_part(kept: &[String], others: &[String], place: &str) -> String {
    format!(
        "each half has writes that the other lacks; choose which to keep, with all its directories, and mount it alone, \
         say {}; copy what it lacks out of the other with `cauchyfs extract {} --to DIR`; then empty the other's \
         directories, and give each back with `cauchyfs member replace {place} DIR DIR`",
        kept.join(" "),
        quoted_words(others)
    )
}

/// Says how directories and files come to need fewer members.
fn narrow_directories(place: &str) -> String {
    format!(
        "or `cauchyfs set --path DIR --data K --parity M --rewrite {place}` gives a directory and the files below it fewer \
         shards: those that `cauchyfs set --show {place}` names, and any that files with that code were moved to or left in"
    )
}

fn volume_advice(step: VolumeStep, place: &str) -> String {
    let plain = match step {
        VolumeStep::MountWritable => {
            return format!("`cauchyfs unmount {place}`, and mount it without `-o ro`");
        }
        VolumeStep::AddFirst => {
            return format!(
                "add a directory first, with `cauchyfs member add {place} DIR`, or replace this one"
            );
        }
        VolumeStep::AddOrNarrowDirectories => {
            return format!(
                "add a directory first, with `cauchyfs member add {place} DIR`; {}",
                narrow_directories(place)
            );
        }
        VolumeStep::ReplaceOrNarrowDirectories { away } => {
            return format!(
                "put a directory in the place of one that is away first, with `cauchyfs member replace {place} {away} NEW`, or \
                 add one, with `cauchyfs member add {place} DIR`; {}",
                narrow_directories(place)
            );
        }
        VolumeStep::AddForCode => {
            return format!(
                "choose fewer shards, or add directories first, each with `cauchyfs member add {place} DIR`"
            );
        }
        VolumeStep::BringBackForCode => {
            return format!(
                "bring the absent directories back first; otherwise choose fewer shards, or add directories, each with \
                 `cauchyfs member add {place} DIR`"
            );
        }
        VolumeStep::CompleteMembers => {
            return format!(
                "bring the absent directories back; one that is gone for good goes with `cauchyfs member remove {place} N`, by \
                 its number in `cauchyfs status {place}`"
            );
        }
        VolumeStep::ListMembers => {
            return format!("`cauchyfs status {place}` lists the members");
        }
        VolumeStep::MakeRoom => {
            return format!(
                "delete something, or add another directory with `cauchyfs member add {place} DIR`"
            );
        }
        VolumeStep::WaitForHolder => {
            "one of its directories hangs, and what was under way there may still be written: see that its disk answers \
             again, thaw it, or `umount -f` a network mount, then try again; or reboot the machine"
        }
        VolumeStep::MakeDisksAnswer => {
            "see that all disks answer, and try again; or look at the others with `mount -o ro` or `cauchyfs extract`; \
             only if nothing of what it holds is needed, move it away"
        }
        VolumeStep::BringBackAndRemount => {
            "unmount, bring the failed members back, and mount again"
        }
        VolumeStep::CheckAndRemount => {
            "see that the directories are all right, unmount the volume, and mount it again"
        }
        VolumeStep::ReadOnlyOrNewerVersion => {
            "mount it with `-o ro`, or use the version of cauchyfs that wrote it, or a newer one"
        }
        VolumeStep::UseNewerVersion => "use the version of cauchyfs that wrote it, or a newer one",
        VolumeStep::EmptyJournal => {
            "mount the volume with the version of cauchyfs that wrote it last, and unmount it: that empties the journal"
        }
        VolumeStep::CreateAgain => {
            "it holds nothing: empty its directories, and run `cauchyfs create` again"
        }
        VolumeStep::AddBeforeRemove => {
            "add the new directory, and then remove the old one: nothing is lost meanwhile"
        }
    };
    plain.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every remedy once.
    fn remedies() -> Vec<Remedy> {
        let path = || "/srv/d 0".to_owned();
        let volume = uuid::Uuid::nil();
        let directories = [
            DirectoryStep::UseEmptyOne,
            DirectoryStep::IdentifyVolume,
            DirectoryStep::KeepUnreadable,
            DirectoryStep::EmptyFormerMember,
            DirectoryStep::FindOtherUse,
            DirectoryStep::LeaveOut,
            DirectoryStep::ExtractAndEmpty,
            DirectoryStep::RecoverNewerSuperblock,
            DirectoryStep::GiveToRoot,
        ];
        let choices = [
            DirectoryChoice::OfVolume,
            DirectoryChoice::More {
                shards: 6,
                missing: 2,
            },
            DirectoryChoice::AtMost { most: 9 },
            DirectoryChoice::NoMember,
            DirectoryChoice::Answering,
            DirectoryChoice::Mounted,
            DirectoryChoice::WithSuperblock,
            DirectoryChoice::OneVolume {
                volume,
                other_volume: volume,
            },
            DirectoryChoice::OneOf {
                path: path(),
                other_path: path(),
            },
            DirectoryChoice::All {
                recovers_superblocks: true,
                readable: true,
                unfinished: false,
            },
            DirectoryChoice::Latest,
            DirectoryChoice::WithSoundIndex,
            DirectoryChoice::WithRecord { member: 3 },
            DirectoryChoice::OnePart {
                kept: vec![path()],
                others: vec![path()],
            },
            DirectoryChoice::Superseding {
                paths: vec![path()],
            },
        ];
        let volumes = [
            VolumeStep::WaitForHolder,
            VolumeStep::MakeDisksAnswer,
            VolumeStep::BringBackAndRemount,
            VolumeStep::CheckAndRemount,
            VolumeStep::MountWritable,
            VolumeStep::ReadOnlyOrNewerVersion,
            VolumeStep::UseNewerVersion,
            VolumeStep::EmptyJournal,
            VolumeStep::CreateAgain,
            VolumeStep::AddBeforeRemove,
            VolumeStep::AddFirst,
            VolumeStep::AddOrNarrowDirectories,
            VolumeStep::ReplaceOrNarrowDirectories { away: 3 },
            VolumeStep::AddForCode,
            VolumeStep::BringBackForCode,
            VolumeStep::CompleteMembers,
            VolumeStep::ListMembers,
            VolumeStep::MakeRoom,
        ];
        let directories = directories.map(|step| Remedy::directory(path(), step));
        let directories = directories.into_iter();
        let choices = choices.map(Remedy::from).into_iter();
        let volumes = volumes.map(Remedy::from).into_iter();
        directories.chain(choices).chain(volumes).collect()
    }

    #[test]
    fn each_advice_is_one_line_with_the_mountpoint_where_it_is_known() {
        for remedy in remedies() {
            let known = advice(&remedy, Some(Path::new("/mnt/my photos")));
            assert!(!known.contains('\n'), "{known}");
            assert!(!known.contains("MOUNTPOINT"), "{known}");
            let unknown = advice(&remedy, None);
            assert_eq!(known.replace("'/mnt/my photos'", "MOUNTPOINT"), unknown);
        }
    }

    #[test]
    fn too_few_directories_are_counted_in_the_advice() {
        let more = DirectoryChoice::More {
            shards: 6,
            missing: 2,
        };
        assert_eq!(
            advice(&Remedy::from(more), None),
            "each of the 6 shards of a stripe goes to a directory of its own: name 2 more, or choose fewer shards"
        );
    }

    #[test]
    fn only_a_volume_that_was_never_written_to_may_come_of_a_creation_that_was_cut_off() {
        let all = |readable, unfinished| {
            let choice = DirectoryChoice::All {
                recovers_superblocks: false,
                readable,
                unfinished,
            };
            advice(&Remedy::from(choice), None)
        };
        let hint = "; nothing was ever written to these: if a `cauchyfs create` was cut off, empty them and run it again";
        let cut_off = all(false, true);
        assert!(cut_off.ends_with(hint), "{cut_off}");
        for other in [all(false, false), all(true, false), all(true, true)] {
            assert!(!other.contains("cut off"), "{other}");
        }
    }

    #[test]
    fn each_remedy_crosses_the_control_socket_as_itself() {
        for remedy in remedies() {
            let line = serde_json::to_string(&remedy).unwrap();
            let read: Remedy = serde_json::from_str(&line).unwrap();
            assert_eq!(read, remedy, "{line}");
        }
    }

    #[test]
    fn the_advice_is_a_command_for_every_directory_whatever_its_name() {
        let paths = ["/srv/d 0", "/srv/it's"].map(str::to_owned);
        assert_eq!(
            give_to_root(&paths),
            "chown -R root: '/srv/d 0' '/srv/it'\\''s' && chmod -R go-w '/srv/d 0' '/srv/it'\\''s'    \
             # or --trust-members, if their users may do all that root may"
        );
    }
}
