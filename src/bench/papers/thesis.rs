//! The thesis on the random code: how long it takes to decode one message, and many.

use super::site::PapersSite;
use super::table::{Missing, PaperRow, Source, Table, Unit};
use crate::bench::BenchError;
use crate::bench::rateless::{
    self, BulkRow, Decoder, GpuRow, MessagePlace, Pattern, RatelessReport, RatelessWishes,
    SingleRow,
};

/// Source packets of one message, and the thesis's milliseconds of serial elimination.
const SERIAL: [(usize, f64); 3] = [(32, 4.99), (512, 527.0), (1024, 2057.0)];

/// The hardware of these figures.
const CPU: &str = "Xeon E3";

/// Source packets of one message, and how many times as fast as serial elimination the thesis's best decoder is.
const BEST: (usize, f64) = (1024, 26.0);

/// Messages of 32 packets, and the same for these.
const BEST_OF_MANY: (usize, f64) = (1024, 60.0);

/// Source packets of each of many messages.
const BULK: usize = 32;

/// The most messages.
const MOST_MESSAGES: usize = 65_536;

/// The hardware of the best decoder of one message.
const GPU: &str = "Quadro K620";

/// Measures what this source has figures for.
///
/// # Errors
///
/// [`BenchError`] if this machine cannot measure it.
pub(super) fn measure(site: &PapersSite) -> Result<Table, BenchError> {
    let packets = SERIAL.map(|(packets, _)| packets);
    let report = run(site, &packets, BEST_OF_MANY.0)?;
    let most = match run(site, &[], MOST_MESSAGES) {
        Ok(report) => Ok(report),
        Err(BenchError::MessageMemory { .. } | BenchError::NoRoom { .. }) => Err(Missing::NoMemory),
        Err(error) => return Err(error),
    };
    let mut rows = one_message(&report.single);
    for (packets, _) in SERIAL {
        rows.extend(on_gpu(
            (packets, 1),
            Pattern::Different,
            gpu_rows(Ok(&report)),
        ));
    }
    for (messages, report) in [
        (BEST_OF_MANY.0, Ok(&report)),
        (MOST_MESSAGES, most.as_ref().map_err(|missing| *missing)),
    ] {
        rows.extend(many_messages(
            messages,
            report.map(|report| &report.bulk[..]),
        ));
        for pattern in Pattern::ALL {
            rows.extend(on_gpu((BULK, messages), pattern, gpu_rows(report)));
        }
    }
    Ok(Table {
        source: Source::Thesis,
        title: "S. R. Chong, Studies to improve the process of decoding rateless erasure code with highly-parallel \
                GPU architecture",
        rows,
        notes: vec![
            "Packets of 8,192 bits, ten more than k. Times: over serial elimination, one bit a step, in the same run.",
            "The thesis's best decoders run on a GPU; ours on the CPU, and in other rows on a GPU.",
            "Not found: tables 2.1 and 4.1, so its best decoder for k=32 and k=512, and for 65,536 messages.",
        ],
    })
}

fn run(
    site: &PapersSite,
    packets: &[usize],
    messages: usize,
) -> Result<rateless::RatelessReport, BenchError> {
    let wishes = RatelessWishes {
        packets: packets.to_vec(),
        messages: vec![messages],
        trials: 1,
        seconds: site.time.as_secs_f64(),
    };
    rateless::run_on(site.gpus.as_ref(), &wishes, |_, _| ())
}

