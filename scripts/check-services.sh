#!/usr/bin/env bash
# Checks cauchyfs@.service, cauchyfs-dashboard.service and its socket with systemd as the first process of a fresh Debian, in namespaces of its own. It takes minutes.
#
#   scripts/check-services.sh             builds the .deb first
#   scripts/check-services.sh PACKAGE     takes that .deb

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$ROOT/scripts/check-services.sh"
    exit 0
    ;;
esac

# Boots the system below $1. This runs in fresh namespaces, with process id 1.
boot() {
    local root=$1 device
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    if [ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ]; then
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    else
        mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
        mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
        mount -t cgroup -o none,name=systemd,xattr systemd "$root/sys/fs/cgroup/systemd"
    fi
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null zero full random urandom tty fuse; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    ln -s /proc/self/fd "$root/dev/fd"
    # A service with devices of its own begins with this one.
    ln -s pts/ptmx "$root/dev/ptmx"
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    # The kernel gives no user namespace to a service whose root is not that of its mount namespace.
    cd "$root"
    pivot_root . .
    umount --lazy .
    cd /
    # As on a machine: services with a mount namespace of their own see what is mounted later.
    mount --make-rshared /
    exec /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --unit=multi-user.target
}

if [ "${1:-}" = --boot ]; then
    boot "$2"
fi

[ "$(id -u)" = 0 ] || fail "the check boots a system" "run it as root"
need unshare=util-linux nsenter=util-linux
need_fuse
package=${1:-}
[ -n "$package" ] || package=$("$ROOT/scripts/package.sh" deb | tail -n1)
root=$(mktemp -d)
chmod 755 "$root"
first=
# Ends the system, whose processes the kernel then kills, and removes it.
finish() {
    [ -z "$first" ] || kill -KILL "$first" 2>/dev/null || true
    [ -z "$first" ] || wait "$first" 2>/dev/null || true
    rm -rf --one-file-system "$root" "$root.log"
}
trap finish EXIT

say "a fresh system"
fresh_debian "$root" systemd,systemd-sysv,dbus,fuse3,mount "$root.log"
cp "$package" "$root/cauchyfs.deb"
chroot "$root" dpkg --install /cauchyfs.deb

# Each disk is a mount of fstab. systemd makes the source of a bind mount if it is absent, which is an empty disk then.
mkdir -p "$root"/disks/d{0,1,2,3} "$root"/srv/d{0,1,2,3} "$root/mnt/photos" "$root/etc/cauchyfs/volumes"
for disk in 0 1 2 3; do
    echo "/disks/d$disk /srv/d$disk none bind,nofail 0 0"
done >"$root/etc/fstab"
{
    printf 'directory = /srv/d%s/volume\n' 0 1 2 3
    printf 'mountpoint = /mnt/photos\nwait-for-members = forever\n'
} >"$root/etc/cauchyfs/volumes/photos.conf"
# A short watchdog, so that the check need not wait long for it.
mkdir -p "$root/etc/systemd/system/cauchyfs@.service.d"
printf '[Service]\nWatchdogSec=9s\n' >"$root/etc/systemd/system/cauchyfs@.service.d/short.conf"

start() {
    unshare --pid --fork --kill-child --mount --uts --ipc --cgroup "$ROOT/scripts/check-services.sh" --boot "$root" \
        </dev/null >/dev/null 2>&1 &
    first=$!
    eventually "systemd runs" in_system systemctl list-units
}
# Runs a command in the system.
in_system() {
    local init
    init=$(pgrep --parent "$first" | head -n1)
    [ -n "$init" ] && nsenter --target "$init" --mount --root --wd --pid --uts --ipc --cgroup \
        /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
}
# eventually WHAT COMMAND...: waits until the command succeeds.
eventually() {
    local what=$1 left=120
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        if [ $left = 0 ]; then
            in_system journalctl --no-pager -n 60 || true
            fail "not so within two minutes: $what"
        fi
        sleep 1
    done
    echo "$what"
}
state() { [ "$(in_system systemctl show --property "$1" --value cauchyfs@photos)" = "$2" ]; }
status_text() { in_system systemctl show --property StatusText --value cauchyfs@photos; }
is_waiting() { status_text | grep -q '^waiting for members: 1 '; }
main_process() { in_system systemctl show --property MainPID --value cauchyfs@photos; }
is_other_process() { [ "$(main_process)" != "$1" ] && state SubState running; }
has_file() { [ "$(in_system cat /mnt/photos/file 2>/dev/null)" = kept ]; }
is_member_noted() { in_system journalctl --no-pager CAUCHYFS_MEMBER="$1" | grep -q "member $1"; }
is_volume_noted() { in_system journalctl --no-pager CAUCHYFS_VOLUME="$1" | grep -q 'is mounted'; }
comes_after() { in_system systemctl show --property After --value cauchyfs@photos | grep -q "$1"; }

