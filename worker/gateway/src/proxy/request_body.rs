//! Bodies of requests: read when there is memory for them, and decompressed.

use std::fmt::Display;
use std::io::{self, Read};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::bufread::GzDecoder;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use hyper::header::CONTENT_ENCODING;
use hyper::{HeaderMap, StatusCode};
use rollout_base::supervise;
use rollout_protocol::limits;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::request_memory::{BodyMemory, NoMemory, TryMemory};
use super::route::{OwnReply, RETRY_AFTER_SEC};

/// The compressions that are taken, as a header lists them.
pub(super) const ENCODINGS: &str = "gzip, zstd";

/// Largest window of a frame of zstd: what senders over HTTP are limited to (RFC 9659).
const ZSTD_WINDOW_BYTES: u64 = 8 << 20;

/// Bytes of the largest body, and of a compressed one with what it is decompressed to.
const MAX_BYTES: usize = limits::GATEWAY_REQUEST_BYTES;

/// Most members of a body in gzip, and frames of one in zstd: each takes time, however short it is.
const MAX_MEMBERS: usize = 1024;

/// Bodies that are decompressed at once by a process.
static DECOMPRESSED_AT_ONCE: Semaphore = Semaphore::const_new(2);

/// A compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Zstd,
}

/// Longest time without a byte of a body, and for all of it. Time in which it waits for memory does not
/// count.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Memory for the first bytes of a body: an agent that sends none holds no more, whatever length it
/// announces.
const FIRST_BYTES: usize = 1024 * 1024;

/// Reads a body, when there is memory for it. A compressed one is decompressed, and its
/// header removed: the call is recorded, and sent, as it is meant.
pub(super) async fn read(
    headers: &mut HeaderMap,
    body: Incoming,
    memory: &TryMemory,
) -> Result<(Bytes, BodyMemory), OwnReply> {
    let encoding = encoding(headers)?;
    let announced = body.size_hint().upper().map(usize::try_from).transpose();
    let announced = announced.ok().filter(|bytes| bytes.is_none_or(|bytes| bytes <= MAX_BYTES));
    let announced = announced.ok_or_else(too_large)?;
    let needed = announced.map(|bytes| if encoding.is_some() { MAX_BYTES } else { bytes });
    let first = announced.unwrap_or(FIRST_BYTES).min(FIRST_BYTES);
    let mut held = memory.take(first).await?;
    let body = arrived(body, needed, memory, &mut held).await?;
    let body = match encoding {
        None => body,
        Some(encoding) => {
            headers.remove(CONTENT_ENCODING);
            memory.grow(&mut held, MAX_BYTES).await?;
            let one = DECOMPRESSED_AT_ONCE.acquire().await.expect("the semaphore is never closed");
            // The work goes on if the agent goes: so do its place and its memory.
            let working = supervise::blocking(move || {
                let whole = decompress(encoding, &body, MAX_BYTES);
                drop(one);
                (whole, held)
            });
            let whole;
            (whole, held) = working.await;
            let whole = whole.map_err(|error| {
                let message = format!("cannot decompress the request: {error}");
                OwnReply::new(StatusCode::BAD_REQUEST, message)
            })?;
            whole.ok_or_else(too_large)?.into()
        }
    };
    held.shrink_to(body.len());
    Ok((body, held))
}

/// The bytes of a body, which have memory when they arrive: after the first ones for the rest at once
/// if `needed` says how much that is. Bodies that took it bit by bit would wait for each other.
async fn arrived<B>(
    mut body: B,
    needed: Option<usize>,
    memory: &TryMemory,
    held: &mut BodyMemory,
) -> Result<Bytes, OwnReply>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let (mut bytes, mut end) = (BytesMut::new(), Instant::now() + BODY_TIMEOUT);
    loop {
        let until = end.min(Instant::now() + IDLE_TIMEOUT);
        let Ok(frame) = timeout_at(until, body.frame()).await else {
            let message = "cannot read the request: its body did not arrive in time";
            return Err(OwnReply::new(StatusCode::REQUEST_TIMEOUT, message));
        };
        let Some(frame) = frame else { return Ok(bytes.freeze()) };
        let frame = frame.map_err(|error| {
            let message = format!("cannot read the request: {error}");
            OwnReply::new(StatusCode::BAD_REQUEST, message)
        })?;
        let Ok(part) = frame.into_data() else { continue };
        let length = bytes.len() + part.len();
        if length > MAX_BYTES {
            return Err(too_large());
        }
        if length > held.bytes() {
            let began = Instant::now();
            let wanted = needed.unwrap_or(length.saturating_mul(2));
            memory.grow(held, wanted.clamp(length, MAX_BYTES)).await?;
            end += began.elapsed();
        }
        bytes.extend_from_slice(&part);
    }
}

