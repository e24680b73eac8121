#!/usr/bin/env bash
# Builds packages below target/packages: a .deb, an .rpm, a static tarball and a container root.
#
#   scripts/package.sh [--maintainer 'NAME <ADDRESS>'] [deb|rpm|static|container]...   all of them unless some are named
#   scripts/package.sh --check    builds .deb and .rpm; installs, upgrades and removes each in a fresh Debian
#
# A .deb or .rpm names its maintainer: whoever builds it and gives it to others. A release, which has the tag of its version,
# is not built without one. Any other build without one says that it is for this machine alone.
#
# The static program is built with musl. It has no support for CUDA, because it cannot load a driver at run time.
# All files have the time of the commit.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# Files of packages are for all users, and bash is to end in $(…) as elsewhere.
umask 022
shopt -s inherit_errexit

OUT=$ROOT/target/packages
MACHINE=$(uname -m)
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
# All files get the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

MAINTAINER=
case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/package.sh"
    exit 0
    ;;
--maintainer)
    MAINTAINER=${2:-}
    # rpm would take a backslash for a sign of its own.
    form='^[^<>\[:cntrl:]]*[^<>\[:space:]] <[^<>@\[:space:]]+@[^<>@\[:space:]]+>$'
    [[ $MAINTAINER =~ $form ]] ||
        fail "'$MAINTAINER' is no maintainer" "give a name and an address: --maintainer 'Ada Lovelace <ada@example.org>'"
    shift 2
    ;;
esac

# Ends unless there is a maintainer, or the packages are for this machine.
need_maintainer() {
    [ -z "$MAINTAINER" ] || return 0
    local tags=
    # An archive of the sources has no tags. A checkout whose tags cannot be read may be a release.
    if [ -e "$ROOT/.git" ]; then
        tags=$(git -C "$ROOT" tag --points-at HEAD) ||
            fail "cannot tell whether this is a release" "have git read this checkout, or name a maintainer"
    fi
    ! grep -qxF "v$VERSION" <<<"$tags" ||
        fail "a release names its maintainer" "scripts/package.sh --maintainer 'NAME <ADDRESS>' ${kind:-}"
    MAINTAINER='A local build, not for others <root@localhost>'
}

# build TARGET CARGO_ARGUMENT...: builds the program, and the licences of all that is in it beside it; prints its path.
build() {
    local target=$1 directory=$ROOT/target/$1/release
    shift
    cargo build --release --locked --bin cauchyfs --target "$target" "$@" >&2 || fail "the build failed"
    scripts/third-party.py "$target" "$@" >"$directory/THIRD-PARTY-LICENSES" || fail "a licence is missing"
    echo "$directory/cauchyfs"
}

# add_licences PROGRAM DIRECTORY: the project's own licences, and those of all that is in the program.
add_licences() {
    install -D -m 644 -t "$2" LICENSE-MIT LICENSE-APACHE "$(dirname "$1")/THIRD-PARTY-LICENSES"
}

build_usual() {
    build "$MACHINE-unknown-linux-gnu"
}

build_static() {
    need musl-gcc=musl-tools
    ! command -v rustup >/dev/null || rustup target add "$MACHINE-unknown-linux-musl" >&2
    build "$MACHINE-unknown-linux-musl" --no-default-features
}

