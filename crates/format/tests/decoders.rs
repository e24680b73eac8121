//! Every decoder of bytes on disk, and whatever a disk may hold: none panics or takes much memory, what a
//! checksum covers is refused once damaged, and what is read is all that the bytes say.
//!
//! `CAUCHYFS_SEED` replays a run.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bytes::Bytes;
use cauchyfs_format::event::{Event, EventKind, EventMember};
use cauchyfs_format::frame::{
    DB_HEADER_BYTES, FRAME_BYTES, Frame, FramePlace, HEAD_BYTES, Head, PAGE_BYTES,
};
use cauchyfs_format::journal::{
    self, JournalGeneration, JournalRecord, Preview, RecordHeader, StripeData,
};
use cauchyfs_format::key::Key;
use cauchyfs_format::record::{
    Backref, Counter, DirectoryCode, Dirent, Extent, FileKind, Inline, Inode, LostBytes,
    MAX_STRIPE_BYTES, Marker, Position, Quota, QuotaState, QuotaUsage, RepairNote, Scrub, Segment,
    SegmentStripe, ShardSet, ShardSums, Stripe, Timestamp, Xattr,
};
use cauchyfs_format::superblock::{
    EpochMark, KNOWN, LastRecord, LastSeen, MemberEntry, Replaced, Superblock,
};
use cauchyfs_format::{
    BLOCK_SIZE, Cookie, Epoch, FormatError, Generation, Ino, Lsn, MemberId, MemberIndex, QuotaId,
    Record, SegmentId, ShardIndex, StripeClass, StripeId, VolumeId, files, key,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

/// Random inputs for each decoder.
const ROUNDS: usize = 3_000;

/// Bytes that a decoder may take at once: so many for each byte of its input, and some.
const BYTES_FOR_EACH: usize = 64;
const BYTES_IN_ANY_CASE: usize = 16 << 10;

thread_local! {
    /// The largest piece of memory that this thread asked for.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with an eye on how much is asked for.
struct Watched;

#[expect(unsafe_code, reason = "an allocator is watched from its place")]
// SAFETY: every call is handed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller keeps the rules for `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from the system's allocator, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(size));
        // SAFETY: `at` came from the system's allocator, and the caller keeps the rules for the rest.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// The result of decoding: the bytes that the result encodes to, or why there is none.
type Decoded = Result<Vec<u8>, FormatError>;

/// One decoder.
pub(crate) struct Decoder {
    /// File below `src`, type if it has one, function.
    name: &'static str,
    decode: fn(&[u8]) -> Decoded,
    samples: Vec<Vec<u8>>,
    /// The part of a sample that a checksum covers, from its front on.
    covered: fn(&[u8]) -> usize,
    /// Sets the checksum right after a change, so that what it protects is looked at.
    seal: fn(&mut [u8]),
    /// True if what is read always encodes to the bytes it was read from.
    is_exact: bool,
}

impl Decoder {
    fn plain(name: &'static str, decode: fn(&[u8]) -> Decoded, samples: Vec<Vec<u8>>) -> Self {
        Self {
            name,
            decode,
            samples,
            covered: |_| 0,
            seal: |_| {},
            is_exact: true,
        }
    }

    /// Decodes, and fails if that takes much memory.
    #[track_caller]
    fn run(&self, bytes: &[u8]) -> Decoded {
        LARGEST.set(0);
        let decoded = (self.decode)(bytes);
        let largest = LARGEST.get();
        let most = bytes.len() * BYTES_FOR_EACH + BYTES_IN_ANY_CASE;
        assert!(
            largest <= most,
            "{}: {largest} bytes at once for {bytes:?}",
            self.name
        );
        if let Ok(again) = &decoded
            && self.is_exact
        {
            assert!(again == bytes, "{}: {bytes:?} read as {again:?}", self.name);
        }
        decoded
    }

    fn try_samples(&self) {
        for sample in &self.samples {
            assert!(self.run(sample).is_ok(), "{}: {sample:?}", self.name);
            let covered = (self.covered)(sample);
            for len in 0..sample.len() {
                let cut = self.run(&sample[..len]);
                assert!(
                    len >= covered || cut.is_err(),
                    "{}: {len} bytes of {sample:?}",
                    self.name
                );
            }
            for bit in 0..sample.len() * 8 {
                let mut bytes = sample.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let flipped = self.run(&bytes);
                let noticed = flipped.is_err();
                assert!(
                    bit / 8 >= covered || noticed,
                    "{}: bit {bit} of {sample:?}",
                    self.name
                );
                (self.seal)(&mut bytes);
                drop(self.run(&bytes));
            }
        }
    }

    fn try_random(&self, rng: &mut StdRng) {
        for _ in 0..ROUNDS {
            let len = [16, 200, FRAME_BYTES, 9_000][rng.random_range(0..4)];
            let mut bytes = vec![0; rng.random_range(0..=len)];
            rng.fill(&mut bytes[..]);
            drop(self.run(&bytes));
            let sample = &self.samples[rng.random_range(0..self.samples.len())];
            // The front of a good one, and then anything.
            let kept = rng.random_range(0..=sample.len());
            bytes.splice(0..kept.min(bytes.len()), sample[..kept].iter().copied());
            (self.seal)(&mut bytes);
            drop(self.run(&bytes));
            // A good one, damaged in some places.
            let mut bytes = sample.clone();
            for _ in 0..rng.random_range(1..9) {
                if !bytes.is_empty() {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = rng.random();
                }
            }
            (self.seal)(&mut bytes);
            drop(self.run(&bytes));
        }
    }
}

fn record<T: Record>(name: &'static str, samples: &[T]) -> Decoder {
    let decode = |bytes: &[u8]| T::decode(bytes).map(|value| value.encode().to_vec());
    let samples = samples.iter().map(|value| value.encode().to_vec());
    Decoder::plain(name, decode, samples.collect())
}

fn records() -> Vec<Decoder> {
    let time = Timestamp {
        seconds: -5,
        nanos: 999_999_999,
    };
    let inode = |kind, inline| Inode {
        kind,
        permissions: 0o7777,
        uid: 1,
        gid: 2,
        links: 3,
        rdev: 0x801,
        size: 1 << 40,
        allocated_bytes: 4096,
        unwritten_bytes: 512,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: Ino(7),
        next_cookie: Cookie(9),
        quota: QuotaId(4),
        class: StripeClass(3),
        inline,
    };
    let inodes = [
        inode(FileKind::Regular, Inline::Data(vec![1; 30])),
        inode(FileKind::Symlink, Inline::Target(b"to".to_vec())),
        inode(FileKind::Directory, Inline::None),
    ];
    let shards: ShardSet = [0, 1, 5, 254].into_iter().map(ShardIndex).collect();
    let stripe = Stripe {
        segment: SegmentId(3),
        offset: 8192,
        height: 4096,
        payload_len: 10_000,
        rotation: 2,
        written: shards,
    };
    let segment = Segment {
        class: StripeClass::VOLUME,
        data_shards: 2,
        parity_shards: 1,
        code: 1,
        len: 1 << 28,
        slots: vec![Some(MemberIndex(4)), None, Some(MemberIndex(0))],
        rotating: 3,
    };
    let kind = FileKind::Fifo;
    let name = b"name".to_vec();
    vec![
        record("record::Inode", &inodes),
        record(
            "record::Dirent",
            &[Dirent {
                ino: Ino(2),
                kind,
                cookie: Cookie(3),
            }],
        ),
        record(
            "record::Position",
            &[Position {
                ino: Ino(2),
                kind,
                name,
            }],
        ),
        record(
            "record::Extent",
            &[Extent {
                len: 5,
                stripe: StripeId(6),
                stripe_offset: 7,
            }],
        ),
        record(
            "record::Backref",
            &[Backref {
                len: 5,
                stripe_offset: 7,
            }],
        ),
        record("record::Stripe", &[stripe]),
        record(
            "record::ShardSums",
            &[ShardSums(vec![]), ShardSums(vec![1, u32::MAX])],
        ),
        record("record::RepairNote", &[RepairNote { missing: shards }]),
        record("record::Segment", &[segment.clone(), of_class(segment)]),
        record("record::SegmentStripe", &[SegmentStripe(StripeId(8))]),
        record("record::Marker", &[Marker]),
        record("record::Counter", &[Counter(1 << 63)]),
        record("record::Xattr", &[Xattr(b"value".to_vec())]),
    ]
}

fn of_class(segment: Segment) -> Segment {
    Segment {
        class: StripeClass(2),
        ..segment
    }
}

fn record_of_directory_codes() -> Decoder {
    let code = DirectoryCode {
        data_shards: 4,
        parity_shards: 2,
        code: 1,
    };
    record("record::DirectoryCode", &[code])
}

fn records_of_quotas() -> Vec<Decoder> {
    let limited = Quota {
        root: Ino(7),
        outer: QuotaId(3),
        state: QuotaState::Counting,
        usage: QuotaUsage {
            bytes: 1 << 40,
            files: 12,
        },
        max_bytes: Some(1 << 50),
        max_files: Some(u64::MAX),
    };
    let lifted = Quota {
        state: QuotaState::Lifted,
        max_bytes: None,
        max_files: None,
        ..limited
    };
    vec![record(
        "record::Quota",
        &[Quota::default(), limited, lifted],
    )]
}

fn keys_of_directory_codes() -> Decoder {
    Decoder::plain(
        "key::parse_directory_code",
        |k| key::parse_directory_code(k).map(|class| key::directory_code(class).to_vec()),
        vec![key::directory_code(StripeClass(5)).to_vec()],
    )
}

fn keys_of_quotas() -> Decoder {
    Decoder::plain(
        "key::parse_quota",
        |k| key::parse_quota(k).map(|q| key::quota(q).to_vec()),
        vec![key::quota(QuotaId(5)).to_vec()],
    )
}

fn records_of_scrubs() -> Vec<Decoder> {
    vec![
        record(
            "record::Scrub",
            &[
                Scrub::default(),
                Scrub {
                    is_finished: true,
                    segment: SegmentId(9),
                    offset: 4096,
                    lost: u64::MAX,
                    ..Scrub::default()
                },
                Scrub {
                    stale_copies: [0, 2, 0, 1 << 63],
                    ..Scrub::default()
                },
            ],
        ),
        record(
            "record::LostBytes",
            &[LostBytes(vec![]), LostBytes(vec![0..4096, 8192..64 << 20])],
        ),
    ]
}

fn keys() -> Vec<Decoder> {
    let (ino, stripe, segment) = (Ino(0x0102_0304), StripeId(u64::MAX), SegmentId(77));
    let shard = ShardIndex(9);
    let one = |name, decode, sample: Key| Decoder::plain(name, decode, vec![sample.to_vec()]);
    vec![
        one(
            "key::parse_inode",
            |k| key::parse_inode(k).map(|i| key::inode(i).to_vec()),
            key::inode(ino),
        ),
        one(
            "key::parse_dirent",
            |k| key::parse_dirent(k).map(|(ino, name)| key::dirent(ino, name).to_vec()),
            key::dirent(ino, b"name"),
        ),
        one(
            "key::parse_dirent_of_any_name",
            |k| {
                let parsed = key::parse_dirent_of_any_name(k);
                parsed.map(|(ino, name)| key::dirent(ino, name).to_vec())
            },
            key::dirent(ino, b".."),
        ),
        one(
            "key::parse_position",
            |k| key::parse_position(k).map(|(ino, at)| key::position(ino, at).to_vec()),
            key::position(ino, Cookie(5)),
        ),
        one(
            "key::parse_xattr",
            |k| key::parse_xattr(k).map(|(ino, name)| key::xattr(ino, name).to_vec()),
            key::xattr(ino, b"user.name"),
        ),
        one(
            "key::parse_extent",
            |k| key::parse_extent(k).map(|(ino, end)| key::extent(ino, end).to_vec()),
            key::extent(ino, 4096),
        ),
        one(
            "key::parse_backref",
            |k| key::parse_backref(k).map(|(s, ino, end)| key::backref(s, ino, end).to_vec()),
            key::backref(stripe, ino, 4096),
        ),
        one(
            "key::parse_stripe",
            |k| key::parse_stripe(k).map(|s| key::stripe(s).to_vec()),
            key::stripe(stripe),
        ),
        one(
            "key::parse_sums",
            |k| key::parse_sums(k).map(|(s, shard)| key::sums(s, shard).to_vec()),
            key::sums(stripe, shard),
        ),
        one(
            "key::parse_segment",
            |k| key::parse_segment(k).map(|s| key::segment(s).to_vec()),
            key::segment(segment),
        ),
        one(
            "key::parse_segment_stripe",
            |k| key::parse_segment_stripe(k).map(|(s, at)| key::segment_stripe(s, at).to_vec()),
            key::segment_stripe(segment, 8192),
        ),
        one(
            "key::parse_lost",
            |k| key::parse_lost(k).map(|s| key::lost(s).to_vec()),
            key::lost(stripe),
        ),
        one(
            "key::parse_orphan",
            |k| key::parse_orphan(k).map(|i| key::orphan(i).to_vec()),
            key::orphan(ino),
        ),
        one(
            "key::parse_unwritten",
            |k| key::parse_unwritten(k).map(|i| key::unwritten(i).to_vec()),
            key::unwritten(ino),
        ),
        one(
            "key::parse_stripe_unit_below",
            |k| key::parse_stripe_unit_below(k).map(|s| key::stripe_unit_below(s).to_vec()),
            key::stripe_unit_below(SegmentId(129)),
        ),
        one(
            "key::parse_perhaps_dead",
            |k| key::parse_perhaps_dead(k).map(|s| key::perhaps_dead(s).to_vec()),
            key::perhaps_dead(stripe),
        ),
        Decoder::plain(
            "key::parse_repair",
            |k| key::parse_repair(k).map(|(left, s)| key::repair(left, s).to_vec()),
            vec![
                key::repair(Some(1), stripe).to_vec(),
                key::repair(None, stripe).to_vec(),
            ],
        ),
    ]
}

/// Returns a superblock with all fields that this build knows.
fn with_fields(superblock: &Superblock) -> Superblock {
    let mut superblock = Superblock {
        extension: Vec::new(),
        ..superblock.clone()
    };
    let (absent, other) = (MemberIndex(2), MemberIndex(1));
    let record = LastRecord {
        epoch: Epoch(2),
        generation: 4,
        lsn: Lsn(700),
        is_surpassed: true,
    };
    let replaced = Replaced {
        index: absent,
        heir: other,
        path: b"/srv/d2".to_vec(),
    };
    superblock.set_last_seen(&BTreeMap::from([(absent, LastSeen::of(&superblock))]));
    superblock.set_last_records(&BTreeMap::from([(absent, record)]));
    superblock.set_replaced(&[replaced]);
    superblock.set_given_up(&BTreeSet::from([absent]));
    superblock
}

fn superblock() -> Decoder {
    let mark = |epoch| EpochMark {
        epoch: Epoch(epoch),
        nonce: 5,
    };
    let entry = |id| MemberEntry {
        id: MemberId(Uuid::from_u128(id)),
        current: true,
        draining: false,
        path: b"/srv/d0".to_vec(),
    };
    let sample = Superblock {
        volume: VolumeId(Uuid::from_u128(1)),
        member: MemberId(Uuid::from_u128(2)),
        index: MemberIndex(1),
        data_shards: 2,
        parity_shards: 1,
        code: 1,
        unit_bytes: 1 << 20,
        segment_bytes: 1 << 28,
        label: "photos".to_owned(),
        features: KNOWN,
        generation: Generation(3),
        history: vec![mark(1), mark(2)],
        proposed: Some(mark(3)),
        members: vec![entry(1), entry(2), entry(3)],
        extension: vec![1, 2, 3],
    };
    Decoder {
        covered: <[u8]>::len,
        seal: |slot| {
            let Some(len) = slot.get(12..16) else { return };
            let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
            if let Some((body, checksum)) =
                slot.get_mut(..len).and_then(<[u8]>::split_last_chunk_mut)
            {
                *checksum = crc32c::crc32c(body).to_le_bytes();
            }
        },
        // Bytes behind its end are no part of it, and reserved ones are not looked at.
        is_exact: false,
        ..Decoder::plain(
            "superblock::Superblock::decode",
            |slot| {
                Superblock::decode(slot).map(|superblock| {
                    // These decode the fields, and must not panic either.
                    let _ = (superblock.last_seen(), superblock.last_records());
                    let _ = (superblock.replaced(), superblock.given_up());
                    superblock.encode()
                })
            },
            vec![sample.encode(), with_fields(&sample).encode()],
        )
    }
}

/// Returns the bytes of a journal record, padded.
fn encoded(record: &JournalRecord) -> Vec<u8> {
    let entries = record.entries.iter();
    let body = entries
        .map(|(key, value)| journal::entry_bytes(key, value.as_deref()))
        .sum::<usize>()
        + record.data.iter().map(journal::stripe_bytes).sum::<usize>();
    let mut out = vec![0; journal::padded_bytes(body)];
    journal::encode(&record.header, &record.entries, &record.data, &mut out);
    out
}

/// The length without padding that a journal record says it has.
fn journal_len(record: &[u8]) -> usize {
    let len = record
        .get(12..16)
        .map(|len| u32::from_le_bytes(len.try_into().unwrap()));
    len.map_or(0, |len| len as usize)
}

fn journal_header() -> RecordHeader {
    RecordHeader {
        volume: VolumeId(Uuid::from_u128(7)),
        epoch: Epoch(3),
        lsn: Lsn(9),
        generation: JournalGeneration {
            number: 5,
            nonce: 6,
        },
    }
}

fn journal_records() -> Vec<Decoder> {
    let header = journal_header();
    let data = StripeData {
        stripe: StripeId(4),
        offset: 64,
        bytes: Bytes::from_static(&[7; 300]),
    };
    let sample = JournalRecord {
        header,
        entries: vec![
            (
                Bytes::from_static(b"key"),
                Some(Bytes::from_static(b"value")),
            ),
            (Bytes::from_static(b"gone"), None),
        ],
        data: vec![data],
    };
    let samples = vec![
        encoded(&sample),
        encoded(&JournalRecord {
            header,
            entries: vec![],
            data: vec![],
        }),
    ];
    vec![
        Decoder {
            covered: journal_len,
            seal: |record| {
                let len = journal_len(record);
                if let Some(whole) = record.get_mut(..len).filter(|whole| whole.len() > 12) {
                    let checksum = crc32c::crc32c(&whole[12..]);
                    whole[8..12].copy_from_slice(&checksum.to_le_bytes());
                }
            },
            is_exact: false,
            ..Decoder::plain(
                "journal::decode",
                |bytes| {
                    journal::decode(&Bytes::copy_from_slice(bytes)).map(|record| encoded(&record))
                },
                samples.clone(),
            )
        },
        Decoder {
            is_exact: false,
            ..Decoder::plain(
                "journal::Preview::decode",
                |bytes| {
                    let preview = Preview::decode(bytes)?;
                    // One that is too long is told from none, and is not read.
                    assert!(preview.padded_bytes <= 1 << 30);
                    assert!(preview.padded_bytes.is_multiple_of(BLOCK_SIZE));
                    Ok(Vec::new())
                },
                samples,
            )
        },
    ]
}

fn truncated(what: &'static str, bytes: &[u8], needed: usize) -> FormatError {
    FormatError::Truncated {
        what,
        len: bytes.len(),
        needed,
    }
}

fn frames() -> Vec<Decoder> {
    const PLACE: FramePlace = FramePlace { tag: 4, page: 9 };
    let page = [0x5a; PAGE_BYTES];
    let mut frame = Vec::new();
    Frame {
        sequence: 11,
        bytes: &page,
    }
    .put(PLACE, &mut frame);
    let head = Head {
        volume: VolumeId(Uuid::from_u128(7)),
        sequence: 12,
        durable: 11,
        db_bytes: 1 << 20,
        copies: vec![MemberIndex(0), MemberIndex(2)],
        db_header: [3; DB_HEADER_BYTES],
    };
    vec![
        Decoder {
            covered: <[u8]>::len,
            ..Decoder::plain(
                "frame::Frame::open",
                |bytes| {
                    let frame = bytes
                        .try_into()
                        .map_err(|_| truncated("frame", bytes, FRAME_BYTES))?;
                    let mut out = Vec::new();
                    Frame::open(PLACE, frame)?.put(PLACE, &mut out);
                    Ok(out)
                },
                vec![frame],
            )
        },
        Decoder {
            covered: <[u8]>::len,
            seal: |slot| {
                if let Some((body, checksum)) = slot.split_last_chunk_mut() {
                    *checksum = crc32c::crc32c(body).to_le_bytes();
                }
            },
            // Data behind the last copy is not looked at.
            is_exact: false,
            ..Decoder::plain(
                "frame::Head::decode",
                |bytes| {
                    let slot = bytes
                        .try_into()
                        .map_err(|_| truncated("head", bytes, HEAD_BYTES))?;
                    Head::decode(slot).map(|head| head.encode().to_vec())
                },
                vec![head.encode().to_vec()],
            )
        },
    ]
}

fn names() -> Decoder {
    Decoder::plain(
        "files::parse_segment",
        |bytes| {
            let name = String::from_utf8_lossy(bytes);
            let segment = files::parse_segment(&name);
            let segment = segment.ok_or_else(|| truncated("name", bytes, 0))?;
            Ok(files::segment(segment).into_bytes())
        },
        vec![files::segment(SegmentId(0x2a)).into_bytes()],
    )
}

/// Frames of event files, with what a reader makes of each.
fn events() -> Decoder {
    let event = |member: Option<&str>, kind: EventKind| Event {
        time_ms: 1_700_000_000_000,
        sequence: 12,
        volume: VolumeId(Uuid::from_u128(7)),
        member: member.map(|path| EventMember {
            index: MemberIndex(4),
            path: path.to_owned(),
        }),
        severity: kind.severity(),
        kind,
    };
    let samples = [
        event(None, EventKind::DaemonStopped { durable: true }),
        event(
            Some("/srv/d4"),
            EventKind::MemberMissing {
                reason: "it is gone".to_owned(),
            },
        ),
        event(
            Some(""),
            EventKind::ChecksumErrors {
                errors: u64::MAX,
                seconds: 60,
            },
        ),
        event(None, EventKind::DaemonCrashed { last_seen_ms: -1 }),
    ];
    Decoder {
        covered: <[u8]>::len,
        seal: |frame| {
            let Some(len) = frame.get(8..10) else {
                return;
            };
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            if let Some(covered) = frame.get(8..len) {
                let checksum = crc32c::crc32c(covered);
                frame[4..8].copy_from_slice(&checksum.to_le_bytes());
            }
        },
        // Fields of later builds are ignored.
        is_exact: false,
        ..Decoder::plain(
            "event::Event::decode",
            |bytes| Event::decode(bytes).map(|(event, _)| event.encode()),
            samples.iter().map(Event::encode).collect(),
        )
    }
}

pub(crate) fn decoders() -> Vec<Decoder> {
    let mut all = records();
    all.extend(records_of_quotas());
    all.extend(records_of_scrubs());
    all.extend(keys());
    all.extend(journal_records());
    all.extend(frames());
    all.extend([superblock(), names(), keys_of_quotas(), events()]);
    all.extend([keys_of_directory_codes(), record_of_directory_codes()]);
    all
}

/// Decodes what a fuzzer found: the first byte chooses the decoder. It reads the rest as it is, and with its checksum
/// made right.
pub(crate) fn try_input(decoders: &[Decoder], input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else {
        return;
    };
    let decoder = &decoders[usize::from(*which) % decoders.len()];
    drop(decoder.run(bytes));
    let mut sealed = bytes.to_vec();
    (decoder.seal)(&mut sealed);
    drop(decoder.run(&sealed));
}

/// Inputs that a fuzzer found worth keeping; the samples of all decoders are among them.
fn corpus() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/decoders")
}

#[test]
fn every_input_of_the_corpus_is_decoded_or_refused() {
    let decoders = decoders();
    let mut tried = 0;
    for entry in std::fs::read_dir(corpus()).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        try_input(&decoders, &std::fs::read(path).unwrap());
        tried += 1;
    }
    assert!(tried >= decoders.len(), "{tried} inputs");
}

