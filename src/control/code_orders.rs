//! Carrying out what commands say about the code of a volume.

use super::failure::{CodeStep, DaemonFailure};
use super::mounted::{MountedVolume, OpenVolume};
use super::protocol::{Answer, CodeChange, DirectoryCodeEntry, DirectoryCodeRequest};
use super::report::{GeometryReport, SurvivalReport};
use super::volume_failure::VolumeFailure;
use crate::codec::{CodeId, CodecError, Geometry, Survival};
use crate::format::{Ino, StripeClass};
use crate::fs::FsError;
use crate::maintenance::OrderNumber;
use crate::membership::StripeCode;
use crate::transaction::{CommitError, DirectoryCodeError};

/// Most directories in one answer: those of the least inode numbers, if there are more.
const MOST_DIRECTORIES: usize = 1000;

/// Most bytes of their paths together.
const MOST_PATH_BYTES: usize = 1 << 20;

/// Changes the code of a volume, opens it with that, and orders the work on what is there. Requests of programs wait while
/// it is opened again.
///
/// # Errors
///
/// Those of a code that cannot be, that has too few members or too little room, and of opening the volume again.
/// [`DaemonFailure::CodeOrderUnderWay`] if another command changes a code.
pub(crate) fn change(
    mounted: &MountedVolume,
    change: &CodeChange,
    bytes_per_second: Option<u64>,
) -> Result<Answer, DaemonFailure> {
    let _one_at_a_time = mounted.hold_code_orders()?;
    let volume = mounted.open().ok_or(DaemonFailure::VolumeAway)?;
    // Moves that were ordered go on in the new code.
    let balance = volume.orders.as_ref().is_some_and(|it| it.awaits_balance());
    if let Some(wanted) = check(&volume, change)? {
        drop(volume);
        mounted.reopen_with(Box::new(move |volume| {
            let changed = volume.transactions.change_code(wanted);
            changed.map_err(|error| DaemonFailure::from(VolumeFailure::from(error)))?;
            let StripeCode {
                geometry,
                code,
                unit_bytes,
            } = wanted;
            tracing::info!(
                "new stripes are {geometry} {code} with a unit of {unit_bytes} bytes from now on"
            );
            Ok(())
        }))?;
    }
    let volume = mounted.open().ok_or(DaemonFailure::VolumeAway)?;
    let orders = volume.orders.as_ref();
    let orders = orders.ok_or(DaemonFailure::MountedReadOnly)?;
    // Stripes wait for members that are away, whose shards stay theirs until then.
    let ordered = orders.order_for_online(bytes_per_second, balance);
    let OrderNumber(order) = ordered.map_err(VolumeFailure::from)?;
    Ok(Answer::Ordered(order))
}

/// Gives a directory a code, or tells which it has, or all that have one of their own.
///
/// # Errors
///
/// Those of a code that the directory cannot have, and of [`crate::fs::DirectoryCodes`].
/// [`DaemonFailure::UnknownDirectoryCode`] if it names a class without a code;
/// [`DaemonFailure::CodeOrderUnderWay`] if another command changes a code.
pub(crate) fn of_directory(
    mounted: &MountedVolume,
    request: &DirectoryCodeRequest,
) -> Result<Answer, DaemonFailure> {
    match request {
        DirectoryCodeRequest::Show { directory } => {
            let volume = mounted.open().ok_or(DaemonFailure::VolumeAway)?;
            show(&volume, Ino(*directory))
        }
        DirectoryCodeRequest::List => list(&mounted.open().ok_or(DaemonFailure::VolumeAway)?),
        DirectoryCodeRequest::Set {
            directory,
            change,
            rewrite,
            bytes_per_second,
        } => {
            // The volume is away for a moment while its own code changes.
            let _one_at_a_time = mounted.hold_code_orders()?;
            let volume = mounted.open().ok_or(DaemonFailure::VolumeAway)?;
            let orders = volume.orders.as_ref();
            let orders = orders.ok_or(DaemonFailure::MountedReadOnly)?;
            let directory = Ino(*directory);
            let wanted = wanted(code_to_change(&volume, directory, change)?, change);
            let wanted = wanted.map_err(bad_code)?;
            give(&volume, directory, wanted, *rewrite)?;
            if !rewrite {
                return Ok(Answer::DirectoryCode(code_report(wanted)));
            }
            let balance = orders.awaits_balance();
            // Files wait for members that are away, whose shards stay theirs until then.
            let ordered = orders.order_for_online(*bytes_per_second, balance);
            let OrderNumber(order) = ordered.map_err(VolumeFailure::from)?;
            Ok(Answer::Ordered(order))
        }
    }
}

