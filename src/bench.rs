//! Measuring codecs: every engine and code on this machine, next to the limits of its memory. [`mod@fs`] measures
//! filesystems, [`rateless`] the random code, and [`papers`] what the literature has figures for.
//!
//! A row is one engine doing one thing. Beside it run the plain XOR of the same shards and, where it can be
//! loaded, ISA-L. They take turns within the row, so that all of them see the same machine.

mod bus;
mod calls;
mod error;
pub mod fs;
mod isal;
mod lane;
mod machine;
pub mod papers;
pub mod rateless;
mod report;
mod resident;
mod row;
mod setting;

pub use self::{
    error::BenchError,
    isal::{Isal, IsalError, IsalTables},
    machine::Machine,
    report::BenchReport,
    row::Row,
    setting::{Operation, Setting, WorkingSet},
};

use std::collections::HashMap;
use std::time::Duration;

use bus::{GPU_ENGINE, Gpus};
use error::{MOST_STRIPES, MOST_THREADS};
use lane::Arena;

use crate::codec::{CodeId, Codec, CodecError, Engine, Geometry, engines, select};
use crate::cuda::DeviceError;

/// The measurements to make. An empty list stands for the usual choice.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Geometries, all with every code asked for.
    pub geometries: Vec<Geometry>,
    /// Lengths of a shard, in bytes.
    pub shard_bytes: Vec<usize>,
    /// Numbers of threads, each with stripes of its own.
    pub threads: Vec<usize>,
    /// Numbers of stripes that a thread hands over to GPUs by one call; usually one.
    pub stripes: Vec<usize>,
    /// Engines by name; usually the one that `auto` picks, and in one setting all others.
    pub engines: Vec<String>,
    /// Codes; usually the default, and in one setting all others.
    pub codes: Vec<CodeId>,
    /// Operations on stripes.
    pub operations: Vec<Operation>,
    /// Working sets: the memory that stripes lie in.
    pub working_sets: Vec<WorkingSet>,
    /// Seconds that a row may take altogether; 0 for the usual time.
    pub seconds: f64,
}

/// Seconds that a row takes unless told otherwise.
const USUAL_SECONDS: f64 = 0.3;

/// Length of a shard in the setting in which all engines and codes are compared, in bytes.
const COMPARED_SHARD_BYTES: usize = 64 << 10;

/// Callers who give GPUs something to do at once, unless told otherwise: as many as keep them busy.
const GPU_CALLERS: usize = 16;

/// Returns the geometries that are measured unless others are asked for.
pub fn usual_geometries() -> impl Iterator<Item = Geometry> {
    let usual = [(4, 2), (6, 3), (10, 4), (16, 4)];
    usual
        .into_iter()
        .filter_map(|(data, parity)| Geometry::new(data, parity).ok())
}

/// Measures all rows asked for; `progress` is told of each as soon as it is there, and how many there
/// will be.
///
/// # Errors
///
/// [`BenchError`] if an engine, a code or a length cannot be measured, or the system lacks the memory or the
/// threads. The rows that `progress` was told of until then are lost.
pub fn run(
    wishes: &Wishes,
    mut progress: impl FnMut(&Row, usize),
) -> Result<BenchReport, BenchError> {
    let gpus = gpus(wishes)?;
    let plans = plans(wishes, gpus.is_some())?;
    let seconds = if wishes.seconds > 0.0 {
        wishes.seconds
    } else {
        USUAL_SECONDS
    };
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let spare = machine::memory_bytes() / 2;
    if let Some(plan) = plans.iter().find(|plan| plan.memory_bytes() > spare) {
        return Err(BenchError::Memory {
            geometry: plan.geometry(),
            needed: plan.memory_bytes(),
            limit: spare,
        });
    }
    let isal = Isal::load().ok();
    let mut machine = Machine::measure();
    if let Some(gpus) = &gpus {
        machine.gpu = Some(gpus.name().to_owned());
        let (copies, checksums) = resident::rates_inside(gpus.first(), time)?;
        machine.gpu_copy_gb_per_s = Some(copies);
        machine.gpu_checksum_gb_per_s = Some(checksums);
        machine.pcie_h2d_gb_per_s = Some(gpus.send_gb_per_s()?);
    }
    let mut arena = Arena::default();
    let mut rows = Vec::new();
    for plan in &plans {
        let row = match &gpus {
            Some(gpus) if plan.setting.working_set == WorkingSet::Device => {
                plan.measure_resident(gpus.first(), time)?
            }
            Some(gpus) if plan.setting.working_set.is_of_gpu() => {
                plan.measure_on(gpus, &mut arena, time)?
            }
            _ => plan.measure(isal.as_ref(), &mut arena, time)?,
        };
        progress(&row, plans.len());
        rows.push(row);
    }
    let chosen_engine = select("auto")?.name();
    let isal = isal.as_ref().map(|isal| isal.library().to_owned());
    Ok(BenchReport {
        machine,
        chosen_engine,
        isal,
        rows,
    })
}

