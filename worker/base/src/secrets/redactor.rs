//! Replacement of secret values in streams of bytes, independent of how the streams are split.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::{SecretScan, encodings};

/// Matches secret values in all their forms. Cheap to clone; without secrets it does nothing.
#[derive(Clone, Default)]
pub struct Redactor {
    all: Option<Arc<SecretForms>>,
    /// Those of declared secrets alone.
    declared: Option<Arc<SecretForms>>,
}

pub(super) struct SecretForms {
    pub(super) search: AhoCorasick,
    /// Replacement for the secret of each pattern.
    markers: Vec<Arc<[u8]>>,
    /// Variable of the secret of each pattern.
    pub(super) names: Vec<Arc<str>>,
    /// Length of the longest pattern in bytes.
    pub(super) longest: usize,
    /// The patterns that continue after the end of a line.
    of_lines: Vec<Vec<u8>>,
}

/// Replacement of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedactionStyle {
    /// `[redacted:NAME]`, for text.
    Marker,
    /// As many `*` as the secret has bytes, if the length must not change.
    Mask,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns = self.all.as_ref().map_or(0, |secrets| secrets.markers.len());
        write!(f, "Redactor({patterns} patterns)")
    }
}

impl Redactor {
    /// Matches the values of these variables, given as names and values, in every form that
    /// Rollout's own encodings produce. Values under four bytes are ignored. All are declared
    /// secrets.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let all = SecretForms::new(secrets).map(Arc::new);
        Self { declared: all.clone(), all }
    }

    /// The same for declared secrets, and for values that look like secrets.
    pub fn with_guessed<'a>(
        declared: impl IntoIterator<Item = (&'a str, &'a str)>,
        guessed: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let declared: Vec<_> = declared.into_iter().collect();
        let guessed: Vec<_> = guessed.into_iter().collect();
        let known = Self::new(declared.iter().copied());
        if guessed.is_empty() {
            return known;
        }
        let all = SecretForms::new(declared.into_iter().chain(guessed)).map(Arc::new);
        Self { all, ..known }
    }

    /// A redactor for the declared secrets alone.
    pub fn declared(&self) -> Self {
        Self { all: self.declared.clone(), declared: self.declared.clone() }
    }

    /// Starts a search for secrets in bytes that stay as they are.
    pub fn scan(&self) -> SecretScan {
        SecretScan::new(self.all.clone())
    }

    /// Whether there is nothing to redact.
    pub fn is_empty(&self) -> bool {
        self.all.is_none()
    }

    /// Bytes by which two adjacent pieces must overlap so that no secret is split at the border.
    pub fn overlap(&self) -> usize {
        self.all.as_ref().map_or(0, |secrets| secrets.longest - 1)
    }

    /// A copy of `text` without secrets.
    pub fn text(&self, text: &str) -> String {
        let mut clean = Vec::with_capacity(text.len());
        self.bytes(text.as_bytes(), 0, &mut clean);
        // Secrets are whole characters, but their encodings may begin inside one.
        String::from_utf8_lossy(&clean).into_owned()
    }

    /// Appends `bytes` without secrets to `clean`, omitting the first `skip` bytes: they are passed
    /// only so that a secret across the border is found.
    pub fn bytes(&self, bytes: &[u8], skip: usize, clean: &mut Vec<u8>) {
        let Some(secrets) = &self.all else {
            clean.extend_from_slice(&bytes[skip..]);
            return;
        };
        let mut at = skip;
        for run in secrets.find_spans(bytes) {
            if run.at.end > skip {
                clean.extend_from_slice(&bytes[at..run.at.start.max(at)]);
                clean.extend_from_slice(&secrets.markers[run.pattern]);
                at = run.at.end;
            }
        }
        clean.extend_from_slice(&bytes[at..]);
    }

    /// Starts a stream.
    pub fn stream(&self, style: RedactionStyle) -> RedactingStream {
        RedactingStream {
            secrets: self.all.clone(),
            style,
            pending: Vec::new(),
            covered_bytes: 0,
            in_secret: false,
        }
    }
}

/// Bytes of secrets, without a gap.
struct SecretSpan {
    at: Range<usize>,
    /// The pattern at its start.
    pattern: usize,
}

impl SecretForms {
    /// The forms of these values; `None` without any.
    fn new<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let (mut patterns, mut markers, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in secrets {
            let marker: Arc<[u8]> = format!("[redacted:{name}]").into_bytes().into();
            let name: Arc<str> = name.into();
            for form in encodings::encoded_forms(value) {
                patterns.push(form);
                markers.push(marker.clone());
                names.push(name.clone());
            }
        }
        let longest = patterns.iter().map(Vec::len).max()?;
        let of_lines: Vec<Vec<u8>> =
            patterns.iter().filter(|pattern| pattern.contains(&b'\n')).cloned().collect();
        let search = AhoCorasick::builder()
            // Not the faster automaton: its size is the product of pattern bytes and alphabet.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&patterns)
            .expect("values of environment variables are far from the limits of the automaton");
        Some(Self { search, markers, names, longest, of_lines })
    }

