# Shared by the scripts: messages, and installing what is missing.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
# Where the scripts look for what they build, whatever the caller's settings say.
export CARGO_TARGET_DIR=$ROOT/target

say() { printf '\n== %s\n' "$*"; }
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    [ $# -lt 2 ] || printf '  %s\n' "$2" >&2
    exit 2
}

# Runs a command as the superuser, if there is a way to be it.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "'$*' needs the superuser, and there is no sudo" "run it yourself, then this script again"
    fi
}

# try_packages PACKAGE...: installs them if that can be.
try_packages() {
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# add_packages PACKAGE...: installs them.
add_packages() {
    command -v apt-get >/dev/null ||
        fail "this system has no apt-get; please install by hand: $*"
    try_packages "$@" || fail "could not install $*"
}

# need COMMAND=PACKAGE...: installs the packages whose commands are missing.
need() {
    local pair missing=()
    for pair in "$@"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
    done
    [ ${#missing[@]} = 0 ] || add_packages "${missing[@]}"
}

# Whether programs can be linked; a compiler alone may come without the C library's part of it.
can_link() {
    local program code=0
    program=$(mktemp)
    echo 'int main(void) { return 0; }' | cc -x c - -o "$program" 2>/dev/null || code=1
    rm -f "$program"
    return $code
}

# Whether cargo is there and new enough: is_cargo VERSION.
is_cargo() {
    local have
    have=$(cargo --version 2>/dev/null | cut -d' ' -f2) && [ -n "$have" ] &&
        [ "$(printf '%s\n%s\n' "$1" "$have" | sort -V | head -n1)" = "$1" ]
}

# A linker, and Rust from rustup unless a new enough cargo is there.
need_cargo() {
    export PATH="$HOME/.cargo/bin:$PATH"
    local wanted
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    can_link || add_packages gcc libc6-dev
    ! is_cargo "$wanted" || return 0
    if ! command -v rustup >/dev/null; then
        command -v curl >/dev/null || add_packages curl ca-certificates
        say "installing Rust with rustup"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal ||
            fail "could not install Rust" "install Rust $wanted or newer: https://rustup.rs"
    fi
    is_cargo "$wanted" || {
        say "installing a newer Rust: cargo must be $wanted or newer"
        rustup toolchain install stable --profile minimal
        export RUSTUP_TOOLCHAIN=stable
    }
    is_cargo "$wanted" || fail "there is no cargo $wanted or newer" "see https://rustup.rs"
}

need_fuse() {
    need fusermount3=fuse3
    [ -e /dev/fuse ] || as_root modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || fail "there is no /dev/fuse" "load the kernel module fuse; in a container, pass the device in"
}

# fresh_debian DIRECTORY PACKAGES LOG: a new system of the release and from the mirror of this one; PACKAGES have commas.
fresh_debian() {
    local suite mirror
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' | sed -n 1p) || true
    [ -n "$suite" ] && [ -n "$mirror" ] || fail "cannot tell which mirror this system is from"
    need debootstrap=debootstrap
    debootstrap --variant=minbase "--include=$2" "$suite" "$1" "$mirror" >"$3" 2>&1 ||
        fail "cannot make a fresh system from $mirror" "$3 says why"
}
