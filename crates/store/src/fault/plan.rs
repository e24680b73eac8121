//! The faults to inject, and their times: one plan for all stores of a test volume.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The method of [`Store`](crate::Store) that a call is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the method of the same name")]
pub enum CallKind {
    Create,
    OpenLen,
    Truncate,
    Reserve,
    Remove,
    Rename,
    List,
    Visit,
    Punch,
    Read,
    Write,
    Sync,
    Space,
    Probe,
    Lock,
}

impl CallKind {
    /// Returns whether such a call changes what a power cut would leave.
    #[must_use]
    pub fn changes(self) -> bool {
        match self {
            Self::Create
            | Self::Truncate
            | Self::Reserve
            | Self::Remove
            | Self::Rename
            | Self::Punch
            | Self::Write
            | Self::Sync => true,
            Self::OpenLen
            | Self::List
            | Self::Visit
            | Self::Read
            | Self::Space
            | Self::Probe
            | Self::Lock => false,
        }
    }
}

/// One call as it reached a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number of the store.
    pub member: usize,
    /// The method.
    pub kind: CallKind,
    /// The file, `""` or `"directory"` where none is concerned.
    pub name: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The number of bytes, or the length asked for.
    pub len: u64,
}

/// The calls that a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All calls of all members.
    Any,
    /// All calls that change something ([`CallKind::changes`]), of all members.
    Changing,
    /// All calls of one member.
    Member(usize),
    /// All calls of one kind, of all members.
    Kind(CallKind),
    /// All calls of one kind of one member.
    MemberKind(usize, CallKind),
}

impl Scope {
    fn covers(self, call: &Call) -> bool {
        match self {
            Self::Any => true,
            Self::Changing => call.kind.changes(),
            Self::Member(member) => call.member == member,
            Self::Kind(kind) => call.kind == kind,
            Self::MemberKind(member, kind) => call.member == member && call.kind == kind,
        }
    }
}

/// The effect of a fault on the call that it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails with EIO and does nothing.
    Eio,
    /// It fails with ENOSPC and does nothing.
    NoSpace,
    /// It fails with EMFILE and does nothing.
    NoDescriptors,
    /// A write writes its first half, then fails with EIO; any other call just fails.
    ShortWrite,
    /// A read returns, or a write writes, bytes with one bit flipped; any other call goes through.
    WrongBytes,
    /// It blocks until [`FaultPlan::release`], and then goes through.
    Hang,
    /// It and every later call on every member fail with
    /// [`StoreErrorKind::PowerCut`](crate::StoreErrorKind::PowerCut) and do nothing.
    PowerCut,
}

/// One fault: an effect, and the call that it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The calls that are counted.
    pub scope: Scope,
    /// The number of the call that is struck, counted from 1.
    pub nth: u64,
    /// True if all later calls in the scope are struck too.
    pub lasting: bool,
    /// The effect.
    pub effect: Effect,
}

impl Fault {
    /// Strikes the `nth` call of all, once.
    #[must_use]
    pub fn at(nth: u64, effect: Effect) -> Self {
        Self {
            scope: Scope::Any,
            nth,
            lasting: false,
            effect,
        }
    }

    /// Counts only calls in `scope`.
    #[must_use]
    pub fn of(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Strikes every later call in the scope too.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self {
            lasting: true,
            ..self
        }
    }
}

/// The faults of a test volume and the count of its calls; clones share both.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    shared: Arc<SharedPlan>,
}

#[derive(Debug, Default)]
struct SharedPlan {
    state: Mutex<PlanState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct PlanState {
    /// Each fault with the number of calls that it has counted.
    faults: Vec<(Fault, u64)>,
    calls: u64,
    triggered: u64,
    power_off: bool,
    /// Counts releases, so that a hang ends with the first one after it began.
    releases: u64,
    log: Option<Vec<Call>>,
}

impl FaultPlan {
    /// Makes a plan without faults: everything works and is counted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault, whose count starts here. Where two strike one call, the one added first wins.
    pub fn add(&self, fault: Fault) {
        self.shared.state.lock().faults.push((fault, 0));
    }

    /// Takes all faults back and turns the power on; the count of calls goes on.
    pub fn clear(&self) {
        let mut state = self.shared.state.lock();
        state.faults.clear();
        state.power_off = false;
    }

    /// Returns the number of calls so far, of all stores together.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.shared.state.lock().calls
    }

    /// Returns how many calls were struck by a fault so far; those after a power cut count too.
    #[must_use]
    pub fn triggered(&self) -> u64 {
        self.shared.state.lock().triggered
    }

    /// Returns whether a power cut has struck, and every call fails.
    #[must_use]
    pub fn is_power_off(&self) -> bool {
        self.shared.state.lock().power_off
    }

    /// Lets every call that hangs now go on.
    pub fn release(&self) {
        self.shared.state.lock().releases += 1;
        self.shared.released.notify_all();
    }

    /// Starts recording calls; see [`FaultPlan::take_log`].
    pub fn record(&self) {
        self.shared.state.lock().log.get_or_insert_default();
    }

    /// Returns the calls recorded since the last time, in order.
    #[must_use]
    pub fn take_log(&self) -> Vec<Call> {
        self.shared
            .state
            .lock()
            .log
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Counts a call and returns what is to happen to it, and how many releases there were by then.
    pub(super) fn next(&self, call: Call) -> (Option<Effect>, u64) {
        let mut state = self.shared.state.lock();
        state.calls += 1;
        let mut struck = None;
        for (fault, count) in &mut state.faults {
            if !fault.scope.covers(&call) {
                continue;
            }
            *count += 1;
            let hit = *count == fault.nth || (fault.lasting && *count > fault.nth);
            if hit && struck.is_none() {
                struck = Some(fault.effect);
            }
        }
        state.power_off |= struck == Some(Effect::PowerCut);
        if state.power_off {
            struck = Some(Effect::PowerCut);
        }
        state.triggered += u64::from(struck.is_some());
        if let Some(log) = &mut state.log {
            log.push(call);
        }
        (struck, state.releases)
    }

    /// Blocks until there were more releases than `before`.
    pub(super) fn wait_for_release(&self, before: u64) {
        let mut state = self.shared.state.lock();
        self.shared
            .released
            .wait_while(&mut state, |state| state.releases == before);
    }
}
