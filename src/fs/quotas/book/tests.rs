use super::*;
use crate::format::record::QuotaUsage;

const OUTER: QuotaId = QuotaId(1);
const INNER: QuotaId = QuotaId(2);
const MIDDLE: QuotaId = QuotaId(3);

fn usage(bytes: u64, files: u64) -> QuotaUsage {
    QuotaUsage { bytes, files }
}

fn charge(quota: QuotaId, bytes: u64) -> Charge {
    let usage = usage(bytes, 1);
    Charge { quota, usage }
}

fn made(quota: QuotaId, bytes: u64) -> Recharge {
    Recharge {
        before: None,
        after: Some(charge(quota, bytes)),
    }
}

fn removed(quota: QuotaId, bytes: u64) -> Recharge {
    Recharge {
        before: Some(charge(quota, bytes)),
        after: None,
    }
}

fn changed(before: Charge, after: Charge) -> Recharge {
    Recharge {
        before: Some(before),
        after: Some(after),
    }
}

/// Returns a quota of inode 10 that has 10 files in it, with one of inode 20 inside that has 4 of them.
fn nested() -> Book {
    let mut book = Book::default();
    let limits = Limits {
        max_bytes: Some(1000),
        max_files: Some(20),
    };
    book.add(OUTER, (Ino(10), QuotaId::NONE), limits, &[]);
    book.add(INNER, (Ino(20), OUTER), Limits::default(), &[]);
    let inodes: Vec<_> = (0..6)
        .map(|_| made(OUTER, 50))
        .chain((0..4).map(|_| made(INNER, 100)))
        .collect();
    book.put(book.replacements(&book.changes(&inodes)));
    for id in [OUTER, INNER] {
        book.get_mut(id).unwrap().state = QuotaState::InForce;
    }
    book
}

fn usage_of(book: &Book, id: QuotaId) -> Option<QuotaUsage> {
    book.get(id).map(|quota| quota.usage)
}

#[test]
fn an_inode_is_counted_by_its_quota_and_by_all_around_it() {
    let book = nested();
    assert_eq!(usage_of(&book, OUTER), Some(usage(700, 10)));
    assert_eq!(usage_of(&book, INNER), Some(usage(400, 4)));
    let moved = book.changes(&[changed(charge(OUTER, 50), charge(INNER, 50))]);
    assert_eq!(moved.keys().collect::<Vec<_>>(), [&INNER]);
}

#[test]
fn only_what_grows_is_refused_and_only_beyond_the_limit() {
    let book = nested();
    let grown = |before, after| {
        let inode = changed(charge(INNER, before), charge(INNER, after));
        book.check(&book.changes(&[inode]))
    };
    assert!(grown(100, 400).is_ok());
    assert!(matches!(grown(100, 401), Err(FsError::QuotaExceeded)));
    let files = |count| {
        let new: Vec<_> = (0..count).map(|_| made(INNER, 0)).collect();
        book.check(&book.changes(&new))
    };
    assert!(files(10).is_ok());
    assert!(matches!(files(11), Err(FsError::QuotaExceeded)));
    let mut book = book.clone();
    book.get_mut(OUTER).unwrap().max_bytes = Some(0);
    let smaller = book.changes(&[changed(charge(INNER, 100), charge(INNER, 99))]);
    assert!(book.check(&smaller).is_ok());
}

#[test]
fn the_room_is_that_of_the_quota_with_the_least_left() {
    let mut book = nested();
    let room = |limit, left| Some(QuotaRoom { limit, left });
    assert_eq!(book.room(INNER), (room(1000, 300), room(20, 10)));
    book.get_mut(INNER).unwrap().max_bytes = Some(500);
    assert_eq!(book.room(INNER), (room(500, 100), room(20, 10)));
    book.get_mut(OUTER).unwrap().max_bytes = Some(1);
    assert_eq!(book.room(INNER).0, room(1, 0));
    assert_eq!(book.room(QuotaId(9)), (None, None));
}

#[test]
fn a_quota_set_between_two_takes_the_inner_one_in_without_changing_the_outer_one() {
    let mut book = nested();
    book.add(MIDDLE, (Ino(15), OUTER), Limits::default(), &[INNER]);
    assert_eq!(usage_of(&book, MIDDLE), Some(usage(400, 4)));
    assert_eq!(usage_of(&book, OUTER), Some(usage(700, 10)));
    let chain: Vec<QuotaId> = book.chain(INNER).map(|(id, _)| id).collect();
    assert_eq!(chain, [INNER, MIDDLE, OUTER]);
}

#[test]
fn a_lifted_quota_counts_for_the_one_around_it_until_nothing_names_it() {
    let mut book = nested();
    book.lift(INNER);
    assert_eq!(book.resolve(INNER), OUTER);
    assert_eq!(book.rooted_at(Ino(20)), None);
    assert_eq!(usage_of(&book, OUTER), Some(usage(700, 10)));
    let inodes: Vec<_> = (0..4).map(|_| removed(INNER, 100)).collect();
    book.put(book.replacements(&book.changes(&inodes)));
    assert_eq!(usage_of(&book, INNER), None);
    assert_eq!(usage_of(&book, OUTER), Some(usage(300, 6)));
}

#[test]
fn lifting_the_outermost_quota_leaves_the_inner_one_as_it_is() {
    let mut book = nested();
    book.lift(OUTER);
    assert_eq!(usage_of(&book, OUTER), None);
    assert_eq!(usage_of(&book, INNER), Some(usage(400, 4)));
    assert_eq!(book.resolve(OUTER), QuotaId::NONE);
    let mut book = nested();
    book.lift(INNER);
    book.lift(OUTER);
    assert_eq!(book.len(), 0, "a lifted quota needs one around it");
}

#[test]
fn records_that_form_a_loop_end_a_chain() {
    let mut book = nested();
    book.get_mut(OUTER).unwrap().outer = INNER;
    assert_eq!(book.chain(INNER).count(), 2);
    assert_eq!(book.resolve(INNER), INNER);
}

#[test]
fn the_difference_between_two_books_has_what_changed_and_what_is_gone() {
    let before = nested();
    let mut after = before.clone();
    after.lift(OUTER);
    let inner = *after.get(INNER).unwrap();
    assert_eq!(after.since(&before), [(OUTER, None), (INNER, Some(inner))]);
    assert_eq!(after.since(&after), []);
}
