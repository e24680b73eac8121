//! Carrying out what commands say about the code of a volume.

use super::failure::DaemonFailure;
use super::mounted::{MountedVolume, OpenVolume};
use super::protocol::{Answer, CodeChange};
use super::volume_failure::VolumeFailure;
use crate::codec::{CodeId, CodecError, Geometry};
use crate::maintenance::OrderNumber;
use crate::membership::StripeCode;

/// Changes the code of a volume, opens it with that, and orders the work on what is there. Requests of programs wait while
/// it is opened again.
///
/// # Errors
///
/// Those of a code that cannot be, that has too few members or too little room, and of opening the volume again.
pub(crate) fn change(
    mounted: &MountedVolume,
    change: &CodeChange,
    bytes_per_second: Option<u64>,
) -> Result<Answer, DaemonFailure> {
    let volume = mounted.open().ok_or(DaemonFailure::VolumeAway)?;
    // Moves that were ordered go on in the new code.
    let balance = volume.orders.as_ref().is_some_and(|it| it.awaits_balance());
    if let Some(wanted) = check(&volume, change)? {
        drop(volume);
        mounted.reopen_with(Box::new(move |volume| {
            let changed = volume.transactions.change_code(wanted);
            changed.map_err(|error| DaemonFailure::from(VolumeFailure::from(error)))?;
            let StripeCode { geometry, code, .. } = wanted;
            tracing::info!("new stripes are {geometry} {code} from now on");
            Ok(())
        }))?;
    }
    let volume = mounted.open().ok_or(DaemonFailure::VolumeAway)?;
    let orders = volume.orders.as_ref();
    let orders = orders.ok_or(DaemonFailure::MountedReadOnly)?;
    let OrderNumber(order) = orders.order(bytes_per_second, balance);
    Ok(Answer::Ordered(order))
}

/// Returns the code that the volume can be changed to; none if it has that.
fn check(volume: &OpenVolume, change: &CodeChange) -> Result<Option<StripeCode>, DaemonFailure> {
    if volume.orders.is_none() {
        return Err(DaemonFailure::MountedReadOnly);
    }
    let members = volume.fs.transactions().members();
    let current = members.shape().stripe_code();
    let wanted = wanted(current, change).map_err(|error| DaemonFailure::BadCode {
        problem: error.to_string(),
    })?;
    if wanted == current {
        return Ok(None);
    }
    let possible = members.epochs().check_code(wanted);
    possible.map_err(|error| DaemonFailure::from(VolumeFailure::from(&error)))?;
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