/// Gives a directory a code, and the files below it as well if they are to be rewritten.
fn give(
    volume: &OpenVolume,
    directory: Ino,
    wanted: StripeCode,
    rewrite: bool,
) -> Result<(), DaemonFailure> {
    if rewrite {
        check_room_to_rewrite(volume, directory, wanted)?;
    }
    // No member that the code needs is drained from here on: whether they suffice is asked again.
    let draining = volume.maintenance.draining();
    let _no_other_change = draining.hold();
    let transactions = volume.fs.transactions();
    let class = transactions.class_for(wanted.geometry, wanted.code);
    let class = class.map_err(refusal)?;
    let codes = volume.fs.directory_codes();
    codes
        .set(directory, class, rewrite)
        .map_err(directory_failure)?;
    let StripeCode { geometry, code, .. } = wanted;
    tracing::info!("what is made in directory {directory} is {geometry} {code} from now on");
    Ok(())
}

/// Checks whether members have room for the files below a directory in another code. Nothing is changed yet.
fn check_room_to_rewrite(
    volume: &OpenVolume,
    directory: Ino,
    wanted: StripeCode,
) -> Result<(), DaemonFailure> {
    let transactions = volume.fs.transactions();
    let class = transactions.known_class(wanted.geometry, wanted.code);
    if class != Some(StripeClass::VOLUME) {
        transactions.check_directory_code(wanted).map_err(refusal)?;
    }
    let codes = volume.fs.directory_codes();
    let files = codes.files_to_rewrite(directory, class);
    let files = files.map_err(directory_failure)?;
    let rebuild = volume.maintenance.rebuild();
    let lacking = rebuild.lacking_room_to_rewrite(&files, class, wanted.geometry);
    let lacking = lacking.map_err(|error| DaemonFailure::from(VolumeFailure::from(error)))?;
    if lacking == 0 {
        return Ok(());
    }
    // Those that are away may have the room, so that nothing has to be deleted for it.
    let absent = transactions.members().epochs().absent_that_stay();
    let away = absent.into_iter().map(|it| it.index.0).collect();
    Err(DaemonFailure::TooLittleRoomToRewrite { lacking, away })
}

/// Tells the code of what is made in a directory.
fn show(volume: &OpenVolume, directory: Ino) -> Result<Answer, DaemonFailure> {
    let (class, code) = code_of(volume, directory)?;
    let code = code.ok_or(DaemonFailure::UnknownDirectoryCode { class: class.0 })?;
    Ok(Answer::DirectoryCode(code_report(code)))
}

/// Lists the directories with codes of their own.
fn list(volume: &OpenVolume) -> Result<Answer, DaemonFailure> {
    let owners = volume.fs.directory_codes().list(MOST_DIRECTORIES + 1);
    let mut entries: Vec<DirectoryCodeEntry> = owners
        .map_err(directory_failure)?
        .into_iter()
        .map(|owner| DirectoryCodeEntry {
            directory: owner.directory.0,
            path: owner
                .path
                .map(|path| String::from_utf8_lossy(&path).into_owned()),
            class: owner.class.0,
            geometry: code_of_class(volume, owner.class).map(code_report),
        })
        .collect();
    entries.sort_by(|a, b| (&a.path, a.directory).cmp(&(&b.path, b.directory)));
    let mut bytes = 0;
    let fitting = entries.iter().take(MOST_DIRECTORIES).take_while(|entry| {
        bytes += entry.path.as_ref().map_or(0, String::len);
        bytes <= MOST_PATH_BYTES
    });
    let fitting = fitting.count();
    let has_more = fitting < entries.len();
    entries.truncate(fitting);
    Ok(Answer::DirectoryCodes {
        directories: entries,
        has_more,
    })
}

/// Returns the class and the code of what is made in a directory. A class whose record is lost has no code.
fn code_of(
    volume: &OpenVolume,
    directory: Ino,
) -> Result<(StripeClass, Option<StripeCode>), DaemonFailure> {
    let class = volume.fs.directory_codes().get(directory);
    let class = class.map_err(directory_failure)?;
    Ok((class, code_of_class(volume, class)))
}

fn code_of_class(volume: &OpenVolume, class: StripeClass) -> Option<StripeCode> {
    let transactions = volume.fs.transactions();
    let (geometry, code) = transactions.code_of_class(class)?;
    Some(StripeCode {
        geometry,
        code,
        ..transactions.members().shape().stripe_code()
    })
}

