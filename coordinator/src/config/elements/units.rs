//! Amounts of memory, storage and CPUs, as text with a unit or as bare numbers.

/// Largest amount of memory or storage, MiB: a pebibyte, above any host.
pub(crate) const MAX_MIB: u64 = 1 << 30;

/// Largest number of CPUs.
pub(crate) const MAX_CPUS: u32 = 65_536;

/// Bare numbers from here on are bytes, smaller ones MiB: a million MiB and a few hundred bytes are
/// both implausible.
const MIN_BARE_BYTES: f64 = 1_048_576.0;

const MIB: f64 = 1_048_576.0;

/// An amount of memory or storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mebibytes {
    /// The amount, at least 1, rounded up.
    pub(crate) mib: u64,
    /// Whether it was a small number without unit, taken as MiB.
    pub(crate) guessed: bool,
}

/// Values that [`mebibytes`] accepts, for messages.
pub(crate) const EXPECTED_MEBIBYTES: &str =
    "an amount above 0 with the unit B, K, M, G or T (`2G`, `512Mi`), or a number of MiB";

/// Values that [`cpus`] accepts, for messages.
pub(crate) const EXPECTED_CPUS: &str =
    "a number of CPUs above 0, at most 65536 (`2`, `1.5`, `500m`)";

/// Reads an amount of memory or storage. Units count in powers of 1024 whether written `G`, `GB`,
/// `Gi` or `GiB`, in any case.
pub(crate) fn mebibytes(text: &str) -> Option<Mebibytes> {
    let (number, unit) = split(text)?;
    let (bytes, guessed) = match unit.to_ascii_lowercase().as_str() {
        "" if number >= MIN_BARE_BYTES => (number, false),
        "" => (number * MIB, true),
        "b" => (number, false),
        unit => {
            let power = "kmgt".find(unit.get(..1)?)? as i32 + 1;
            if !matches!(unit.get(1..)?, "" | "b" | "i" | "ib") {
                return None;
            }
            (number * 1024f64.powi(power), false)
        }
    };
    let mib = (bytes / MIB).ceil();
    (number > 0.0 && mib <= MAX_MIB as f64).then(|| Mebibytes { mib: (mib as u64).max(1), guessed })
}

/// Reads a number of CPUs, rounded up to a whole number. `m` means thousandths.
pub(crate) fn cpus(text: &str) -> Option<u32> {
    let (number, unit) = split(text)?;
    let cpus = match unit {
        "" => number,
        "m" => number / 1000.0,
        _ => return None,
    };
    whole_cpus(cpus)
}

/// Rounds a number of CPUs up to a whole number.
pub(crate) fn whole_cpus(cpus: f64) -> Option<u32> {
    let whole = cpus.ceil();
    (cpus > 0.0 && whole <= f64::from(MAX_CPUS)).then_some(whole as u32)
}

/// Splits a number with an optional fraction from its unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    number.parse().ok().map(|number| (number, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_size_with_or_without_unit_is_converted_to_mib() {
        for (text, expected) in [
            ("2G", Some((2048, false))),
            ("2g", Some((2048, false))),
            ("2GB", Some((2048, false))),
            ("2Gi", Some((2048, false))),
            ("2GiB", Some((2048, false))),
            ("2048", Some((2048, true))),
            ("1048575", Some((1_048_575, true))),
            ("1048576", Some((1, false))),
            ("2147483648", Some((2048, false))),
            ("2147483648B", Some((2048, false))),
            ("512Mi", Some((512, false))),
            ("500m", Some((500, false))),
            ("1.5", Some((2, true))),
            ("1.5G", Some((1536, false))),
            ("1 GiB", Some((1024, false))),
            ("1K", Some((1, false))),
            ("1B", Some((1, false))),
            ("1T", Some((1_048_576, false))),
            ("1024T", Some((MAX_MIB, false))),
            ("1025T", None),
            ("0", None),
            ("0G", None),
            ("-1", None),
            ("-2G", None),
            ("", None),
            ("G", None),
            (".5G", None),
            ("1.2.3G", None),
            ("2X", None),
            ("2Gb/s", None),
            ("2GG", None),
            ("lots", None),
            ("2ä", None),
            ("1e9", None),
            ("99999999999999999999999999999", None),
        ] {
            let got = mebibytes(text).map(|m| (m.mib, m.guessed));
            assert_eq!(got, expected, "{text}");
        }
    }

    #[test]
    fn cpu_count_fractional_or_milli_is_rounded_up() {
        for (text, expected) in [
            ("1", Some(1)),
            ("2", Some(2)),
            ("1.5", Some(2)),
            ("500m", Some(1)),
            ("1500m", Some(2)),
            ("0.001", Some(1)),
            ("0", None),
            ("0m", None),
            ("-1", None),
            ("2G", None),
            ("many", None),
            ("", None),
            ("65537", None),
        ] {
            assert_eq!(cpus(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn memory_size_is_monotonic_and_never_zero(
            a in 0.000_1f64..1e6,
            b in 0.000_1f64..1e6,
            unit in prop::sample::select(vec!["B", "K", "Mi", "GB", "gib"]),
        ) {
            let (small, large) = if a <= b { (a, b) } else { (b, a) };
            let mib = |number: f64| mebibytes(&format!("{number:.6}{unit}")).map(|m| m.mib);
            let (small, large) = (mib(small), mib(large));
            prop_assert!(small.is_none_or(|mib| mib >= 1));
            if let (Some(small), Some(large)) = (small, large) {
                prop_assert!(small <= large);
            }
        }

        #[test]
        fn quantity_of_arbitrary_text_never_panics_or_is_zero(text in "\\PC*") {
            prop_assert!(mebibytes(&text).is_none_or(|m| (1..=MAX_MIB).contains(&m.mib)));
            prop_assert!(cpus(&text).is_none_or(|n| (1..=MAX_CPUS).contains(&n)));
        }
    }
}