impl From<NoMemory> for OwnReply {
    fn from(NoMemory: NoMemory) -> Self {
        let message = "the gateway has no memory for the request at present";
        let refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Self { retry_after: Some(RETRY_AFTER_SEC), ..refusal }
    }
}

fn too_large() -> OwnReply {
    let message = format!("the request has more than {MAX_BYTES} bytes");
    OwnReply::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// The compression that the headers name.
fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, OwnReply> {
    let mut named = headers.get_all(CONTENT_ENCODING).iter();
    let (first, other) = (named.next(), named.next());
    let Some(value) = first else { return Ok(None) };
    let name = value.to_str().unwrap_or_default().to_ascii_lowercase();
    match name.as_str() {
        "identity" | "" if other.is_none() => Ok(None),
        "gzip" | "x-gzip" if other.is_none() => Ok(Some(Encoding::Gzip)),
        "zstd" if other.is_none() => Ok(Some(Encoding::Zstd)),
        _ => {
            let message = format!("the gateway takes requests with one of: {ENCODINGS}");
            Err(OwnReply::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

/// A body decompressed; `None` if both have more than `most` bytes together.
fn decompress(encoding: Encoding, body: &[u8], most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut output = BoundedOutput { bytes: Vec::new(), most: most.saturating_sub(body.len()) };
    let (mut rest, mut frames) = (body, FrameDecoder::new());
    frames.set_max_window_size(ZSTD_WINDOW_BYTES);
    for _ in 0..MAX_MEMBERS {
        if rest.is_empty() {
            return Ok(Some(output.bytes));
        }
        let fits = match encoding {
            Encoding::Gzip => output.append(GzDecoder::new(&mut rest))?,
            Encoding::Zstd => append_frame(&mut output, &mut rest, &mut frames)?,
        };
        if !fits {
            return Ok(None);
        }
    }
    let why = format!("it has more than {MAX_MEMBERS} members or frames");
    if rest.is_empty() { Ok(Some(output.bytes)) } else { Err(io::Error::other(why)) }
}

/// Appends the next frame of a body in zstd, or skips it if it asks for that; returns whether it fits.
fn append_frame(
    output: &mut BoundedOutput,
    rest: &mut &[u8],
    decoder: &mut FrameDecoder,
) -> io::Result<bool> {
    match StreamingDecoder::new_with_decoder(&mut *rest, decoder) {
        Ok(frame) => output.append(frame),
        Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
            length,
            ..
        })) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            *rest = rest.get(length..).ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(true)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

/// The output of decoders, up to a number of bytes.
struct BoundedOutput {
    bytes: Vec<u8>,
    most: usize,
}

impl BoundedOutput {
    /// Appends all that a decoder has; returns whether it fits.
    fn append(&mut self, decoder: impl Read) -> io::Result<bool> {
        let room = self.most - self.bytes.len();
        let read = decoder.take(room as u64 + 1).read_to_end(&mut self.bytes)?;
        Ok(read <= room)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper::header::HeaderValue;
    use rollout_protocol::id::RunId;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::super::request_memory::RequestMemory;
    use super::*;

    const MIB: usize = 1 << 20;

    /// Reads a body of equal parts, each after a pause; returns its length or the status of the
    /// refusal, the memory that it has, and the time that it took.
    async fn read_parts(
        parts: usize,
        bytes: usize,
        pause: Duration,
        needed: Option<usize>,
    ) -> (Result<usize, u16>, usize, Duration) {
        let parts = stream::iter(0..parts).then(move |_| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; bytes])))
        });
        let memory = RequestMemory::default().of_try(RunId::from_bytes([1; 16]));
        let mut held = memory.take(FIRST_BYTES).await.expect("in time");
        let began = Instant::now();
        let read = arrived(StreamBody::new(Box::pin(parts)), needed, &memory, &mut held).await;
        let read = read.map(|body| body.len()).map_err(|refusal| refusal.status.as_u16());
        (read, held.bytes(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_arrives_too_slowly_is_refused() {
        let sec = Duration::from_secs;
        assert_eq!(read_parts(9, 1, sec(5), None).await, (Ok(9), FIRST_BYTES, sec(45)));
        assert_eq!(
            read_parts(99, 1, sec(5), Some(MAX_BYTES)).await,
            (Err(408), FIRST_BYTES, BODY_TIMEOUT)
        );
        assert_eq!(read_parts(1, 1, sec(11), None).await, (Err(408), FIRST_BYTES, IDLE_TIMEOUT));
    }

    #[tokio::test]
    async fn body_of_unknown_length_has_memory_as_it_arrives() {
        let (read, held, _) = read_parts(5, MIB, Duration::ZERO, None).await;
        assert_eq!((read, held), (Ok(5 * MIB), 10 * MIB));
        let (read, held, _) = read_parts(65, MIB, Duration::ZERO, None).await;
        assert_eq!((read, held), (Err(413), MAX_BYTES));
    }

    #[tokio::test]
    async fn body_of_known_length_has_memory_for_the_rest_after_its_first_bytes() {
        let (read, held, _) = read_parts(1, MIB, Duration::ZERO, Some(5 * MIB)).await;
        assert_eq!((read, held), (Ok(MIB), FIRST_BYTES));
        let (read, held, _) = read_parts(5, MIB, Duration::ZERO, Some(5 * MIB)).await;
        assert_eq!((read, held), (Ok(5 * MIB), 5 * MIB));
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn both(text: &[u8]) -> [(Encoding, Vec<u8>); 2] {
        [(Encoding::Gzip, gzip(text)), (Encoding::Zstd, zstd(text))]
    }

    #[test]
    fn body_of_several_members_is_decompressed_as_a_whole() {
        let text = br#"{"model":"m","input":"some text, some text, some text"}"#;
        for (encoding, first) in both(text) {
            let whole = decompress(encoding, &first, MAX_BYTES).expect("valid");
            assert_eq!(whole.as_deref(), Some(&text[..]), "{encoding:?}");
            let twice =
                decompress(encoding, &[&first[..], &first].concat(), MAX_BYTES).expect("valid");
            assert_eq!(twice, Some([&text[..], text].concat()), "{encoding:?}");
        }
        // A frame that is to be skipped, of three bytes.
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3], &zstd(text)[..]].concat();
        let whole = decompress(Encoding::Zstd, &skipped, MAX_BYTES).expect("valid");
        assert_eq!(whole.as_deref(), Some(&text[..]));
    }

    #[test]
    fn body_of_too_many_members_is_an_error() {
        for (encoding, one) in both(b"x") {
            let whole = decompress(encoding, &one.repeat(MAX_MEMBERS), MAX_BYTES).expect("valid");
            assert_eq!(whole.map(|whole| whole.len()), Some(MAX_MEMBERS), "{encoding:?}");
            let error = decompress(encoding, &one.repeat(MAX_MEMBERS + 1), MAX_BYTES);
            assert!(error.is_err(), "{encoding:?}");
        }
    }

    #[test]
    fn body_that_grows_beyond_its_limit_is_too_large() {
        for (encoding, small) in both(&[b' '; 100_000]) {
            let most = 100_000 + small.len();
            assert!(decompress(encoding, &small, most).expect("valid").is_some(), "{encoding:?}");
            assert_eq!(decompress(encoding, &small, most - 1).expect("valid"), None);
            assert_eq!(decompress(encoding, &small, 1).expect("valid"), None, "{encoding:?}");
        }
    }

    #[test]
    fn body_that_is_not_compressed_or_is_cut_is_an_error() {
        for (encoding, whole) in both(b"some text") {
            for wrong in [&b"{}"[..], &whole[..whole.len() - 1], &whole[..3]] {
                let error = decompress(encoding, wrong, MAX_BYTES);
                assert!(error.is_err(), "{encoding:?} {wrong:?}: {error:?}");
            }
        }
        // A window of 16 MiB.
        let large_window = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x70, 0x01, 0x00, 0x00];
        assert!(decompress(Encoding::Zstd, &large_window, MAX_BYTES).is_err());
    }

    #[test]
    fn one_known_encoding_is_taken() {
        let of = |values: &[&'static str]| {
            let values = values.iter().map(|value| HeaderValue::from_static(value));
            encoding(&values.map(|value| (CONTENT_ENCODING, value)).collect())
                .map_err(|refusal| refusal.status.as_u16())
        };
        assert_eq!((of(&[]), of(&["identity"])), (Ok(None), Ok(None)));
        assert_eq!(of(&["GZIP"]), Ok(Some(Encoding::Gzip)));
        assert_eq!(of(&["zstd"]), Ok(Some(Encoding::Zstd)));
        for wrong in [&["br"][..], &["gzip, zstd"], &["gzip", "zstd"], &["identity", "gzip"]] {
            assert_eq!(of(wrong), Err(415), "{wrong:?}");
        }
    }
}
