# Shared by run.sh and test.sh: messages, and installing what is missing.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

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

# need COMMAND=PACKAGE...: installs the packages whose commands are missing.
need() {
    local pair missing=()
    for pair in "$@"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%=*}" >/dev/null || missing+=("${pair##*=}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    command -v apt-get >/dev/null ||
        fail "this system has no apt-get; please install by hand: ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
        fail "could not install ${missing[*]}"
}

# Rust from rustup unless a new enough cargo is there.
need_cargo() {
    export PATH="$HOME/.cargo/bin:$PATH"
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if command -v cargo >/dev/null; then
        have=$(cargo --version | cut -d' ' -f2)
        [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n1)" = "$wanted" ] && return 0
        say "cargo $have is older than $wanted"
    fi
    need curl=curl cc=gcc
    say "installing Rust with rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal ||
        fail "could not install Rust" "install Rust $wanted or newer: https://rustup.rs"
}

need_fuse() {
    need fusermount3=fuse3
    [ -e /dev/fuse ] || as_root modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || fail "there is no /dev/fuse" "load the kernel module fuse; in a container, pass the device in"
}
