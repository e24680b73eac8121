//! Sizes and counts as people write them.

/// Parses `1048576`, `1M`, `1MiB` (all the same) or `4 KiB`; units are powers of 1024.
///
/// # Errors
///
/// A sentence, if it is no number, the unit is unknown, or the result does not fit.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is no size; write it like 64MiB or 65536"))?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        other => {
            return Err(format!(
                "`{other}` is no unit of size; use KiB, MiB, GiB or TiB"
            ));
        }
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
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
        for text in ["1048576", "1024k", "1M", "1MiB", "1 mib", " 1m "] {
            assert_eq!(parse_size(text), Ok(1 << 20), "{text}");
        }
    }

    #[test]
    fn a_malformed_size_is_refused_with_a_sentence() {
        for text in ["", "x", "-1", "1.5M", "1 bushel", "99999999999999T"] {
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
