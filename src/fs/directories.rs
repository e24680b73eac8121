//! Listing directories.
//!
//! An entry's place in the listing is its cookie, which it keeps as long as it stays in its directory.
//! Listing goes on behind a cookie, whether or not its entry is still there. So entries that stay are listed exactly
//! once, regardless of others that come and go.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::record::{FileKind, Inode, Position};
use crate::format::{Cookie, Ino, Record, key};
use crate::transaction::Transactions;

use super::access_time::AccessTimes;
use super::entries::read_entry;
use super::error::{FsError, corrupt};
use super::handles::OpenDir;
use super::inodes::Inodes;
use super::references::References;
use super::types::{Attr, DirItem, Handle};

/// Entries that are read at once.
const PAGE: usize = 256;

/// Offset behind `.`.
const AFTER_DOT: u64 = 1;

/// Offset behind `..`, and what is added to a cookie to make it the offset behind its entry.
const AFTER_DOTS: u64 = 2;

/// Fault of an entry that its name does not lead to.
const UNCONFIRMED: &str = "its listing has an entry that the name does not lead to";

/// A piece of a listing, in order; an entry that is damaged takes none of the others with it.
pub(super) type Listing = Vec<(Cookie, Result<Position, FsError>)>;

/// Listings of directories.
pub struct Directories {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    references: Arc<References>,
    access_times: Arc<AccessTimes>,
    /// Leave out entries that their names do not lead to.
    confirms: bool,
}

