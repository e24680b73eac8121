//! The directories of a volume that is away, without those that are wrong.
//!
//! A command refuses directories that do not belong together, because its user can name others. An outage has no user: a wrong
//! directory, such as a member of another volume, must not keep the volume from its right ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cli::directories::Directories;
use crate::cli::failure::Failure;
use crate::control::in_time::Silent;
use crate::format::{MemberIndex, VolumeId};
use crate::membership::{AbsenceReason, MemberState, Members, MembersError, Unusable, directory};
use crate::store::{Executor, ExecutorKind};

/// The place of a member.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The member.
    pub(super) member: MemberIndex,
    /// The path at which its directory was last.
    pub(super) path: PathBuf,
}

/// Finds the directories of `volume` at `places`, and those that are left out, with reasons. Waits no longer than `patience`
/// for one that hangs.
///
/// # Errors
///
/// If none is there.
pub(super) fn find(
    volume: VolumeId,
    places: &[Place],
    patience: Duration,
) -> Result<(Directories, Vec<Unusable>), Failure> {
    let paths: Vec<PathBuf> = places.iter().map(|place| place.path.clone()).collect();
    let (mut directories, refused) = Directories::sort(&paths, patience, Silent::default());
    let refused = refused.into_iter().map(|(path, failure)| {
        let detail = failure.message;
        unusable(&path, AbsenceReason::Refused { detail })
    });
    let mut left_out: Vec<Unusable> = refused.collect();
    let identify = move |path: &Path| identify(path, volume, patience);
    let silent = &directories.silent;
    let identified = silent.ask_each(&directories.present, patience, identify);
    let mut members = Vec::new();
    for (path, identified) in directories.present.drain(..).zip(identified) {
        match identified {
            Some(Err(reason)) => left_out.push(unusable(&path, reason)),
            Some(Ok(member)) => members.push((path, member)),
            // The code that opens it notes that it does not answer.
            None => members.push((path, None)),
        }
    }
    let of_members = choose(places, &members);
    for (path, member) in members {
        match member.and_then(|member| of_members.get(&member)) {
            Some(chosen) if *chosen != path => {
                let chosen = chosen.display();
                let detail = format!("what is there is the same member as {chosen}");
                left_out.push(unusable(&path, AbsenceReason::Refused { detail }));
            }
            _ => directories.present.push(path),
        }
    }
    Ok((directories.not_none()?, left_out))
}

fn unusable(path: &Path, reason: AbsenceReason) -> Unusable {
    let path = path.display().to_string();
    Unusable { path, reason }
}

/// Returns which member of `volume` a directory is, if its superblock tells, or the reason to leave it out. Other defects are
/// noted by the code that opens it.
fn identify(
    path: &Path,
    volume: VolumeId,
    patience: Duration,
) -> Result<Option<MemberIndex>, AbsenceReason> {
    let Ok(store) = directory::open(path) else {
        return Ok(None);
    };
    let executor = Executor::new(ExecutorKind::Inline, patience);
    match Members::survey(vec![Arc::new(store)], Arc::new(executor)) {
        Ok(members) if members.shape().volume_id() != volume => {
            let volume = members.shape().volume_id().0;
            Err(AbsenceReason::OtherVolume { volume })
        }
        Ok(members) => {
            let known = members.known_members().into_iter();
            let mut online = known.filter(|member| member.state == MemberState::Online);
            Ok(online.next().map(|member| member.index))
        }
        Err(MembersError::Foreign { found, .. }) => Err(AbsenceReason::ForeignContent { found }),
        Err(error @ MembersError::Newer { .. }) => Err(AbsenceReason::Refused {
            detail: error.to_string(),
        }),
        Err(_) => Ok(None),
    }
}

/// Chooses a directory for each member: the one at its place, or else the first.
fn choose(
    places: &[Place],
    members: &[(PathBuf, Option<MemberIndex>)],
) -> BTreeMap<MemberIndex, PathBuf> {
    let is_at_its_place = |member: MemberIndex, path: &Path| {
        let mut own = places.iter().filter(|place| place.member == member);
        own.any(|place| place.path == path)
    };
    let mut chosen: BTreeMap<MemberIndex, PathBuf> = BTreeMap::new();
    for (path, member) in members {
        let Some(member) = *member else { continue };
        if is_at_its_place(member, path) || !chosen.contains_key(&member) {
            chosen.insert(member, path.clone());
        }
    }
    chosen
}
