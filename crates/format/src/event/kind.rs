//! The kinds of events, and their fields on disk.

use serde::{Deserialize, Serialize};

use crate::{FormatError, wire::Reader};

/// Most bytes of a text in an event. A longer text is cut.
pub const TEXT_MAX: usize = 4096;

/// The urgency of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Nothing has to be done.
    Info,
    /// Something may have to be done.
    Warning,
    /// Something has to be done, or data is at risk.
    Critical,
}

impl Severity {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Info => 0,
            Self::Warning => 1,
            Self::Critical => 2,
        }
    }

    /// Returns the severity of a number. A number of a later build counts as a warning.
    pub(super) fn of(number: u8) -> Self {
        match number {
            0 => Self::Info,
            2 => Self::Critical,
            _ => Self::Warning,
        }
    }
}

/// Value of a field of an event.
trait Field: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads a value.
    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError>;
}

impl Field for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        reader.u64()
    }
}

impl Field for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        reader.i64()
    }
}

impl Field for u16 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        reader.u16()
    }
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(reader.bad("flag", other)),
        }
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self, out);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        take_text(reader)
    }
}

/// The names of some things, at most three, at the end of an event. Events of earlier builds have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FirstNames(pub Vec<String>);

impl FirstNames {
    /// The most names.
    pub const MOST: usize = 3;
}

impl Field for FirstNames {
    fn put(&self, out: &mut Vec<u8>) {
        let names = &self.0[..self.0.len().min(Self::MOST)];
        out.push(u8::try_from(names.len()).expect("there are at most three"));
        for name in names {
            put_text(name, out);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        if reader.is_empty() {
            return Ok(Self::default());
        }
        let count = reader.u8()?;
        if usize::from(count) > Self::MOST {
            return Err(reader.bad("count of names", count));
        }
        let names = (0..count).map(|_| take_text(reader));
        Ok(Self(names.collect::<Result<_, _>>()?))
    }
}

/// Appends a text of at most [`TEXT_MAX`] bytes, cut between two characters.
pub(super) fn put_text(text: &str, out: &mut Vec<u8>) {
    let mut len = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    let count = u16::try_from(len).expect("a text has at most 4096 bytes");
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..len]);
}

/// Reads a text.
pub(super) fn take_text(reader: &mut Reader<'_>) -> Result<String, FormatError> {
    let len = reader.u16()?;
    if usize::from(len) > TEXT_MAX {
        return Err(reader.bad("text length", len));
    }
    let bytes = reader.bytes(len.into())?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(reader.bad("text that is not UTF-8 at", error.valid_up_to() as u64)),
    }
}

macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $tag:literal $severity:ident $name:ident { $( $(#[$field_doc:meta])* $field:ident: $type:ty, )* }
    )*) => {
        /// The kind of an event. `--json` of `cauchyfs events` has the name of a kind as `event`, in lower case with
        /// underscores, and its fields beside it.
        ///
        /// A kind keeps its number on disk for ever. Later builds may add fields at the end of a kind, which earlier
        /// ones ignore.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "event", rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum EventKind {
            $(
                $(#[$doc])*
                $name {
                    $( $(#[$field_doc])* $field: $type, )*
                },
            )*
            /// An event of a kind that a later build added.
            #[serde(other)]
            Unknown,
        }

        impl EventKind {
            /// The numbers of all kinds on disk.
            pub const TAGS: &[u8] = &[$($tag),*];

            /// Returns the severity of events of this kind.
            #[must_use]
            pub fn severity(&self) -> Severity {
                match self {
                    $( Self::$name { .. } => Severity::$severity, )*
                    Self::Unknown => Severity::Info,
                }
            }

            /// Returns the number of the kind on disk.
            pub(super) fn tag(&self) -> u8 {
                match self {
                    $( Self::$name { .. } => $tag, )*
                    Self::Unknown => 0,
                }
            }

            /// Appends the fields.
            pub(super) fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $( Self::$name { $($field,)* } => { $( $field.put(out); )* let _ = out; } )*
                    Self::Unknown => {}
                }
            }

            /// Reads the fields of the kind with this number.
            pub(super) fn take(tag: u8, reader: &mut Reader<'_>) -> Result<Self, FormatError> {
                match tag {
                    $( $tag => Ok(Self::$name { $( $field: <$type>::take(reader)?, )* }), )*
                    _ => Ok(Self::Unknown),
                }
            }
        }
    };
}

