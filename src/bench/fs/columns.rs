//! The columns of the table.

use serde::Serialize;

/// A value for each filesystem that is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Columns<T> {
    /// The directory in question.
    pub directory: T,
    /// The directory below it.
    pub below: Option<T>,
    /// The limit of FUSE: a filesystem in memory.
    pub fuse: Option<T>,
    /// The limit of striping over FUSE: the same, and plain files on the filesystems of the members.
    pub plain: Option<T>,
}

impl<T> Columns<T> {
    /// Returns the values of a function of each.
    ///
    /// # Errors
    ///
    /// The first error of the function.
    pub fn try_map<U, E>(
        &mut self,
        mut map: impl FnMut(&mut T) -> Result<U, E>,
    ) -> Result<Columns<U>, E> {
        Ok(Columns {
            directory: map(&mut self.directory)?,
            below: self.below.as_mut().map(&mut map).transpose()?,
            fuse: self.fuse.as_mut().map(&mut map).transpose()?,
            plain: self.plain.as_mut().map(&mut map).transpose()?,
        })
    }
}