# stage PROGRAM DIRECTORY PREFIX: lays out program, links, units, manual pages, completions and licences.
stage() {
    local program=$1 to=$2$3 helper kind name
    install -D -m 755 "$program" "$to/bin/cauchyfs"
    install -d "$to/sbin" "$to/lib/systemd/system-generators"
    for helper in mount umount; do
        for kind in fuse.cauchyfs cauchyfs; do
            ln -s ../bin/cauchyfs "$to/sbin/$helper.$kind"
        done
    done
    install -D -m 644 -t "$to/lib/systemd/system" packaging/systemd/cauchyfs@.service \
        packaging/systemd/cauchyfs-dashboard.service packaging/systemd/cauchyfs-dashboard.socket
    install -D -m 644 packaging/systemd/cauchyfs.sysusers "$to/lib/sysusers.d/cauchyfs.conf"
    ln -s ../../../bin/cauchyfs "$to/lib/systemd/system-generators/cauchyfs-generator"
    "$program" man --to "$to/share/man"
    find "$to/share/man" -type f -exec gzip -9n {} +
    for name in bash:bash-completion/completions/cauchyfs fish:fish/vendor_completions.d/cauchyfs.fish \
        zsh:zsh/site-functions/_cauchyfs; do
        install -d "$(dirname "$to/share/${name#*:}")"
        "$program" completions "${name%%:*}" >"$to/share/${name#*:}"
    done
    install -D -m 644 -t "$to/share/doc/cauchyfs" README.md CHANGELOG.md MIGRATING.md BENCHMARKS.md SECURITY.md
    find "$to/share" -type f -exec chmod 644 {} +
}

# date_files DIRECTORY: gives everything in it the time of the commit.
date_files() {
    find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

# pack TARBALL DIRECTORY NAME...: packs names in a directory, always in the same way.
pack() {
    local tarball=$1 directory=$2
    shift 2
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime "@$SOURCE_DATE_EPOCH" \
        --directory "$directory" "$@" | gzip -9n >"$tarball"
    echo "$tarball"
}

# make_deb PROGRAM VERSION: prints the path of the package.
make_deb() {
    local program=$1 version=$2 root architecture libraries script named
    need_maintainer
    need dpkg-deb=dpkg dpkg-shlibdeps=dpkg-dev
    root=$(mktemp -d)
    architecture=$(dpkg --print-architecture)
    stage "$program" "$root" /usr
    install -d "$root/etc/cauchyfs/volumes" "$root/usr/share/zsh/vendor-completions" "$root/DEBIAN"
    mv "$root/usr/share/zsh/site-functions/_cauchyfs" "$root/usr/share/zsh/vendor-completions/"
    rmdir "$root/usr/share/zsh/site-functions"
    gzip -9n "$root/usr/share/doc/cauchyfs/CHANGELOG.md"
    mv "$root/usr/share/doc/cauchyfs/CHANGELOG.md.gz" "$root/usr/share/doc/cauchyfs/changelog.gz"
    # dpkg-shlibdeps wants a source package around it.
    libraries=$(cd "$root" && install -d debian && touch debian/control &&
        dpkg-shlibdeps -O usr/bin/cauchyfs 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
    rm -r "$root/debian"
    [ -n "$libraries" ] || fail "cannot tell which libraries the program needs"
    python3 - "$root/usr/share/doc/cauchyfs/copyright" <<'PYTHON'
import sys
mit = open("LICENSE-MIT").read().split("\n", 4)[4].rstrip()
lines = [" " + line if line else " ." for line in mit.split("\n")]
text = open("packaging/deb/copyright").read()
open(sys.argv[1], "w").write(text.replace("@MIT@", "\n".join(lines)))
PYTHON
    install -m 644 "$(dirname "$program")/THIRD-PARTY-LICENSES" "$root/usr/share/doc/cauchyfs/"
    named=$(sed 's/[/&]/\\&/g' <<<"$MAINTAINER")
    sed -e "s/@MAINTAINER@/$named/" -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@LIBRARIES@/$libraries/" \
        -e "s/@SIZE@/$(du -ks --apparent-size "$root" | cut -f1)/" packaging/deb/control >"$root/DEBIAN/control"
    for script in postinst prerm postrm; do
        install -m 755 "packaging/deb/$script" "$root/DEBIAN/$script"
    done
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    date_files "$root"
    chmod 755 "$root"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$OUT/cauchyfs_${version}_$architecture.deb" >&2
    rm -r "$root"
    echo "$OUT/cauchyfs_${version}_$architecture.deb"
}

make_rpm() {
    local program=$1 version=$2 root work
    need_maintainer
    need rpmbuild=rpm
    root=$(mktemp -d) work=$(mktemp -d)
    stage "$program" "$root" /usr
    install -d "$root/etc/cauchyfs/volumes"
    add_licences "$program" "$root/usr/share/licenses/cauchyfs"
    date_files "$root"
    rpmbuild -bb --quiet --define "_topdir $work" --define "_rpmdir $work" --define "staged $root" \
        --define "package_version $version" --define "maintainer ${MAINTAINER//%/%%}" --define "use_source_date_epoch_as_buildtime 1" \
        --define "clamp_mtime_to_source_date_epoch 1" --define "_buildhost localhost" \
        packaging/rpm/cauchyfs.spec >&2
    cp "$work"/*/cauchyfs-*.rpm "$OUT/"
    rm -r "$root" "$work"
    ls "$OUT"/cauchyfs-"$version"-*.rpm
}

make_static() {
    local program=$1 work name=cauchyfs-$VERSION-$MACHINE-linux-musl
    work=$(mktemp -d)
    stage "$program" "$work/$name" ""
    add_licences "$program" "$work/$name"
    chmod 755 "$work/$name"
    pack "$OUT/$name.tar.gz" "$work" "$name"
    rm -r "$work"
}

# The root has the static program and the places that it uses. It mounts with /dev/fuse and CAP_SYS_ADMIN.
make_container() {
    local program=$1 root
    root=$(mktemp -d)
    install -D -m 755 "$program" "$root/usr/bin/cauchyfs"
    install -d "$root"/{dev,etc/cauchyfs/volumes,mnt,proc,run,srv,sys,usr/sbin}
    install -d -m 1777 "$root/tmp"
    ln -s usr/bin "$root/bin"
    ln -s usr/sbin "$root/sbin"
    echo 'root:x:0:0:root:/root:/usr/bin/cauchyfs' >"$root/etc/passwd"
    add_licences "$program" "$root/usr/share/licenses/cauchyfs"
    chmod 755 "$root"
    pack "$OUT/cauchyfs-$VERSION-$MACHINE-container.tar.gz" "$root" .
    rm -r "$root"
}

# Everything that dpkg and a program could leave behind in ROOT, with types, modes, owners, sizes and links.
list_files() {
    (cd "$1" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./var/cache -o -path ./var/log \
        -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./root/.rpmdb -o -path ./var/lib/apt -o -path ./var/lib/systemd -o -path ./tmp -o -path ./check \) \
        -prune -o -printf '%p %y %m %U %G %l\n' | sort)
    (cd "$1" && grep -h -A2 '^Package: cauchyfs$' var/lib/dpkg/status || true)
    (cd "$1" && ls var/lib/dpkg/info | grep cauchyfs || true)
    # The group stays, as files may have it.
    cat "$1/etc/passwd" && grep -v '^cauchyfs:' "$1/etc/group"
}

# in_root ROOT COMMAND: runs a command in a fresh system.
in_root() {
    local root=$1
    shift
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        bash -euc "$*"
}

# Unmounts everything below a fresh system, the volume first, and removes it. Removes nothing while anything is mounted there.
remove_root() {
    local place
    for place in check/mnt proc dev; do
        ! mountpoint --quiet "$1/$place" || umount --recursive "$1/$place" || umount --recursive --lazy "$1/$place" || true
    done
    if grep -qF " $1/" /proc/self/mounts; then
        echo "$1 stays, because something is mounted below it" >&2
        return
    fi
    rm -rf --one-file-system "$1"
}

# Installs the package of a kind and a version in the fresh system, or upgrades to it. rpm on Debian knows no dependencies.
install_version() {
    case $1 in
    deb) in_root "$root" "dpkg --install /check/cauchyfs_$2_*.deb" ;;
    rpm) in_root "$root" "rpm --upgrade --nodeps --force-debian /check/cauchyfs-$2-1.*.rpm" ;;
    esac
}
installed_version() {
    case $1 in
    deb) in_root "$root" "dpkg-query --show --showformat '\${Version}' cauchyfs" ;;
    rpm) in_root "$root" "rpm --query --queryformat '%{VERSION}' cauchyfs" ;;
    esac
}
remove_version() {
    case $1 in
    deb) in_root "$root" 'dpkg --purge cauchyfs' ;;
    rpm) in_root "$root" 'rpm --erase --force-debian cauchyfs' ;;
    esac
}

# check_life KIND VERSION NEWER: installs the package of that kind, uses it, upgrades it and removes it.
check_life() {
    local kind=$1 version=$2 newer=$3
    list_files "$root" >"$OUT/files-before"

    say "$kind: install, create, mount"
    install_version "$kind" "$version"
    in_root "$root" "cauchyfs --version
        grep -q '^rustix [0-9.]*: ' /usr/share/*/cauchyfs/THIRD-PARTY-LICENSES
        cauchyfs create --data 2 --parity 1 /check/d0 /check/d1 /check/d2
        mkdir /check/mnt
        mount -t cauchyfs /check/d0:/check/d1:/check/d2 /check/mnt
        cp -a /usr/share/doc /check/mnt/ && rm -rf /check/d1 && diff -r /usr/share/doc /check/mnt/doc"
    in_root "$root" 'man -w cauchyfs-mount mount.cauchyfs cauchyfs-volumes cauchyfs@.service cauchyfs-member-add >/dev/null
        man --warnings cauchyfs-mount 2>&1 >/dev/null | { ! grep .; }
        source /usr/share/bash-completion/completions/cauchyfs
        COMP_WORDS=(cauchyfs unmount /check/m) COMP_CWORD=2 COMP_TYPE=9
        _cauchyfs cauchyfs /check/m unmount
        test "${COMPREPLY[*]}" = /check/mnt'

    say "$kind: upgrade while it is mounted"
    install_version "$kind" "$newer"
    [ "$(installed_version "$kind")" = "$newer" ] || fail "the upgrade left $(installed_version "$kind")"
    in_root "$root" "diff -r /usr/share/doc/base-files /check/mnt/doc/base-files
        cauchyfs status /check/mnt >/dev/null || test \$? = 3
        cauchyfs unmount /check/mnt
        mount -t fuse.cauchyfs /check/d0:/check/d2 /check/mnt
        diff -r /usr/share/doc/base-files /check/mnt/doc/base-files
        umount /check/mnt
        rm -r /check/d? /check/mnt"

    say "$kind: remove"
    in_root "$root" 'echo "# a volume" >/etc/cauchyfs/volumes/photos.conf'
    remove_version "$kind"
    # This file is not of the package.
    in_root "$root" 'rm /etc/cauchyfs/volumes/photos.conf && rmdir /etc/cauchyfs/volumes /etc/cauchyfs'
    list_files "$root" >"$OUT/files-after"
    diff "$OUT/files-before" "$OUT/files-after" || fail "the package left something behind, or took something away"
}

check() {
    [ "$(id -u)" = 0 ] || fail "the check mounts and changes roots" "run it as root"
    if [ "${CAUCHYFS_CHECK_UNSHARED:-}" != 1 ]; then
        need unshare=util-linux
        CAUCHYFS_CHECK_UNSHARED=1 exec unshare --mount "$ROOT/scripts/package.sh" --check
    fi
    need_fuse
    local program version newer=$VERSION+1 named
    program=$(build_usual)
    # With signs that mean something to those who read it meanwhile.
    MAINTAINER='Ada & Co. 100%/2 <ada@example.org>'
    say "packages of two versions"
    rm -f "$OUT"/cauchyfs[-_]*.deb "$OUT"/cauchyfs-*.rpm
    for version in "$VERSION" "$newer"; do
        make_deb "$program" "$version"
        make_rpm "$program" "$version"
    done
    named=$(dpkg-deb --field "$OUT"/cauchyfs_"$VERSION"_*.deb Maintainer)
    [ "$named" = "$MAINTAINER" ] || fail "the .deb names another maintainer: $named"
    named=$(rpm --query --package --queryformat '%{PACKAGER}' "$OUT"/cauchyfs-"$VERSION"-1.*.rpm)
    [ "$named" = "$MAINTAINER" ] || fail "the .rpm names another maintainer: $named"
    # Not local, because the trap runs at the end of the script. Users of the system pass through it.
    root=$(mktemp -d)
    chmod 755 "$root"
    trap 'remove_root "$root"' EXIT
    say "a fresh system"
    fresh_debian "$root" fuse3,man-db,bash-completion,rpm "$OUT/debootstrap.log"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mkdir "$root/check"
    cp "$OUT"/cauchyfs_*.deb "$OUT"/cauchyfs-*.rpm "$root/check/"
    check_life deb "$VERSION" "$newer"
    # These belong to packages that every system of rpm has.
    mkdir -p "$root"/usr/lib/{sysusers.d,systemd/system-generators} "$root/usr/share/licenses"
    check_life rpm "$VERSION" "$newer"
    say "each package was installed, used, upgraded and removed without a trace but its group"
}

need_cargo
need python3=python3
mkdir -p "$OUT"
if [ "${1:-}" = --check ]; then
    check
    exit 0
fi
[ $# -gt 0 ] || set -- deb rpm static container
for kind in "$@"; do
    case $kind in
    # A command ends the script if it fails in an assignment, and not in an argument.
    deb) program=$(build_usual); make_deb "$program" "$VERSION" ;;
    rpm) program=$(build_usual); make_rpm "$program" "$VERSION" ;;
    static) program=$(build_static); make_static "$program" ;;
    container) program=$(build_static); make_container "$program" ;;
    *) fail "there is no package '$kind'" "the packages are deb, rpm, static and container" ;;
    esac
done
