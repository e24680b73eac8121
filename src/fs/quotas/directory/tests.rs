use super::*;
use crate::fs::Fs;
use crate::fs::tests::{ROOT, create, open};

fn limits() -> QuotaLimits {
    QuotaLimits {
        bytes: LimitChange::Set(1 << 20),
        files: LimitChange::Keep,
    }
}

fn mkdir(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    fs.names().mkdir(ROOT, parent, name, 0o755).unwrap().ino
}

/// Two counts at once could each leave to the other what lies in both.
#[test]
fn a_second_directory_gets_a_quota_only_once_the_first_is_counted() {
    let fs = open(&create(256 << 20, None));
    let outer = mkdir(&fs, Ino::ROOT, b"outer");
    let inner = mkdir(&fs, outer, b"inner");
    mkdir(&fs, inner, b"deep");
    let quotas = fs.quotas();
    quotas.set_once(outer, limits()).unwrap();
    let refused = quotas.set_once(inner, limits());
    assert!(matches!(refused, Err(FsError::StillCounting)));
    quotas.set_once(outer, limits()).unwrap();
    let report = &quotas.list(Some(inner)).unwrap()[0];
    assert_eq!((report.root, report.usage.files), (outer, 1));
    assert!(report.is_counting && !report.is_at_work);
    quotas.counting.start();
    quotas.wait();
    quotas.set(inner, limits()).unwrap();
    quotas.wait();
    let listed = quotas.list(None).unwrap();
    let files: Vec<u64> = listed.iter().map(|quota| quota.usage.files).collect();
    assert_eq!(files, [3, 2]);
}
