//! Names that become path components of the run directory.

use rollout_protocol::name;

use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;

/// Description of a valid name, for messages.
pub(crate) const EXPECTED: &str = "a name of 1 to 100 bytes that can be a directory: \
     no `/`, `\\` or control characters, no leading dot, no white space at its ends";

/// Reads a name that can be a path component.
pub(crate) fn read(field: &Field<'_>) -> Option<String> {
    let text = field.string()?;
    match name::check(&text) {
        Ok(()) => Some(text),
        Err(why) => {
            let found = format!("{}, which {why}", field.describe());
            field.reject(ErrorKind::BadValue, found, EXPECTED);
            None
        }
    }
}

/// Reads the name of a worker pool.
pub(crate) fn read_pool(field: &Field<'_>) -> Option<String> {
    let text = field.string()?;
    let good = (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !good {
        field.bad_value("1 to 64 characters of a-z, 0-9 and -");
    }
    good.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn name_not_a_path_component_is_refused() {
        assert_eq!(read_field("my run", read).0.as_deref(), Some("my run"));
        for bad in ["''", "a/b", ".hidden", "' a'", "\"a\\nb\"", "journal", "\"a\\0b\""] {
            let (name, faults, _) = read_field(bad, read);
            assert_eq!(
                (name, faults),
                (None, vec![("x".to_owned(), ErrorKind::BadValue)]),
                "{bad}"
            );
        }
        assert_eq!(read_field("7", read).1, [("x".to_owned(), ErrorKind::WrongType)]);
    }

    #[test]
    fn pool_name_not_a_token_is_refused() {
        assert_eq!(read_field("gpu-1", read_pool).0.as_deref(), Some("gpu-1"));
        assert_eq!(read_field("GPU", read_pool).1, [("x".to_owned(), ErrorKind::BadValue)]);
    }
}
