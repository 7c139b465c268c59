//! The model calls of an agent by the files that it writes itself, beside those that the gateway saw.
//!
//! The agent may write anything there. A session that is too large is not counted at all, rather than in
//! part.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Seek};

use globset::{GlobBuilder, GlobMatcher};
use rollout_base::supervise;
use rollout_protocol::limits;
use rollout_protocol::record::SessionCalls;
use rollout_protocol::spec::agent::SessionFormat;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::SessionFiles;
use crate::proxy::bounded_json;

/// Directory of an agent's files in an archive of `/logs`.
const AGENT_DIRECTORY: &str = "agent/";

/// Most JSON values of a record, or of a file that is one document.
const RECORD_VALUES: usize = 1024 * 1024;

/// Most bytes of the id of a call.
const ID_BYTES: usize = 256;

/// Most calls with an id.
const MOST_IDS: usize = 256 * 1024;

/// Sessions that are read at once by a process: it bounds the memory for them.
static READ_AT_ONCE: Semaphore = Semaphore::const_new(2);

/// Counts the calls of a session; `None` if there are none of its files.
///
/// # Errors
/// The files cannot be read, or are too large.
pub(super) async fn read(files: SessionFiles) -> io::Result<Option<SessionCalls>> {
    let one = READ_AT_ONCE.acquire().await.expect("the semaphore is never closed");
    supervise::blocking(move || {
        let _one = one;
        read_archive(File::open(&files.archive)?, &files.format)
    })
    .await
}

fn read_archive(
    archive: impl Read + Seek,
    format: &SessionFormat,
) -> io::Result<Option<SessionCalls>> {
    let pattern = matcher(&format.files)?;
    let mut count = CallCount { format, calls: SessionCalls::default(), by_id: HashMap::new() };
    let (mut has_files, mut left) = (false, limits::SESSION_BYTES);
    for entry in tar::Archive::new(archive).entries_with_seek()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let below = path.to_str().and_then(|path| path.strip_prefix(AGENT_DIRECTORY));
        let is_wanted = below.is_some_and(|path| pattern.is_match(path));
        if !is_wanted || !entry.header().entry_type().is_file() {
            continue;
        }
        left = left.checked_sub(entry.size()).ok_or_else(too_large)?;
        has_files = true;
        if format.lists.is_empty() {
            count.add_lines(entry)?;
        } else {
            count.add_document(entry)?;
        }
    }
    Ok(has_files.then(|| count.sum()))
}

fn matcher(pattern: &str) -> io::Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(io::Error::other)
}

fn too_large() -> io::Error {
    io::Error::other("the session is too large to be counted")
}

/// Calls that are being counted.
struct CallCount<'a> {
    format: &'a SessionFormat,
    /// Those without an id.
    calls: SessionCalls,
    /// Those with an id: its last record counts.
    by_id: HashMap<String, SessionCalls>,
}

impl CallCount<'_> {
    /// Adds a file with a record on each line. Lines that are not JSON are skipped.
    fn add_lines(&mut self, file: impl Read) -> io::Result<()> {
        let (mut file, mut line) = (BufReader::new(file), Vec::new());
        loop {
            line.clear();
            let most = limits::SESSION_RECORD_BYTES;
            (&mut file).take(most + 1).read_until(b'\n', &mut line)?;
            match line.len() as u64 {
                0 => return Ok(()),
                bytes if bytes > most => return Err(too_large()),
                _ => {}
            }
            let text = std::str::from_utf8(&line).ok();
            if let Some(record) = text.and_then(read_json) {
                self.add(&record)?;
            }
        }
    }

    /// Adds a file that is a document with lists of records.
    fn add_document(&mut self, file: impl Read) -> io::Result<()> {
        let (mut text, most) = (String::new(), limits::SESSION_RECORD_BYTES);
        file.take(most + 1).read_to_string(&mut text)?;
        if text.len() as u64 > most {
            return Err(too_large());
        }
        let Some(document) = read_json(&text) else { return Ok(()) };
        let lists = self.format.lists.iter();
        let mut records = lists.filter_map(|list| document.pointer(list)?.as_array()).flatten();
        records.try_for_each(|record| self.add(record))
    }

    /// Adds the call of a record. A record without output tokens is skipped.
    fn add(&mut self, record: &Value) -> io::Result<()> {
        let number = |path: &String| record.pointer(path).and_then(Value::as_u64);
        let sum = |paths: &[String]| paths.iter().filter_map(number).fold(0, u64::saturating_add);
        let outputs = &self.format.output_tokens;
        if !outputs.iter().any(|path| number(path).is_some()) {
            return Ok(());
        }
        let input = sum(&self.format.input_tokens);
        let call = SessionCalls { calls: 1, input, output: sum(outputs) };
        let id = self.format.id.as_ref().and_then(|path| record.pointer(path));
        let id = id.filter(|id| !id.is_null());
        match id.map(Value::to_string) {
            None => self.calls.add(call),
            Some(id) if id.len() > ID_BYTES => return Err(too_large()),
            Some(id) => {
                self.by_id.insert(id, call);
                if self.by_id.len() > MOST_IDS {
                    return Err(too_large());
                }
            }
        }
        Ok(())
    }

    fn sum(self) -> SessionCalls {
        let mut calls = self.calls;
        self.by_id.into_values().for_each(|call| calls.add(call));
        calls
    }
}

