//! Quantities of resources.

/// Parses a quantity, such as `500m`, `2` or `1.5Gi`, in thousandths.
pub fn parse_milli(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let text = text.trim();
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .unwrap_or((text, 1.0));
    let number: f64 = number.parse().ok()?;
    (number >= 0.0).then(|| (number * factor * 1000.0).ceil() as u64)
}

/// A quantity in the form of the API.
pub fn format_milli(milli: u64) -> String {
    if !milli.is_multiple_of(1000) {
        return format!("{milli}m");
    }
    let mut number = milli / 1000;
    if number == 0 {
        return "0".to_owned();
    }
    for suffix in ["", "Ki", "Mi", "Gi", "Ti"] {
        if !number.is_multiple_of(1024) {
            return format!("{number}{suffix}");
        }
        number /= 1024;
    }
    format!("{number}Pi")
}
