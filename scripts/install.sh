#!/usr/bin/env bash
# Installs cauchyfs for everyone: the program, the helpers by which mount(8), umount(8) and fstab find it, manual pages and
# completions. scripts/package.sh builds packages, which can be removed again.
#
#   scripts/install.sh [PREFIX]         PREFIX is /usr/local unless given

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/install.sh"
    exit 0
    ;;
esac

PREFIX=${1:-/usr/local}
need_cargo
need_fuse
say "building"
cargo build --release --locked
say "installing to $PREFIX/bin and /sbin"
as_root install -D -m 755 target/release/cauchyfs "$PREFIX/bin/cauchyfs"
for helper in mount umount; do
    for kind in fuse.cauchyfs cauchyfs; do
        as_root ln -sf "$PREFIX/bin/cauchyfs" "/sbin/$helper.$kind"
    done
done
as_root "$PREFIX/bin/cauchyfs" man --to "$PREFIX/share/man"
for place in bash:bash-completion/completions/cauchyfs fish:fish/vendor_completions.d/cauchyfs.fish \
    zsh:zsh/site-functions/_cauchyfs; do
    "$PREFIX/bin/cauchyfs" completions "${place%%:*}" | as_root install -D -m 644 /dev/stdin "$PREFIX/share/${place#*:}"
done
"$PREFIX/bin/cauchyfs" --version