/// Returns the rows of one message.
fn one_message(measured: &[SingleRow]) -> Vec<PaperRow> {
    let mut rows = Vec::new();
    for (packets, published) in SERIAL {
        let of_base = |row: &&SingleRow| row.packets == packets && row.decoder == Decoder::Serial;
        if let Some(base) = measured.iter().find(of_base) {
            let quantity = format!("one message, k={packets}: serial elimination");
            let row = PaperRow::new(quantity, Unit::Ms, Ok(base.median_us / 1e3));
            rows.push(row.beside(published, CPU));
        }
        let of_size = measured.iter().filter(|row| row.packets == packets);
        if let Some(best) = of_size.max_by(|a, b| a.speed_up.total_cmp(&b.speed_up)) {
            let (decoder, threads) = (best.decoder.name(), best.threads);
            let quantity =
                format!("one message, k={packets}: best decoder ({decoder}, threads: {threads})");
            let row = PaperRow::new(quantity, Unit::Times, Ok(best.speed_up));
            rows.push(match BEST {
                (of, published) if of == packets => row.beside(published, GPU),
                _ => row,
            });
        }
    }
    rows
}

/// Returns the rows of so many messages by one call: those of patterns that were measured, or of all with the reason
/// why none was.
fn many_messages(messages: usize, measured: Result<&[BulkRow], Missing>) -> Vec<PaperRow> {
    let mut all = Vec::new();
    for pattern in Pattern::ALL {
        let fits = |row: &&BulkRow| row.messages == messages && row.numbers == pattern;
        let rates = measured.map(|rows| rows.iter().filter(fits).map(|row| row.speed_up));
        let best = rates.map(|rates| rates.max_by(f64::total_cmp));
        let Some(best) = best.transpose() else {
            continue;
        };
        let numbers = pattern.name();
        let quantity = format!("{messages} messages, k=32, {numbers} numbers: best");
        let row = PaperRow::new(quantity, Unit::Times, best);
        all.push(match (BEST_OF_MANY, pattern) {
            ((of, published), Pattern::Different) if of == messages => row.beside(published, "GPU"),
            _ => row,
        });
    }
    all
}

/// Returns the rows of a GPU in a report, or the reason why there are none.
fn gpu_rows(report: Result<&RatelessReport, Missing>) -> Result<&[GpuRow], Missing> {
    let report = report?;
    match report.gpu {
        Some(_) => Ok(&report.on_gpu),
        None => Err(Missing::NoGpu),
    }
}