/// Opens the GPUs if they are asked for, or if there are some and nothing in particular is.
fn gpus(wishes: &Wishes) -> Result<Option<Gpus>, DeviceError> {
    let mut sets = wishes.working_sets.iter();
    if wishes.engines.iter().any(|name| name == GPU_ENGINE) || sets.any(|set| set.is_of_gpu()) {
        return Gpus::open().map(Some);
    }
    if wishes.engines.is_empty() && wishes.working_sets.is_empty() {
        return match Gpus::open() {
            Ok(gpus) => Ok(Some(gpus)),
            Err(error) if error.is_absence() => Ok(None),
            Err(error) => {
                tracing::warn!("nothing is measured on GPUs: {error}");
                Ok(None)
            }
        };
    }
    Ok(None)
}

/// Returns the rows to measure, grouped so that those to compare stand together.
fn plans(wishes: &Wishes, with_gpus: bool) -> Result<Vec<row::RowPlan>, BenchError> {
    let usual: Vec<Geometry> = usual_geometries().collect();
    let geometries = or(&wishes.geometries, &usual);
    let on_cpu = settings(wishes, &WorkingSet::OF_CPU)?;
    let on_gpus = if with_gpus {
        settings(wishes, &WorkingSet::OF_GPU)?
    } else {
        Vec::new()
    };
    let usual_codes = [CodeId::RS_CAUCHY];
    let of_matrices = [CodeId::RS_CAUCHY, CodeId::RS_FFT];
    let gpu_codes = or(&wishes.codes, &usual_codes);
    let gpu_codes = gpu_codes
        .into_iter()
        .filter(|code| of_matrices.contains(code));
    let gpu_codes: Vec<CodeId> = gpu_codes.collect();
    let mut plans = Vec::new();
    for &geometry in &geometries {
        let mut chosen = HashMap::new();
        let mut choose = |code: CodeId| {
            let rows = chosen.entry(code);
            rows.or_insert_with(|| code.for_geometry(geometry)).clone()
        };
        for &setting in &on_cpu {
            let mut codes = codes_for(wishes, setting, &mut choose)?;
            // Decoding is measured with as many data shards lost as there are parities, which random rows may not survive.
            codes.retain(|code| setting.operation != Operation::Decode || !code.has_parameters());
            for code in codes {
                for engine in engines_for(wishes, code, setting)? {
                    plans.push(row::RowPlan::new(
                        Codec::new(code, geometry, engine)?,
                        setting,
                    ));
                }
            }
        }
        for &setting in &on_gpus {
            for &code in &gpu_codes {
                let codec = Codec::new(code, geometry, select("auto")?)?;
                plans.push(row::RowPlan::new(codec, setting));
            }
        }
    }
    Ok(plans)
}

