//! A volume's metadata on disks in memory, and a script of changes to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::codec::Geometry;
use crate::format::frame::{HEAD_BYTES, Head};
use crate::format::record::Scrub;
use crate::format::{MemberIndex, Record, StripeId, key};
use crate::membership::{Access, CreateOptions, Members};
use crate::metadata::{
    Batch, IndexReplicas, Key, Meta, MetaError, MetaOptions, Recovered, StripeData, Value,
};
use crate::store::{Executor, FaultPlan, FaultStore, MemDisk, Store, StoreRef};

pub(super) type Records = BTreeMap<Key, Value>;

/// Disks that hold a volume.
pub(in crate::metadata) struct Rig {
    pub(in crate::metadata) disks: Vec<MemDisk>,
}

/// The reason why a volume did not open.
#[derive(Debug)]
#[expect(dead_code, reason = "shown when a test fails")]
pub(super) enum Refused {
    Members(String),
    Meta(MetaError),
}

pub(in crate::metadata) fn inline() -> Arc<Executor> {
    cauchyfs_testkit::executor(Duration::from_secs(1))
}

impl Rig {
    /// Makes a volume of `k + m` shards on `members` disks, with one key in it.
    pub(in crate::metadata) fn new(k: usize, m: usize, members: usize) -> Self {
        let disks: Vec<_> = (0..members)
            .map(|index| MemDisk::new(&format!("disk {index}"), 96 << 20))
            .collect();
        let rig = Self { disks };
        let geometry = Geometry::new(k, m).expect("the geometry is valid");
        Members::create(&rig.stores(&[], None), &CreateOptions::new(geometry)).expect("create");
        let members =
            Members::open(rig.stores(&[], None), Access::ReadWrite, inline()).expect("members");
        Meta::format(&members, &first()).expect("format");
        rig
    }

    /// Returns the same disks, on which nothing is open.
    pub(super) fn fork(&self) -> Self {
        Self {
            disks: self.disks.iter().map(MemDisk::fork).collect(),
        }
    }

    pub(in crate::metadata) fn stores(
        &self,
        without: &[usize],
        plan: Option<&FaultPlan>,
    ) -> Vec<StoreRef> {
        let stores: Vec<StoreRef> = self
            .disks
            .iter()
            .map(|disk| Arc::new(disk.open()) as StoreRef)
            .collect();
        let stores = match plan {
            Some(plan) => FaultStore::wrap_all(stores, plan),
            None => stores,
        };
        let numbered = stores.into_iter().enumerate();
        numbered
            .filter(|(index, _)| !without.contains(index))
            .map(|(_, store)| store)
            .collect()
    }

    /// Opens the volume as the layer above does.
    pub(super) fn open(
        &self,
        without: &[usize],
        plan: Option<&FaultPlan>,
        access: Access,
    ) -> Result<(Meta, Recovered, Arc<Members>), Refused> {
        let opened = self.mount(without, plan, access, inline())?;
        Ok((opened.meta, opened.recovered, opened.members))
    }

    /// Opens the volume, also for the jobs that keep the copies of its index in order.
    pub(super) fn mount(
        &self,
        without: &[usize],
        plan: Option<&FaultPlan>,
        access: Access,
        executor: Arc<Executor>,
    ) -> Result<Mounted, Refused> {
        let members = Members::open(self.stores(without, plan), access, executor)
            .map_err(|error| Refused::Members(error.to_string()))?;
        let opened = Meta::open(Arc::clone(&members), &options()).map_err(Refused::Meta)?;
        let replicas = opened.replicas;
        while access == Access::ReadWrite && replicas.refill().map_err(Refused::Meta)? {}
        members
            .epochs()
            .admit_stale()
            .map_err(|error| Refused::Members(error.to_string()))?;
        Ok(Mounted {
            meta: opened.meta,
            replicas,
            recovered: opened.recovered,
            members,
        })
    }

    /// Opens the volume with all its members.
    pub(super) fn mounted(&self, plan: Option<&FaultPlan>, access: Access) -> Mounted {
        let mounted = self.mount(&[], plan, access, inline());
        mounted.unwrap_or_else(|error| panic!("{error:?}"))
    }
}