/// Returns the rows of a GPU for so many messages of so many source packets: kernels alone, and from pinned memory.
fn on_gpu(
    (packets, messages): (usize, usize),
    pattern: Pattern,
    measured: Result<&[GpuRow], Missing>,
) -> Vec<PaperRow> {
    let of = match messages {
        1 => format!("one message, k={packets}"),
        _ => format!(
            "{messages} messages, k={packets}, {} numbers",
            pattern.name()
        ),
    };
    let published = match (messages, pattern) {
        (1, _) => (packets == BEST.0).then_some((BEST.1, GPU)),
        (_, Pattern::Different) => (messages == BEST_OF_MANY.0).then_some((BEST_OF_MANY.1, "GPU")),
        (_, Pattern::Equal) => None,
    };
    let mut rows = Vec::new();
    for (is_kernel, name) in [(true, "kernels alone"), (false, "from pinned memory")] {
        let fits = |row: &&GpuRow| {
            (row.packets, row.messages, row.numbers) == (packets, messages, pattern)
                && (row.place == MessagePlace::Gpu) == is_kernel
        };
        let rates = measured.map(|rows| rows.iter().filter(fits).map(|row| row.speed_up));
        let best = rates.map(|rates| rates.max_by(f64::total_cmp));
        let Some(best) = best.transpose() else {
            continue;
        };
        let row = PaperRow::new(format!("{of}: GPU, {name}"), Unit::Times, best);
        rows.push(match published {
            Some((figure, hardware)) if !is_kernel => row.beside(figure, hardware),
            _ => row,
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(decoder: Decoder, threads: usize, median_us: f64) -> SingleRow {
        SingleRow {
            packets: 1024,
            received: 1034,
            decoder,
            threads,
            median_us,
            base_us: 1_028_500.0,
            speed_up: 1_028_500.0 / median_us,
            gb_per_s: 1.0,
        }
    }

    fn bulk(numbers: Pattern, messages: usize, speed_up: f64) -> BulkRow {
        BulkRow {
            packets: 32,
            received: 42,
            messages,
            numbers,
            threads: 1,
            complete: messages,
            median_us: 1.0,
            message_us: 1.0,
            base_us: 1.0,
            speed_up,
            copy_speed_up: None,
            gb_per_s: 1.0,
        }
    }

    #[test]
    fn the_best_decoder_of_a_message_stands_beside_the_source_s() {
        let measured = [
            single(Decoder::Serial, 1, 1_028_500.0),
            single(Decoder::Tables, 1, 10_285.0),
            single(Decoder::Tables, 2, 1028.5),
            single(Decoder::Words, 1, 20_000.0),
        ];
        let [serial, best] = &one_message(&measured)[..] else {
            panic!("two rows of k=1024, and none of sizes that were not measured");
        };
        assert_eq!((serial.ours, serial.ratio()), (Ok(1028.5), Some(2.0)));
        assert!(
            best.quantity.ends_with("(tables, threads: 2)"),
            "{}",
            best.quantity
        );
        assert_eq!(best.published.map(|published| published.figure), Some(26.0));
        assert!((best.ours.expect("measured") - 1000.0).abs() < 1e-9);
    }

    fn gpu(place: MessagePlace, (packets, messages): (usize, usize), speed_up: f64) -> GpuRow {
        GpuRow {
            packets,
            received: packets + 10,
            messages,
            numbers: Pattern::Different,
            place,
            complete: None,
            median_us: 1.0,
            message_us: 1.0,
            solve_us: None,
            base_us: 1.0,
            speed_up,
            gb_per_s: 1.0,
            bus_gb_per_s: None,
        }
    }

    #[test]
    fn the_way_from_pinned_memory_stands_beside_the_source_s_gpu() {
        let measured = [
            gpu(MessagePlace::Gpu, (1024, 1), 9000.0),
            gpu(MessagePlace::Pinned, (1024, 1), 2600.0),
            gpu(MessagePlace::Gpu, (32, 1024), 90_000.0),
            gpu(MessagePlace::Pinned, (32, 1024), 3000.0),
        ];
        let figures = |size, pattern, measured| {
            let rows = on_gpu(size, pattern, measured).into_iter();
            let figures = rows.map(|row| (row.ours, row.ratio()));
            figures.collect::<Vec<_>>()
        };
        let some = Ok(&measured[..]);
        let of_one = [(Ok(9000.0), None), (Ok(2600.0), Some(100.0))];
        assert_eq!(figures((1024, 1), Pattern::Different, some), of_one);
        let of_many = [(Ok(90_000.0), None), (Ok(3000.0), Some(50.0))];
        assert_eq!(figures((32, 1024), Pattern::Different, some), of_many);
        assert_eq!(figures((32, 1024), Pattern::Equal, some), []);
        let none = [(Err(Missing::NoGpu), None); 2];
        assert_eq!(
            figures((512, 1), Pattern::Different, Err(Missing::NoGpu)),
            none
        );
    }

    #[test]
    fn messages_with_numbers_of_their_own_are_compared_and_only_as_many_as_the_source_has() {
        let measured = [
            bulk(Pattern::Different, 1024, 120.0),
            bulk(Pattern::Different, 1024, 30.0),
            bulk(Pattern::Equal, 1024, 600.0),
            bulk(Pattern::Different, 65_536, 240.0),
        ];
        let figures = |messages, measured| {
            let rows = many_messages(messages, measured);
            let figures = rows.into_iter().map(|row| (row.ours, row.ratio()));
            figures.collect::<Vec<_>>()
        };
        let both = [(Ok(120.0), Some(2.0)), (Ok(600.0), None)];
        assert_eq!(figures(1024, Ok(&measured[..])), both);
        let only_different = [(Ok(240.0), None)];
        assert_eq!(figures(65_536, Ok(&measured[..])), only_different);
        let neither = [(Err(Missing::NoMemory), None); 2];
        assert_eq!(figures(65_536, Err(Missing::NoMemory)), neither);
    }
}
