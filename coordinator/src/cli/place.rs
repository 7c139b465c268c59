//! Where a blob store is, as an option says it.

use std::path::PathBuf;

use super::error::CliError;

/// The directory of a store: a path, or `file://` and an absolute path.
pub(super) fn directory(text: &str) -> Result<PathBuf, CliError> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(PathBuf::from(text)) };
    match scheme {
        "file" if rest.starts_with('/') => Ok(PathBuf::from(rest)),
        "file" => Err(CliError::usage(format!(
            "`{text}`: a file URL has an absolute path, `file:///path`"
        ))),
        "s3" => Err(CliError::usage(
            "stores in S3 are not supported yet: give a directory that all hosts share".to_owned(),
        )),
        _ => Err(CliError::usage(format!(
            "`{text}`: expected a directory or a `file://` URL as a blob store"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories() {
        let good = |text| directory(text).expect(text);
        assert_eq!(good("blobs"), PathBuf::from("blobs"));
        assert_eq!(good("file:///shared/blobs"), PathBuf::from("/shared/blobs"));
        for bad in ["file://blobs", "s3://bucket/x", "http://x/y"] {
            assert!(directory(bad).is_err(), "{bad}");
        }
    }
}
