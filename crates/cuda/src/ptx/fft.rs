//! The kernel that encodes by transforms of sixteen points, for generators of `rs-fft` with 9 to 16 parity shards. With 16 it
//! computes lost data shards as well, if these are a whole chunk: 16 in a row from a multiple of 16 on.
//!
//! The bits of equal weight are gathered in words first. So a product by a constant takes two instructions for each word,
//! and a sum one. For 64+16, that is half the instructions of a kernel that knows the matrix alone.

use cauchyfs_codec::{Matrix, Transforms};

use super::{
    kernel::{Kernel, Kind, Spread, WORD_BYTES},
    planes::{Planes, PlanesWriter},
    products::BITS,
    writer::{PtxWriter, lut, vector},
};

const TEXT: &str = include_str!("../../../../kernels/fft.ptx");

/// Points of a transform.
const SPAN: usize = 16;

/// The number of layers of a transform.
const LAYERS: u32 = SPAN.ilog2();

/// Sources that are loaded together: half a transform, so that their bits and the sums of all fit the registers.
const GROUP: usize = SPAN / 2;

/// Threads of a block.
const THREADS: usize = 256;

/// Bytes of a quad: the four words of a shard that a thread loads or stores by one instruction.
const QUAD_BYTES: usize = 16;

/// Bytes between the two quads of a thread: each warp accesses as many in a row.
const QUAD_DISTANCE: usize = 32 * QUAD_BYTES;

/// Bytes of a tile: those of each shard that a block takes at a time.
const TILE_BYTES: usize = THREADS * 2 * QUAD_BYTES;

/// Bytes of shared memory that one quad of all threads takes.
const ROW: usize = THREADS * QUAD_BYTES;

/// Bytes of shared memory of a group of sources.
const STAGE: usize = GROUP * 2 * ROW;

/// Groups that are on their way while another is worked on.
const STAGES: usize = 2;

/// Bytes of shared memory of a block.
const RING: usize = STAGES * STAGE;

/// The fewest sources that fill the ring before a tile ends.
const FEWEST_SOURCES: usize = (STAGES - 1) * GROUP + 1;

/// The most sources for which the code of both kinds fits the cache of instructions.
pub(super) const MOST_SOURCES: usize = 104;

/// Returns the transforms that apply a matrix, if the kernel knows them.
fn transforms(matrix: &Matrix) -> Option<Transforms> {
    let sources = matrix.columns();
    if !(FEWEST_SOURCES..=MOST_SOURCES).contains(&sources) {
        return None;
    }
    let transforms = Transforms::of(matrix)?;
    let is_together = |group: usize| {
        let (first, last) = (group * GROUP, sources.min((group + 1) * GROUP) - 1);
        let points = [first, last].map(|source| transforms.source_point(source));
        points[0].is_multiple_of(GROUP) && points[1] == points[0] + (last - first)
    };
    let is_known = transforms.span() == SPAN && (0..sources.div_ceil(GROUP)).all(is_together);
    is_known.then_some(transforms)
}

/// Returns the kernel that applies a matrix, or nothing if transforms do not compute it or another kernel is as fast.
pub(super) fn print(matrix: &Matrix, kind: Kind) -> Option<(String, Kernel)> {
    let mut printer = Printer {
        transforms: transforms(matrix)?,
        sources: matrix.columns(),
        targets: matrix.rows(),
        kind,
        writer: PlanesWriter::new(PtxWriter::new(Kind::Write, BITS)),
    };
    let name = "encode_by_transforms";
    let kernel = Kernel {
        name: name.to_owned(),
        threads: THREADS,
        bytes: TILE_BYTES / THREADS,
        spread: Spread::Persistent { shared_bytes: RING },
    };
    Some((printer.print(name), kernel))
}

struct Printer {
    transforms: Transforms,
    sources: usize,
    targets: usize,
    kind: Kind,
    writer: PlanesWriter,
}

/// The registers of a source of the group.
fn source(index: usize) -> Planes {
    Planes::new("x", index)
}

