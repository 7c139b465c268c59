//! Search for secrets in streams of bytes that stay as they are.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use super::redactor::{Redactor, SecretForms};

/// Bytes read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// A search for secrets in one stream of bytes, which may arrive in pieces.
pub struct SecretScan {
    secrets: Option<Arc<SecretForms>>,
    /// The end of the stream so far, in which a secret may begin.
    pending: Vec<u8>,
    found: BTreeSet<Arc<str>>,
}

impl fmt::Debug for SecretScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretScan").field("found", &self.found).finish_non_exhaustive()
    }
}

impl SecretScan {
    pub(super) fn new(secrets: Option<Arc<SecretForms>>) -> Self {
        Self { secrets, pending: Vec::new(), found: BTreeSet::new() }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(secrets) = &self.secrets else { return };
        self.pending.extend_from_slice(bytes);
        if secrets.search.is_match(&self.pending) {
            for found in secrets.search.find_overlapping_iter(&self.pending) {
                let name = &secrets.names[found.pattern().as_usize()];
                if !self.found.contains(name) {
                    self.found.insert(Arc::clone(name));
                }
            }
        }
        let done = self.pending.len().saturating_sub(secrets.longest - 1);
        self.pending.drain(..done);
    }

    /// The variables of the secrets that were found.
    pub fn finish(self) -> BTreeSet<Arc<str>> {
        self.found
    }
}

impl Redactor {
    /// The variables of the secrets that some bytes hold.
    pub fn found_in(&self, bytes: &[u8]) -> BTreeSet<Arc<str>> {
        let mut scan = self.scan();
        scan.push(bytes);
        scan.finish()
    }

    /// The variables of the secrets that a file holds. Blocks.
    ///
    /// # Errors
    /// Errors of the local disk.
    pub fn found_in_file(&self, path: &Path) -> io::Result<BTreeSet<Arc<str>>> {
        let mut scan = self.scan();
        let (mut file, mut buffer) = (File::open(path)?, vec![0; BUFFER_BYTES]);
        while let read @ 1.. = file.read(&mut buffer)? {
            scan.push(&buffer[..read]);
        }
        Ok(scan.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: &BTreeSet<Arc<str>>) -> Vec<String> {
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn secret_split_between_pieces_is_found_by_name() {
        let redactor = Redactor::with_guessed([("A", "declared-1")], [("B", "guessed-22")]);
        let text = b"x guessed-22 y declared-1 z";
        for cut in 0..text.len() {
            let mut scan = redactor.scan();
            scan.push(&text[..cut]);
            scan.push(&text[cut..]);
            assert_eq!(names(&scan.finish()), ["A", "B"], "cut at {cut}");
        }
        assert_eq!(names(&redactor.declared().found_in(text)), ["A"]);
        assert!(redactor.found_in(b"guessed-2 declared-").is_empty());
    }
}