say "the first boot"
start
# It writes nothing if all is well. Errors of other units do not count.
verified=$(in_system systemd-analyze verify --man=no --recursive-errors=no cauchyfs@photos.service \
    cauchyfs-dashboard.service cauchyfs-dashboard.socket 2>&1) || true
# Versions of systemd that do not know a key yet say so, some with an error, and go on.
verified=$(grep -vE 'Unknown key.*(RestartSteps|RestartMaxDelaySec)' <<<"$verified" || true)
[ -z "$verified" ] || fail "systemd has doubts about the unit: $verified"
eventually "the disks are mounted" in_system findmnt /srv/d2
volume=$(in_system cauchyfs create --data 2 --parity 2 /srv/d0/volume /srv/d1/volume /srv/d2/volume /srv/d3/volume |
    grep -oE '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' | head -n1)
in_system systemctl enable --now cauchyfs@photos
has_file || in_system sh -c 'echo kept >/mnt/photos/file && sync /mnt/photos/file'
eventually "the service orders itself after the disks" comes_after srv-d3.mount
eventually "the journal knows the volume" is_volume_noted "$volume"

say "the dashboard, which is not root"
in_system systemctl enable --now cauchyfs-dashboard || {
    in_system journalctl --no-pager -n 40 -u cauchyfs-dashboard
    fail "the dashboard does not start"
}
# ask_dashboard TOKEN
ask_dashboard() {
    in_system bash -c 'exec 3<>/dev/tcp/127.0.0.1/9433
        printf "GET /state HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" "$0" >&3
        cat <&3' "$1"
}
# shows MOUNTPOINT KIND
shows() { ask_dashboard "$token" | grep -qE "\"mountpoint\":\"$1\",\"name\":\"[^\"]*\",\"kind\":\"$2\""; }
refused=$(ask_dashboard 0123456789abcdef)
grep -q '^HTTP/1.1 401 ' <<<"$refused" || fail "the dashboard answers without its token: $refused"
url=$(in_system cauchyfs dashboard --url)
token=$(sed -n 's|^http://cauchyfs:\([0-9a-f]\{32\}\)@127.0.0.1:9433/$|\1|p' <<<"$url")
[ -n "$token" ] || fail "the address of the dashboard has no token: $url"
eventually "the dashboard shows the volume" shows /mnt/photos healthy
for place in /home/pictures /tmp/pictures; do
    members=$(printf "/disks/d%s$place " 0 1 2)
    in_system sh -c "mkdir -p $place $members && cauchyfs create --data 2 --parity 1 $members &&
        cauchyfs mount $members $place" >/dev/null
    eventually "the dashboard shows $place" shows "$place" healthy
done
# The pattern does not match itself.
in_system sh -c 'kill -KILL $(grep -la "[/]home/pictures" /proc/[0-9]*/cmdline | cut -d/ -f3)'
eventually "the dashboard shows that a daemon is gone" shows /home/pictures gone
in_system cauchyfs unmount /home/pictures
in_system cauchyfs unmount /tmp/pictures
in_system systemctl is-enabled cauchyfs-dashboard.socket >/dev/null || fail "the port is not held from boot on"
dashboard=$(in_system systemctl show --property MainPID --value cauchyfs-dashboard)
[ "$(in_system stat -c %u "/proc/$dashboard")" != 0 ] || fail "the dashboard is root"
exposure=$(in_system systemd-analyze security --no-pager cauchyfs-dashboard.service | tail -n1)
echo "$exposure"
awk '{ exit !($(NF - 2) <= 2.5) }' <<<"${exposure#→ }" || fail "the dashboard is too exposed: $exposure"

