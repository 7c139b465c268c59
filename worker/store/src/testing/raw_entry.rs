//! Entries of archives as an attacker writes them.

/// One archive entry with exactly these values, however hostile. Names and link targets are cut at
/// 100 bytes and written as they are.
pub fn raw_entry(name: &[u8], kind: tar::EntryType, link: &[u8], content: &[u8]) -> Vec<u8> {
    raw_entry_with_mode(name, kind, link, content, 0o644)
}

/// Like [`raw_entry`], with a mode.
pub fn raw_entry_with_mode(
    name: &[u8],
    kind: tar::EntryType,
    link: &[u8],
    content: &[u8],
    mode: u32,
) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    let fields = header.as_ustar_mut().expect("a ustar header");
    let (name, link) = (&name[..name.len().min(100)], &link[..link.len().min(100)]);
    fields.name[..name.len()].copy_from_slice(name);
    fields.linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
