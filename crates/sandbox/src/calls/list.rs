//! The lists of system calls.

use std::collections::BTreeMap;

#[cfg_attr(
    not(test),
    expect(
        clippy::wildcard_imports,
        reason = "the lists name some two hundred constants"
    )
)]
use libc::*;
use seccompiler::SeccompRule;

/// System calls by number, each with the conditions under which the rule applies; none means always.
pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// `fchmodat2`, which has this number on every architecture (Linux, `asm-generic/unistd.h`). The crate libc 0.2.191
/// names it for some of them only.
const FCHMODAT2: i64 = 452;

/// Calls of every command: reading, standard output, threads, memory, time, local sockets. Bytes can only be
/// written to what was opened for writing, which Landlock decides.
pub(super) const READ: &[i64] = &[
    // Files.
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_preadv,
    SYS_preadv2,
    SYS_write,
    SYS_writev,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_pwritev2,
    SYS_lseek,
    SYS_openat,
    SYS_openat2,
    SYS_close,
    SYS_close_range,
    SYS_dup,
    SYS_dup3,
    SYS_fcntl,
    SYS_flock,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_fadvise64,
    SYS_readahead,
    SYS_fsync,
    SYS_fdatasync,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_fgetxattr,
    SYS_listxattr,
    SYS_llistxattr,
    SYS_flistxattr,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    // Memory.
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_mincore,
    SYS_brk,
    SYS_getrandom,
    // Threads.
    SYS_futex,
    SYS_futex_waitv,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_membarrier,
    SYS_exit,
    SYS_exit_group,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_restart_syscall,
    SYS_sigaltstack,
    SYS_tgkill,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    // Owner and times.
    SYS_gettid,
    SYS_getpid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getgroups,
    SYS_getresuid,
    SYS_getresgid,
    SYS_capget,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrusage,
    SYS_times,
    SYS_getcpu,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    // Daemons of this machine, over local sockets.
    SYS_connect,
    SYS_sendto,
    SYS_sendmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockopt,
    SYS_setsockopt,
    SYS_getsockname,
    SYS_getpeername,
    // Further restrictions.
    SYS_seccomp,
    SYS_landlock_create_ruleset,
    SYS_landlock_add_rule,
    SYS_landlock_restrict_self,
    SYS_capset,
    #[cfg(target_arch = "x86_64")]
    SYS_open,
    #[cfg(target_arch = "x86_64")]
    SYS_stat,
    #[cfg(target_arch = "x86_64")]
    SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    SYS_access,
    #[cfg(target_arch = "x86_64")]
    SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    SYS_getdents,
    #[cfg(target_arch = "x86_64")]
    SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    SYS_pipe,
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    #[cfg(target_arch = "x86_64")]
    SYS_select,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    SYS_getrlimit,
    #[cfg(target_arch = "x86_64")]
    SYS_time,
    #[cfg(target_arch = "x86_64")]
    SYS_arch_prctl,
];

/// Calls that change members.
pub(super) const REPAIR: &[i64] = &[
    SYS_ftruncate,
    SYS_truncate,
    SYS_fallocate,
    SYS_renameat,
    SYS_renameat2,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_fchmod,
    SYS_utimensat,
    SYS_syncfs,
    SYS_sync_file_range,
    SYS_umask,
    #[cfg(target_arch = "x86_64")]
    SYS_rename,
    #[cfg(target_arch = "x86_64")]
    SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    SYS_mkdir,
];

/// Calls that make files of every kind.
pub(super) const FILL: &[i64] = &[
    SYS_symlinkat,
    SYS_linkat,
    SYS_mknodat,
    SYS_fchmodat,
    FCHMODAT2,
    SYS_fchown,
    SYS_fchownat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_copy_file_range,
    SYS_fchdir,
    #[cfg(target_arch = "x86_64")]
    SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    SYS_link,
    #[cfg(target_arch = "x86_64")]
    SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    SYS_chown,
    #[cfg(target_arch = "x86_64")]
    SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    SYS_utime,
    #[cfg(target_arch = "x86_64")]
    SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    SYS_futimesat,
];

/// Calls that reach other processes over sockets.
pub(super) const SOCKETS: &[i64] = &[
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_sendto,
    SYS_sendmsg,
    SYS_recvmsg,
];

/// Requests of `ioctl`: whether this is a terminal and how wide it is, and whether a socket waits. `TIOCSTI`, which
/// types into the terminal, is not among them. The type of the names in the crate libc differs between C libraries, so
/// these are numbers (Linux, `asm-generic/ioctls.h`).
pub(super) const IOCTLS: [u64; 4] = [
    0x5401, // TCGETS
    0x5413, // TIOCGWINSZ
    0x5421, // FIONBIO
    0x541b, // FIONREAD
];

/// Requests of `ioctl` that repairing takes besides: a new file on btrfs is marked to be overwritten where it lies
/// (`FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`).
pub(super) const REPAIR_IOCTLS: [u64; 2] = [
    rustix::ioctl::opcode::read::<std::ffi::c_long>(b'f', 1) as u64,
    rustix::ioctl::opcode::write::<std::ffi::c_long>(b'f', 2) as u64,
];

/// Operations of `prctl`: names of threads and of memory, and further restrictions.
pub(super) const PRCTLS: [u64; 6] = [
    PR_SET_NAME as u64,
    PR_GET_NAME as u64,
    PR_SET_VMA as u64,
    PR_SET_NO_NEW_PRIVS as u64,
    PR_GET_NO_NEW_PRIVS as u64,
    PR_GET_DUMPABLE as u64,
];

/// Flags of `clone` for namespaces of its own.
pub(super) const NAMESPACES: [c_int; 7] = [
    CLONE_NEWNS,
    CLONE_NEWCGROUP,
    CLONE_NEWUTS,
    CLONE_NEWIPC,
    CLONE_NEWUSER,
    CLONE_NEWPID,
    CLONE_NEWNET,
];

/// Calls that no daemon needs, mounted or not.
pub(super) const DANGEROUS: &[i64] = &[
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    SYS_kexec_file_load,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    SYS_open_by_handle_at,
    SYS_pivot_root,
    SYS_chroot,
    SYS_setns,
    SYS_unshare,
    SYS_acct,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_syslog,
    SYS_vhangup,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_personality,
    SYS_fanotify_init,
    #[cfg(target_arch = "x86_64")]
    SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    SYS_modify_ldt,
];

/// Calls that mount, which a daemon needs once.
pub(super) const MOUNTING: &[i64] = &[
    SYS_mount,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
];

/// Calls that the daemon of a volume of another user is denied as well.
pub(super) const FOREIGN: &[i64] = &[
    SYS_execve,
    SYS_execveat,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
];

/// The bit that tells calls by x32, pointers of 32 bits on a machine of 64, from others.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Calls that have a number of their own by x32, each with its other number.
#[cfg(target_arch = "x86_64")]
const ONLY_X32: [(i64, i64); 6] = [
    (SYS_execve, 520),
    (SYS_ptrace, 521),
    (SYS_kexec_load, 528),
    (SYS_process_vm_readv, 539),
    (SYS_process_vm_writev, 540),
    (SYS_execveat, 545),
];

/// Adds the same calls by x32.
#[cfg(target_arch = "x86_64")]
pub(super) fn add_x32(rules: &mut Rules) {
    let own = |call: i64| ONLY_X32.iter().find(|(usual, _)| *usual == call);
    let added: Vec<_> = rules
        .iter()
        .map(|(&call, conditions)| {
            let number = own(call).map_or(call, |&(_, number)| number);
            (number | X32, conditions.clone())
        })
        .collect();
    rules.extend(added);
}