/// An open volume.
pub(super) struct Mounted {
    pub(super) meta: Meta,
    pub(super) replicas: Arc<IndexReplicas>,
    pub(super) recovered: Recovered,
    pub(super) members: Arc<Members>,
}

/// Returns options for little memory.
pub(super) fn options() -> MetaOptions {
    MetaOptions {
        cache_bytes: 1 << 20,
        ..MetaOptions::default()
    }
}

/// Returns the content of a new volume.
pub(super) fn first() -> Batch {
    let mut batch = Batch::default();
    batch.put("first", "value");
    batch
}

/// Returns everything that the metadata holds.
pub(super) fn content(meta: &Meta) -> Result<Records, MetaError> {
    Ok(meta
        .scan(b"", &[0xff; 4], usize::MAX)?
        .into_iter()
        .collect())
}

/// Says what is different, shortly.
pub(super) fn difference(left: &Records, right: &Records) -> String {
    let keys = left
        .keys()
        .chain(right.keys())
        .filter(|key| left.get(*key) != right.get(*key));
    let first: Vec<_> = keys
        .take(3)
        .map(|key| (key, left.get(key), right.get(key)))
        .collect();
    format!("{first:?}")
}

/// One batch of a script.
pub(super) struct Unit {
    pub(super) applied: Batch,
    pub(super) stripes: Batch,
    pub(super) data: Vec<StripeData>,
}

/// The units that are written to a volume, and the state that it must hold after each.
pub(super) struct Script {
    pub(super) units: Vec<Unit>,
    pub(super) states: Vec<Records>,
}

impl Script {
    pub(super) fn new(seed: u64, units: usize) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut state: Records = first()
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        let mut script = Self {
            units: Vec::new(),
            states: vec![state.clone()],
        };
        for number in 0..units {
            let unit = Unit::random(number, &mut random);
            for (key, value) in unit.applied.iter().chain(unit.stripes.iter()) {
                match value {
                    Some(value) => state.insert(key.clone(), value.clone()),
                    None => state.remove(key),
                };
            }
            script.units.push(unit);
            script.states.push(state.clone());
        }
        script
    }
}

impl Unit {
    fn random(number: usize, random: &mut StdRng) -> Self {
        let mut applied = Batch::default();
        for _ in 0..random.random_range(1..20) {
            let key = format!("a{:03}", random.random_range(0..60));
            if random.random_bool(0.3) {
                applied.delete(key);
            } else {
                applied.put(key, value(number, random));
            }
        }
        let mut stripes = Batch::default();
        stripes.put(format!("s{number:03}"), value(number, random));
        let data = if number.is_multiple_of(3) {
            let bytes = vec![fill(number); random.random_range(1..6000)].into();
            vec![StripeData {
                stripe: StripeId(number as u64),
                offset: 64,
                bytes,
            }]
        } else {
            Vec::new()
        };
        Self {
            applied,
            stripes,
            data,
        }
    }
}

fn fill(number: usize) -> u8 {
    u8::try_from(number).expect("a script has few units")
}

fn value(number: usize, random: &mut StdRng) -> Vec<u8> {
    let len = if random.random_bool(0.1) {
        5000
    } else {
        random.random_range(1..200)
    };
    vec![fill(number); len]
}

/// The progress of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Units given to `append`.
    pub(super) started: usize,
    /// Units that `append` acknowledged.
    pub(super) acknowledged: usize,
    /// Units before this one were checkpointed, or may have been: their data is not needed.
    pub(super) checkpointed: usize,
}

/// Writes all units, with checkpoints after every `every`, and mounts again half way. Stops at the first error that has
/// another cause than a lack of space.
pub(super) fn play(
    rig: &Rig,
    plan: Option<&FaultPlan>,
    script: &Script,
    every: usize,
    executor: &Arc<Executor>,
) -> (Progress, Result<(), String>) {
    let mut progress = Progress::default();
    let outcome = play_on(rig, plan, script, every, executor, &mut progress);
    (progress, outcome)
}

