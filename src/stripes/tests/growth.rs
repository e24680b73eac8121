//! The lengths of the segments that a volume opens one after another.

use super::*;

#[test]
fn a_segment_reserves_little_against_all_that_was_written_before() {
    let rig = Rig::new(2, 1, 3);
    let mut seen = Vec::new();
    for seed in 1..=40 {
        drop(
            rig.stripes
                .writer()
                .append(VOLUME, &pattern(seed, 2 * UNIT))
                .unwrap(),
        );
        rig.stripes.writer().seal();
        rig.stripes.writer().wait_flushed().unwrap();
        for (name, len) in rig.disks[0].open().list("segments").unwrap() {
            match seen.iter_mut().find(|(known, _)| *known == name) {
                // A segment is cut to what is used of it, and never grows.
                Some((_, longest)) => assert!(len <= *longest, "{name}"),
                None => seen.push((name, len)),
            }
        }
    }
    let units: Vec<u64> = seen.iter().map(|(_, len)| len / UNIT as u64).collect();
    assert_eq!(
        units[..6],
        [4, 4, 4, 4, 8, 8],
        "the volume allows 8 units at most"
    );
}