/// Returns the settings to measure each codec in.
fn settings(wishes: &Wishes, sets: &[WorkingSet]) -> Result<Vec<Setting>, BenchError> {
    let lengths = or(&wishes.shard_bytes, &[4 << 10, 64 << 10, 1 << 20]);
    if let Some(&seen) = lengths
        .iter()
        .find(|length| !(1..=256 << 20).contains(*length))
    {
        return Err(BenchError::ShardBytes { seen });
    }
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let usual_threads: &[usize] = match sets.iter().any(|set| set.is_of_gpu()) {
        true => &[GPU_CALLERS],
        false if all > 1 => &[1, all],
        false => &[1],
    };
    let threads = or(&wishes.threads, usual_threads);
    if let Some(&seen) = threads
        .iter()
        .find(|count| !(1..=MOST_THREADS).contains(*count))
    {
        return Err(BenchError::Threads { seen });
    }
    let calls = or(&wishes.stripes, &[1]);
    if let Some(&seen) = calls
        .iter()
        .find(|count| !(1..=MOST_STRIPES).contains(*count))
    {
        return Err(BenchError::Stripes { seen });
    }
    let first_threads = threads[0];
    let operations = or(&wishes.operations, &Operation::ALL);
    let mut settings = Vec::new();
    for &shard_bytes in &lengths {
        for &threads in &threads {
            for working_set in or(&wishes.working_sets, sets) {
                // Stripes that stay on a device have no callers, so the number of threads makes no
                // difference.
                let is_again = working_set == WorkingSet::Device && threads != first_threads;
                if !sets.contains(&working_set) || is_again {
                    continue;
                }
                // Only calls over the bus take several stripes.
                let calls = if working_set.is_over_bus() {
                    &calls[..]
                } else {
                    &[1]
                };
                for &stripes in calls {
                    let setting = |&operation| Setting {
                        shard_bytes,
                        threads,
                        working_set,
                        stripes,
                        operation,
                    };
                    settings.extend(operations.iter().map(setting));
                }
            }
        }
    }
    Ok(settings)
}

/// Returns whether a setting is the one in which engines and codes are compared.
fn is_compared(setting: Setting) -> bool {
    setting.shard_bytes == COMPARED_SHARD_BYTES
        && setting.threads == 1
        && setting.working_set == WorkingSet::Warm
        && setting.operation == Operation::Encode
}

/// Returns the codes to measure in one setting: usually the default, and where codes are compared,
/// all that can have the geometry. Of codes asked for, those that can have it, if the geometry was
/// not. `choose` returns the code with rows for the geometry, if it has rows.
fn codes_for(
    wishes: &Wishes,
    setting: Setting,
    choose: &mut dyn FnMut(CodeId) -> Result<CodeId, CodecError>,
) -> Result<Vec<CodeId>, CodecError> {
    if !wishes.codes.is_empty() {
        let codes = wishes.codes.iter().map(|&code| choose(code));
        if wishes.geometries.is_empty() {
            return Ok(codes.filter_map(Result::ok).collect());
        }
        return codes.collect();
    }
    let mut codes = vec![CodeId::RS_CAUCHY];
    if is_compared(setting) {
        let others = CodeId::all().filter(|&code| code != CodeId::RS_CAUCHY);
        codes.extend(others.filter_map(|code| choose(code).ok()));
    }
    Ok(codes)
}

/// Returns the engines to measure in one setting: usually the one that `auto` picks, and where
/// engines are compared, all that this machine can run.
fn engines_for(
    wishes: &Wishes,
    code: CodeId,
    setting: Setting,
) -> Result<Vec<&'static dyn Engine>, CodecError> {
    match &wishes.engines[..] {
        [] if is_compared(setting) && code == CodeId::RS_CAUCHY => Ok(engines().collect()),
        [] => Ok(vec![select("auto")?]),
        names => {
            let of_cpu = names.iter().filter(|name| *name != GPU_ENGINE);
            of_cpu.map(|name| select(name)).collect()
        }
    }
}

