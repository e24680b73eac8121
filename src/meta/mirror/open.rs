//! Finding the copies of the index that count.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::structure::Claims;
use super::unfinished::was_never_used;
use super::{CUT_OFF_SEQUENCES, Copied, FIRST_PAGES, Front, Io, Mirror, meta_error};
use crate::format::frame::{self, DB_HEADER_BYTES, HEAD_BYTES, Head};
use crate::format::{MemberIndex, files};
use crate::members::Access;
use crate::meta::MetaError;
use crate::meta::disk::Disk;

/// The file in each member that has a copy.
const NAME: &str = files::INDEX;

/// A copy that was found, with its newest head.
pub(super) struct Found {
    pub(super) copy: Copied,
    pub(super) head: Head,
}

impl Mirror {
    /// Makes empty copies on the members with most room.
    pub(in crate::meta) fn create(disk: &Arc<Disk>) -> Result<Arc<Self>, MetaError> {
        let mut members = Vec::new();
        for member in disk.members().live() {
            members.push((Reverse(disk.free_bytes(member)?), member));
        }
        members.sort_unstable();
        let mut copies = Vec::new();
        let len = frame::frame_offset(FIRST_PAGES);
        for (_, member) in members.into_iter().take(wanted_copies(disk)) {
            disk.create(member, &NAME.into(), len)?;
            copies.push(Copied {
                member,
                file_bytes: len,
                slot: 1,
            });
        }
        let front = Front {
            db_header: [0; DB_HEADER_BYTES],
            db_bytes: 0,
        };
        let mut mirror = Self::assemble(disk, copies, front, 0);
        mirror.cut_off = 0..0;
        *mirror.claims.get_mut() = None;
        *mirror.compared.get_mut() = u64::MAX;
        Ok(Arc::new(mirror))
    }

    /// Opens the newest copies among the members that may be trusted. To be written to, it waits for
    /// [`Mirror::begin`].
    pub(in crate::meta) fn open(disk: &Arc<Disk>) -> Result<Arc<Self>, MetaError> {
        let live = disk.members().live();
        let current = disk.members().current_at_open();
        let sources: Vec<_> = current
            .into_iter()
            .filter(|member| live.contains(member))
            .collect();
        let mut found: Vec<Found> = sources
            .iter()
            .filter_map(|member| find(disk, *member))
            .collect();
        found.sort_by_key(|found| Reverse(found.head.sequence));
        let Some(newest) = found.first().map(|found| found.head.clone()) else {
            return Err(if was_never_used(disk) {
                MetaError::Unfinished
            } else {
                MetaError::NoIndex {
                    members: sources.len(),
                }
            });
        };
        found.retain(|found| counts(found, &newest));
        let oldest = found.iter().map(|found| found.head.sequence).min();
        let is_other = |head: &Head| {
            head.sequence == newest.sequence
                && (&head.db_header, head.db_bytes) != (&newest.db_header, newest.db_bytes)
        };
        let is_disputed = found.iter().any(|found| is_other(&found.head));
        let copies = found.into_iter().map(|found| found.copy).collect();
        let front = Front {
            db_header: newest.db_header,
            db_bytes: newest.db_bytes,
        };
        let mut mirror = Self::assemble(disk, copies, front, newest.sequence);
        // `begin` syncs what was read before a head says so.
        mirror.io.get_mut().durable_sequence = oldest.unwrap_or(newest.durable);
        mirror.io.get_mut().named = newest.copies;
        *mirror.disputed.get_mut() = is_disputed;
        *mirror.suspended.get_mut() = true;
        Ok(Arc::new(mirror))
    }

    /// Looks for every copy once more, and returns the members on which it is.
    pub(in crate::meta) fn found_copies(&self) -> Vec<MemberIndex> {
        let mut members = self.members();
        let live = self.disk.members().live();
        members.retain(|member| live.contains(member) && find(&self.disk, *member).is_some());
        members.sort_unstable();
        members
    }

