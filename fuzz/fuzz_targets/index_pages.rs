//! Pages of the index under libFuzzer, as they are verified before the database sees them.
//!
//! The first two bytes of an input are the length of a page that defines tables. The rest is a page of one of them:
//! it is read as a leaf and as a branch page of every kind that is defined there, and of those that need no definition.

#![no_main]

use libfuzzer_sys::fuzz_target;

/// As much of the room as pages need.
#[path = "../../src/metadata/mirror"]
mod mirror {
    #[allow(dead_code, reason = "the product needs more of it")]
    mod btree_page;
    #[allow(dead_code, reason = "the product needs more of it")]
    mod page_set;

    use btree_page::{Leaf, TreeKind, open_branch};

    /// Reads the pages of an input in every way in which pages are read.
    pub(crate) fn try_pages(input: &[u8]) {
        let Some((len, pages)) = input.split_first_chunk() else {
            return;
        };
        let len = usize::from(u16::from_le_bytes(*len)).min(pages.len());
        let (definitions, page) = pages.split_at(len);
        let mut kinds = vec![TreeKind::RECORDS, TreeKind::DEFINITIONS];
        if let Ok(leaf) = Leaf::open(definitions, TreeKind::DEFINITIONS) {
            kinds.extend(leaf.tables().flatten().map(|table| table.kind));
        }
        for kind in kinds {
            if let Ok(leaf) = Leaf::open(page, kind) {
                leaf.listed_pages(kind).for_each(drop);
                leaf.tables().for_each(drop);
            }
            if let Ok(children) = open_branch(page, kind) {
                children.for_each(drop);
            }
        }
    }
}

fuzz_target!(|input: &[u8]| mirror::try_pages(input));
