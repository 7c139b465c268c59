//! Amounts of memory, storage and CPUs, as text with a unit or as bare numbers.

/// Largest amount of memory or storage, MiB: an exbibyte, which still fits in bytes.
pub(crate) const MAX_MIB: u64 = 1 << 40;

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

/// Why an amount of a key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AmountError {
    /// It is no amount.
    Invalid,
    /// It is less than a MiB: most likely another unit is meant.
    UnderMebibyte,
}

/// Values that [`cpus`] accepts, for messages.
pub(crate) const EXPECTED_CPUS: &str =
    "a number of CPUs above 0, at most 65536 (`2`, `1.5`, `500m`)";

/// Reads an amount of memory or storage of an option, as Docker does. Units count in powers of 1024
/// whether written `G`, `GB`, `Gi` or `GiB`, in any case.
pub(crate) fn mebibytes(text: &str) -> Option<Mebibytes> {
    let (number, unit) = split(text)?;
    let (bytes, guessed) = match unit {
        "" => bare_bytes(number),
        unit => (number * unit_bytes(unit)?, false),
    };
    whole_mebibytes(bytes).map(|mib| Mebibytes { mib, guessed })
}

/// Reads an amount of memory or storage of a key, also as Kubernetes writes it: with an exponent
/// (`1e9` bytes), or in thousandths of a byte (`128974848000m`). Other units are those of options.
pub(crate) fn quantity(text: &str) -> Result<Mebibytes, AmountError> {
    let (number, unit) = split(text).ok_or(AmountError::Invalid)?;
    let (number, unit, has_exponent) = match exponent(unit) {
        Some(power) => (number * 10f64.powi(power), "", true),
        None => (number, unit, false),
    };
    let (bytes, guessed) = match unit {
        "" if has_exponent => (number, false),
        "" => bare_bytes(number),
        "m" => (number / 1000.0, false),
        unit => (number * unit_bytes(unit).ok_or(AmountError::Invalid)?, false),
    };
    let mib = whole_mebibytes(bytes).ok_or(AmountError::Invalid)?;
    if bytes < MIB { Err(AmountError::UnderMebibyte) } else { Ok(Mebibytes { mib, guessed }) }
}

/// The bytes of a number without unit, and whether it was taken as MiB.
fn bare_bytes(number: f64) -> (f64, bool) {
    if number >= MIN_BARE_BYTES { (number, false) } else { (number * MIB, true) }
}

/// Bytes of a unit.
fn unit_bytes(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    if unit == "b" {
        return Some(1.0);
    }
    let power = "kmgtpe".find(unit.get(..1)?)? as i32 + 1;
    matches!(unit.get(1..)?, "" | "b" | "i" | "ib").then(|| 1024f64.powi(power))
}

/// The power of ten that follows a number: `e9`, `E-3`.
fn exponent(unit: &str) -> Option<i32> {
    let digits = unit.strip_prefix(['e', 'E'])?;
    let is_number = digits.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit());
    digits.parse::<i32>().ok().filter(|_| is_number)
}

/// Bytes as MiB, rounded up.
fn whole_mebibytes(bytes: f64) -> Option<u64> {
    let mib = (bytes / MIB).ceil();
    (bytes > 0.0 && mib <= MAX_MIB as f64).then_some((mib as u64).max(1))
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
            ("1024T", Some((1 << 30, false))),
            ("1Ei", Some((MAX_MIB, false))),
            ("1025Pi", None),
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
    fn memory_of_keys_is_read_as_kubernetes_writes_it() {
        let ok = |mib| Ok((mib, false));
        for (text, expected) in [
            ("1e9", ok(954)),
            ("1E9", ok(954)),
            ("1.5e+9", ok(1431)),
            ("128974848000m", ok(123)),
            ("1Ei", ok(MAX_MIB)),
            ("2P", ok(2 << 30)),
            ("129M", ok(129)),
            ("123Mi", ok(123)),
            ("2G", ok(2048)),
            ("2048", Ok((2048, true))),
            ("2147483648", ok(2048)),
            ("500m", Err(AmountError::UnderMebibyte)),
            ("1e3", Err(AmountError::UnderMebibyte)),
            ("1K", Err(AmountError::UnderMebibyte)),
            ("512B", Err(AmountError::UnderMebibyte)),
            ("1e-9", Err(AmountError::UnderMebibyte)),
            ("2Ei", Err(AmountError::Invalid)),
            ("1e99", Err(AmountError::Invalid)),
            ("1e9Mi", Err(AmountError::Invalid)),
            ("1e+", Err(AmountError::Invalid)),
            ("0", Err(AmountError::Invalid)),
            ("0m", Err(AmountError::Invalid)),
            ("-1Gi", Err(AmountError::Invalid)),
            ("lots", Err(AmountError::Invalid)),
        ] {
            let got = quantity(text).map(|amount| (amount.mib, amount.guessed));
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
            prop_assert!(quantity(&text).ok().is_none_or(|m| (1..=MAX_MIB).contains(&m.mib)));
            prop_assert!(cpus(&text).is_none_or(|n| (1..=MAX_CPUS).contains(&n)));
        }
    }
}