say "the port of the dashboard while its service is down"
# check_port WHY: another user cannot listen there.
check_port() {
    local at taken
    for at in 127.0.0.1:9433 ${at_six:-}; do
        taken=$(in_system timeout 10 setpriv --reuid 12345 --regid 12345 --clear-groups cauchyfs dashboard \
            --listen "$at" 2>&1) || true
        grep -qF "cannot listen at $at" <<<"$taken" || fail "another user takes the port while $1: $taken"
    done
}
is_served() { ask_dashboard "$token" | grep -q '^HTTP/1.1 200 '; }
[ ! -e /proc/net/if_inet6 ] || at_six=[::1]:9433
in_system systemctl stop cauchyfs-dashboard.service
check_port "the service is stopped"
is_served || fail "a connection does not start the service"
in_system sh -c "kill -KILL $(in_system systemctl show --property MainPID --value cauchyfs-dashboard)"
check_port "the service is killed"
# It waits for the service, which starts again.
is_served || fail "a connection to a service that was killed is not answered"
in_system mkdir /run/systemd/system/cauchyfs-dashboard.service.d
in_system sh -c 'printf "[Service]\nExecStart=\nExecStart=/bin/false\n" >/run/systemd/system/cauchyfs-dashboard.service.d/fails.conf'
in_system systemctl daemon-reload
for _ in 1 2 3 4 5 6 7 8; do
    ! in_system systemctl restart cauchyfs-dashboard.service 2>/dev/null || fail "a service without a program starts"
done
check_port "the service fails again and again"
in_system systemctl is-active cauchyfs-dashboard.socket >/dev/null || fail "the port is given up with a service that fails"
in_system rm -r /run/systemd/system/cauchyfs-dashboard.service.d
in_system systemctl daemon-reload
in_system systemctl restart cauchyfs-dashboard.service
is_served || fail "the dashboard does not answer after its failures"
echo "systemd holds the port throughout"
in_system systemctl stop cauchyfs-dashboard.socket cauchyfs-dashboard.service
in_system sh -c 'setpriv --reuid 12345 --regid 12345 --clear-groups cauchyfs dashboard >/run/other.log 2>&1 & echo $! >/run/other'
eventually "another user takes the port of a socket unit that is stopped" in_system grep -q 'dashboard is at' /run/other.log
url=$(in_system cauchyfs dashboard --url 2>&1) && fail "the token is shown for the port of another user"
grep -q 'user 12345 listens at 127.0.0.1:9433' <<<"$url" || fail "it is not said that another user has the port: $url"
in_system sh -c 'kill $(cat /run/other)'
eventually "the service is back" in_system systemctl start cauchyfs-dashboard
[ "$(in_system cauchyfs dashboard --url)" = "http://cauchyfs:$token@127.0.0.1:9433/" ] || fail "the address has changed"

say "an upgrade of the package while the service runs"
before=$(main_process)
# Reads past the page cache until it is told to stop.
in_system bash -c 'touch /read-failures
    while [ ! -e /read-stop ]; do
        [ "$(dd if=/mnt/photos/file iflag=direct bs=4096 status=none 2>&1)" = kept ] || date >>/read-failures
        sleep 0.05
    done' &
reader=$!
chroot "$root" dpkg-deb --raw-extract /cauchyfs.deb /newer
sed -i 's/^Version: .*/&+check/' "$root/newer/DEBIAN/control"
chroot "$root" dpkg-deb --root-owner-group --build /newer /newer.deb
# A version without the socket unit, whose service takes the port itself.
chroot "$root" dpkg-deb --raw-extract /cauchyfs.deb /earlier
rm "$(find "$root/earlier" -name cauchyfs-dashboard.socket)"
sed -i -e '/^Requires=cauchyfs-dashboard.socket/d; /^Also=/d; /^PrivateNetwork=/d' \
    -e 's/^After=.*/After=network.target/; s/^IPAddressDeny=any/&\nIPAddressAllow=localhost/' \
    -e 's/^RestrictAddressFamilies=.*/& AF_INET AF_INET6/' "$(find "$root/earlier" -name cauchyfs-dashboard.service)"