/// Returns the list, or the usual one if it is empty.
fn or<T: Clone>(list: &[T], usual: &[T]) -> Vec<T> {
    if list.is_empty() {
        usual.to_vec()
    } else {
        list.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> Wishes {
        Wishes {
            geometries: vec![Geometry::new(3, 2).expect("valid")],
            shard_bytes: vec![4096],
            threads: vec![1, 2],
            working_sets: WorkingSet::OF_CPU.to_vec(),
            seconds: 0.002,
            ..Wishes::default()
        }
    }

    #[test]
    fn every_operation_and_working_set_gives_a_row_with_a_limit() {
        let mut told = 0;
        let report = run(&quick(), |_, total| {
            told += 1;
            assert!(told <= total);
        })
        .expect("can be measured");
        assert_eq!(report.rows.len(), 2 * 2 * 3);
        assert_eq!(told, report.rows.len());
        for row in &report.rows {
            assert!(row.gb_per_s > 0.0 && row.limit_gb_per_s > 0.0, "{row:?}");
            assert_eq!(row.engine, report.chosen_engine);
        }
    }

    #[test]
    fn json_names_what_the_contract_names() {
        let wishes = Wishes {
            operations: vec![Operation::Encode],
            ..quick()
        };
        let report = run(&wishes, |_, _| ()).expect("can be measured");
        let json = serde_json::to_value(&report).expect("plain data");
        let row = &json["rows"][0];
        assert_eq!((&row["op"], &row["data"]), (&"encode".into(), &3.into()));
        assert_eq!(row["working_set"], "warm");
        for key in [
            "engine",
            "code",
            "parity",
            "shard_bytes",
            "threads",
            "gb_per_s",
        ] {
            assert!(!row[key].is_null(), "{key}");
        }
        assert!(json["machine"]["memory_read_gb_per_s"].as_f64() > Some(0.0));
        assert!(json["machine"]["gpu"].is_null());
    }

    #[test]
    fn all_engines_and_codes_are_compared_in_one_setting() {
        let wishes = Wishes {
            shard_bytes: vec![COMPARED_SHARD_BYTES],
            threads: vec![1],
            operations: vec![Operation::Encode],
            ..quick()
        };
        let plans = plans(&wishes, false).expect("can be measured");
        // Warm, every engine with the default code and every other code; cold, just one.
        assert_eq!(
            plans.len(),
            engines().count() + CodeId::all().count() - 1 + 1
        );
    }

    #[test]
    fn numbers_of_stripes_for_a_call_are_for_what_goes_over_the_bus() {
        let wishes = Wishes {
            threads: vec![1],
            stripes: vec![1, 8],
            operations: vec![Operation::Encode],
            working_sets: Vec::new(),
            ..quick()
        };
        let plans = plans(&wishes, true).expect("can be measured");
        let setting = |plan: &row::RowPlan| (plan.setting.working_set, plan.setting.stripes);
        let seen: Vec<(WorkingSet, usize)> = plans.iter().map(setting).collect();
        let expected = [
            (WorkingSet::Warm, 1),
            (WorkingSet::Cold, 1),
            (WorkingSet::Device, 1),
            (WorkingSet::Pinned, 1),
            (WorkingSet::Pinned, 8),
            (WorkingSet::Pageable, 1),
            (WorkingSet::Pageable, 8),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_code_is_measured_with_the_usual_geometries_that_it_can_have() {
        let narrow = CodeId::from_name("crs-w4").expect("known");
        let wishes = Wishes {
            codes: vec![narrow],
            ..Wishes::default()
        };
        let plans = plans(&wishes, false).expect("the usual geometries narrow themselves");
        let geometries: Vec<String> = plans.iter().map(|p| p.geometry().to_string()).collect();
        assert!(geometries.contains(&"10+4".to_owned()), "{geometries:?}");
        assert!(!geometries.contains(&"16+4".to_owned()), "{geometries:?}");
    }

    #[test]
    fn wishes_that_cannot_be_measured_are_refused() {
        let refused = |wishes| run(&wishes, |_, _| ()).expect_err("refused").to_string();
        let no_stripes = refused(Wishes {
            stripes: vec![0],
            ..quick()
        });
        assert!(no_stripes.contains("between 1 and 1024"), "{no_stripes}");
        let none = refused(Wishes {
            threads: vec![0],
            ..quick()
        });
        assert!(none.contains("between 1 and"), "{none}");
        let many = refused(Wishes {
            threads: vec![100_000],
            ..quick()
        });
        assert!(many.contains("between 1 and"), "{many}");
        let wide = refused(Wishes {
            geometries: vec![Geometry::new(200, 55).expect("valid")],
            shard_bytes: vec![256 << 20],
            threads: vec![256],
            ..quick()
        });
        assert!(wide.contains("bytes are needed"), "{wide}");
        let length = refused(Wishes {
            shard_bytes: vec![0],
            ..quick()
        });
        assert!(length.contains("between 1 byte"), "{length}");
        let engine = refused(Wishes {
            engines: vec!["abacus".into()],
            ..quick()
        });
        assert!(engine.contains("abacus"), "{engine}");
    }
}
