//! Sizes and counts as people write them.

/// The most digits after the point of a size.
const MOST_DECIMALS: usize = 12;

/// Parses `1048576`, `1M`, `1MB`, `1MiB` (all the same), `4 KiB` or `1.5GiB`; units are powers of 1024.
///
/// # Errors
///
/// A sentence, if it is no number, the unit is unknown, it is no whole number of bytes, or the result does not fit.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let is_number = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let (number, unit) = text.split_at(text.bytes().take_while(is_number).count());
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        other => {
            return Err(format!(
                "`{other}` is no unit of size; use KiB, MiB, GiB or TiB"
            ));
        }
    };
    let (digits, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let malformed = || format!("`{text}` is no size; write it like 64MiB, 1.5GiB or 65536");
    let decimals = decimals.trim_end_matches('0');
    if number.ends_with('.') || decimals.contains('.') || decimals.len() > MOST_DECIMALS {
        return Err(malformed());
    }
    let whole: u128 = digits.parse().map_err(|_| malformed())?;
    let part: u128 = format!("0{decimals}").parse().map_err(|_| malformed())?;
    // The parts of a unit of which there are a power of ten, so that nothing is rounded.
    let parts_of_unit = (0..decimals.len()).fold(1_u128, |parts, _| parts * 10);
    let too_large = || format!("`{text}` is too large");
    let parts = whole
        .checked_mul(parts_of_unit)
        .and_then(|parts| parts.checked_add(part)?.checked_mul(1 << shift))
        .ok_or_else(too_large)?;
    if parts % parts_of_unit != 0 {
        return Err(format!("`{text}` is no whole number of bytes"));
    }
    u64::try_from(parts / parts_of_unit).map_err(|_| too_large())
}

/// Writes a size with the largest unit that leaves a number of at least 1: `1.5 GiB`.
#[expect(
    clippy::cast_precision_loss,
    reason = "one decimal is shown, so the lost bits are invisible"
)]
pub(super) fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Writes a count of things, of which one is called `thing`: `1 file`, `2 files`.
pub(super) fn format_count(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_a_mebibyte_agree() {
        for text in [
            "1048576", "1024k", "1M", "1MB", "1MiB", "1 mib", " 1m ", "1.0M", "1024KB",
        ] {
            assert_eq!(parse_size(text), Ok(1 << 20), "{text}");
        }
    }

    #[test]
    fn a_fraction_of_a_unit_is_taken_if_it_is_a_whole_number_of_bytes() {
        for (text, bytes) in [
            ("4MB", 4 << 20),
            ("1.5GiB", 3 << 29),
            ("0.5k", 512),
            ("0.25 KiB", 256),
            ("2.000", 2),
            ("16777215.9990234375t", u64::MAX - (1 << 30) + 1),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["1.5", "0.1KiB", "1.0001k"] {
            let refused = parse_size(text).unwrap_err();
            assert!(refused.ends_with("no whole number of bytes"), "{refused}");
        }
    }

    #[test]
    fn a_malformed_size_is_refused_with_a_sentence() {
        for text in [
            "",
            "x",
            "-1",
            ".5M",
            "1.M",
            "1.5.5M",
            ".",
            "0.1234567890123T",
            "1 bushel",
            "99999999999999T",
            "99999999999999999999999999999999999999999T",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_unit_that_fits() {
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(1536), "1.5 KiB");
        assert_eq!(format_size(5 << 40), "5.0 TiB");
    }

    #[test]
    fn one_of_a_thing_is_not_many() {
        assert_eq!(format_count(0, "file"), "0 files");
        assert_eq!(format_count(1, "file"), "1 file");
        assert_eq!(format_count(12, "file"), "12 files");
    }
}
