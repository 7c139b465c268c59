//! A connection for calls that the client library does not support: those that are upgraded to
//! another protocol, and answers in more than one format.

use std::io;
use std::time::Duration;

use bollard::errors::Error;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rollout_base::supervise::{self, Task};
use rollout_environment::Failure;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::client::{DockerClient, SLOW_ANSWER_WITHIN};
use super::failure;

/// Largest line of an answer. Progress messages of builds are far smaller.
const LINE_BYTES: usize = 64 * 1024 * 1024;

/// Largest error answer.
const ERROR_BYTES: usize = 64 * 1024;

/// Both directions of a connection.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A connection for one call. Dropping it closes it.
#[derive(Debug)]
pub(super) struct EngineConnection {
    sender: SendRequest<Empty<Bytes>>,
    driver: Task<()>,
    prefix: String,
}

/// The lines of an answer as they arrive.
#[derive(Debug)]
pub(super) struct ResponseLines {
    body: Incoming,
    buffer: BytesMut,
    _driver: Task<()>,
}

/// An error answer's text.
#[derive(Deserialize)]
struct EngineErrorMessage {
    message: String,
}

impl EngineConnection {
    /// Connects.
    pub(super) async fn open(client: &DockerClient) -> Result<Self, Failure> {
        let what = failure::CONNECT;
        let version = client.docker().await?.client_version();
        let failed = |err| client.failure(what, Error::IOError { err });
        let stream = connect(client.host()).await.map_err(failed)?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) =
            shaken.map_err(|err| client.failure(what, Error::HyperResponseError { err }))?;
        let driver = supervise::spawn("docker connection", async move {
            if let Err(error) = connection.with_upgrades().await {
                // The calls in progress report it too.
                tracing::debug!(%error, "a connection to the Docker engine failed");
            }
        });
        Ok(Self { sender, driver, prefix: format!("/v{version}") })
    }

    /// Sends a POST request without a body; returns the answer's head.
    pub(super) async fn post(
        &mut self,
        client: &DockerClient,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Response<Incoming>, Error> {
        client.count_call();
        let mut request = Request::post(format!("{}{path}", self.prefix)).header(HOST, "docker");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).map_err(|err| Error::HttpClientError { err })?;
        let answer = self.sender.send_request(request);
        let answered = tokio::time::timeout(SLOW_ANSWER_WITHIN, answer).await;
        let answered = answered.map_err(|_| Error::RequestTimeoutError)?;
        answered.map_err(|err| Error::HyperResponseError { err })
    }

    /// The lines of an answer.
    pub(super) fn lines(self, answer: Response<Incoming>) -> ResponseLines {
        ResponseLines { body: answer.into_body(), buffer: BytesMut::new(), _driver: self.driver }
    }
}

/// The error of an answer with an unexpected status.
pub(super) async fn refusal(answer: Response<Incoming>) -> Error {
    let status_code = answer.status().as_u16();
    let mut body = answer.into_body();
    let mut text = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            text.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
            if text.len() > ERROR_BYTES {
                break;
            }
        }
    };
    // If the end does not arrive, the beginning is used.
    tokio::time::timeout(Duration::from_secs(10), reading).await.ok();
    let message = match serde_json::from_slice::<EngineErrorMessage>(&text) {
        Ok(message) => message.message,
        Err(_) if text.is_empty() => {
            StatusCode::from_u16(status_code).map_or(String::new(), |status| status.to_string())
        }
        Err(_) => String::from_utf8_lossy(&text).into_owned(),
    };
    Error::DockerResponseServerError { status_code, message }
}

impl ResponseLines {
    /// The next line without its terminator; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(searched + at + 1);
                line.truncate(searched + at);
                return Ok(Some(line.freeze()));
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES {
                let err = io::Error::new(io::ErrorKind::InvalidData, "a line is too long");
                return Err(Error::IOError { err });
            }
            let Some(frame) = self.body.frame().await else {
                let rest = self.buffer.split().freeze();
                return Ok((!rest.is_empty()).then_some(rest));
            };
            let frame = frame.map_err(|err| Error::HyperResponseError { err })?;
            self.buffer.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
        }
    }
}

async fn connect(host: &str) -> io::Result<Box<dyn Duplex>> {
    match host.split_once("://") {
        Some(("unix", path)) => Ok(Box::new(UnixStream::connect(path).await?)),
        Some((_, address)) => {
            let address = address.trim_end_matches('/');
            Ok(Box::new(TcpStream::connect(address).await?))
        }
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "not an address")),
    }
}
