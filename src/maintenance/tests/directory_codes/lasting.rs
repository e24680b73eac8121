//! Orders to rewrite end, and numbers of classes keep their meaning.

use std::cell::Cell;

use super::*;
use crate::maintenance::RewriteStatus;

/// Files whose code needs more members than the volume has left.
#[test]
fn an_order_does_not_wait_for_a_member_that_was_removed() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    fs.lose(&rig, 0);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide, volume()]);
    fs.flush();
    let rebuild = fs.maintenance.rebuild();
    fs.rebuild().unwrap();
    assert!(!rebuild.rewrite_status().unwrap().awaited.is_empty());
    fs.maintenance.draining().drain(MemberIndex(0)).unwrap();
    fs.rebuild().unwrap();
    assert_eq!(fs.transactions.members().membership().count(), 6);
    fs.rebuild().unwrap();
    let status = rebuild.rewrite_status().unwrap();
    assert_eq!(status, RewriteStatus::default());
    assert_holds(&fs, &files.model, "the member is removed");
    files.fill(&fs, 100, &[wide]);
    fs.flush();
    let status = rebuild.rewrite_status().unwrap();
    assert_eq!(status, RewriteStatus::default(), "no member will come back");
    assert_holds(&fs, &files.model, "more is written");
    // Bytes that stay where they are keep no others from another code.
    let others = 1000..1024;
    for file in others.clone() {
        files.write(&fs, file, volume(), 40_000).unwrap();
    }
    fs.flush();
    let given = others.map(Ino).collect();
    let thick = Geometry::new(1, 2).unwrap();
    assert_eq!(
        rebuild
            .lacking_room_to_rewrite(&given, None, thick)
            .unwrap(),
        0
    );
}

/// The member may be kept after all. Once it has left, nothing is waited for.
#[test]
fn an_order_waits_for_a_member_as_long_as_it_is_drained() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[volume()]);
    fs.flush();
    fs.maintenance.draining().drain(MemberIndex(6)).unwrap();
    let all: Vec<u64> = files.model.keys().copied().collect();
    for file in all {
        fs.set_class(file, wide).unwrap();
        files.classes.insert(file, wide);
    }
    fs.transactions.order_rewrite().unwrap();
    fs.sync().unwrap();
    let rebuild = fs.maintenance.rebuild();
    let status = Cell::new(None);
    let wait = |_| {
        // The drain has not ended.
        status.set(Some(rebuild.rewrite_status().unwrap().is_ordered));
        true
    };
    fs.rebuild_while(&wait).unwrap();
    assert_eq!(status.get(), Some(true));
    assert_eq!(fs.transactions.members().membership().count(), 6);
    assert!(rebuild.has_rewriting_to_do().unwrap(), "no look follows");
    fs.rebuild().unwrap();
    assert_eq!(rebuild.rewrite_status().unwrap(), RewriteStatus::default());
    assert_holds(&fs, &files.model, "the member is removed");
}

/// The record of the last class is lost. Its number must not come to mean another code for those that name it.
#[test]
fn a_class_whose_record_is_lost_is_not_given_again_while_anything_names_it() {
    for (named_by, expected) in [("nothing", 2), ("an inode", 3), ("a segment", 3)] {
        let rig = rig(2, 6);
        let fs = rig.open(&[]);
        assert_eq!(fs.class_for(3, 1), StripeClass(1));
        let lost = fs.class_for(5, 1);
        assert_eq!(lost, StripeClass(2));
        match named_by {
            "an inode" => fs.set_class(7, lost).unwrap(),
            "a segment" => {
                fs.write_as(lost, 7, &pattern(7, 20_000)).unwrap();
                fs.flush();
                fs.set_class(7, volume()).unwrap();
            }
            _ => {}
        }
        let mut batch = Batch::default();
        batch.delete(key::directory_code(lost));
        fs.transactions.apply(batch).unwrap();
        fs.close();
        let fs = rig.open(&[]);
        assert_eq!(fs.transactions.code_of_class(lost), None);
        let found = fs.class_for(4, 1);
        assert_eq!(found, StripeClass(expected), "named by {named_by}");
    }
}