/// Returns the code that a change of the code of a directory begins with. That is the volume's if the directory's is not
/// known, and the change names all shards.
fn code_to_change(
    volume: &OpenVolume,
    directory: Ino,
    change: &CodeChange,
) -> Result<StripeCode, DaemonFailure> {
    let (class, code) = code_of(volume, directory)?;
    let is_complete = change.data.is_some() && change.parity.is_some();
    let of_volume = || volume.fs.transactions().members().shape().stripe_code();
    code.or_else(|| is_complete.then(of_volume))
        .ok_or(DaemonFailure::UnknownDirectoryCode { class: class.0 })
}

fn code_report(code: StripeCode) -> GeometryReport {
    GeometryReport {
        data: code.geometry.data_shards(),
        parity: code.geometry.parity_shards(),
        code: code.code.to_string(),
        stripe_unit_bytes: Some(code.unit_bytes),
        survives: SurvivalReport::of(Survival::of(code.code, code.geometry)),
    }
}

fn directory_failure(error: FsError) -> DaemonFailure {
    match error {
        FsError::ReadOnly => DaemonFailure::MountedReadOnly,
        FsError::NoSpace => DaemonFailure::from(VolumeFailure::from(CommitError::NoSpace)),
        FsError::NotFound | FsError::NotDirectory => DaemonFailure::DirectoryCode {
            problem: format!("the directory was removed meanwhile: {error}"),
            step: CodeStep::OtherDirectory,
        },
        error => DaemonFailure::from(VolumeFailure::from(error)),
    }
}

fn bad_code(error: CodecError) -> DaemonFailure {
    refusal(DirectoryCodeError::Codec(error))
}

/// Puts the refusal of a code together with the step that helps.
fn refusal(error: DirectoryCodeError) -> DaemonFailure {
    let problem = error.to_string();
    let step = match error {
        DirectoryCodeError::Commit(error) => {
            return DaemonFailure::from(VolumeFailure::from(error));
        }
        DirectoryCodeError::Codec(_) => return DaemonFailure::BadCode { problem },
        DirectoryCodeError::TooMuchParity { losses, most } => {
            CodeStep::RaiseVolume { losses, most }
        }
        DirectoryCodeError::NoParity { .. } => CodeStep::MoreParity,
        DirectoryCodeError::TooWide { most, .. } => CodeStep::FewerDataShards { most },
        DirectoryCodeError::TooMany { known } => CodeStep::KnownCode {
            codes: known
                .into_iter()
                .map(|(geometry, code)| format!("{geometry} {code}"))
                .collect(),
        },
        DirectoryCodeError::DirectoryHasMore { .. }
        | DirectoryCodeError::DirectoryTooWide { .. } => CodeStep::ChangeDirectories,
    };
    DaemonFailure::DirectoryCode { problem, step }
}

/// Returns the code that the volume can be changed to; none if it has that.
fn check(volume: &OpenVolume, change: &CodeChange) -> Result<Option<StripeCode>, DaemonFailure> {
    if volume.orders.is_none() {
        return Err(DaemonFailure::MountedReadOnly);
    }
    let members = volume.fs.transactions().members();
    let current = members.shape().stripe_code();
    let wanted = wanted(current, change).map_err(bad_code)?;
    if wanted == current {
        return Ok(None);
    }
    let possible = members.epochs().check_code(wanted);
    possible.map_err(|error| DaemonFailure::from(VolumeFailure::from(&error)))?;
    let transactions = volume.fs.transactions();
    transactions
        .check_beside_directories(wanted)
        .map_err(refusal)?;
    match volume.maintenance.rebuild().lacking_room_for(wanted) {
        0 => Ok(Some(wanted)),
        lacking => Err(DaemonFailure::TooLittleRoom { lacking }),
    }
}

/// Returns the code that a volume is to have.
fn wanted(current: StripeCode, change: &CodeChange) -> Result<StripeCode, CodecError> {
    let shards = |asked: Option<u8>, now: usize| asked.map_or(now, usize::from);
    let geometry = Geometry::new(
        shards(change.data, current.geometry.data_shards()),
        shards(change.parity, current.geometry.parity_shards()),
    )?;
    let name = match &change.code {
        Some(name) => name,
        None => current.code.name()?,
    };
    let is_same = geometry == current.geometry && current.code.name() == Ok(name);
    Ok(StripeCode {
        geometry,
        code: if is_same {
            current.code
        } else {
            // Its parameters may be others for this geometry.
            CodeId::from_name(name)?.for_geometry(geometry)?
        },
        unit_bytes: change.unit_bytes.unwrap_or(current.unit_bytes),
    })
}

#[cfg(test)]
mod tests;
