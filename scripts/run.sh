#!/usr/bin/env bash
# Builds CauchyFS, makes a volume, mounts it and shows it off.
#
#   scripts/run.sh                      a 4+2 volume in ./volume/d0 ... d5, mounted at ./volume/mnt
#   scripts/run.sh DIR... MOUNTPOINT    your own directories; they become a volume if they are empty
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

mkdir -p "$MOUNTPOINT"
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

say "writing: this source tree, and a file of 256 MiB"
SHOW=$MOUNTPOINT/show
rm -rf "$SHOW"
mkdir "$SHOW"
cp -a src tests Cargo.toml "$SHOW"
head -c 268435456 /dev/urandom >"$SHOW/large"
before=$(cd "$SHOW" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
sync "$SHOW/large"
cauchyfs status "$MOUNTPOINT"

lost=()
for member in "${MEMBERS[@]:1:2}"; do [ ! -e "$member/superblock" ] || lost+=("$member"); done
if "$BINARY" status "$MOUNTPOINT" >/dev/null && [ ${#lost[@]} = 2 ]; then
    say "deleting two of the six directories while it is mounted: ${lost[*]}"
    rm -rf "${lost[@]}" || rm -rf "${lost[@]}"
    sleep 3
    [ "$(id -u)" != 0 ] || echo 3 >/proc/sys/vm/drop_caches
else
    say "directories are gone already: none is deleted now"
fi

say "reading everything back, and writing a new file"
after=$(cd "$SHOW" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
[ "$before" = "$after" ] || fail "what was read is not what was written"
echo "every byte is as it was written"
echo "written without two directories" >"$SHOW/new"
cauchyfs status "$MOUNTPOINT"

say "unmounting, and mounting again with what is left"
cauchyfs unmount "$MOUNTPOINT"
cauchyfs mount "${MEMBERS[@]}" "$MOUNTPOINT"
cat "$SHOW/new"
after=$(cd "$SHOW" && find . -type f ! -name new -print0 | sort -z | xargs -0 sha256sum | sha256sum)
[ "$before" = "$after" ] || fail "what was read is not what was written"

say "it works: the volume is mounted at $MOUNTPOINT"
echo "end it with:      $BINARY unmount $MOUNTPOINT"
echo "start afresh:     unmount, rm -rf $ROOT/volume, and run this again"
