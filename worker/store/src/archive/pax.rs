//! Extended headers of the pax format.

/// Fields of an extended header that apply to the next member.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct PaxHeader {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// The member's content is a map of holes and pieces, not the file itself.
    pub(super) sparse: bool,
}

impl PaxHeader {
    /// Parses records of the form `length key=value\n`; `None` when they are malformed.
    pub(super) fn parse(mut text: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        while !text.is_empty() {
            let space = text.iter().position(|byte| *byte == b' ')?;
            let length: usize = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
            let record = text.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => pax.path = Some(value.to_vec()),
                b"linkpath" => pax.link = Some(value.to_vec()),
                b"size" => pax.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                _ if key.starts_with(b"GNU.sparse.") => pax.sparse = true,
                _ => {}
            }
            text = &text[length..];
        }
        Some(pax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pax_record_with_wrong_length_is_refused() {
        let pax = PaxHeader::parse(b"12 path=a b\n11 size=42\n9 k=x=y\\\n").expect("valid");
        assert_eq!(pax.path.as_deref(), Some(b"a b".as_slice()));
        assert_eq!(pax.size, Some(42));
        for bad in [
            b"12 path=a b".as_slice(),
            b"99999999999999999999 a=b\n",
            b"0 a=b\n",
            b"3 a=b\n",
            b"-1 a=b\n",
            b"6 a=b",
            b"5 ab\n",
            b"11 size=-2\n",
        ] {
            assert_eq!(PaxHeader::parse(bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }
}
