//! fio's own verification while directories are lost, and of what is rebuilt.

use crate::support::{CAUCHYFS, Fio, Shape, TestVolume, eventually, must, skip_mounts, text};

#[test]
fn bytes_that_fio_writes_while_two_directories_are_deleted_are_right_before_and_after_a_rebuild() {
    if skip_mounts() || !Fio::is_installed() {
        return;
    }
    let spacious = Shape {
        members: 8,
        ..Shape::FOUR_TWO
    };
    let volume = TestVolume::create(spacious, 3072);
    volume.mount();
    // Nothing of this is written again: it is what is to be rebuilt.
    let fio = Fio::start(volume.path("before"));
    fio.goes_on();
    let before = fio.end();
    let fio = Fio::start(volume.path("degraded"));
    fio.goes_on();
    volume.delete_member(7);
    fio.goes_on();
    volume.delete_member(6);
    eventually("the losses are seen", || volume.members_in("missing") == 2);
    fio.goes_on();
    let degraded = fio.end();
    before.check();

    let fio = Fio::start(volume.path("rebuilt"));
    must(CAUCHYFS, &["rebuild", text(&volume.mountpoint)]);
    fio.goes_on();
    let rebuilt = fio.end();
    volume.assert_full_redundancy();
    volume.unmount();
    volume.assert_intact_in(&[0, 1, 2, 3, 4, 5], 2);
    // Two more may go now.
    volume.mount_degraded(&[0, 2, 3, 5]);
    before.check();
    degraded.check();
    rebuilt.check();
    volume.unmount();
}