chroot "$root" dpkg-deb --root-owner-group --build /earlier /earlier.deb
in_system systemctl disable --now cauchyfs-dashboard.socket
in_system dpkg --install /earlier.deb
! in_system systemctl cat cauchyfs-dashboard.socket >/dev/null 2>&1 || fail "the earlier version has the socket unit"
in_system systemctl restart cauchyfs-dashboard.service
is_served || fail "a dashboard without the socket unit does not answer"
in_system dpkg --install /newer.deb
in_system systemctl is-enabled cauchyfs-dashboard.socket >/dev/null || fail "the upgrade does not enable the socket"
eventually "the socket unit has the port of the earlier service" in_system systemctl is-active cauchyfs-dashboard.socket
is_served || fail "the dashboard does not answer after the upgrade"
in_system systemctl stop cauchyfs-dashboard.service
check_port "the service of the newer version is stopped"
is_served || fail "a connection does not start the service of the newer version"
in_system dpkg-query --show --showformat '${Version}\n' cauchyfs | grep -q '+check$' || fail "the package is not newer"
sleep 1
[ "$(main_process)" = "$before" ] && state SubState running || fail "the upgrade did not leave the service alone"
in_system cauchyfs status /mnt/photos >/dev/null || [ $? = 3 ] || fail "the new program does not reach the old daemon"
in_system sh -c 'echo more >/mnt/photos/more && sync /mnt/photos/more && rm /mnt/photos/more'
in_system touch /read-stop
wait "$reader"
[ ! -s "$root/read-failures" ] || fail "the volume could not be read during the upgrade: $(wc -l <"$root/read-failures") times"
in_system systemctl restart cauchyfs@photos
has_file || fail "the file is not there after the upgrade"
rm -r "$root"/newer "$root"/earlier "$root"/*.deb
echo "the volume was read throughout the upgrade, and by the new program after it"

say "a daemon that is killed, and one that hangs"
before=$(main_process)
in_system sh -c "kill -KILL $before"
eventually "a killed daemon is started again" is_other_process "$before"
eventually "the file is there" has_file
before=$(main_process)
in_system sh -c "kill -STOP $before"
eventually "the watchdog replaces a daemon that hangs" is_other_process "$before"
eventually "the file is there" has_file

say "a lost member"
in_system mv /disks/d1/volume /disks/d1/away
eventually "the journal has its messages by its number" is_member_noted 1
in_system mv /disks/d1/away /disks/d1/volume

say "stop, and start with too few disks"
in_system systemctl stop cauchyfs@photos
mounted=$(in_system findmnt --noheadings --output TARGET) || fail "cannot list the mounts of the system"
! grep -q 'mnt/photos' <<<"$mounted" || fail "the volume is mounted although its service is stopped"
for disk in 1 2 3; do
    in_system systemctl stop "srv-d$disk.mount"
    in_system mv "/disks/d$disk" "/disks/gone$disk"
done
in_system systemctl start --no-block cauchyfs@photos
eventually "the service waits, and says so" is_waiting
state SubState start || fail "the service does not wait: $(in_system systemctl show --property SubState cauchyfs@photos)"
in_system systemctl stop srv-d2.mount
in_system rmdir /disks/d2
in_system mv /disks/gone2 /disks/d2
in_system systemctl start srv-d2.mount
eventually "it mounts as soon as enough are there" state SubState running
has_file || fail "the file is not there"

say "the next boot, with two of four disks"
in_system systemctl stop cauchyfs@photos
kill -KILL "$first"
wait "$first" 2>/dev/null || true
start
eventually "the service runs again" state SubState running
has_file || fail "the file is not there"
in_system systemctl stop cauchyfs@photos
say "the service waits, serves, is watched and stops as it should"