#[test]
#[ignore = "adds the samples of all decoders to the corpus"]
fn add_samples_to_the_corpus() {
    for (which, decoder) in (0u8..).zip(decoders()) {
        for (number, sample) in decoder.samples.iter().enumerate() {
            let name = decoder.name.replace("::", "-");
            let input = [&[which], &sample[..]].concat();
            std::fs::write(corpus().join(format!("{name}-{number}")), input).unwrap();
        }
    }
}

#[test]
fn no_decoder_panics_takes_much_memory_or_overlooks_damage() {
    let seed = std::env::var("CAUCHYFS_SEED")
        .map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
    println!("CAUCHYFS_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for decoder in decoders() {
        decoder.try_samples();
        decoder.try_random(&mut rng);
    }
}

/// The bytes of the journal decide how much memory a record takes, never the offsets in it.
#[test]
fn stripe_data_is_bounded_by_the_geometry_and_takes_no_more_than_its_bytes() {
    const STRIPE: u32 = 4 << 20;
    for (offset, is_possible) in [
        (0, true),
        (STRIPE - 16, true),
        (STRIPE - 15, false),
        (MAX_STRIPE_BYTES - 16, false),
        (0xffff_fff0, false),
        (u32::MAX, false),
    ] {
        let record = JournalRecord {
            header: journal_header(),
            entries: vec![],
            data: vec![StripeData {
                stripe: StripeId(4),
                offset,
                bytes: Bytes::from_static(&[7; 16]),
            }],
        };
        let bytes = Bytes::from(encoded(&record));
        LARGEST.set(0);
        let within = journal::decode_within(&bytes, STRIPE);
        let anywhere = journal::decode(&bytes);
        assert!(
            LARGEST.get() <= bytes.len() * BYTES_FOR_EACH,
            "offset {offset}"
        );
        assert_eq!(within.is_ok(), is_possible, "offset {offset}");
        let fits_any = offset <= MAX_STRIPE_BYTES - 16;
        assert_eq!(anywhere.is_ok(), fits_any, "offset {offset}");
        if let Ok(decoded) = within {
            assert_eq!(decoded, record);
        }
    }
}