/// The registers of the sum at a point.
fn sum(index: usize) -> Planes {
    Planes::new("c", index)
}

impl Printer {
    fn print(&mut self, name: &str) -> String {
        let groups = self.sources.div_ceil(GROUP);
        let first_groups: String = (0..STAGES)
            .map(|stage| self.copy(&format!("$copied_{stage}")))
            .collect();
        let load = self.load();
        let transpose = self.part(|printer| {
            (0..GROUP).for_each(|index| printer.writer.transpose(&source(index)));
        });
        let next_group = self.copy("$copied");
        let choose = self.part(|printer| printer.choose(0..groups));
        let bodies = self.part(|printer| (0..groups).for_each(|group| printer.group(group)));
        let evaluate = self.part(Self::evaluate);
        let deliver = self.part(Self::deliver);
        let writer = std::mem::replace(&mut self.writer.lines, PtxWriter::new(Kind::Write, BITS));
        let (registers, _) = writer.finish(0);
        let registers = format!(
            "{registers}\n    .reg .b32 %x<{}>, %c<{}>, %m<{BITS}>, %v<{BITS}>, %difference;",
            GROUP * BITS,
            SPAN * BITS
        );
        TEXT.replace("{name}", name)
            .replace("{threads}", &THREADS.to_string())
            .replace("{tile}", &TILE_BYTES.to_string())
            .replace("{tile_shift}", &TILE_BYTES.ilog2().to_string())
            .replace("{row}", &ROW.to_string())
            .replace("{ring}", &RING.to_string())
            .replace("{groups_ahead}", &STAGES.to_string())
            .replace("{groups_left}", &(STAGES - 1).to_string())
            .replace("{groups_of_tile}", &groups.to_string())
            .replace("{registers}", &registers)
            .replace(
                "{first_place}",
                &place("%ahead", "%from", ["%low", "%high"]),
            )
            .replace("{place}", &place("%tile", "%to", ["%is_low", "%is_high"]))
            .replace("{first_groups}", &first_groups)
            .replace("{load}", &load)
            .replace("{transpose}", &transpose)
            .replace("{next_group}", &next_group)
            .replace("{choose}", &choose)
            .replace("{groups}", &bodies)
            .replace("{evaluate}", &evaluate)
            .replace("{deliver}", &deliver)
    }

    /// Returns the lines that `print` adds.
    fn part(&mut self, print: impl FnOnce(&mut Self)) -> String {
        print(self);
        self.writer.lines.take()
    }

    fn line(&mut self, line: &str) {
        self.writer.lines.line(line);
    }

    /// Returns lines that begin to copy the next group to the slot of the one that was read. They go on to the group
    /// behind it.
    fn copy(&mut self, label: &str) -> String {
        let groups = self.sources.div_ceil(GROUP);
        self.part(|printer| {
            printer.line("add.u32 %slot, %own, %fill;");
            for index in 0..GROUP {
                let [low, high] = [2 * index, 2 * index + 1].map(|row| row * ROW);
                printer.line(&format!(
                    "@%low cp.async.cg.shared.global [%slot+{low}], [%from], {QUAD_BYTES};"
                ));
                printer.line(&format!(
                    "@%high cp.async.cg.shared.global [%slot+{high}], [%from+{QUAD_DISTANCE}], {QUAD_BYTES};"
                ));
                printer.line("add.u64 %from, %from, %pitch;");
            }
            printer.line("cp.async.commit_group;");
            printer.line(&format!("add.u32 %fill, %fill, {STAGE};"));
            printer.line(&format!("setp.eq.u32 %last, %fill, {RING};"));
            printer.line("@%last mov.u32 %fill, 0;");
            printer.line("add.u32 %next, %next, 1;");
            printer.line(&format!("setp.lt.u32 %more, %next, {groups};"));
            printer.line(&format!("@%more bra {label};"));
            printer.line("mov.u32 %next, 0;");
            printer.line("add.u32 %ahead, %ahead, %step;");
            for line in place("%ahead", "%from", ["%low", "%high"]).lines() {
                printer.line(line.trim_start());
            }
            printer.writer.lines.label(label);
        })
    }

