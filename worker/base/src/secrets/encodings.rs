//! Encodings in which a secret may appear in stored data.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};

/// Shorter values are not treated as secrets: replacing them would spoil ordinary text.
pub(super) const MIN_SECRET_BYTES: usize = 4;

/// Shorter values are not searched for in Base64: the part that is the same in every alignment
/// would be too short to be significant.
const MIN_BASE64_BYTES: usize = 8;

/// Every form of `value` to search for; none if it is too short.
pub(super) fn encoded_forms(value: &str) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::new();
    if value.len() < MIN_SECRET_BYTES {
        return forms;
    }
    let bytes = value.as_bytes();
    forms.insert(bytes.to_vec());
    forms.insert(HEXLOWER.encode(bytes).into_bytes());
    forms.insert(HEXUPPER.encode(bytes).into_bytes());
    for json in [json(value, false), json(value, true)] {
        // JSON inside JSON: an event line that quotes a request.
        forms.insert(json_text(&json).into_bytes());
        forms.insert(json.into_bytes());
    }
    for kept in ["-._~", "-._~/", "-._~!'()*"] {
        forms.insert(percent(bytes, kept, false, false));
        forms.insert(percent(bytes, kept, true, false));
        forms.insert(percent(bytes, kept, false, true));
    }
    forms.extend(shell(value));
    joined(bytes, &mut forms);
    dumped(bytes, &mut forms);
    if bytes.len() >= MIN_BASE64_BYTES {
        for before in 0..3 {
            forms.insert(base64_core(&BASE64_NOPAD, bytes, before));
            forms.insert(base64_core(&BASE64URL_NOPAD, bytes, before));
        }
    }
    forms
}

/// The value inside a JSON string; `ascii` escapes all non-ASCII characters, as many writers do.
fn json(value: &str, ascii: bool) -> String {
    let text = json_text(value);
    if !ascii {
        return text;
    }
    let mut escaped = String::new();
    for c in text.chars() {
        if c.is_ascii() {
            escaped.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(escaped, "\\u{unit:04x}").expect("a string takes everything");
            }
        }
    }
    escaped
}

fn json_text(value: &str) -> String {
    let quoted = serde_json::to_string(value).expect("a string has a JSON form");
    quoted[1..quoted.len() - 1].to_owned()
}

/// Percent-encoding that leaves letters, digits and `kept` alone.
fn percent(bytes: &[u8], kept: &str, lower: bool, plus: bool) -> Vec<u8> {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b' ' if plus => text.push('+'),
            _ if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) => {
                text.push(char::from(byte));
            }
            _ if lower => write!(text, "%{byte:02x}").expect("a string takes everything"),
            _ => write!(text, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    text.into_bytes()
}

/// The value as shells quote it: `printf %q` with backslashes or in `$'…'`, with the octal numbers
/// of a shell without a locale, `'…'` as in `set` and `${x@Q}`, `"…"` as in `declare`. The quotes
/// themselves are not included.
fn shell(value: &str) -> [Vec<u8>; 7] {
    const BACKSLASHED: &str = "!\"$&'()*,;<>?[\\]^`{|} ";
    let escaped = |text: &str, set: &str| -> Vec<u8> {
        let escape = |c: char| if set.contains(c) { vec!['\\', c] } else { vec![c] };
        text.chars().flat_map(escape).collect::<String>().into_bytes()
    };
    let inside = escaped(value, BACKSLASHED);
    // These are special only at the start of a word.
    let begins = value.starts_with(['#', '~']);
    let alone = [if begins { &b"\\"[..] } else { b"" }, &inside].concat();
    [
        inside,
        alone,
        ansi_c(value, false),
        ansi_c(value, true),
        value.replace('\'', "'\\''").into_bytes(),
        value.replace('\'', "'\"'\"'").into_bytes(),
        escaped(value, "\"\\$`"),
    ]
}

