//! The results of a run, for machines (serde) and for people (Display).

use std::fmt;

use serde::Serialize;

/// Everything that one run measured. Serialized, it is what `bench rateless --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct RatelessReport {
    /// Name of the CPU, if the system tells it.
    pub cpu: Option<String>,
    /// Threads that run at once.
    pub threads: usize,
    /// The engine of the decoders by tables.
    pub engine: &'static str,
    /// Bits of a packet.
    pub packet_bits: usize,
    /// How many messages so many packets complete.
    pub completeness: Vec<CompletenessRow>,
    /// One message at a time.
    pub single: Vec<SingleRow>,
    /// Many messages by one call.
    pub bulk: Vec<BulkRow>,
    /// The name of the GPU, if there is one.
    pub gpu: Option<String>,
    /// One message and many on the GPU.
    pub on_gpu: Vec<GpuRow>,
}

/// The share of messages that so many packets complete.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CompletenessRow {
    /// Source packets: k.
    pub packets: usize,
    /// Packets that arrived: n.
    pub received: usize,
    /// Messages that were tried.
    pub messages: usize,
    /// The share of them that could be decoded.
    pub complete: f64,
    /// The probability of it: the product of 1 − 2⁻ⁱ for i from n − k + 1 to n.
    pub exact: f64,
}

/// A way to decode one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decoder {
    /// Elimination on (G|X), one bit a step: the base case.
    Serial,
    /// The same, 64 bits a step.
    Words,
    /// The message in eight parts of shorter packets.
    Parts,
    /// Elimination of G, then a product, both by tables.
    Tables,
    /// The same for packets that arrive one by one.
    Incremental,
}

impl Decoder {
    /// All of them, the base case first.
    pub const ALL: [Self; 5] = [
        Self::Serial,
        Self::Words,
        Self::Parts,
        Self::Tables,
        Self::Incremental,
    ];

    /// Returns the name for people.
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Words => "words",
            Self::Parts => "parts",
            Self::Tables => "tables",
            Self::Incremental => "incremental",
        }
    }
}

/// The time of one decoder for one message.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SingleRow {
    /// Source packets.
    pub packets: usize,
    /// Packets that arrived.
    pub received: usize,
    /// The decoder.
    pub decoder: Decoder,
    /// Threads.
    pub threads: usize,
    /// Median time, in microseconds.
    pub median_us: f64,
    /// The same of the base case.
    pub base_us: f64,
    /// The time of the base case, divided by this one.
    pub speed_up: f64,
    /// Bytes of source packets, in 10⁹ a second.
    pub gb_per_s: f64,
}

/// The numbers of the packets of messages in bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Each message has other ones.
    Different,
    /// All messages have the same ones.
    Equal,
}

impl Pattern {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Different, Self::Equal];

    /// Returns the name for people.
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Different => "different",
            Self::Equal => "equal",
        }
    }
}

/// The time of one call for many messages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BulkRow {
    /// Source packets of a message.
    pub packets: usize,
    /// Packets that arrived of each.
    pub received: usize,
    /// Messages of the call.
    pub messages: usize,
    /// The numbers of their packets.
    pub numbers: Pattern,
    /// Threads.
    pub threads: usize,
    /// Messages that could be decoded.
    pub complete: usize,
    /// Median time of a call, in microseconds.
    pub median_us: f64,
    /// The same for one message.
    pub message_us: f64,
    /// Median time of the base case for one message.
    pub base_us: f64,
    /// The time of the base case, divided by that of one message here.
    pub speed_up: f64,
    /// The same if one thread copied k packets of each message, one message after the other, and did nothing else.
    pub copy_speed_up: Option<f64>,
    /// Bytes of source packets, in 10⁹ a second.
    pub gb_per_s: f64,
}

/// The place of messages that a GPU decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MessagePlace {
    /// The memory of the GPU: kernels alone.
    Gpu,
    /// Pinned memory of the machine, from where all packets are copied to the GPU. Results are copied back.
    Pinned,
}

impl MessagePlace {
    /// Returns the name for people.
    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "kernels",
            Self::Pinned => "pinned",
        }
    }
}

