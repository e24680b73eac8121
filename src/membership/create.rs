//! Making a volume.

use uuid::Uuid;

use super::content::DirectoryContent;
use super::error::MembersError;
use super::fields::{nonce, noted_path, noted_shards};
use super::slots::{SUPERBLOCK_LEN, padded};
use crate::codec::{CodeId, Geometry};
use crate::format::record::MAX_SEGMENT_BYTES;
use crate::format::superblock::{
    CODE_PARAMETERS, EpochMark, Features, MAX_LABEL, MAX_MEMBERS, MemberEntry, SLOT_BYTES, SLOTS,
    Superblock,
};
use crate::format::{BLOCK_SIZE, Epoch, Generation, MemberId, MemberIndex, VolumeId, files};
use crate::store::{Hold, StoreErrorKind, StoreRef};

/// Options of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Shards of each stripe.
    pub geometry: Geometry,
    /// The code that makes parity. Rows of `random-gf2` are chosen if they are not yet.
    pub code: CodeId,
    /// Most bytes of one shard: a multiple of the block size.
    pub unit_bytes: u32,
    /// Bytes of each file of a segment: a multiple of the stripe unit.
    pub segment_bytes: u64,
    /// A name for people, at most 255 bytes; may be empty.
    pub label: String,
}

impl CreateOptions {
    /// The usual stripe unit.
    pub const UNIT_BYTES: u32 = 1 << 20;

    /// The usual choices: `rs-cauchy`, shards of up to 1 MiB, segment files of 256 MiB, no label.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            code: CodeId::RS_CAUCHY,
            unit_bytes: Self::UNIT_BYTES,
            segment_bytes: 256 << 20,
            label: String::new(),
        }
    }

    fn check(&self, given: usize) -> Result<(), MembersError> {
        if given == 0 {
            return Err(MembersError::NoDirectory);
        }
        if given < self.geometry.total_shards() {
            let geometry = self.geometry;
            return Err(MembersError::TooFewDirectories { given, geometry });
        }
        if given > MAX_MEMBERS {
            let most = MAX_MEMBERS;
            return Err(MembersError::TooManyDirectories { given, most });
        }
        check_stripes(self.geometry, self.unit_bytes, self.segment_bytes)?;
        if self.label.len() > MAX_LABEL || self.label.chars().any(char::is_control) {
            let problem = format!("over {MAX_LABEL} bytes long, or with control characters");
            return Err(refused("label", &self.label.escape_debug(), &problem));
        }
        Ok(())
    }
}

/// Checks that a volume can have such stripes and segments.
pub(super) fn check_stripes(
    geometry: Geometry,
    unit_bytes: u32,
    segment_bytes: u64,
) -> Result<(), MembersError> {
    let unit = u64::from(unit_bytes);
    let payload = unit * geometry.data_shards() as u64;
    if unit == 0 || !unit.is_multiple_of(BLOCK_SIZE as u64) {
        return Err(refused(
            "stripe unit",
            &unit,
            "not a multiple of 4096 bytes",
        ));
    }
    if u32::try_from(payload).is_err() {
        return Err(refused(
            "stripe unit",
            &unit,
            "a stripe's data would exceed 4 GiB",
        ));
    }
    let segment = segment_bytes;
    if segment == 0 || !segment.is_multiple_of(unit) {
        let problem = format!("not a multiple of the stripe unit, {unit}");
        return Err(refused("segment size", &segment, &problem));
    }
    if segment > MAX_SEGMENT_BYTES {
        let problem = format!("over {MAX_SEGMENT_BYTES} bytes");
        return Err(refused("segment size", &segment, &problem));
    }
    Ok(())
}

fn refused(option: &'static str, value: &impl ToString, problem: &str) -> MembersError {
    MembersError::Option {
        option,
        value: value.to_string(),
        problem: problem.to_owned(),
    }
}

