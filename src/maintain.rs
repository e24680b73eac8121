//! Background work: freeing dead stripes, compaction, periodic commits.