impl Directories {
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        transactions: &Arc<Transactions>,
        references: &Arc<References>,
        access_times: &Arc<AccessTimes>,
        confirms: bool,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            references: Arc::clone(references),
            access_times: Arc::clone(access_times),
            confirms,
        }
    }

    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`].
    pub fn open(&self, ino: Ino) -> Result<Handle, FsError> {
        let next_cookie = || Ok(self.inodes.directory(ino)?.next_cookie);
        self.references.open_directory(ino, next_cookie)
    }

    /// Hands out the entries of a directory from `offset` on, which is 0 or the `next` of an entry.
    ///
    /// `emit` returns false for an entry that it cannot take, and that is the last it sees. With
    /// `with_attr`, a look-up is counted for each entry taken but `.` and `..`. Entries that were made
    /// since the directory was opened, or read from 0, are left out. All readers of a directory that the caller opened by
    /// itself share the last such time.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`], [`FsError::NotDirectory`], or a failure of the index.
    pub fn read(
        &self,
        handle: Handle,
        offset: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<(), FsError> {
        let (dir, inode) = self.opened(handle)?;
        if offset == 0 {
            // Another reader may have seen a later record. Cookies only grow.
            dir.first_unseen
                .fetch_max(inode.next_cookie.0, Ordering::Relaxed);
        }
        let dots = [
            (0, dir.ino, &b"."[..], AFTER_DOT),
            (AFTER_DOT, inode.parent, b"..", AFTER_DOTS),
        ];
        let (offered, handed_out) = (Cell::new(false), Cell::new(false));
        let mut emit = |item: DirItem<'_>| {
            offered.set(true);
            let taken = emit(item);
            handed_out.set(handed_out.get() || taken);
            taken
        };
        for (at, ino, name, next) in dots {
            let item = DirItem {
                ino,
                kind: FileKind::Directory,
                next,
                name,
                attr: None,
            };
            if offset <= at && !emit(item) {
                return Ok(());
            }
        }
        let mut after = Cookie(offset.saturating_sub(AFTER_DOTS));
        loop {
            match self.emit_page(&dir, after, with_attr, &mut emit) {
                Ok(Some(last)) => after = last,
                Ok(None) => break,
                // The entries handed out are counted, and stand; the next call begins at the error.
                Err(_) if handed_out.get() => break,
                Err(error) => return Err(error),
            }
        }
        // Nothing is left. The next read begins another listing.
        if !offered.get() {
            self.references.listings.end(dir.ino);
        }
        self.access_times.note(dir.ino, &inode);
        Ok(())
    }

    /// Returns an open directory and the record of its inode.
    fn opened(&self, handle: Handle) -> Result<(Arc<OpenDir>, Inode), FsError> {
        let Handle::ByCaller { ino, .. } = handle else {
            let dir = self.references.handles.dir(handle)?;
            let inode = self.inodes.directory(dir.ino)?;
            return Ok((dir, inode));
        };
        let inode = self.inodes.directory(ino)?;
        let dir = self.references.listings.of(ino, inode.next_cookie);
        Ok((dir, inode))
    }

    /// Closes a directory.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`].
    pub fn release(&self, handle: Handle) -> Result<(), FsError> {
        self.references.release(handle)
    }

    /// Hands out some entries; returns the last cookie if there may be more, and they are wanted.
    fn emit_page(
        &self,
        dir: &OpenDir,
        after: Cookie,
        with_attr: bool,
        emit: &mut dyn FnMut(DirItem<'_>) -> bool,
    ) -> Result<Option<Cookie>, FsError> {
        // Names, and so the inodes behind them, stay until their look-ups are counted.
        let _lock = self.inodes.locks().shared(dir.ino);
        let first_unseen = dir.first_unseen.load(Ordering::Relaxed);
        let mut last = None;
        for (cookie, position) in self.listing(dir.ino, after)? {
            if cookie.0 >= first_unseen {
                return Ok(None);
            }
            last = Some(cookie);
            let position = position?;
            if self.confirms && !self.is_confirmed(dir.ino, cookie, &position)? {
                tracing::debug!(ino = %dir.ino, "{UNCONFIRMED}");
                continue;
            }
            let attr = if with_attr {
                Some(Attr::new(position.ino, &self.inodes.get(position.ino)?))
            } else {
                None
            };
            let item = DirItem {
                ino: position.ino,
                kind: position.kind,
                next: cookie.0.saturating_add(AFTER_DOTS),
                name: &position.name,
                attr,
            };
            if !emit(item) {
                return Ok(None);
            }
            if with_attr {
                self.references.nodes.look_up(position.ino);
            }
        }
        Ok(last)
    }

    /// Returns whether the entry by name is the one of this position.
    ///
    /// Names are unique by name and not by position. Serving confirmed positions alone keeps a damaged or
    /// hostile volume from listing one name twice, or an inode that the name does not lead to.
    fn is_confirmed(
        &self,
        parent: Ino,
        cookie: Cookie,
        position: &Position,
    ) -> Result<bool, FsError> {
        let entry = read_entry(&self.transactions, parent, &position.name)?;
        Ok(entry.is_some_and(|entry| entry.cookie == cookie && entry.ino == position.ino))
    }

    /// Reads some entries behind a cookie, and confirms each by its name. Holds the directory's lock meanwhile.
    pub(super) fn confirmed_listing(&self, ino: Ino, after: Cookie) -> Result<Listing, FsError> {
        let _lock = self.inodes.locks().shared(ino);
        let mut page = self.listing(ino, after)?;
        for (cookie, position) in &mut page {
            let Ok(found) = position else { continue };
            match self.is_confirmed(ino, *cookie, found) {
                Ok(true) => {}
                Ok(false) => *position = Err(corrupt(ino, UNCONFIRMED)),
                Err(error) => *position = Err(error),
            }
        }
        Ok(page)
    }

    /// Reads some entries behind a cookie; none if there are no more.
    fn listing(&self, ino: Ino, after: Cookie) -> Result<Listing, FsError> {
        let (from, end) = key::positions_after(ino, after);
        let found = self.transactions.scan(&from, &end, PAGE)?;
        let entries = found.iter().map(|(key, value)| {
            let (_, cookie) = key::parse_position(key)?;
            Ok((cookie, Position::decode(value).map_err(FsError::from)))
        });
        entries.collect()
    }
}
