//! Telling a volume whose making was cut off from one that has lost its index.

use crate::format::{BLOCK_SIZE, Epoch, files};
use crate::metadata::disk::Disk;

/// Returns whether nothing was ever written to a volume but what making it writes: no membership changed,
/// there is no segment, and the journal is as empty as it was made. The members that are absent could tell
/// otherwise.
pub(super) fn was_never_used(disk: &Disk) -> bool {
    let members = disk.members();
    members.membership().epoch() == Epoch(1)
        && members.membership().live().into_iter().all(|member| {
            let segments = members
                .io()
                .call(member, "list", |store| store.list(files::SEGMENTS));
            let is_blank = |name: &&str| {
                let name = (*name).into();
                match disk.len(member, &name) {
                    Ok(Some(len)) if len >= BLOCK_SIZE as u64 => disk
                        .read(member, &name, 0, BLOCK_SIZE)
                        .is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0)),
                    Ok(_) => true,
                    Err(_) => false,
                }
            };
            segments.is_ok_and(|segments| segments.is_empty())
                && files::JOURNALS.iter().all(is_blank)
        })
}
