#!/usr/bin/env bash
# Installs what the tests need and runs all of them, real mounts included.
#
#   scripts/test.sh [ARGUMENTS...]      the arguments go to cargo test
#
# Mounting needs the superuser and /dev/fuse: an ordinary user's tests run through sudo. Set
# CAUCHYFS_SKIP_MOUNTS=1 to leave out what mounts.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/test.sh"
    exit 0
    ;;
esac

need_cargo
need python3=python3
# One test compares parity with ISA-L's, where there is one.
PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -q 'libisal\.so\.2' || try_packages libisal2 ||
    echo "no ISA-L here: parity is not compared with it"

if [ "${CAUCHYFS_SKIP_MOUNTS:-}" != 1 ]; then
    need_fuse
    need mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs setfattr=attr setfacl=acl \
        sqlite3=sqlite3 fio=fio setpriv=util-linux mount=mount
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null ||
            fail "mounting needs the superuser, and there is no sudo" \
                "run this as root, or set CAUCHYFS_SKIP_MOUNTS=1 to leave out the tests that mount"
        host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
        export "CARGO_TARGET_${host}_RUNNER=sudo -E"
    fi
fi

say "formatting and lints"
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo "no rustfmt here: left out"; fi
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --locked --workspace --all-targets -- -D warnings
    say "lints without the feature cuda"
    cargo clippy --locked --workspace --no-default-features -- -D warnings
else
    echo "no clippy here: left out"
fi
arm=aarch64-unknown-linux-gnu
if command -v rustup >/dev/null && rustup target add "$arm" 2>/dev/null; then
    RUSTFLAGS='-D warnings' cargo check --locked --workspace --lib --target "$arm" --target-dir target/arm
else
    echo "no Rust for $arm here: that it compiles there was not checked"
fi

say "dependencies: licences, sources, duplicate versions, advisories"
DENY_VERSION=0.20.2
if ! cargo deny --version >/dev/null 2>&1; then
    # The debug profile halves the time to build a tool that runs for a second.
    cargo install --locked --debug --no-default-features --version "$DENY_VERSION" cargo-deny ||
        echo "no cargo-deny here, and it cannot be installed"
fi
if ! cargo deny --version >/dev/null 2>&1; then
    say "dependencies were NOT CHECKED: there is no cargo-deny"
else
    cargo deny check licenses bans sources
    if cargo deny fetch db >/dev/null 2>&1; then
        cargo deny check advisories
    else
        say "advisories were NOT CHECKED: the database of RustSec cannot be fetched here"
    fi
fi

say "tests"
cargo test --locked --workspace "$@"

if [ "${CAUCHYFS_SKIP_MOUNTS:-}" = 1 ]; then
    say "tests that mount were LEFT OUT, as CAUCHYFS_SKIP_MOUNTS asks for"
fi
