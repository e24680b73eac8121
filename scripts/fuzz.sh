#!/usr/bin/env bash
# Fuzzes for longer than the tests do: `scripts/fuzz.sh [SECONDS]`, an hour unless given, for each of eight parts.
#
# 1. Under libFuzzer: every decoder, ACLs, pages of the index, lines of the control protocol, requests for metrics, and
#    metrics of daemons. Stable Rust instruments the code; no sanitizer is used. New inputs go to fuzz/found, and those
#    that fail to fuzz/artifacts: add these to fuzz/corpus.
# 2. Whole volumes: every command on hostile ones, in a mount namespace that is read-only around them.
# 3. The control protocol, from both ends.
#
# The last two are one program, target/release/deps/fuzz-*. It needs no source tree and no cargo:
#   CAUCHYFS_FUZZ_BINARY=/path/of/cauchyfs CAUCHYFS_FUZZ_SECONDS=3600 \
#       ./fuzz hostile_volumes_for_long --exact --ignored --nocapture
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=${1:-3600}
failed=0
need_cargo
need g++=g++

say "libFuzzer, $seconds s for each target"
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
RUSTFLAGS=${coverage//$'\n'/ } CARGO_TARGET_DIR=$ROOT/fuzz/target \
    cargo build --locked --release --manifest-path fuzz/Cargo.toml --target "$(rustc -vV | sed -n 's/^host: //p')"
for target in decoders acl index_pages control_lines http_requests metrics_families; do
    say "$target"
    mkdir -p "fuzz/artifacts/$target" "fuzz/found/$target"
    fuzz/target/*/release/$target -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=512 -malloc_limit_mb=64 \
        -timeout=10 -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 \
        "fuzz/found/$target" "fuzz/corpus/$target" || failed=1
done

say "hostile volumes and lies over the control socket, $seconds s each"
cargo build --locked --release
program=$(cargo test --locked --release --test fuzz --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
for part in hostile_volumes_for_long lies_for_long; do
    as_root env PATH="$PATH" CAUCHYFS_FUZZ_SECONDS="$seconds" "$program" "$part" --exact --ignored --nocapture ||
        failed=1
done
exit $failed