/// Returns the names of the functions in a source file that decode bytes from a disk.
fn decoders_in(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut owner = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("impl") {
            let rest = rest.trim_start_matches("<'a>").trim_start();
            let name = |text: &str| {
                text.split(|c: char| !c.is_alphanumeric())
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            };
            match rest.strip_prefix("Record for ") {
                Some(record) => found.push(format!("record::{}", name(record))),
                None => owner = format!("{}::", name(rest)),
            }
        } else if line == "}" {
            owner.clear();
        } else if let Some(rest) = line.trim_start().strip_prefix("pub fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if name.starts_with("parse_") || name == "decode" || name == "open" {
                found.push(format!("{file}::{owner}{name}"));
            }
        }
    }
    found
}

fn collect(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && stem != "tests" {
            let text = std::fs::read_to_string(&path).unwrap();
            found.extend(decoders_in(&stem, &text));
        }
    }
}

#[test]
fn every_decoder_of_the_format_is_tried() {
    let mut there = BTreeSet::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut there,
    );
    let tried: BTreeSet<String> = decoders()
        .iter()
        .map(|decoder| decoder.name.to_owned())
        .collect();
    assert_eq!(
        there, tried,
        "decoders in src, and those that are tried here"
    );
}

#[test]
fn the_search_for_decoders_sees_functions_methods_and_records() {
    let text = "pub fn parse_a(key: &[u8]) {\n}\nimpl<'a> B<'a> {\n    pub fn open(x: u8) {\n    }\n}\nimpl Record for C {\n    fn decode() {\n    }\n}\npub fn decode() {\n}";
    assert_eq!(
        decoders_in("f", text),
        ["f::parse_a", "f::B::open", "record::C", "f::decode"]
    );
}
