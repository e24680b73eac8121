//! `cauchyfs create`.

use std::sync::Arc;

use super::args::CreateArguments;
use super::devices;
use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::{Failure, Outcome, warn};
use super::size::format_size;
use super::survey::{executor, stores};
use super::terminal;
use super::trust;
use crate::codec::{CodeId, CodecError, Geometry, Survival};
use crate::control::report::SurvivalReport;
use crate::control::volume_failure::VolumeFailure;
use crate::format::VolumeId;
use crate::fs::{Fs, FsOptions};
use crate::maintenance::Maintenance;
use crate::membership::{self, MembersError};
use crate::metadata::MetaError;
use crate::store::{Executor, StoreError, StoreErrorKind, StoreRef};
use crate::transaction::{CommitError, CreateOptions, OpenOptions, Transactions};

/// The bytes that the smallest directory takes before there is any data: journals, a copy of the index, and the space
/// that is kept back for it.
const FIRST_BYTES: u64 = 6 << 20;

/// Stripes for which a directory has to have room: some are kept back for moving others about.
const FIRST_STRIPES: u64 = 6;

/// The longest label, in bytes.
const MAX_LABEL: usize = 64;

/// Makes a volume and prints its id.
///
/// # Errors
///
/// If the numbers make no sense, or the directories cannot be used.
pub(super) fn run(arguments: &CreateArguments) -> Result<Outcome, Failure> {
    let options = options(arguments)?;
    let volume = Directories::make(&arguments.directories, |directories| {
        if !arguments.trust_members {
            trust::refuse_directories_of_others(directories)?;
        }
        create(&stores(directories)?, &options, &executor(MEMBER_TIMEOUT))
    })?;
    if options.code == CodeId::RS_CAUCHY && CodeId::RS_FFT.is_proposed_for(options.geometry) {
        let parity = arguments.parity;
        let text = format_args!(
            "with {parity} parity shards, rs-fft takes less time than rs-cauchy on CPUs with GFNI"
        );
        terminal::error_lines(
            text,
            Some("to have it, create the volume with --code rs-fft"),
        );
    }
    let survival = Survival::of(options.code, options.geometry);
    if let Some(survives) = SurvivalReport::of(survival) {
        terminal::error_lines(
            format_args!("this volume survives {survives}"),
            None::<&str>,
        );
    }
    if let Some(warning) = devices::warning(&arguments.directories, survival.guaranteed()) {
        warn(warning);
    }
    terminal::line(volume);
    Ok(Outcome::Done)
}

/// Makes a volume with its root directory. Nothing of it stays if that fails.
fn create(
    stores: &[StoreRef],
    options: &CreateOptions,
    executor: &Arc<Executor>,
) -> Result<VolumeId, Failure> {
    let created = Transactions::create(stores, options, Arc::clone(executor));
    let volume = created.map_err(|error| {
        if is_for_want_of_room(&error) {
            too_small(options)
        } else {
            VolumeFailure::from(error).into()
        }
    })?;
    make_root(stores, options, executor).inspect_err(|_| {
        for store in stores {
            membership::clear(store, executor);
        }
    })?;
    Ok(volume)
}

/// Gives a new volume its root directory, which belongs to the user who creates it.
///
/// # Errors
///
/// Also if it has room for nothing else.
fn make_root(
    stores: &[StoreRef],
    options: &CreateOptions,
    executor: &Arc<Executor>,
) -> Result<(), Failure> {
    let maintenance = Maintenance::open(
        stores.to_vec(),
        &OpenOptions::default(),
        Arc::clone(executor),
    )
    .map_err(VolumeFailure::from)?;
    let has_room = maintenance.transactions().space().usable_total > 0;
    let fs =
        Fs::open(Arc::clone(&maintenance), FsOptions::default()).map_err(VolumeFailure::from)?;
    fs.close().map_err(VolumeFailure::from)?;
    maintenance.close().map_err(VolumeFailure::from)?;
    has_room.then_some(()).ok_or_else(|| too_small(options))
}

