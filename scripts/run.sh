#!/usr/bin/env bash
# Builds CauchyFS, makes a volume, mounts it and shows it off.
#
#   scripts/run.sh                      a 4+2 volume in ./volume/d0 ... d5, mounted at ./volume/mnt
#   scripts/run.sh DIR... MOUNTPOINT    your own directories; they become a volume if they are empty
#
# The first form copies source trees and a file of 2 GiB to the volume, deletes two of the six
# directories meanwhile, compares every byte with the originals, and does so again after mounting the
# other four alone. It takes a few minutes and up to 8 GiB of disk; where less is free, the file is
# smaller, down to 256 MiB. With your own directories it deletes nothing and writes nothing.
#
# Run it as often as you like: what is there is used as it is. The volume stays mounted at the end.

CALLED_FROM=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/run.sh"
    exit 0
    ;;
esac

absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$CALLED_FROM/$1" ;;
    esac
}

MEMBERS=()
if [ $# -eq 0 ]; then
    DEMO=yes
    MEMBERS=("$ROOT"/volume/d{0..5})
    MOUNTPOINT=$ROOT/volume/mnt
elif [ $# -ge 3 ]; then
    DEMO=no
    for path in "${@:1:$#-1}"; do MEMBERS+=("$(absolute "$path")"); done
    MOUNTPOINT=$(absolute "${!#}")
else
    fail "two directories and a mountpoint are the least" "scripts/run.sh --help"
fi

need_cargo
need_fuse
say "building (the first time takes a few minutes)"
cargo build --release --locked
BINARY=$ROOT/target/release/cauchyfs

# Shows and runs a command; exit code 3 means that it worked and the volume is degraded.
cauchyfs() {
    printf '$ cauchyfs %s\n' "$*"
    local code=0
    "$BINARY" "$@" || code=$?
    case $code in 0 | 3) ;; *) exit "$code" ;; esac
}

has_member() {
    local member
    for member in "${MEMBERS[@]}"; do [ ! -e "$member/superblock" ] || return 0; done
    return 1
}

# A mount whose daemon died may look like a directory, as far as the kernel remembers it.
if ! mkdir -p "$MOUNTPOINT" 2>/dev/null || ! stat -f "$MOUNTPOINT" >/dev/null 2>&1; then
    say "clearing away the mount of a daemon that died"
    cauchyfs unmount "$MOUNTPOINT"
    mkdir -p "$MOUNTPOINT"
fi
if ! mountpoint -q "$MOUNTPOINT"; then
    if ! has_member; then
        PARITY=$((${#MEMBERS[@]} >= 6 ? 2 : 1))
        say "making a volume of ${#MEMBERS[@]} directories, of which any $PARITY may be lost"
        cauchyfs create --data $((${#MEMBERS[@]} - PARITY)) --parity $PARITY "${MEMBERS[@]}"
    fi
    say "mounting"
    cauchyfs mount "${MEMBERS[@]}" "$MOUNTPOINT"
fi

if [ "$DEMO" = no ]; then
    cauchyfs status "$MOUNTPOINT"
    say "use it at $MOUNTPOINT; end it with: $BINARY unmount $MOUNTPOINT"
    exit 0
fi

# The originals: real trees, which are there anyway, and a large file.
SHOW=$MOUNTPOINT/show
ORIGINAL=$ROOT/volume/original
TREES=("$ROOT/src" "$ROOT/tests")
CRATES=${CARGO_HOME:-$HOME/.cargo}/registry/src
[ ! -d "$CRATES" ] || TREES+=("$CRATES"/*)
rm -rf "$SHOW" "$ORIGINAL"

# The large file lies there once, and one and a half times on the members; as much again stays free.
free_mib=$(($(stat -f -c '%a * %S / 1048576' "$ROOT/volume")))
size_mib=$((free_mib / 5 < 2048 ? free_mib / 5 : 2048))
[ $size_mib -ge 256 ] ||
    fail "$free_mib MiB are free in $ROOT/volume; this needs 1280" "make room, or give your own directories"
say "making a file of $size_mib MiB to copy"
mkdir -p "$ORIGINAL"
head -c "${size_mib}M" /dev/urandom >"$ORIGINAL/large"

# Compares copies of the trees, and that of the large file, with the originals.
compare() {
    local copy tree
    sync -f "$SHOW"
    [ "$(id -u)" != 0 ] || echo 3 >/proc/sys/vm/drop_caches
    for copy in "$@"; do
        for tree in "${TREES[@]}"; do
            diff -r --no-dereference "$tree" "$copy/$(basename "$tree")" || fail "$copy is not what was copied"
        done
    done
    cmp "$ORIGINAL/large" "$SHOW/large" || fail "$SHOW/large is not what was copied"
    echo "every byte is that of the originals: $(find "$SHOW" -type f | wc -l) files, $(du -sh "$SHOW" | cut -f1)"
}

say "copying it and the trees to the volume, in the background"
mkdir -p "$SHOW/first"
{ cp -a "${TREES[@]}" "$SHOW/first" && cp "$ORIGINAL/large" "$SHOW"; } &
COPYING=$!
trap 'kill $COPYING 2>/dev/null || true' EXIT

lost=()
for member in "${MEMBERS[@]:1:2}"; do [ ! -e "$member/superblock" ] || lost+=("$member"); done
if [ ${#lost[@]} = 2 ] && "$BINARY" status "$MOUNTPOINT" >/dev/null; then
    # With a quarter of the large file written, most of it is still to come.
    while kill -0 $COPYING 2>/dev/null &&
        [ "$(stat -c %s "$SHOW/large" 2>/dev/null || echo 0)" -lt $((size_mib << 18)) ]; do
        sleep 0.05
    done
    kill -0 $COPYING 2>/dev/null || fail "the copy ended before anything could be deleted"
    say "deleting two of the six directories meanwhile: ${lost[*]}"
    # The daemon may add a file while they are being emptied.
    rm -rf "${lost[@]}" || rm -rf "${lost[@]}"
    sleep 3
    cauchyfs status "$MOUNTPOINT"
else
    say "directories are gone already: none is deleted now"
fi

wait $COPYING || fail "copying failed"
trap - EXIT
say "reading everything back"
compare "$SHOW/first"

say "writing more without two directories"
mkdir "$SHOW/second"
cp -a "${TREES[@]}" "$SHOW/second"

say "unmounting, and mounting the directories that are left and no others"
left=()
for member in "${MEMBERS[@]}"; do [ ! -e "$member/superblock" ] || left+=("$member"); done
cauchyfs unmount "$MOUNTPOINT"
cauchyfs mount "${left[@]}" "$MOUNTPOINT"
compare "$SHOW/first" "$SHOW/second"
cauchyfs status "$MOUNTPOINT"
rm -rf "$ORIGINAL"

say "it works: the volume is mounted at $MOUNTPOINT"
echo "end it with:      $BINARY unmount $MOUNTPOINT"
echo "start afresh:     unmount, rm -rf $ROOT/volume, and run this again"
