#!/usr/bin/env bash
# Installs what the tests need and runs all of them, real mounts included.
#
#   scripts/test.sh [ARGUMENTS...]      the arguments go to cargo test
#
# Mounting needs the superuser and /dev/fuse; where either is missing, those tests are left out and
# this script says so at the end.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/test.sh"
    exit 0
    ;;
esac

need_cargo
need cc=gcc python3=python3

mounts=yes
if [ "$(id -u)" = 0 ]; then
    need fusermount3=fuse3 mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs \
        setfattr=attr setfacl=acl sqlite3=sqlite3 setpriv=util-linux mount=mount
    [ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
fi
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
    mounts=no
    export CAUCHYFS_SKIP_MOUNTS=1
fi

say "formatting and lints"
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --check; else echo "no rustfmt here: left out"; fi
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --locked --all-targets -- -D warnings
else
    echo "no clippy here: left out"
fi

say "tests"
cargo test --locked "$@"

if [ "$mounts" = no ]; then
    say "tests that mount were LEFT OUT: they need the superuser and /dev/fuse"
fi