/// The time of one call of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GpuRow {
    /// Source packets of a message.
    pub packets: usize,
    /// Packets that arrived of each.
    pub received: usize,
    /// Messages of the call.
    pub messages: usize,
    /// The numbers of their packets.
    pub numbers: Pattern,
    /// The place of packets and results.
    pub place: MessagePlace,
    /// Messages that could be decoded, where results come back.
    pub complete: Option<usize>,
    /// Median time of a call, in microseconds.
    pub median_us: f64,
    /// The same for one message.
    pub message_us: f64,
    /// The part of it that eliminates the rows of all messages, where the GPU does so and kernels are measured alone.
    pub solve_us: Option<f64>,
    /// Median time of the base case for one message.
    pub base_us: f64,
    /// The time of the base case, divided by that of one message here.
    pub speed_up: f64,
    /// Bytes of source packets, in 10⁹ a second.
    pub gb_per_s: f64,
    /// The same of copies of as many bytes both ways, and nothing else.
    pub bus_gb_per_s: Option<f64>,
}

/// Four tables.
impl fmt::Display for RatelessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu.as_deref().unwrap_or("unknown CPU");
        let (threads, engine) = (self.threads, self.engine);
        writeln!(f, "{cpu}, {threads} threads, engine {engine}")?;
        if !self.completeness.is_empty() {
            writeln!(f, "\n     k      n   messages  complete     exact")?;
        }
        for row in &self.completeness {
            writeln!(
                f,
                "{:>6} {:>6} {:>10}  {:.6}  {:.6}",
                row.packets, row.received, row.messages, row.complete, row.exact
            )?;
        }
        let bits = self.packet_bits;
        writeln!(f, "\none message, packets of {bits} bits")?;
        writeln!(
            f,
            "     k      n  decoder      threads          µs  speed-up    GB/s"
        )?;
        for row in &self.single {
            writeln!(
                f,
                "{:>6} {:>6}  {:<11}  {:>7} {:>11.1} {:>8.1}× {:>7.3}",
                row.packets,
                row.received,
                row.decoder.name(),
                row.threads,
                row.median_us,
                row.speed_up,
                row.gb_per_s
            )?;
        }
        if !self.bulk.is_empty() {
            writeln!(
                f,
                "\nmany messages by one call\n     k      n  messages  numbers    threads  µs each  speed-up        copy    GB/s"
            )?;
        }
        for row in &self.bulk {
            let copy = row.copy_speed_up.map(|copy| format!("{copy:.1}×"));
            writeln!(
                f,
                "{:>6} {:>6} {:>9}  {:<9}  {:>7} {:>8.2} {:>8.1}× {:>11} {:>7.3}",
                row.packets,
                row.received,
                row.messages,
                row.numbers.name(),
                row.threads,
                row.message_us,
                row.speed_up,
                copy.unwrap_or_default(),
                row.gb_per_s
            )?;
        }
        self.write_gpu(f)?;
        writeln!(
            f,
            "\nmedians; speed-up: over serial elimination on (G|X), one bit a step, in this run; GB/s of source packets;\n\
             copy: the speed-up if a thread copied k packets of each message and did nothing else"
        )
    }
}

impl RatelessReport {
    /// Writes the table of the GPU.
    fn write_gpu(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(gpu) = &self.gpu else {
            return writeln!(f, "\nno GPU");
        };
        writeln!(
            f,
            "\n{gpu}\n     k      n  messages  numbers    from          µs each  elimination  speed-up      GB/s     bus"
        )?;
        for row in &self.on_gpu {
            let or_blank =
                |figure: Option<f64>| figure.map_or(String::new(), |f| format!("{f:.1}"));
            writeln!(
                f,
                "{:>6} {:>6} {:>9}  {:<9}  {:<7} {:>13.4} {:>12} {:>8.1}× {:>9.3} {:>7}",
                row.packets,
                row.received,
                row.messages,
                row.numbers.name(),
                row.place.name(),
                row.message_us,
                or_blank(row.solve_us),
                row.speed_up,
                row.gb_per_s,
                or_blank(row.bus_gb_per_s)
            )?;
        }
        writeln!(
            f,
            "\nkernels: in the memory of the GPU; pinned: from pinned memory and back; elimination: µs for all messages;\n\
             bus: GB/s of source packets if nothing but copies of as many bytes went both ways"
        )
    }
}