    /// Returns lines that read a group of sources from shared memory.
    fn load(&mut self) -> String {
        self.part(|printer| {
            for index in 0..GROUP {
                let source = source(index);
                let quads = source.names().chunks(QUAD_BYTES / WORD_BYTES);
                for (half, words) in quads.enumerate() {
                    let (vector, list) = vector(words);
                    let at = (2 * index + half) * ROW;
                    printer.line(&format!("ld.shared{vector}.u32 {list}, [%slot+{at}];"));
                }
            }
        })
    }

    /// Adds branches to the code of the current group, one of a range.
    fn choose(&mut self, groups: std::ops::Range<usize>) {
        if groups.len() == 1 {
            self.line(&format!("bra $group_{};", groups.start));
            return;
        }
        let middle = groups.start + groups.len() / 2;
        let upper = format!("$from_{middle}_of_{}", groups.len());
        self.line(&format!("setp.ge.u32 %more, %group, {middle};"));
        self.line(&format!("@%more bra {upper};"));
        self.choose(groups.start..middle);
        self.writer.lines.label(&upper);
        self.choose(middle..groups.end);
    }

    /// Adds what a group of sources contributes to the sums of all coefficients.
    fn group(&mut self, group: usize) {
        self.writer.lines.label(&format!("$group_{group}"));
        let present = GROUP.min(self.sources - group * GROUP);
        (present..GROUP).for_each(|index| self.writer.clear(&source(index)));
        let first = self.transforms.source_point(group * GROUP);
        for layer in 0..LAYERS - 1 {
            let distance = 1 << layer;
            for a in (0..GROUP).filter(|index| index & distance == 0) {
                let factor = self.transforms.factor(first + a, layer);
                let (a, b) = (source(a), source(a + distance));
                self.writer.add(&b, &a);
                self.writer.add_product(&a, &b, factor);
            }
        }
        // The last layer, between this half and the other: what both add to each of its places.
        let is_first_half = first.is_multiple_of(SPAN);
        let factor = self.transforms.factor(first, LAYERS - 1) ^ u8::from(is_first_half);
        for index in 0..GROUP {
            let (low, high) = (sum(index), sum(index + GROUP));
            if group == 0 {
                self.writer.set_product(&low, &source(index), factor);
                self.writer.set(&high, &source(index));
            } else {
                self.writer.add_product(&low, &source(index), factor);
                self.writer.add(&high, &source(index));
            }
        }
        self.line("bra $joined;");
    }

    /// Turns the sums into the values at the points of the targets.
    fn evaluate(&mut self) {
        for layer in (0..LAYERS).rev() {
            let distance = 1 << layer;
            for a in (0..SPAN).filter(|index| index & distance == 0) {
                let factor = self
                    .transforms
                    .factor(self.transforms.target_point(a), layer);
                let (a, b) = (sum(a), sum(a + distance));
                self.writer.add_product(&a, &b, factor);
                self.writer.add(&b, &a);
            }
        }
        (0..self.targets).for_each(|target| self.writer.transpose(&sum(target)));
    }

    /// Writes the targets, or compares them with those that are there.
    fn deliver(&mut self) {
        if self.kind == Kind::Compare {
            self.masks();
            self.line("mul.wide.u32 %wide, %blocks, 4;");
        }
        for target in 0..self.targets {
            let words = sum(target);
            match self.kind {
                Kind::Write => self.write(words.names()),
                Kind::Compare => self.compare(words.names()),
            }
            self.line("add.u64 %to, %to, %pitch;");
        }
    }

    fn write(&mut self, words: &[String]) {
        for (quad, words) in quads(words) {
            let (vector, list) = vector(words);
            let Quad { is_there, at } = quad;
            self.line(&format!(
                "@{is_there} st.global.cs{vector}.u32 [%to+{at}], {list};"
            ));
        }
    }

