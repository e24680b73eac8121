//! The report to callers that wait for a scrub begun by another one.

use super::*;

/// One that has just begun may wait for a long time before there is anything to be seen of it.
#[test]
fn the_result_of_an_earlier_scrub_is_not_that_of_one_that_has_just_begun() {
    let rig = Rig::new(2, 1, 3);
    fill(&rig);
    let fs = rig.open(&[]);
    let status = || fs.maintenance.scrubber.scrub_status().unwrap();
    let never = status();
    assert!(!never.is_through_since(&never));
    let first = scrub(&fs);
    assert!(status().is_through_since(&never));
    let other = fs.maintenance.scrubber.scrubs_soon();
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    assert!(
        fs.maintenance
            .scrubber
            .scrub(&NoLocks, None, go_on)
            .unwrap()
            .is_none()
    );
    assert_eq!(status().state, ScrubState::Finished);
    assert!(!status().is_through_since(&first), "that is an earlier one");
    drop(other);
    let mut seen = Vec::new();
    let look = |status: &ScrubStatus| {
        seen.push(*status);
        ControlFlow::Continue(())
    };
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, look)
        .unwrap()
        .unwrap();
    assert!(status().is_through_since(&seen[0]), "it was under way");
    // Both began in the same second, perhaps.
    let mut later = first;
    later.record.last_finished += 1;
    assert!(later.is_through_since(&first));
}
