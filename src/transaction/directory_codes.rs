//! Codes of directories. Each is the code of a class of stripes, which inodes name.
//!
//! The classes of a volume are few, because each has an open stripe and a segment of its own. The volume goes on after as
//! many losses as its own code survives, and has so many further copies of its index. So no directory has more.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CommitError, Transactions};
use crate::codec::{CodeId, CodecError, Geometry, Survival};
use crate::format::record::DirectoryCode;
use crate::format::superblock::DIRECTORY_CODES;
use crate::format::{BLOCK_SIZE, Record, StripeClass, key};
use crate::membership::{MembersError, StripeCode};
use crate::metadata::Batch;
use crate::stripes::ClassCode;

/// The most codes of directories that a volume ever has.
pub const MAX_DIRECTORY_CODES: u8 = 15;

/// A reason why a directory cannot have a code, or a volume cannot have one beside those of its directories.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryCodeError {
    /// There is no such code.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The index survives fewer losses than the stripes would.
    #[error("the index survives {most} losses, as the volume does, and the code {losses}")]
    TooMuchParity {
        /// The losses that the code survives.
        losses: usize,
        /// The losses that the code of the volume survives.
        most: usize,
    },
    /// Every loss of a member would be one of data, while the volume itself survives some.
    #[error("data of this code would survive no loss, and the volume survives {most}")]
    NoParity {
        /// The losses that the code of the volume survives.
        most: usize,
    },
    /// A stripe would be longer than one of the volume, even with the least height.
    #[error(
        "a stripe of {data_shards} data shards is longer than one of the volume, and {most} are not"
    )]
    TooWide {
        /// The data shards.
        data_shards: usize,
        /// The most data shards that fit.
        most: usize,
    },
    /// The volume had as many codes of directories as it ever has.
    #[error(
        "the volume had {MAX_DIRECTORY_CODES} codes of directories, and cannot have another one"
    )]
    TooMany {
        /// Those that can be used.
        known: Vec<(Geometry, CodeId)>,
    },
    /// Directories have a code that survives more losses than the volume would.
    #[error(
        "a directory has a code that survives {losses} losses, and the volume would survive {most}"
    )]
    DirectoryHasMore {
        /// The losses that the directory's code survives.
        losses: usize,
        /// The losses that the volume would survive.
        most: usize,
    },
    /// Directories have a code whose stripes would be longer than those of the volume.
    #[error(
        "a directory has a code of {data_shards} data shards, and stripes of the volume would be too short for more than {most}"
    )]
    DirectoryTooWide {
        /// The data shards of the directory's code.
        data_shards: usize,
        /// The most data shards that would fit.
        most: usize,
    },
    /// The volume cannot do it now.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl From<MembersError> for DirectoryCodeError {
    fn from(error: MembersError) -> Self {
        Self::Commit(error.into())
    }
}

impl Transactions {
    /// Returns the class of stripes of a code, which is a new one if no directory had the code before; durable on return.
    /// That of the volume's own code is the volume's own class.
    ///
    /// # Errors
    ///
    /// [`DirectoryCodeError`]; nothing is changed then.
    pub fn class_for(
        &self,
        geometry: Geometry,
        code: CodeId,
    ) -> Result<StripeClass, DirectoryCodeError> {
        let _one_at_a_time = self.catalog.hold_classes();
        let volume = self.members.shape().stripe_code();
        let wanted = StripeCode {
            geometry,
            code,
            ..volume
        };
        if wanted == volume {
            return Ok(StripeClass::VOLUME);
        }
        self.check_directory_code(wanted)?;
        let classes = self.stripes.classes();
        if let Some(known) = self.known_class(geometry, code) {
            return Ok(known);
        }
        let class = self.next_class()?;
        self.commits.check_writable()?;
        // Before the first record that other builds would misread.
        self.members.epochs().use_features(DIRECTORY_CODES)?;
        let record = DirectoryCode {
            data_shards: u8::try_from(geometry.data_shards()).unwrap_or(u8::MAX),
            parity_shards: u8::try_from(geometry.parity_shards()).unwrap_or(u8::MAX),
            code: code.0,
        };
        let mut batch = Batch::default();
        batch.put(key::directory_code(class), record.encode());
        self.apply(batch)?;
        self.sync()?;
        classes.add(class, (geometry, code))?;
        Ok(class)
    }

    /// Returns the class of stripes of a code; none if no directory had it.
    #[must_use]
    pub fn known_class(&self, geometry: Geometry, code: CodeId) -> Option<StripeClass> {
        let classes = self.stripes.classes();
        let is_wanted =
            |known: &&Arc<ClassCode>| known.geometry() == geometry && known.code() == code;
        if is_wanted(&classes.volume()) {
            return Some(StripeClass::VOLUME);
        }
        let known = classes.of_directories();
        known.iter().find(is_wanted).map(|known| known.class())
    }

