//! The forms in which a value may appear in what we store.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use data_encoding::{BASE64_NOPAD, BASE64URL_NOPAD, HEXLOWER, HEXUPPER};

/// Shorter values are not secrets, and replacing them would spoil ordinary text.
pub(super) const SHORTEST: usize = 4;

/// Shorter values are not looked for in Base64: what is certain of them in every alignment would be
/// too short to mean anything.
const SHORTEST_BASE64: usize = 8;

/// Every form of `value` that is looked for; none if it is too short.
pub(super) fn forms(value: &str) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::new();
    if value.len() < SHORTEST {
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
    if bytes.len() >= SHORTEST_BASE64 {
        for before in 0..3 {
            forms.insert(base64_core(&BASE64_NOPAD, bytes, before));
            forms.insert(base64_core(&BASE64URL_NOPAD, bytes, before));
        }
    }
    forms
}

/// The value inside a JSON string; `ascii` escapes everything else, as many writers do.
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

/// The Base64 digits that `bytes` alone determines when `before` (0 to 2) bytes of the same group
/// of three stand in front of them.
fn base64_core(encoding: &data_encoding::Encoding, bytes: &[u8], before: usize) -> Vec<u8> {
    let padded = [&[0; 2][..before], bytes].concat();
    let digits = encoding.encode(&padded).into_bytes();
    let start = (before * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    digits[start..end].to_vec()
}
