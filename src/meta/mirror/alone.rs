//! Trying each copy alone, and continuing without those that are damaged although their checksums are right.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::open::find;
use super::{Front, Mirror};
use crate::format::MemberIndex;
use crate::meta::disk::Disk;

impl Mirror {
    /// Opens one copy by itself. Nothing is ever written to it.
    pub(in crate::meta) fn alone(&self, member: MemberIndex) -> Option<Arc<Self>> {
        let found = find(&self.disk, member)?;
        let front = Front {
            db_header: found.head.db_header,
            db_bytes: found.head.db_bytes,
        };
        let sequence = found.head.sequence;
        let mut mirror = Self::assemble(&self.disk, vec![found.copy], front, sequence);
        mirror.writable = false;
        Some(Arc::new(mirror))
    }

    /// Goes back to what is durable, before the copies are tried. The database has been closed before.
    ///
    /// # Errors
    ///
    /// If no copy is left, or none has space for undoing what was written.
    pub(in crate::meta) fn go_back(&self) -> io::Result<()> {
        if self.has_begun() {
            self.reset()
        } else {
            self.suspend();
            Ok(())
        }
    }

    /// Continues with some of the copies, which are sound. If something is written, the others are wiped, and made again
    /// later.
    ///
    /// # Errors
    ///
    /// If none of these copies can be found.
    pub(in crate::meta) fn keep_only(&self, sound: &[MemberIndex]) -> io::Result<()> {
        let mut io = self.io.lock();
        let damaged: Vec<MemberIndex> = self
            .members()
            .into_iter()
            .filter(|member| !sound.contains(member))
            .collect();
        for member in &damaged {
            self.disk.members().count_wrong(*member, 1);
        }
        if self.has_begun() {
            for member in &damaged {
                self.give_up(*member);
            }
        } else {
            self.copies
                .write()
                .retain(|copy| sound.contains(&copy.member));
            let heads: Vec<_> = sound
                .iter()
                .filter_map(|member| Some(find(&self.disk, *member)?.head))
                .collect();
            let newest = heads.iter().max_by_key(|head| head.sequence);
            let newest = newest.ok_or_else(super::none_left)?;
            let front = Front {
                db_header: newest.db_header,
                db_bytes: newest.db_bytes,
            };
            let oldest = heads.iter().map(|head| head.sequence).min();
            io.sequence = newest.sequence;
            io.durable_sequence = oldest.unwrap_or(newest.durable);
            io.named.clone_from(&newest.copies);
            io.durable = front.clone();
            *self.front.lock() = front;
            self.newest_frame.store(newest.sequence, Ordering::Release);
        }
        self.buffered.lock().clear();
        self.damaged.lock().extend(damaged);
        self.disputed.store(false, Ordering::Release);
        self.reset_claims(!self.has_begun());
        Ok(())
    }

    /// Returns the members' files.
    pub(in crate::meta) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Returns where a member's copy is.
    pub(in crate::meta) fn path(&self, member: MemberIndex) -> String {
        format!("{}/{}", self.disk.members().path(member), self.name)
    }

    /// Returns whether intact frames of one page and one sequence were seen that differ: no write leaves that.
    pub(in crate::meta) fn is_disputed(&self) -> bool {
        self.disputed.load(Ordering::Acquire)
    }

    /// Returns whether something may have been written since the copies were opened.
    pub(in crate::meta) fn has_begun(&self) -> bool {
        self.claims.lock().is_none()
    }
}