    /// Returns a class after the last that has a record. No segment and no inode names it: the record of such a one is lost,
    /// and must not come to mean another code.
    fn next_class(&self) -> Result<StripeClass, DirectoryCodeError> {
        let (from, end) = key::directory_codes();
        let records = self.scan(&from, &end, usize::MAX)?;
        let mut last = StripeClass::VOLUME;
        for (key, _) in records {
            last = key::parse_directory_code(&key).map_err(CommitError::from)?;
        }
        let mut free: BTreeSet<_> = (last.0.saturating_add(1)..=MAX_DIRECTORY_CODES)
            .map(StripeClass)
            .collect();
        for (_, segment) in self.stripes.segments().records() {
            free.remove(&segment.class);
        }
        // No inode names one on a volume that never had a code of directories.
        if self.members.epochs().uses_features(DIRECTORY_CODES) {
            for named in self.catalog.named_by_inodes(&free)? {
                free.remove(&named);
            }
        }
        let class = free.first().copied();
        class.ok_or_else(|| DirectoryCodeError::TooMany {
            known: self.usable_codes(),
        })
    }

    /// Returns the codes that directories can have without a new class.
    fn usable_codes(&self) -> Vec<(Geometry, CodeId)> {
        let volume = self.members.shape().stripe_code();
        let known = self.stripes.classes().of_directories().into_iter();
        let known = known.map(|code| (code.geometry(), code.code()));
        let is_usable = |(geometry, code): &(Geometry, CodeId)| {
            let wanted = StripeCode {
                geometry: *geometry,
                code: *code,
                ..volume
            };
            wanted != volume && self.check_directory_code(wanted).is_ok()
        };
        let own = std::iter::once((volume.geometry, volume.code));
        own.chain(known.filter(is_usable)).collect()
    }

    /// Checks whether directories can have a code beside that of the volume.
    ///
    /// # Errors
    ///
    /// [`DirectoryCodeError`].
    pub fn check_directory_code(&self, wanted: StripeCode) -> Result<(), DirectoryCodeError> {
        self.members.epochs().check_directory_code(wanted)?;
        let volume = self.stripes.classes().volume();
        let (losses, most) = (
            Survival::of(wanted.code, wanted.geometry).guaranteed(),
            volume.survival().guaranteed(),
        );
        if losses > most {
            return Err(DirectoryCodeError::TooMuchParity { losses, most });
        }
        if losses == 0 && most > 0 {
            return Err(DirectoryCodeError::NoParity { most });
        }
        let data_shards = wanted.geometry.data_shards();
        let most = volume.capacity() / BLOCK_SIZE;
        if data_shards > most {
            return Err(DirectoryCodeError::TooWide { data_shards, most });
        }
        Ok(())
    }

    /// Checks whether the volume can have a code beside those of its directories.
    ///
    /// # Errors
    ///
    /// [`DirectoryCodeError::DirectoryHasMore`], [`DirectoryCodeError::DirectoryTooWide`], or a failure of the index.
    pub fn check_beside_directories(&self, wanted: StripeCode) -> Result<(), DirectoryCodeError> {
        let most = Survival::of(wanted.code, wanted.geometry).guaranteed();
        let most_data_shards = wanted.greatest_payload() / BLOCK_SIZE;
        for code in self.stripes.classes().of_directories() {
            let losses = code.survival().guaranteed();
            let data_shards = code.geometry().data_shards();
            let is_too_wide = data_shards > most_data_shards;
            if (losses <= most && !is_too_wide) || !self.is_in_use(code.class())? {
                continue;
            }
            return Err(if is_too_wide {
                DirectoryCodeError::DirectoryTooWide {
                    data_shards,
                    most: most_data_shards,
                }
            } else {
                DirectoryCodeError::DirectoryHasMore { losses, most }
            });
        }
        Ok(())
    }

    /// Returns whether a segment or an inode names a class. Reads all inodes if no segment does.
    fn is_in_use(&self, class: StripeClass) -> Result<bool, CommitError> {
        let segments = self.stripes.segments().records();
        if segments.iter().any(|(_, segment)| segment.class == class) {
            return Ok(true);
        }
        let named = self.catalog.named_by_inodes(&BTreeSet::from([class]))?;
        Ok(!named.is_empty())
    }

    /// Notes that stripes may hold bytes of files of other classes, and are to be rewritten; durable with the next
    /// [`Self::sync`].
    ///
    /// # Errors
    ///
    /// As for [`Self::apply`].
    pub fn order_rewrite(&self) -> Result<(), CommitError> {
        self.commits.check_writable()?;
        self.catalog.order_rewrite()
    }

    /// Runs `work`, which gives files other classes, and notes that stripes are to be rewritten; durable with the next
    /// [`Self::sync`].
    ///
    /// # Errors
    ///
    /// As for [`Self::apply`], and those of `work`.
    pub(crate) fn ordering_rewrite<T, E: From<CommitError>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.commits.check_writable()?;
        self.catalog.ordering_rewrite(work)
    }

    /// Returns the code of a class; `None` if it is not known.
    #[must_use]
    pub fn code_of_class(&self, class: StripeClass) -> Option<(Geometry, CodeId)> {
        let code = self.stripes.classes().get(class)?;
        Some((code.geometry(), code.code()))
    }
}