fn read_json(text: &str) -> Option<Value> {
    bounded_json::read(text, &mut { RECORD_VALUES })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A format with one input and two outputs.
    fn format(lists: &[&str], id: Option<&str>) -> SessionFormat {
        SessionFormat {
            files: "a/*/*.jsonl".to_owned(),
            lists: lists.iter().map(|list| (*list).to_owned()).collect(),
            id: id.map(str::to_owned),
            input_tokens: vec!["/u/in".to_owned()],
            output_tokens: vec!["/u/out".to_owned(), "/u/thought".to_owned()],
        }
    }

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, text.as_bytes()).expect("in memory");
        }
        archive.into_inner().expect("in memory")
    }

    fn count(format: &SessionFormat, files: &[(&str, &str)]) -> Option<SessionCalls> {
        read_archive(Cursor::new(archive(files)), format).expect("a count")
    }

    fn calls(calls: u64, input: u64, output: u64) -> Option<SessionCalls> {
        Some(SessionCalls { calls, input, output })
    }

    #[test]
    fn records_of_matching_files_are_added_up() {
        let lines = "{\"u\": {\"in\": 1, \"out\": 2, \"thought\": 3}}\nno JSON\n{\"u\": {\"in\": 9}}\n\
                     {\"u\": {\"thought\": 1}}";
        let files = [
            ("agent/a/1/x.jsonl", lines),
            ("agent/a/2/y.jsonl", lines),
            ("agent/a/1/2/deeper.jsonl", lines),
            ("agent/a/x.jsonl", lines),
            ("a/1/x.jsonl", lines),
        ];
        assert_eq!(count(&format(&[], None), &files), calls(4, 2, 12));
        assert_eq!(count(&format(&[], None), &files[2..]), None);
        assert_eq!(count(&format(&[], None), &[("agent/a/1/x.jsonl", "")]), calls(0, 0, 0));
    }

    #[test]
    fn last_record_of_an_id_counts() {
        let lines = "{\"id\": 1, \"u\": {\"in\": 1, \"out\": 1}}\n{\"id\": \"1\", \"u\": {\"out\": 10}}\n\
                     {\"id\": 1, \"u\": {\"in\": 5, \"out\": 6}}\n\
                     {\"id\": null, \"u\": {\"out\": 2}}\n{\"id\": null, \"u\": {\"out\": 2}}\n";
        let of = format(&[], Some("/id"));
        assert_eq!(count(&of, &[("agent/a/1/x.jsonl", lines)]), calls(4, 5, 20));
    }

    #[test]
    fn document_has_its_records_in_lists() {
        let text = r#"{"m": [{"u": {"in": 1, "out": 2}}, {"u": {}}], "n": {"m": [{"u": {"out": 3}}]}, "u": {"out": 5}}"#;
        let files = [("agent/a/1/x.jsonl", text)];
        assert_eq!(count(&format(&["/m", "/n/m"], None), &files), calls(2, 1, 5));
        assert_eq!(count(&format(&["/x"], None), &files), calls(0, 0, 0));
    }

    #[track_caller]
    fn assert_too_large(archive: Vec<u8>, format: &SessionFormat) {
        let error = read_archive(Cursor::new(archive), format).expect_err("an error").to_string();
        assert_eq!(error, "the session is too large to be counted");
    }

    #[test]
    fn session_that_is_too_large_is_not_counted() {
        let most = usize::try_from(limits::SESSION_RECORD_BYTES).expect("a size");
        let long = format!("{{\"u\": {{\"out\": 1}}}}{}", " ".repeat(most));
        let id = format!("{{\"id\": \"{}\", \"u\": {{\"out\": 1}}}}", "x".repeat(ID_BYTES));
        for (text, lists) in [(&long, &[][..]), (&long, &["/m"]), (&id, &[])] {
            let files = archive(&[("agent/a/1/x.jsonl", text)]);
            assert_too_large(files, &format(lists, Some("/id")));
        }
        let mut header = tar::Header::new_gnu();
        header.set_path("agent/a/1/x.jsonl").expect("a path");
        header.set_size(limits::SESSION_BYTES + 1);
        header.set_cksum();
        assert_too_large(header.as_bytes().to_vec(), &format(&[], None));
        let ids: String =
            (0..=MOST_IDS).map(|id| format!("{{\"id\":{id},\"u\":{{\"out\":1}}}}\n")).collect();
        let files = archive(&[("agent/a/1/x.jsonl", &ids)]);
        assert_too_large(files, &format(&[], Some("/id")));
        let many =
            format!("{{\"u\": {{\"out\": 1}}, \"list\": [{}0]}}", "0,".repeat(RECORD_VALUES));
        let files = [("agent/a/1/x.jsonl", many.as_str())];
        assert_eq!(count(&format(&[], None), &files), calls(0, 0, 0), "it is no record");
    }
}
