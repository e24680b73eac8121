//! Files that the calling thread and its later children can still open, by Landlock.
//!
//! Landlock checks the opening of files and changes of names. It does not check `stat`, `chmod`, `chown`, `utime`,
//! `setxattr` or `flock` on a path; [`calls`](crate::calls) and [`privileges`](crate::privileges) restrict those.
//! Descriptors that are open already stay usable.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags};

use crate::Missing;

/// The version whose restrictions are asked for: files, `ioctl` of devices, TCP, abstract sockets and signals.
const VERSION: ABI = ABI::V6;

/// Rights below a directory, or on one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading files and listing directories.
    Read,
    /// Reading, and changing as the owner of a volume does: regular files and directories come and go.
    Change,
    /// The same, and symbolic links, hard links, fifos and sockets.
    Fill,
    /// The same, and device nodes.
    FillWithDevices,
    /// Listing directories, and reading no file.
    List,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let change = AccessFs::WriteFile
            | AccessFs::Truncate
            | AccessFs::MakeReg
            | AccessFs::MakeDir
            | AccessFs::RemoveFile
            | AccessFs::RemoveDir
            | AccessFs::Refer;
        let fill = AccessFs::MakeSym | AccessFs::MakeFifo | AccessFs::MakeSock;
        match self {
            Self::List => AccessFs::ReadDir.into(),
            Self::Read => read,
            Self::Change => read | change,
            Self::Fill => read | change | fill,
            Self::FillWithDevices => {
                read | change | fill | AccessFs::MakeChar | AccessFs::MakeBlock
            }
        }
    }
}

/// A directory, or a file, that stays open to the process.
#[derive(Debug)]
pub struct Grant {
    target: OwnedFd,
    rights: BitFlags<AccessFs>,
}

impl Grant {
    /// Opens `path` to grant `access` to it and to all below it. The grant is to what is there now: a filesystem
    /// that is mounted over it later is not covered. A symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// If nothing is there, or a symbolic link.
    pub fn new(path: &Path, access: Access) -> io::Result<Self> {
        let target = rustix::fs::open(
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode);
        if kind == FileType::Symlink {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let rights = if kind == FileType::Directory {
            access.rights()
        } else {
            access.rights() & AccessFs::from_file(VERSION)
        };
        Ok(Self { target, rights })
    }
}

/// Restricts the calling thread, and threads that it starts later, to the files that `grants` name. Denies TCP,
/// mounting, abstract sockets of other processes and signals to them, and tracing of them.
///
/// A second call restricts further; it widens nothing.
///
/// The first version of Landlock (Linux 5.13 to 5.18) denies every hard link between two directories. The thread stays
/// unrestricted there if a grant is [`Access::Fill`], because the files of a volume may have such links.
///
/// # Errors
///
/// If the kernel has Landlock and refuses a rule.
pub fn restrict_to(grants: Vec<Grant>) -> io::Result<Option<Missing>> {
    restrict_with(grants, offers(AccessFs::Refer))
}

fn restrict_with(grants: Vec<Grant>, offers_links: bool) -> io::Result<Option<Missing>> {
    let fills = |grant: &Grant| grant.rights.contains(AccessFs::MakeSym);
    if !offers_links && offers(AccessFs::Execute) && grants.iter().any(fills) {
        return Ok(Some(Missing::LandlockWithLinks));
    }
    let status = enforce(grants).map_err(io::Error::other)?;
    Ok(match status {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => Some(Missing::NewerLandlock),
        RulesetStatus::NotEnforced => Some(Missing::Landlock),
    })
}

/// Says whether the running kernel can restrict a right.
fn offers(right: AccessFs) -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(right).is_ok()
}

fn enforce(grants: Vec<Grant>) -> Result<RulesetStatus, RulesetError> {
    let rules = grants
        .into_iter()
        .filter(|grant| !grant.rights.is_empty())
        .map(|grant| Ok::<_, RulesetError>(PathBeneath::new(grant.target, grant.rights)));
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .handle_access(AccessNet::from_all(VERSION))?
        .scope(Scope::from_all(VERSION))?
        .create()?
        .add_rules(rules)?
        .restrict_self()?;
    Ok(status.ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Landlock without [`AccessFs::Refer`] would deny links between directories even if no rule is about them.
    #[test]
    fn no_thread_that_makes_links_is_restricted_where_landlock_would_deny_them() {
        if !offers(AccessFs::Refer) {
            println!("skipped: {}", Missing::NewerLandlock);
            return;
        }
        let home = std::env::temp_dir();
        let restricted = |access, offers_links| {
            let grant = Grant::new(&home, access).expect("it is there");
            std::thread::spawn(move || {
                let missing = restrict_with(vec![grant], offers_links).expect("sound rules");
                (missing, std::fs::File::open("/proc/self/stat").is_ok())
            })
            .join()
            .expect("no panic")
        };
        for access in [Access::Fill, Access::FillWithDevices] {
            let unrestricted = (Some(Missing::LandlockWithLinks), true);
            assert_eq!(restricted(access, false), unrestricted, "{access:?}");
            assert!(!restricted(access, true).1, "{access:?}");
        }
        for access in [Access::Read, Access::Change] {
            assert!(!restricted(access, false).1, "{access:?}");
        }
    }
}
