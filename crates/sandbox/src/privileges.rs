//! Capabilities that the calling thread and its later children keep.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
    set_thread_groups,
};

/// Reads files of every owner and leaves no trace in their access times.
#[must_use]
pub fn reading() -> CapabilitySet {
    CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER
}

/// Changes files of every owner, also where a filesystem keeps its last room for the superuser.
#[must_use]
pub fn changing() -> CapabilitySet {
    reading() | CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN | CapabilitySet::SYS_RESOURCE
}

/// Makes files of every owner. `with_privileges` adds what device nodes, setgid bits, and the attributes
/// `security.` and `trusted.` take.
#[must_use]
pub fn filling(with_privileges: bool) -> CapabilitySet {
    let plain = reading() | CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN;
    if with_privileges {
        plain
            | CapabilitySet::FSETID
            | CapabilitySet::MKNOD
            | CapabilitySet::SETFCAP
            | CapabilitySet::SYS_ADMIN
    } else {
        plain
    }
}

/// Serves a mount: changes files of every owner, and pins memory.
#[must_use]
pub fn serving() -> CapabilitySet {
    changing() | CapabilitySet::IPC_LOCK
}

/// Mounts and unmounts at a place of any owner.
#[must_use]
pub fn mounting() -> CapabilitySet {
    CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH
}

/// Drops every capability of the calling thread but `kept`, and its supplementary groups. Programs that it runs
/// gain nothing by a setuid bit or by file capabilities.
///
/// # Errors
///
/// If the kernel refuses, which it does not for what a thread has.
pub fn keep(kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    let had = capabilities(None)?;
    if had.effective.contains(CapabilitySet::SETGID) {
        match set_thread_groups(&[]) {
            // A user namespace may deny it to its own superuser.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: had.effective & kept,
            permitted: had.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}