    /// Makes masks of the bytes of this thread's words that lie within the shard.
    fn masks(&mut self) {
        self.line("sub.u32 %difference, %bytes, %at;");
        for word in 0..BITS {
            let byte = word * WORD_BYTES;
            let (quad, byte_of_quad) = (byte / QUAD_BYTES, byte % QUAD_BYTES);
            let offset = quad * QUAD_DISTANCE + byte_of_quad;
            for line in [
                format!("sub.s32 %m{word}, %difference, {offset};"),
                format!("max.s32 %m{word}, %m{word}, 0;"),
                format!("min.s32 %m{word}, %m{word}, {WORD_BYTES};"),
                format!("shl.b32 %m{word}, %m{word}, 3;"),
                // A shift by all 32 bits gives 0 in PTX, so that the mask is of all bits.
                format!("shl.b32 %m{word}, %one, %m{word};"),
                format!("sub.u32 %m{word}, %m{word}, 1;"),
            ] {
                self.line(&line);
            }
        }
    }

    fn compare(&mut self, words: &[String]) {
        let there = Planes::new("v", 0);
        self.writer.clear(&there);
        for (quad, there) in quads(there.names()) {
            let (vector, list) = vector(there);
            let Quad { is_there, at } = quad;
            self.line(&format!(
                "@{is_there} ld.global.nc{vector}.u32 {list}, [%to+{at}];"
            ));
        }
        self.line("mov.u32 %difference, 0;");
        for (word, (own, there)) in words.iter().zip(there.names()).enumerate() {
            let mask = format!("%m{word}");
            self.writer
                .lines
                .lop3(there, [own, there, &mask], lut::DIFFERENCE);
            self.line(&format!("or.b32 %difference, %difference, {there};"));
        }
        self.line("setp.ne.u32 %differs, %difference, 0;");
        self.line("@%differs st.global.u32 [%w], %one;");
        self.line("add.u64 %w, %w, %wide;");
    }
}

/// One of the two quads of a thread.
struct Quad {
    /// The predicate that is true if it begins within the shard.
    is_there: &'static str,
    /// Bytes from the thread's first one on.
    at: usize,
}

/// Returns the quads of a thread, each with its words.
fn quads(words: &[String]) -> impl Iterator<Item = (Quad, &[String])> {
    let quads = [("%is_low", 0), ("%is_high", QUAD_DISTANCE)];
    let quads = quads.map(|(is_there, at)| Quad { is_there, at });
    quads.into_iter().zip(words.chunks(QUAD_BYTES / WORD_BYTES))
}

/// Returns lines that find the thread's place in a tile: its address in the first source, and predicates that tell whether
/// each quad begins within the shard. Beyond the last tile, none does.
fn place(tile: &str, address: &str, [low, high]: [&str; 2]) -> String {
    [
        format!("div.u32 %stripe, {tile}, %tiles;"),
        "mul.lo.u32 %index, %stripe, %tiles;".to_owned(),
        format!("sub.u32 %at, {tile}, %index;"),
        format!("shl.b32 %at, %at, {};", TILE_BYTES.ilog2()),
        "add.u32 %at, %at, %column;".to_owned(),
        format!("add.u32 %second, %at, {QUAD_DISTANCE};"),
        "cvt.u64.u32 %wide, %stripe;".to_owned(),
        format!("mad.lo.u64 {address}, %wide, %stride, %stripes;"),
        "cvt.u64.u32 %wide, %at;".to_owned(),
        format!("add.u64 {address}, {address}, %wide;"),
        format!("setp.lt.u32 %more, {tile}, %total;"),
        format!("setp.lt.u32 {low}, %at, %bytes;"),
        format!("and.pred {low}, {low}, %more;"),
        format!("setp.lt.u32 {high}, %second, %bytes;"),
        format!("and.pred {high}, {high}, %more;"),
    ]
    .map(|line| format!("    {line}"))
    .join("\n")
}