fn play_on(
    rig: &Rig,
    plan: Option<&FaultPlan>,
    script: &Script,
    every: usize,
    executor: &Arc<Executor>,
    progress: &mut Progress,
) -> Result<(), String> {
    let open = || {
        let opened = || rig.mount(&[], plan, Access::ReadWrite, Arc::clone(executor));
        match opened() {
            Err(Refused::Meta(MetaError::NoSpace)) => opened(),
            other => other,
        }
        .map_err(|error| format!("{error:?}"))
    };
    let mut mounted = open()?;
    for (number, unit) in script.units.iter().enumerate() {
        let meta = &mounted.meta;
        progress.started = number + 1;
        patiently(|| meta.apply(unit.applied.clone()))?;
        patiently(|| meta.apply_stripes(unit.stripes.clone()))?;
        patiently(|| meta.append(vec![meta.rotate(), meta.take_stripes()], &unit.data))?;
        progress.acknowledged = number + 1;
        if (number + 1) % every == 0 {
            progress.checkpointed = number + 1;
            patiently(|| meta.checkpoint())?;
        }
        while patiently(|| mounted.replicas.refill())? {}
        if number == script.units.len() / 2 {
            // A daemon that was killed: nothing is closed.
            drop(mounted);
            mounted = open()?;
        }
    }
    drop(mounted);
    Ok(())
}

/// Tries a second time where there was no space.
fn patiently<T>(act: impl Fn() -> Result<T, MetaError>) -> Result<T, String> {
    match act() {
        Err(MetaError::NoSpace) => act(),
        other => other,
    }
    .map_err(|error| error.to_string())
}

/// Checks that a volume holds all that was acknowledged and is in one of the states that existed,
/// and that it can be written to.
pub(super) fn verify(
    rig: &Rig,
    without: &[usize],
    script: &Script,
    progress: Progress,
    case: &str,
) -> usize {
    let (meta, recovered, members) = rig
        .open(without, None, Access::ReadWrite)
        .unwrap_or_else(|error| panic!("{case}: does not open: {error:?}"));
    let mut found = content(&meta).unwrap_or_else(|error| panic!("{case}: does not read: {error}"));
    // The note of stale copies is durable, and is the only addition.
    let noted = found.remove(&*key::scrub());
    let named: Option<Vec<MemberIndex>> = noted.as_ref().map(|value| {
        let scrub = Scrub::decode(value);
        scrub
            .unwrap_or_else(|error| panic!("{case}: {error}"))
            .named()
            .collect()
    });
    let unverified: Vec<MemberIndex> = members.stale_copies().unverified().into_keys().collect();
    assert_eq!(named.unwrap_or_default(), unverified, "{case}");
    let mut range = progress.acknowledged..=progress.started;
    let reached = range
        .find(|count| script.states[*count] == found)
        .unwrap_or_else(|| {
            let expected = &script.states[progress.acknowledged];
            panic!("{case}: {progress:?}: {}", difference(expected, &found))
        });
    let needed = script.units[progress.checkpointed..progress.acknowledged]
        .iter()
        .flat_map(|unit| &unit.data);
    for data in needed {
        assert!(
            recovered.data.contains(data),
            "{case}: {progress:?}: lost data of stripe {}",
            data.stripe
        );
    }
    let mut batch = Batch::default();
    batch.put("afterwards", case.to_owned());
    meta.apply(batch)
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    meta.append(vec![meta.rotate()], &[])
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    drop((meta, members));
    let (meta, _, _members) = rig
        .open(without, None, Access::ReadOnly)
        .unwrap_or_else(|error| panic!("{case}: does not open again: {error:?}"));
    let mut expected = found;
    expected.insert("afterwards".into(), case.to_owned().into());
    expected.extend(noted.map(|value| (key::scrub(), value)));
    let found =
        content(&meta).unwrap_or_else(|error| panic!("{case}: does not read again: {error}"));
    assert!(
        found == expected,
        "{case}: again: {}",
        difference(&expected, &found)
    );
    reached
}

/// Returns the newest head of a disk's copy of the index, if it has one.
pub(super) fn newest_head(disk: &MemDisk) -> Option<Head> {
    let mut slots = [0; 2 * HEAD_BYTES];
    disk.open().read_at("index", 0, &mut slots).ok()?;
    let heads = slots
        .as_chunks()
        .0
        .iter()
        .filter_map(|slot| Head::decode(slot).ok());
    heads.max_by_key(|head| head.sequence)
}