/// Makes a volume; see [`Members::create`](super::Members::create).
pub(super) fn create(
    stores: &[StoreRef],
    options: &CreateOptions,
) -> Result<VolumeId, MembersError> {
    options.check(stores.len())?;
    let code = options.code.for_geometry(options.geometry)?;
    let options = &CreateOptions {
        code,
        ..options.clone()
    };
    for store in stores {
        check_empty(store)?;
    }
    let mut locks = Vec::with_capacity(stores.len());
    let blocks = first_superblocks(stores, options);
    let result = stores
        .iter()
        .try_for_each(|store| {
            locks.push(
                store
                    .lock(Hold::Exclusive)
                    .map_err(|error| match error.kind() {
                        StoreErrorKind::InUse => MembersError::InUse {
                            path: store.label(),
                            holder: error.holder().cloned(),
                        },
                        _ => error.into(),
                    })?,
            );
            Ok(())
        })
        .and_then(|()| write_all(stores, &blocks));
    if result.is_err() {
        // Only those that were locked here: the next one may be another volume's.
        clear(&stores[..locks.len()]);
    }
    result.map(|()| blocks[0].volume)
}

fn check_empty(store: &StoreRef) -> Result<(), MembersError> {
    let found = DirectoryContent::of(&**store)?.any();
    found.map_or(Ok(()), |found| Err(refusal(store.label(), found)))
}

/// Returns the refusal of a directory with something in it for a new member.
pub(super) fn refusal(path: String, found: String) -> MembersError {
    if found == files::SUPERBLOCK {
        MembersError::AlreadyMember { path }
    } else {
        MembersError::NotEmpty { path, found }
    }
}

fn first_superblocks(stores: &[StoreRef], options: &CreateOptions) -> Vec<Superblock> {
    let volume = VolumeId(Uuid::new_v4());
    let members: Vec<_> = stores
        .iter()
        .map(|store| MemberEntry {
            id: MemberId(Uuid::new_v4()),
            current: true,
            draining: false,
            path: noted_path(&store.label()),
        })
        .collect();
    let mark = EpochMark {
        epoch: Epoch(1),
        nonce: nonce(),
    };
    let block = |(index, entry): (u16, &MemberEntry)| Superblock {
        volume,
        member: entry.id,
        index: MemberIndex(index),
        data_shards: noted_shards(options.geometry.data_shards()),
        parity_shards: noted_shards(options.geometry.parity_shards()),
        code: options.code.0,
        unit_bytes: options.unit_bytes,
        segment_bytes: options.segment_bytes,
        label: options.label.clone(),
        features: Features {
            incompat: if options.code.has_parameters() {
                CODE_PARAMETERS
            } else {
                0
            },
            ..Features::default()
        },
        generation: Generation(0),
        history: vec![mark],
        proposed: None,
        members: members.clone(),
        extension: Vec::new(),
    };
    (0..).zip(&members).map(block).collect()
}

/// Makes all files before it writes the first superblock: most failures come earlier.
fn write_all(stores: &[StoreRef], blocks: &[Superblock]) -> Result<(), MembersError> {
    for store in stores {
        store.create(files::SUPERBLOCK, SUPERBLOCK_LEN)?;
    }
    for (store, block) in stores.iter().zip(blocks) {
        // In both slots, so that one that is damaged costs nothing from the beginning.
        for slot in 0..SLOTS {
            let offset = (slot * SLOT_BYTES) as u64;
            store.write_at(files::SUPERBLOCK, offset, &padded(block))?;
        }
        store.sync(files::SUPERBLOCK)?;
    }
    Ok(())
}

/// Leaves directories as they were found, as far as that still goes.
fn clear(stores: &[StoreRef]) {
    for store in stores {
        for name in [files::SUPERBLOCK, files::LOCK] {
            if let Err(error) = store.remove(name) {
                tracing::error!("{error}; remove it by hand before the next attempt");
            }
        }
    }
}