fn is_for_want_of_room(error: &CommitError) -> bool {
    let is_full = |error: &StoreError| error.kind() == StoreErrorKind::NoSpace;
    match error {
        CommitError::NoSpace => true,
        CommitError::Meta(error) => matches!(&**error, MetaError::Store(error) if is_full(error)),
        CommitError::Members(error) => {
            matches!(&**error, MembersError::Store(error) if is_full(error))
        }
        _ => false,
    }
}

/// Says how large directories have to be.
fn too_small(options: &CreateOptions) -> Failure {
    let shards = options.geometry.total_shards();
    let least = FIRST_BYTES + FIRST_STRIPES * u64::from(options.unit_bytes);
    let room = format_size(least);
    Failure::environment("these directories are too small: there is no room for data in them").advise(format!(
        "{shards} of them need about {room} each, on disks of their own, and more to be of use; a smaller \
         --stripe-unit needs less"
    ))
}

fn options(arguments: &CreateArguments) -> Result<CreateOptions, Failure> {
    let CreateArguments { data, parity, .. } = *arguments;
    let count = arguments.directories.len();
    let needed = usize::from(data) + usize::from(parity);
    if data == 0 {
        return Err(Failure::usage(
            "--data must be at least 1: without data shards nothing is stored",
        ));
    }
    if parity == 0 {
        return Err(Failure::usage(
            "--parity must be at least 1: it is how many directories may be lost",
        ));
    }
    if needed > count {
        return Err(Failure::usage(format!(
            "{data}+{parity} needs {needed} directories or more, and {count} are given"
        ))
        .advise("name more directories, or choose a smaller --data or --parity"));
    }
    if arguments.label.len() > MAX_LABEL || arguments.label.chars().any(char::is_control) {
        return Err(Failure::usage(format!(
            "--label takes at most {MAX_LABEL} bytes and no control characters"
        )));
    }
    let geometry = Geometry::new(usize::from(data), usize::from(parity)).map_err(Failure::usage)?;
    let code = CodeId::from_name(&arguments.code).map_err(Failure::usage)?;
    let code = code.for_geometry(geometry).map_err(|error| {
        let advice = match error {
            CodecError::NoRows { .. } => {
                "choose a larger --parity or a smaller --data, or --code rs-cauchy"
            }
            CodecError::RandomGeometry { .. } => {
                "choose such numbers, or a code for any: rs-cauchy"
            }
            _ => "choose fewer shards, or a code for more of them: rs-cauchy",
        };
        Failure::usage(error).advise(advice)
    })?;
    let unit_bytes = stripe_unit(arguments.stripe_unit)?;
    let defaults = CreateOptions::new(geometry);
    Ok(CreateOptions {
        geometry,
        code,
        unit_bytes,
        segment_bytes: segment_size(
            arguments.segment_size.unwrap_or(defaults.segment_bytes),
            u64::from(unit_bytes),
        )?,
        label: arguments.label.clone(),
    })
}

/// Returns the stripe unit that was asked for, if a volume can have it.
pub(super) fn stripe_unit(bytes: u64) -> Result<u32, Failure> {
    const LEAST: u64 = 4 << 10;
    const MOST: u64 = 16 << 20;
    if !(LEAST..=MOST).contains(&bytes) || !bytes.is_power_of_two() {
        return Err(Failure::usage(format!(
            "--stripe-unit must be a power of two from {} to {}",
            format_size(LEAST),
            format_size(MOST)
        )));
    }
    u32::try_from(bytes).map_err(Failure::usage)
}

