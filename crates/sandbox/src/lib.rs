//! Limits that a process sets itself before it reads bytes of another's making.
//!
//! Four parts, each of use alone; a process cannot lift any of them again:
//!
//! - [`files`]: which files it can open, by Landlock.
//! - [`calls`]: which system calls it can make, by seccomp.
//! - [`privileges`]: which capabilities of the superuser it keeps.
//! - [`memory`]: how much memory it can take, and a message where it asks for more.
//!
//! A kernel may lack a part. The part then says so with a [`Missing`], and the others hold all the same. Any other
//! failure is an [`io::Error`](std::io::Error), because a sandbox with an unexplained hole is worse than none.
//!
//! Landlock and capabilities belong to a thread, and its later children inherit them. A process therefore
//! enters its sandbox before it starts the threads that read.

pub mod calls;
pub mod files;
pub mod memory;
pub mod privileges;

/// A part of the sandbox that the running kernel does not offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// Landlock is not built in, or not among the security modules that were chosen at boot.
    #[error("this kernel has no Landlock, so the files that can be opened are not restricted")]
    Landlock,
    /// Landlock is of an older version than the rules ask for.
    #[error("Landlock of this kernel is old and enforces only some of the rules")]
    NewerLandlock,
    /// Landlock of this version denies all hard links between directories, which the command has to make.
    #[error(
        "Landlock of this kernel denies hard links between directories, so the files that can be opened are not restricted"
    )]
    LandlockWithLinks,
    /// seccomp is not built in, is refused by the container, or is not to be had on this kind of machine.
    #[error("seccomp is not to be had here, so system calls are not restricted")]
    Seccomp,
}