    pub(super) fn assemble(
        disk: &Arc<Disk>,
        copies: Vec<Copied>,
        front: Front,
        sequence: u64,
    ) -> Self {
        let members = disk.members();
        let io = Io {
            sequence,
            durable_sequence: 0,
            named: Vec::new(),
            durable: front.clone(),
            head_in_doubt: false,
            unsynced: false,
            arriving: None,
            refused: Vec::new(),
            vain_rounds: 0,
            cramped: Vec::new(),
            leaving: Vec::new(),
            ballast: BTreeSet::new(),
        };
        Self {
            disk: Arc::clone(disk),
            name: NAME.into(),
            volume: members.volume_id(),
            tag: frame::volume_tag(members.volume_id()),
            wanted: wanted_copies(disk),
            writable: members.access() == Access::ReadWrite,
            out_of_space: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            front: Mutex::new(front),
            newest_frame: AtomicU64::new(sequence),
            cut_off: sequence + 1..sequence + CUT_OFF_SEQUENCES,
            compared: AtomicU64::new(0),
            buffered: Mutex::default(),
            mended: Mutex::default(),
            repaired_pages: AtomicU64::new(0),
            damaged: Mutex::default(),
            disputed: AtomicBool::new(false),
            misshapen: AtomicBool::new(false),
            claims: Mutex::new(Some(Claims::default())),
            kinds: Mutex::default(),
            walked: Mutex::default(),
            copies: RwLock::new(copies),
            io: Mutex::new(io),
        }
    }

    /// Begins to write: makes what lies on other members useless, and what the database wrote on being
    /// opened durable on all copies, with the same head.
    pub(in crate::meta) fn begin(&self) -> Result<(), MetaError> {
        let mut io = self.io.lock();
        self.forget_dead(&mut io).map_err(meta_error)?;
        let members = self.members();
        for member in self.disk.members().live() {
            if members.contains(&member) {
                continue;
            }
            if matches!(self.disk.len(member, &self.name), Ok(Some(_))) {
                self.wipe(member);
            }
            self.remove_ballast(member);
        }
        self.suspended.store(false, Ordering::Release);
        self.reset_claims(false);
        self.begin_under(&mut io).map_err(meta_error)
    }

    fn begin_under(&self, io: &mut Io) -> io::Result<()> {
        // The writes of a killed daemon were read, but may not be durable, and the head before them is
        // overwritten next.
        self.sync_files(io)?;
        io.sequence = io.sequence.max(self.cut_off.end);
        self.flush(io)?;
        let front = self.front.lock().clone();
        self.extend(io, front.db_bytes)?;
        self.write_heads(io, front)
    }
}

/// Says whether a copy is as good as the one with the newest head: named by that head, and no older
/// than what was durable on all copies that it names. An older one is stale.
fn counts(found: &Found, newest: &Head) -> bool {
    let Found { copy, head } = found;
    if !newest.copies.contains(&copy.member) {
        return false;
    }
    if head.sequence < newest.durable {
        log::warn!(
            "member {}: its copy of the index is from an earlier time (head {} of at least {}): was the directory put back \
             from a backup?",
            copy.member,
            head.sequence,
            newest.durable
        );
        return false;
    }
    true
}

fn wanted_copies(disk: &Disk) -> usize {
    disk.members().geometry().parity_shards() + 1
}

/// Looks for a copy on a member.
pub(super) fn find(disk: &Disk, member: MemberIndex) -> Option<Found> {
    let name = NAME.into();
    let file_bytes = disk.len(member, &name).ok()??;
    if file_bytes < frame::FRAMES_START {
        return None;
    }
    let bytes = disk.read(member, &name, 0, 2 * HEAD_BYTES).ok()?;
    let volume = disk.members().volume_id();
    let heads = bytes
        .as_chunks::<HEAD_BYTES>()
        .0
        .iter()
        .zip(0u8..)
        .filter_map(|(slot, number)| {
            let head = Head::decode(slot)
                .ok()
                .filter(|head| head.volume == volume)?;
            Some(Found {
                copy: Copied {
                    member,
                    file_bytes,
                    slot: number,
                },
                head,
            })
        });
    heads.max_by_key(|found| found.head.sequence)
}
