//! Newtypes for what must not be mixed up.

use std::fmt;

use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// An inode number. The root directory is [`Ino::ROOT`]; numbers are never used twice.
    Ino(u64)
}
number! {
    /// A stripe's number: counted up over the life of a volume, never used twice. A stripe keeps its
    /// number when it moves to another place.
    StripeId(u64)
}
number! {
    /// A segment's number: counted up over the life of a volume, never used twice.
    SegmentId(u64)
}
number! {
    /// A member's place in the volume's member list, from 0.
    MemberIndex(u16)
}
number! {
    /// A shard's place in its stripe: data shards first, then parity.
    ShardIndex(u8)
}
number! {
    /// Counts changes of membership.
    Epoch(u64)
}
number! {
    /// Log sequence number: counts the records of the journal.
    Lsn(u64)
}
number! {
    /// A directory entry's position for readdir: rises in the order of creation, never used twice in
    /// one directory, stays with the entry while others come and go.
    Cookie(u64)
}
number! {
    /// A quota's number: counted up over the life of a volume, never used twice. [`QuotaId::NONE`] stands for no quota.
    QuotaId(u64)
}
number! {
    /// A class of stripes, all of one code: [`StripeClass::VOLUME`] has the code of the volume, any other one a code that
    /// directories were given. Never used for another code.
    StripeClass(u8)
}
number! {
    /// Tells one life of a superblock slot from another: the slot with the higher one is newer.
    Generation(u64)
}

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

impl QuotaId {
    /// No quota.
    pub const NONE: Self = Self(0);
}

impl StripeClass {
    /// The class of stripes with the volume's own code.
    pub const VOLUME: Self = Self(0);
}

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

identity! {
    /// A volume's identity, drawn at random when it is created.
    VolumeId
}
identity! {
    /// A member's identity, drawn at random when it joins.
    MemberId
}
