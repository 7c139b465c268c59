//! Tests of packing, reading and extracting together, with archives written member by member.

mod cleaning;
mod hostile;
mod packing;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rollout_base::secrets::Redactor;
use tar::{EntryType, Header};

use super::*;

/// A member to write, possibly with false fields.
#[derive(Debug, Clone)]
struct RawMember {
    name: Vec<u8>,
    kind: u8,
    content: Vec<u8>,
    /// Size in the header, if it differs from the length of the content.
    size: Option<u64>,
    link: Vec<u8>,
    how: NameEncoding,
}

/// Encoding of a name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum NameEncoding {
    Header,
    GnuLong,
    Pax,
}

fn raw(name: &str, kind: u8, content: &[u8]) -> RawMember {
    let (name, content) = (name.as_bytes().to_vec(), content.to_vec());
    RawMember { name, kind, content, size: None, link: Vec::new(), how: NameEncoding::Header }
}

fn link(name: &str, kind: u8, target: &str) -> RawMember {
    RawMember { link: target.as_bytes().to_vec(), ..raw(name, kind, b"") }
}

fn block(out: &mut Vec<u8>, name: &[u8], kind: u8, size: u64, link: &[u8], content: &[u8]) {
    let mut header = Header::new_gnu();
    let fields = header.as_old_mut();
    for (field, value) in [(&mut fields.name, name), (&mut fields.linkname, link)] {
        let length = value.len().min(100);
        field[..length].copy_from_slice(&value[..length]);
    }
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o6777);
    header.set_uid(1234);
    header.set_size(size);
    header.set_mtime(77);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn tar_of(members: &[RawMember]) -> Vec<u8> {
    let mut out = Vec::new();
    for member in members {
        match member.how {
            NameEncoding::Header => {}
            NameEncoding::GnuLong => {
                let name = [&member.name[..], b"\0"].concat();
                block(&mut out, b"././@LongLink", b'L', name.len() as u64, b"", &name);
            }
            NameEncoding::Pax => {
                let record = pax_record("path", &member.name);
                block(&mut out, b"pax", b'x', record.len() as u64, b"", &record);
            }
        }
        let size = member.size.unwrap_or(member.content.len() as u64);
        block(&mut out, &member.name, member.kind, size, &member.link, &member.content);
    }
    out.extend_from_slice(&[0; 1024]);
    out
}

fn source(bytes: Vec<u8>) -> std::io::Cursor<Vec<u8>> {
    std::io::Cursor::new(bytes)
}

const SMALL: ArchiveLimits = ArchiveLimits { entries: 100, bytes: 1024 * 1024 };

/// Every path below a directory, with its kind and content.
fn tree(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).expect("listed") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("readable");
            let name = String::from_utf8_lossy(
                path.strip_prefix(dir).expect("below").as_os_str().as_bytes(),
            )
            .into_owned();
            let mode = metadata.permissions().mode() & 0o7777;
            let what = if metadata.is_dir() {
                waiting.push(path);
                format!("dir {mode:o}")
            } else if metadata.is_file() {
                let content =
                    String::from_utf8_lossy(&fs::read(&path).expect("readable")).into_owned();
                format!("file {mode:o} {content}")
            } else {
                format!("link {}", fs::read_link(&path).expect("a link").display())
            };
            found.insert(name, what);
        }
    }
    found
}

fn names(dir: &Path) -> Vec<String> {
    tree(dir).into_keys().collect()
}

fn reward() -> ArchivePath {
    ArchivePath::clean(b"verifier/reward.txt").expect("a valid path").expect("not the root")
}

fn logs() -> SanitizeOptions {
    SanitizeOptions {
        limits: SMALL,
        root: RootHandling::Drop,
        exclude: ExcludePatterns::default(),
        faithful: false,
        captures: vec![(reward(), 16)],
        redactor: Redactor::default(),
        secrets: SecretMembers::Mask,
    }
}
