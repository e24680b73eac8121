#!/usr/bin/env bash
# Runs the tests that need an NVIDIA GPU, and those of its kernels under compute-sanitizer, if there is one.
#
#   scripts/gpu.sh                      builds the tests and runs them
#   scripts/gpu.sh GPU CUDA_VOLUME      runs them, built elsewhere: crates/cuda/tests/gpu.rs and tests/cuda_volume.rs
#
# Where there is no GPU the tests say `skipped`, and so does this.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/gpu.sh"
    exit 0
    ;;
esac

if [ $# = 2 ]; then
    kernels=$(cd "$OLDPWD" && realpath "$1") volume=$(cd "$OLDPWD" && realpath "$2")
else
    need_cargo
    built=$(cargo test --locked --release --workspace --no-run --test gpu --test cuda_volume 2>&1 | tee /dev/stderr)
    path() { realpath "$(sed -n "s#.*tests/$1\.rs (\(.*\))#\1#p" <<<"$built")"; }
    kernels=$(path gpu) volume=$(path cuda_volume)
fi

say "on the GPU"
"$kernels"
"$volume"

if [ ! -e /dev/nvidiactl ]; then
    say "no GPU here: all of it was skipped"
    exit 0
fi
command -v compute-sanitizer >/dev/null ||
    fail "compute-sanitizer is not here: memory accesses of kernels were not checked" "it comes with the CUDA toolkit"
# The driver itself is no concern of ours: what is refused on purpose is no error.
sanitize() {
    say "under $1: $2"
    compute-sanitizer --tool "$1" --error-exitcode 1 --report-api-errors no "$kernels" --exact "$2"
}
sanitize memcheck every_length_is_computed_wherever_shards_begin
sanitize memcheck pinned_shards_of_every_length_are_computed_wherever_they_begin
sanitize memcheck comparing_finds_every_planted_damage_and_nothing_else
sanitize initcheck pinned_shards_of_every_length_are_computed_wherever_they_begin
sanitize racecheck pinned_shards_of_every_length_are_computed_wherever_they_begin
sanitize memcheck blocks_go_on_to_further_tiles
sanitize initcheck blocks_go_on_to_further_tiles
sanitize racecheck blocks_go_on_to_further_tiles