fn segment_size(bytes: u64, unit_bytes: u64) -> Result<u64, Failure> {
    const MOST: u64 = 4 << 30;
    let least = 4 * unit_bytes;
    if !(least..=MOST).contains(&bytes) || !bytes.is_multiple_of(unit_bytes) {
        return Err(Failure::usage(format!(
            "--segment-size must be a multiple of the stripe unit, from {} to {}",
            format_size(least),
            format_size(MOST)
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        CallKind, Effect, Fault, FaultPlan, FaultStore, MemDisk, Scope, Store as _,
    };

    fn arguments(data: u16, parity: u16, count: usize) -> CreateArguments {
        CreateArguments {
            data,
            parity,
            segment_size: None,
            stripe_unit: 1 << 20,
            code: "rs-cauchy".to_owned(),
            label: String::new(),
            trust_members: false,
            directories: vec!["d".into(); count],
        }
    }

    #[test]
    fn impossible_geometries_are_refused_with_a_sentence() {
        for (data, parity, count) in [
            (0, 2, 6),
            (4, 0, 6),
            (4, 2, 5),
            (254, 2, 300),
            (1000, 1, 2000),
        ] {
            assert!(
                options(&arguments(data, parity, count)).is_err(),
                "{data}+{parity} over {count}"
            );
        }
        let failure = options(&arguments(4, 2, 5)).unwrap_err();
        assert_eq!(
            failure.message,
            "4+2 needs 6 directories or more, and 5 are given"
        );
    }

    #[test]
    fn of_a_volume_that_was_not_finished_nothing_stays_wherever_it_ran_out_of_space() {
        let options = CreateOptions::new(Geometry::new(2, 1).unwrap());
        let disks = || [0, 1, 2].map(|index| MemDisk::new(&format!("disk{index}"), 64 << 20));
        let wrap = |disks: &[MemDisk], plan: &FaultPlan| {
            let open = |disk: &MemDisk| Arc::new(disk.open()) as StoreRef;
            FaultStore::wrap_all(disks.iter().map(open).collect(), plan)
        };
        let executor = executor(MEMBER_TIMEOUT);
        let plan = FaultPlan::new();
        let stores = wrap(&disks(), &plan);
        plan.record();
        Transactions::create(&stores, &options, Arc::clone(&executor)).unwrap();
        let is_write = |call: &crate::store::Call| call.kind == CallKind::Write;
        let made = plan.take_log().iter().filter(|call| is_write(call)).count() as u64;
        let mut failures = 0;
        for nth in made + 1.. {
            let (disks, plan) = (disks(), FaultPlan::new());
            let stores = wrap(&disks, &plan);
            let full = Fault::at(nth, Effect::NoSpace).of(Scope::Kind(CallKind::Write));
            plan.add(full.lasting());
            if create(&stores, &options, &executor).is_err() {
                failures += 1;
                for disk in &disks {
                    let left = disk.open().list("").unwrap();
                    assert!(left.is_empty(), "write {nth}: {left:?}");
                }
            }
            if plan.triggered() == 0 {
                break;
            }
        }
        assert!(failures > 0);
    }

    #[test]
    fn the_smallest_and_a_large_geometry_are_taken() {
        assert!(options(&arguments(1, 1, 2)).is_ok());
        assert!(options(&arguments(64, 16, 80)).is_ok());
        assert!(options(&arguments(4, 2, 20)).is_ok());
    }

    #[test]
    fn sizes_that_would_not_fit_each_other_are_refused() {
        assert!(stripe_unit(3 << 20).is_err());
        assert!(stripe_unit(2048).is_err());
        assert!(segment_size(1 << 20, 1 << 20).is_err());
        assert_eq!(segment_size(8 << 20, 1 << 20).unwrap(), 8 << 20);
    }

    #[test]
    fn a_code_for_fewer_shards_is_refused() {
        let mut wide = arguments(14, 4, 18);
        wide.code = "crs-w4".to_owned();
        let failure = options(&wide).unwrap_err();
        assert!(failure.message.contains("more than 16"), "{failure:?}");
        let just_right = CreateArguments { data: 12, ..wide };
        assert!(options(&just_right).is_ok());
    }

    #[test]
    fn a_code_that_does_not_exist_is_named() {
        let mut wrong = arguments(4, 2, 6);
        wrong.code = "rot13".to_owned();
        assert!(options(&wrong).unwrap_err().message.contains("rot13"));
    }
}