kinds! {
    /// A daemon mounted the volume.
    1 Info DaemonStarted {
        /// The members of the volume.
        members: u16,
        /// The members that were online.
        online: u16,
        /// True if it was mounted read-only.
        read_only: bool,
    }
    /// The daemon unmounted the volume, and ended.
    2 Info DaemonStopped {
        /// True if everything was durable.
        durable: bool,
    }
    /// A daemon had ended without unmounting the volume: it was killed, or the machine lost its power. Recorded by the
    /// next one.
    3 Critical DaemonCrashed {
        /// When that daemon recorded its last event, in milliseconds since 1970.
        last_seen_ms: i64,
    }
    /// The directory of a member is gone.
    10 Critical MemberMissing {
        /// The reason, in words.
        reason: String,
    }
    /// A member failed: its directory is there, and operations on it fail or hang.
    11 Critical MemberFaulted {
        /// The reason, in words.
        reason: String,
    }
    /// A member is online again.
    12 Info MemberBack {
        /// The seconds for which it was away.
        seconds_away: u64,
    }
    /// A member takes seconds to answer.
    13 Warning MemberSlow {
        /// The seconds for which it has been slow.
        seconds: u64,
    }
    /// A member that was slow answers in time again.
    14 Info MemberResponsive {
        /// The seconds for which it was slow.
        seconds: u64,
    }
    /// A member has no room for new data.
    15 Warning MemberFull {
        /// The members that are full, this one included.
        full: u16,
    }
    /// A member that was full has room again.
    16 Info MemberHasRoom {
        /// The members that are still full.
        full: u16,
    }
    /// A directory became a member.
    17 Info MemberAdded {
        /// The members of the volume by now.
        members: u16,
    }
    /// A member was replaced by another, and left the volume.
    18 Info MemberReplaced {
        /// The member that has its data.
        by: u16,
    }
    /// A member left the volume.
    19 Info MemberRemoved {
        /// The members of the volume by now.
        members: u16,
    }
    /// A member is being emptied, to leave the volume.
    20 Info MemberDraining {
        /// The members of the volume, this one included.
        members: u16,
    }
    /// Some data survives fewer losses of members than promised, or fewer than before.
    30 Critical RedundancyReduced {
        /// The losses that the worst stripe survives; negative if it is lost.
        losses_tolerated: i64,
        /// The losses that every whole stripe survives.
        losses_promised: i64,
        /// The stripes that survive fewer than promised.
        stripes: u64,
        /// The bytes in them.
        bytes: u64,
    }
    /// All data survives as many losses of members as promised.
    31 Info RedundancyRestored {
        /// The losses that every stripe survives.
        losses_tolerated: i64,
    }
    /// A rebuild began.
    40 Info RebuildStarted {
        /// The bytes of shards to write, as far as they were known.
        bytes_left: u64,
    }
    /// A rebuild ended, and did all that it could.
    41 Info RebuildFinished {
        /// The bytes of shards that it wrote.
        bytes: u64,
        /// The seconds that it took.
        seconds: u64,
    }
    /// A rebuild was stopped before its end.
    42 Warning RebuildStopped {
        /// The bytes of shards that it wrote.
        bytes: u64,
        /// The bytes of shards that are left.
        bytes_left: u64,
    }
    /// A rebuild leaves shards that it cannot write, or makes no progress.
    43 Critical RebuildStuck {
        /// The bytes of shards that have no directory to go to.
        bytes_waiting: u64,
        /// The bytes of shards that wait because data beside them cannot be read.
        bytes_unreadable: u64,
        /// The seconds without progress; 0 if the rebuild ended.
        seconds: u64,
    }
    /// A move of data to emptier members began.
    44 Info BalanceStarted {
        /// The bytes of shards to move, as far as they were known.
        bytes_left: u64,
    }
    /// A move of data to emptier members ended.
    45 Info BalanceFinished {
        /// The bytes of shards that it moved.
        bytes: u64,
        /// The seconds that it took.
        seconds: u64,
    }
    /// A move of data to emptier members was stopped before its end.
    46 Warning BalanceStopped {
        /// The bytes of shards that it moved.
        bytes: u64,
        /// The bytes of shards that are left.
        bytes_left: u64,
    }
    /// A rebuild or a move of data to emptier members failed. It is tried again.
    47 Warning RebuildFailed {
        /// The reason, in words.
        reason: String,
    }
    /// A scrub began, or went on where the last one stopped.
    50 Info ScrubStarted {
        /// The part that was done before, in percent.
        percent: u16,
    }
    /// A scrub went through.
    51 Info ScrubFinished {
        /// The bytes of shards that it read.
        bytes: u64,
        /// The shards and other pieces that it repaired.
        repaired: u64,
        /// Those that were wrong and could not be repaired.
        wrong: u64,
        /// The bytes of stripes that are lost.
        bytes_lost: u64,
    }
    /// A scrub was stopped before its end.
    52 Warning ScrubStopped {
        /// The part that is done, in percent.
        percent: u16,
    }
    /// A scrub makes no progress.
    53 Warning ScrubStuck {
        /// The part that is done, in percent.
        percent: u16,
        /// The seconds without progress.
        seconds: u64,
    }
    /// New stripes get another code, and all others are brought to it.
    60 Info CodeChangeStarted {
        /// The data shards of a stripe by now.
        data: u16,
        /// The parity shards of a stripe by now.
        parity: u16,
        /// The code by now.
        code: String,
    }
    /// All stripes have the code of new ones.
    61 Info CodeChangeFinished {
        /// The data shards of a stripe.
        data: u16,
        /// The parity shards of a stripe.
        parity: u16,
        /// The code.
        code: String,
    }
    /// Stripes have another code than new ones, and are not being brought to it.
    62 Warning CodeChangeStuck {
        /// The seconds since the last progress.
        seconds: u64,
    }
    /// Blocks of a member did not match their checksums. Events of one member are at least a minute apart.
    70 Warning ChecksumErrors {
        /// The errors since the event before, or since the mount.
        errors: u64,
        /// The seconds in which they happened.
        seconds: u64,
    }
    /// Operations on a member failed. Events of one member are at least a minute apart.
    71 Warning IoErrors {
        /// The failed reads since the event before, or since the mount.
        read: u64,
        /// The failed writes and other operations.
        write: u64,
        /// The seconds in which they happened.
        seconds: u64,
    }
    /// Ranges of files cannot be read, and no member has them.
    72 Critical RangesLost {
        /// The files that hold such ranges.
        files: u64,
        /// The bytes of such ranges.
        bytes: u64,
        /// The paths below the mountpoint of the first files that no earlier event counted.
        #[serde(default)]
        first_files: FirstNames,
    }
    /// A file holds ranges that are lost. Earlier builds recorded this.
    73 Critical FileLost {
        /// Its path below the mountpoint.
        file: String,
    }
    /// No range of a file is lost any more.
    74 Info RangesRecovered {
        /// The files that held such ranges.
        files: u64,
    }
    /// The volume has little room left.
    80 Warning SpaceLow {
        /// The bytes of data for which there is room.
        bytes_free: u64,
        /// The bytes of data that the volume can hold.
        bytes_usable: u64,
    }
    /// The volume has room again.
    81 Info SpaceRecovered {
        /// The bytes of data for which there is room.
        bytes_free: u64,
        /// The bytes of data that the volume can hold.
        bytes_usable: u64,
    }
    /// The volume accepts no more changes.
    90 Critical ReadOnly {
        /// The members that are online.
        online: u16,
        /// The members without which nothing can be read.
        needed: u16,
    }
    /// The volume accepts changes again.
    91 Info Writable {
        /// The members that are online.
        online: u16,
    }
    /// Changes that programs had not synced were lost, because too many members went away at once.
    92 Critical ChangesLost {
        /// The files and directories that had them.
        files: u64,
    }
    /// Files are not removed any more, because so many were within an hour: the interlock of the mount lets no more go before
    /// an order.
    93 Critical RemovalsRefused {
        /// The files that were removed within the hour.
        removed: u64,
        /// The files of the volume then.
        files: u64,
        /// The part of the files that may be removed within an hour, in percent.
        percent: u16,
    }
    /// Files are removed again, on order, or because a mount has no interlock.
    94 Info RemovalsAllowed {
        /// The seconds for which they were not.
        seconds: u64,
    }
    /// Events were left out, because too many came at once.
    100 Warning EventsDropped {
        /// The number of events.
        events: u64,
    }
    /// All background work was stopped on order.
    101 Info Paused {
        /// True if a scrub or a rebuild was under way.
        had_work: bool,
    }
    /// Background work goes on, on order.
    102 Info Resumed {
        /// The seconds for which it was stopped.
        seconds: u64,
    }
}
