//! The session of a build: BuildKit calls its client over a connection that the client opened.
//!
//! The calls are gRPC over HTTP/2. Only the health check, the transfer of the build context and the CA
//! bundle are implemented. Everything else (other secrets, SSH agents, credentials) is not, so that a
//! Dockerfile cannot get any of it.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use hyper::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rollout_base::supervise::{self, Task};
use rollout_environment::Failure;
use tokio::io::{AsyncRead, AsyncWrite};

use super::ca_bundle;
use super::filesync::{self, SessionFiles};
use crate::client::DockerClient;
use crate::connection::{self, EngineConnection};

/// The health check of the client.
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// Its answer: serving.
const SERVING: &[u8] = &[0x08, 0x01];

/// The call by which BuildKit reads a directory.
const DIFF_COPY: &str = "/moby.filesync.v1.FileSync/DiffCopy";

/// The call by which BuildKit asks for a file of a command.
const GET_SECRET: &str = "/moby.buildkit.secrets.v1.Secrets/GetSecret";

/// gRPC status codes.
const OK: &str = "0";
const NOT_FOUND: &str = "5";
const UNIMPLEMENTED: &str = "12";
const INTERNAL: &str = "13";

/// An open session. Dropping it closes it.
#[derive(Debug)]
pub(super) struct BuildSession {
    pub(super) id: String,
    _server: Task<()>,
}

/// Outcome of opening a session.
pub(super) enum OpenedSession {
    Session(BuildSession),
    /// The engine has no sessions and so no BuildKit.
    Unsupported(String),
}

/// Opens a session in which `files` can be read. BuildKit caches the files it was sent under `key`
/// and does not ask again for a file of the same size and time, so other files need another key.
pub(super) async fn open(
    client: &DockerClient,
    files: SessionFiles,
    key: &str,
) -> Result<OpenedSession, Failure> {
    let what = "cannot open a build session";
    let id = format!("{:032x}", rand::random::<u128>());
    let mut connection = EngineConnection::open(client).await?;
    let headers = [
        (CONNECTION.as_str(), "Upgrade"),
        (UPGRADE.as_str(), "h2c"),
        ("X-Docker-Expose-Session-Uuid", &id),
        ("X-Docker-Expose-Session-Name", "rollout"),
        ("X-Docker-Expose-Session-Sharedkey", key),
        ("X-Docker-Expose-Session-Grpc-Method", DIFF_COPY),
    ];
    let answer = connection.post(client, "/session", &headers).await;
    let answer = answer.map_err(|error| client.failure(what, error))?;
    let status = answer.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let error = connection::refusal(answer).await;
        if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
            return Err(client.failure(what, error));
        }
        return Ok(OpenedSession::Unsupported(error.to_string()));
    }
    let io = hyper::upgrade::on(answer).await;
    let io =
        io.map_err(|err| client.failure(what, bollard::errors::Error::HyperResponseError { err }))?;
    let server = supervise::spawn("build session", async move {
        // The connection's driver must live as long as the upgraded stream.
        let _connection = connection;
        serve(TokioIo::new(io), &Arc::new(files)).await;
    });
    Ok(OpenedSession::Session(BuildSession { id, _server: server }))
}

/// Answers calls until the engine closes the connection.
async fn serve(io: impl AsyncRead + AsyncWrite + Unpin, files: &Arc<SessionFiles>) {
    let mut server = match h2::server::handshake(io).await {
        Ok(server) => server,
        Err(error) => return tracing::debug!(%error, "a build session did not start"),
    };
    let mut calls = FuturesUnordered::new();
    loop {
        tokio::select! {
            call = server.accept() => match call {
                Some(Ok((request, respond))) => calls.push(answer(request, respond, files)),
                Some(Err(error)) => return tracing::debug!(%error, "a build session failed"),
                None => return,
            },
            Some(ended) = calls.next(), if !calls.is_empty() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a call of a build session failed");
                }
            }
        }
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    files: &SessionFiles,
) -> Result<(), h2::Error> {
    match request.uri().path() {
        HEALTH => {
            let mut stream = begin(&mut respond)?;
            send(&mut stream, framed(SERVING)).await?;
            end(&mut stream, OK, "")
        }
        DIFF_COPY => {
            let (head, body) = request.into_parts();
            let Some(dir) = files.requested_dir(&head.headers) else {
                return refuse(&mut respond, NOT_FOUND);
            };
            let mut stream = begin(&mut respond)?;
            match filesync::send_dir(dir, body, &mut stream).await {
                Ok(()) => end(&mut stream, OK, ""),
                Err(error) => {
                    let message = error.to_string();
                    files.record_error(error);
                    end(&mut stream, INTERNAL, &message)
                }
            }
        }
        GET_SECRET => {
            let asked = ca_bundle::is_requested(request.into_body()).await;
            let Some(bundle) = files.ca_bundle.as_ref().filter(|_| asked) else {
                return refuse(&mut respond, NOT_FOUND);
            };
            let mut stream = begin(&mut respond)?;
            send(&mut stream, framed(&ca_bundle::answer(bundle))).await?;
            end(&mut stream, OK, "")
        }
        _ => refuse(&mut respond, UNIMPLEMENTED),
    }
}