    /// Number of bytes at the end of whole lines that may be the beginning of a secret.
    fn begun_at_end(&self, lines: &[u8]) -> usize {
        let begun = self.of_lines.iter().flat_map(|pattern| {
            let ends = (1..pattern.len()).filter(|end| pattern[end - 1] == b'\n');
            ends.filter(|end| lines.ends_with(&pattern[..*end]))
        });
        begun.max().unwrap_or_default()
    }

    /// All bytes of secrets, as runs in ascending order that do not touch.
    fn find_spans(&self, bytes: &[u8]) -> Vec<SecretSpan> {
        if !self.search.is_match(bytes) {
            return Vec::new();
        }
        let mut found: Vec<_> = self
            .search
            .find_overlapping_iter(bytes)
            .map(|found| SecretSpan { at: found.range(), pattern: found.pattern().as_usize() })
            .collect();
        found.sort_by_key(|run| (run.at.start, std::cmp::Reverse(run.at.end)));
        let mut runs: Vec<SecretSpan> = Vec::new();
        for run in found {
            match runs.last_mut() {
                Some(last) if run.at.start <= last.at.end => {
                    last.at.end = last.at.end.max(run.at.end);
                }
                _ => runs.push(run),
            }
        }
        runs
    }
}

/// A stream of bytes being redacted. Buffers fewer bytes than the longest form of a secret has.
pub struct RedactingStream {
    secrets: Option<Arc<SecretForms>>,
    style: RedactionStyle,
    pending: Vec<u8>,
    /// Number of bytes at the start of `pending` that belong to a secret that began before.
    covered_bytes: usize,
    /// Whether the last emitted byte replaced a secret.
    in_secret: bool,
}

impl fmt::Debug for RedactingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedactingStream").field("style", &self.style).finish_non_exhaustive()
    }
}

impl RedactingStream {
    /// Takes bytes and appends to `clean` the ones that are decided.
    pub fn push(&mut self, bytes: &[u8], clean: &mut Vec<u8>) {
        let Some(secrets) = self.secrets.clone() else {
            clean.extend_from_slice(bytes);
            return;
        };
        self.pending.extend_from_slice(bytes);
        let certain = self.pending.len().saturating_sub(secrets.longest - 1);
        self.emit(&secrets, certain, clean);
    }

    /// Like [`Self::push`] for bytes that end with the end of a line: holds back only what may
    /// be the beginning of a secret of several lines.
    pub fn push_lines(&mut self, lines: &[u8], clean: &mut Vec<u8>) {
        let Some(secrets) = self.secrets.clone() else {
            clean.extend_from_slice(lines);
            return;
        };
        self.pending.extend_from_slice(lines);
        let certain = self.pending.len() - secrets.begun_at_end(&self.pending);
        self.emit(&secrets, certain, clean);
    }

    /// Ends the stream and appends the rest to `clean`.
    pub fn finish(mut self, clean: &mut Vec<u8>) {
        if let Some(secrets) = self.secrets.clone() {
            let all = self.pending.len();
            self.emit(&secrets, all, clean);
        }
    }

    /// Ends the stream without its end: returns the raw buffered bytes, and how many of them belong
    /// to a secret that is already replaced (another one may begin among those).
    pub fn abandon(self) -> (Vec<u8>, usize) {
        (self.pending, self.covered_bytes)
    }

    /// Emits the first `certain` bytes of `pending`: no secret that is not complete in `pending`
    /// begins among them.
    fn emit(&mut self, secrets: &SecretForms, certain: usize, clean: &mut Vec<u8>) {
        if certain == 0 {
            return;
        }
        let begun = SecretSpan { at: 0..self.covered_bytes, pattern: 0 };
        let (mut at, mut covered) = (0, 0);
        for run in std::iter::once(begun).chain(secrets.find_spans(&self.pending)) {
            if run.at.start >= certain {
                break;
            }
            self.emit_clear(at..run.at.start.max(at), clean);
            at = at.max(run.at.start);
            let stop = run.at.end.min(certain);
            self.emit_marker(stop.saturating_sub(at), &secrets.markers[run.pattern], clean);
            at = at.max(stop);
            covered = covered.max(run.at.end.saturating_sub(certain));
        }
        self.emit_clear(at..certain, clean);
        self.pending.drain(..certain);
        self.covered_bytes = covered;
    }

    fn emit_clear(&mut self, range: Range<usize>, clean: &mut Vec<u8>) {
        if !range.is_empty() {
            clean.extend_from_slice(&self.pending[range]);
            self.in_secret = false;
        }
    }

    fn emit_marker(&mut self, length: usize, marker: &[u8], clean: &mut Vec<u8>) {
        if length == 0 {
            return;
        }
        match self.style {
            RedactionStyle::Mask => clean.resize(clean.len() + length, b'*'),
            RedactionStyle::Marker if self.in_secret => {}
            RedactionStyle::Marker => clean.extend_from_slice(marker),
        }
        self.in_secret = true;
    }
}
