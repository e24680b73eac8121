//! The kinds of operations, as the log and the metrics name them.

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::fuse) enum OperationKind {
    Lookup,
    Forget,
    GetAttr,
    Statx,
    SetAttr,
    ReadLink,
    Symlink,
    MkNod,
    MkDir,
    Unlink,
    RmDir,
    Rename,
    Link,
    Open,
    Create,
    Tmpfile,
    Read,
    Write,
    StatFs,
    Flush,
    Release,
    Fsync,
    SetXattr,
    GetXattr,
    ListXattr,
    RemoveXattr,
    OpenDir,
    ReadDir,
    ReadDirPlus,
    ReleaseDir,
    FsyncDir,
    Interrupt,
    Ioctl,
    Fallocate,
    LSeek,
    CopyFileRange,
    Unknown,
}

impl OperationKind {
    /// All kinds, in the order of their numbers.
    pub(in crate::fuse) const ALL: [Self; 37] = [
        Self::Lookup,
        Self::Forget,
        Self::GetAttr,
        Self::Statx,
        Self::SetAttr,
        Self::ReadLink,
        Self::Symlink,
        Self::MkNod,
        Self::MkDir,
        Self::Unlink,
        Self::RmDir,
        Self::Rename,
        Self::Link,
        Self::Open,
        Self::Create,
        Self::Tmpfile,
        Self::Read,
        Self::Write,
        Self::StatFs,
        Self::Flush,
        Self::Release,
        Self::Fsync,
        Self::SetXattr,
        Self::GetXattr,
        Self::ListXattr,
        Self::RemoveXattr,
        Self::OpenDir,
        Self::ReadDir,
        Self::ReadDirPlus,
        Self::ReleaseDir,
        Self::FsyncDir,
        Self::Interrupt,
        Self::Ioctl,
        Self::Fallocate,
        Self::LSeek,
        Self::CopyFileRange,
        Self::Unknown,
    ];

    /// Returns the name, as the log has it.
    pub(in crate::fuse) fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Forget => "forget",
            Self::GetAttr => "getattr",
            Self::Statx => "statx",
            Self::SetAttr => "setattr",
            Self::ReadLink => "readlink",
            Self::Symlink => "symlink",
            Self::MkNod => "mknod",
            Self::MkDir => "mkdir",
            Self::Unlink => "unlink",
            Self::RmDir => "rmdir",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::Open => "open",
            Self::Create => "create",
            Self::Tmpfile => "tmpfile",
            Self::Read => "read",
            Self::Write => "write",
            Self::StatFs => "statfs",
            Self::Flush => "flush",
            Self::Release => "release",
            Self::Fsync => "fsync",
            Self::SetXattr => "setxattr",
            Self::GetXattr => "getxattr",
            Self::ListXattr => "listxattr",
            Self::RemoveXattr => "removexattr",
            Self::OpenDir => "opendir",
            Self::ReadDir => "readdir",
            Self::ReadDirPlus => "readdirplus",
            Self::ReleaseDir => "releasedir",
            Self::FsyncDir => "fsyncdir",
            Self::Interrupt => "interrupt",
            Self::Ioctl => "ioctl",
            Self::Fallocate => "fallocate",
            Self::LSeek => "lseek",
            Self::CopyFileRange => "copy_file_range",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_the_number_of_its_place_and_a_name_of_its_own() {
        for (number, kind) in OperationKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{kind:?}");
        }
        let names: BTreeSet<&str> = OperationKind::ALL.map(OperationKind::name).into();
        assert_eq!(names.len(), OperationKind::ALL.len());
    }
}