fn response_head() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, "application/grpc".parse().expect("a value"));
    response
}

fn begin(respond: &mut SendResponse<Bytes>) -> Result<SendStream<Bytes>, h2::Error> {
    respond.send_response(response_head(), false)
}

fn refuse(respond: &mut SendResponse<Bytes>, code: &'static str) -> Result<(), h2::Error> {
    let mut response = response_head();
    response.headers_mut().insert("grpc-status", code.parse().expect("a value"));
    respond.send_response(response, true).map(drop)
}

fn end(stream: &mut SendStream<Bytes>, code: &str, message: &str) -> Result<(), h2::Error> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.parse().expect("a value"));
    let message: String = message.chars().filter(|c| matches!(c, ' '..='~')).collect();
    if let (false, Ok(message)) = (message.is_empty(), message.parse()) {
        trailers.insert("grpc-message", message);
    }
    stream.send_trailers(trailers)
}

/// A message with the gRPC prefix: not compressed, and its length.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("a small message"));
    frame.put_slice(message);
    frame.freeze()
}

/// Sends bytes as fast as the other side takes them.
pub(super) async fn send(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        while stream.capacity() == 0 {
            match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(h2::Reason::STREAM_CLOSED.into()),
            }
        }
        let piece = bytes.split_to(stream.capacity().min(bytes.len()));
        stream.send_data(piece, false)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use h2::client::SendRequest;
    use prost::Message as _;
    use rollout_environment::CaBundle;
    use rollout_environment::dockerfile::CA_BUNDLE_SECRET;

    use super::super::ca_bundle::SecretRequest;
    use super::super::filesync::SessionDir;
    use super::*;

    fn files(ca_bundle: Option<CaBundle>) -> Arc<SessionFiles> {
        let dir = || SessionDir {
            root: Path::new("/nowhere").to_owned(),
            entries: Arc::default(),
            replacement: None,
        };
        let (context, dockerfile, ignore) = (dir(), dir(), dir());
        Arc::new(SessionFiles { context, dockerfile, ignore, ca_bundle, failed: Arc::default() })
    }

    /// Asks for a secret as BuildKit does; returns the status and the messages.
    async fn ask(client: &SendRequest<Bytes>, id: &str) -> (String, BytesMut) {
        let request = Request::post(format!("http://localhost{GET_SECRET}")).body(());
        let mut client = client.clone().ready().await.expect("open");
        let sent = client.send_request(request.expect("a request"), false);
        let (answer, mut body) = sent.expect("sent");
        let message = SecretRequest { id: id.to_owned() }.encode_to_vec();
        body.send_data(framed(&message), true).expect("sent");
        let (head, mut body) = answer.await.expect("answered").into_parts();
        let mut messages = BytesMut::new();
        while let Some(piece) = body.data().await {
            messages.extend_from_slice(&piece.expect("whole"));
        }
        let trailers = body.trailers().await.expect("whole").unwrap_or(head.headers);
        let status = trailers["grpc-status"].to_str().expect("text").to_owned();
        (status, messages)
    }

    /// The answers of a session to requests for these secrets.
    async fn answers(files: &Arc<SessionFiles>, ids: &[&str]) -> Vec<(String, BytesMut)> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let asking = async {
            let (client, connection) = h2::client::handshake(near).await.expect("a connection");
            let asked = async {
                let mut answers = Vec::new();
                for id in ids {
                    answers.push(ask(&client, id).await);
                }
                answers
            };
            tokio::select! {
                answers = asked => answers,
                ended = connection => panic!("the connection ended: {ended:?}"),
            }
        };
        tokio::select! {
            answers = asking => answers,
            () = serve(far, files) => panic!("the session ended"),
        }
    }

    #[tokio::test]
    async fn session_gives_ca_bundle_and_no_other_secret() {
        let pem = "certificate\n".repeat(1000);
        let given = files(Some(CaBundle::new(pem.clone())));
        let answered = answers(&given, &[CA_BUNDLE_SECRET, "id"]).await;
        let [(status, message), (other, none)]: [_; 2] = answered.try_into().expect("two");
        assert_eq!(status, OK);
        assert!(message.ends_with(pem.as_bytes()), "{} bytes", message.len());
        assert_eq!((other.as_str(), none.len()), (NOT_FOUND, 0));
        let without = answers(&files(None), &[CA_BUNDLE_SECRET]).await;
        assert_eq!(without, [(NOT_FOUND.to_owned(), BytesMut::new())]);
    }
}
