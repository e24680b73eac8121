//! The POSIX filesystem: knows files, directories and permissions, and nothing of FUSE.
