//! Members as commands name them.

use std::path::Path;

use super::failure::DaemonFailure;
use crate::format::MemberIndex;
use crate::membership::Members;

/// Returns the member with a number, or at a path.
pub(super) fn member_called(members: &Members, name: &str) -> Result<MemberIndex, DaemonFailure> {
    if let Ok(number) = name.parse() {
        return Ok(MemberIndex(number));
    }
    let found = members.membership().at(&spellings_of(name));
    found.ok_or_else(|| DaemonFailure::NoSuchMember {
        name: name.to_owned(),
    })
}

/// Returns the member that is to be replaced. If that was done, and `own` is the one that has its data, it is that
/// one: a user who gives the command once more names a directory that is gone by then.
pub(super) fn member_to_replace(
    members: &Members,
    name: &str,
    own: Option<MemberIndex>,
) -> Result<MemberIndex, DaemonFailure> {
    let successor = match name.parse() {
        Ok(number) => members.membership().successor_of(MemberIndex(number)),
        Err(_) => members.membership().successor_at(&spellings_of(name)),
    };
    match successor {
        Some(successor) if own == Some(successor) => Ok(successor),
        _ => member_called(members, name),
    }
}

/// Returns a path as it was given, and as it is without links.
fn spellings_of(path: &str) -> Vec<String> {
    let canonical = Path::new(path).canonicalize().ok();
    let canonical = canonical.map(|path| path.to_string_lossy().into_owned());
    [path.to_owned()].into_iter().chain(canonical).collect()
}
