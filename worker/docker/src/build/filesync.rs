//! Transfer of directories to BuildKit: sends a listing, then the files that BuildKit asks for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use hyper::HeaderMap;
use prost::Message as _;
use rollout_base::supervise;
use rollout_environment::CaBundle;
use rollout_environment::build_context::{ContextEntry, ContextKind};
use rollout_environment::dockerignore;
use rollout_environment::upload::FIXED_MTIME;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use super::session::{framed, send};

/// Bytes of a file in one message.
const CHUNK_BYTES: usize = 64 * 1024;

/// Largest message that BuildKit may send: all of its messages are short.
const MESSAGE_BYTES: usize = 1024 * 1024;

/// Entries whose metadata is read at once.
const STATS_AT_ONCE: usize = 1024;

/// Bits of a mode, as Go writes them.
const DIR: u32 = 1 << 31;
const LINK: u32 = 1 << 27;

/// Kinds of messages.
const STAT: i32 = 0;
const REQUEST: i32 = 1;
const DATA: i32 = 2;
const FIN: i32 = 3;
const ERROR: i32 = 4;

/// A message of a transfer, in either direction.
#[derive(Clone, PartialEq, prost::Message)]
struct SyncPacket {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    stat: Option<SyncStat>,
    #[prost(uint32, tag = "3")]
    id: u32,
    #[prost(bytes = "bytes", tag = "4")]
    data: Bytes,
}

/// Metadata of a file, directory or link.
#[derive(Clone, PartialEq, prost::Message)]
struct SyncStat {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(uint32, tag = "2")]
    mode: u32,
    #[prost(int64, tag = "5")]
    size: i64,
    #[prost(int64, tag = "6")]
    mod_time: i64,
    #[prost(string, tag = "7")]
    link: String,
}

/// The directories that a build may read, and the first error in reading them.
#[derive(Debug)]
pub(super) struct SessionFiles {
    /// The build context.
    pub(super) context: SessionDir,
    /// The directory with the Dockerfile.
    pub(super) dockerfile: SessionDir,
    /// The directory with only the ignore files.
    pub(super) ignore: SessionDir,
    /// The CA bundle of its commands.
    pub(super) ca_bundle: Option<CaBundle>,
    pub(super) failed: Arc<Mutex<Option<io::Error>>>,
}

/// A directory that BuildKit can read.
#[derive(Debug)]
pub(super) struct SessionDir {
    pub(super) root: PathBuf,
    pub(super) entries: Arc<[ContextEntry]>,
    /// A file whose content is replaced, with the replacement.
    pub(super) replacement: Option<(String, Bytes)>,
}

impl SessionFiles {
    /// The directory that a call names, if it is one of these.
    pub(super) fn requested_dir(&self, headers: &HeaderMap) -> Option<&SessionDir> {
        let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        match value("dir-name")? {
            "dockerfile" => Some(&self.dockerfile),
            "context" => {
                let names = headers.get_all("followpaths").iter();
                let mut names = names.filter_map(|name| name.to_str().ok()).peekable();
                let only_patterns = names.peek().is_some()
                    && names.all(|name| name.ends_with(dockerignore::FILE_NAME));
                Some(if only_patterns { &self.ignore } else { &self.context })
            }
            _ => None,
        }
    }

    /// Records the reason why a directory could not be sent.
    pub(super) fn record_error(&self, error: io::Error) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert(error);
    }
}

/// A request for a file.
enum FileRequest {
    File(u32),
    End,
}