/// The value inside `$'…'`; `octal` writes every non-ASCII byte as a number.
fn ansi_c(value: &str, octal: bool) -> Vec<u8> {
    let mut text = Vec::new();
    for &byte in value.as_bytes() {
        match byte {
            b'\'' | b'\\' => text.extend([b'\\', byte]),
            b'\n' => text.extend(b"\\n"),
            b'\r' => text.extend(b"\\r"),
            b'\t' => text.extend(b"\\t"),
            0x07 => text.extend(b"\\a"),
            0x08 => text.extend(b"\\b"),
            0x0b => text.extend(b"\\v"),
            0x0c => text.extend(b"\\f"),
            0x1b => text.extend(b"\\E"),
            0..0x20 | 0x7f => text.extend(format!("\\{byte:03o}").into_bytes()),
            0x80.. if octal => text.extend(format!("\\{byte:03o}").into_bytes()),
            _ => text.push(byte),
        }
    }
    text
}

/// Separators between bytes that are printed as numbers.
const HEX_SEPARATORS: [&str; 10] = [" ", "\n", ":", "-", ",", ", ", "%", "\\x", " 0x", ", 0x"];

/// Each byte as two hexadecimal digits with a separator between them, as loops around `printf`
/// write them.
fn joined(bytes: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    for between in HEX_SEPARATORS {
        for part in std::iter::once(bytes).chain(tiles(bytes)) {
            for digits in [HEXLOWER.encode(part), HEXUPPER.encode(part)] {
                forms.insert(groups(digits.as_bytes(), &[2], between));
            }
        }
    }
}

/// Bytes that are searched for together if the rest may be in another place or was not printed:
/// dump programs break lines anywhere and begin each line with an address.
const TILE: usize = 4;

/// Pieces of the value that together cover all of it.
fn tiles(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let last = bytes.len() - TILE;
    (0..last).step_by(TILE).chain([last]).map(move |start| &bytes[start..start + TILE])
}

/// Pieces of the value as `od`, `hexdump` and `xxd` print them: single bytes, pairs at either
/// alignment, and pairs with their bytes swapped.
fn dumped(bytes: &[u8], forms: &mut BTreeSet<Vec<u8>>) {
    let last = bytes.len() - TILE;
    for start in (0..last).step_by(TILE).chain([last]) {
        let tile = &bytes[start..start + TILE];
        for digits in [HEXLOWER.encode(tile), HEXUPPER.encode(tile)] {
            forms.insert(groups(digits.as_bytes(), &[4], " "));
            forms.insert(groups(digits.as_bytes(), &[2, 4], " "));
        }
        for start in [start, (start + 1).min(last)] {
            let pairs = bytes[start..start + TILE].chunks_exact(2);
            let swapped = pairs.flat_map(|pair| [pair[1], pair[0]]).collect::<Vec<_>>();
            forms.insert(groups(HEXLOWER.encode(&swapped).as_bytes(), &[4], " "));
        }
    }
}

/// Digits in groups of these sizes; the last size repeats.
fn groups(digits: &[u8], sizes: &[usize], between: &str) -> Vec<u8> {
    let (mut text, mut rest, mut sizes) = (Vec::new(), digits, sizes.iter().copied().peekable());
    let mut size = 1;
    while !rest.is_empty() {
        size = sizes.next().unwrap_or(size);
        let (group, left) = rest.split_at(size.min(rest.len()));
        if !text.is_empty() {
            text.extend_from_slice(between.as_bytes());
        }
        text.extend_from_slice(group);
        rest = left;
    }
    text
}

/// The Base64 digits that depend on `bytes` alone if `before` (0 to 2) bytes of the same group of
/// three precede them.
fn base64_core(encoding: &data_encoding::Encoding, bytes: &[u8], before: usize) -> Vec<u8> {
    let padded = [&[0; 2][..before], bytes].concat();
    let digits = encoding.encode(&padded).into_bytes();
    let start = (before * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    digits[start..end].to_vec()
}