/// Sends the files of a directory that BuildKit asks for.
pub(super) async fn send_dir(
    dir: &SessionDir,
    body: RecvStream,
    stream: &mut SendStream<Bytes>,
) -> io::Result<()> {
    let (asking, mut asked) = mpsc::unbounded_channel();
    // Both run at once; otherwise each side would wait for the other to read.
    let sending = async {
        for start in (0..dir.entries.len()).step_by(STATS_AT_ONCE) {
            for stat in dir.stats(start).await? {
                let packet = SyncPacket { kind: STAT, stat: Some(stat), ..SyncPacket::default() };
                send_packet(stream, packet).await?;
            }
        }
        send_packet(stream, SyncPacket { kind: STAT, ..SyncPacket::default() }).await?;
        while let Some(wish) = asked.recv().await {
            match wish {
                FileRequest::File(id) => dir.send_file(id, stream).await?,
                FileRequest::End => {
                    return send_packet(stream, SyncPacket { kind: FIN, ..SyncPacket::default() })
                        .await;
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file transfer was interrupted"))
    };
    let reading = read(body, asking);
    tokio::pin!(sending, reading);
    tokio::select! {
        sent = &mut sending => sent,
        read = &mut reading => match read {
            Ok(()) => sending.await,
            Err(error) => Err(error),
        },
    }
}

/// Reads file requests to the last one.
async fn read(mut body: RecvStream, asking: mpsc::UnboundedSender<FileRequest>) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes.map_err(io::Error::other)?;
        body.flow_control().release_capacity(bytes.len()).map_err(io::Error::other)?;
        buffer.extend_from_slice(&bytes);
        while let Some(packet) = next_message::<SyncPacket>(&mut buffer)? {
            let wish = match packet.kind {
                REQUEST => FileRequest::File(packet.id),
                FIN => FileRequest::End,
                ERROR => return Err(io::Error::other(String::from_utf8_lossy(&packet.data))),
                _ => continue,
            };
            let last = matches!(wish, FileRequest::End);
            if asking.send(wish).is_err() || last {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Takes the first message out of a buffer, once all of it has arrived.
pub(super) fn next_message<M: prost::Message + Default>(
    buffer: &mut BytesMut,
) -> io::Result<Option<M>> {
    let Some(prefix) = buffer.get(..5) else { return Ok(None) };
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if prefix[0] != 0 || length > MESSAGE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a message of a build session"));
    }
    if buffer.len() < 5 + length {
        return Ok(None);
    }
    buffer.advance(5);
    M::decode(buffer.split_to(length)).map(Some).map_err(io::Error::other)
}

async fn send_packet(stream: &mut SendStream<Bytes>, packet: SyncPacket) -> io::Result<()> {
    send(stream, framed(&packet.encode_to_vec())).await.map_err(io::Error::other)
}

impl SessionDir {
    fn replaced(&self, entry: &ContextEntry) -> Option<&Bytes> {
        let (path, bytes) = self.replacement.as_ref()?;
        (*path == entry.path).then_some(bytes)
    }

    /// The metadata of some entries from `start` on.
    async fn stats(&self, start: usize) -> io::Result<Vec<SyncStat>> {
        let (root, entries) = (self.root.clone(), Arc::clone(&self.entries));
        let replacement = self.replacement.clone();
        let read = move || {
            let some = entries.iter().skip(start).take(STATS_AT_ONCE);
            some.map(|entry| stat(&root, replacement.as_ref(), entry)).collect()
        };
        supervise::blocking(read).await
    }

    async fn send_file(&self, id: u32, stream: &mut SendStream<Bytes>) -> io::Result<()> {
        let entry = self
            .entries
            .get(id as usize)
            .filter(|entry| matches!(entry.kind, ContextKind::File { .. }));
        let Some(entry) = entry else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no file has this number"));
        };
        let data = |data| SyncPacket { kind: DATA, id, data, ..SyncPacket::default() };
        if let Some(bytes) = self.replaced(entry) {
            for piece in bytes.chunks(CHUNK_BYTES) {
                send_packet(stream, data(Bytes::copy_from_slice(piece))).await?;
            }
        } else {
            let mut file = tokio::fs::File::open(self.root.join(&entry.path)).await?;
            loop {
                let mut piece = BytesMut::with_capacity(CHUNK_BYTES);
                if file.read_buf(&mut piece).await? == 0 {
                    break;
                }
                send_packet(stream, data(piece.freeze())).await?;
            }
        }
        send_packet(stream, data(Bytes::new())).await
    }
}

/// The metadata of an entry below `root`, with the size of the content that replaces its own. Blocks.
fn stat(
    root: &Path,
    replacement: Option<&(String, Bytes)>,
    entry: &ContextEntry,
) -> io::Result<SyncStat> {
    let (mode, size, link) = match &entry.kind {
        ContextKind::Dir => (DIR | 0o755, 0, String::new()),
        ContextKind::File { executable } => {
            let size = match replacement {
                Some((path, bytes)) if *path == entry.path => bytes.len() as u64,
                _ => root.join(&entry.path).symlink_metadata()?.len(),
            };
            (if *executable { 0o755 } else { 0o644 }, size, String::new())
        }
        ContextKind::Link { target } => (LINK | 0o777, 0, shown(target)?),
    };
    Ok(SyncStat {
        path: entry.path.clone(),
        mode,
        size: i64::try_from(size).map_err(io::Error::other)?,
        mod_time: i64::try_from(FIXED_MTIME).unwrap_or_default() * 1_000_000_000,
        link,
    })
}

fn shown(target: &Path) -> io::Result<String> {
    let text = target.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let text = format!("the link target {} is not UTF-8", target.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}
