//! Requests without a tunnel, which the proxy sends on itself.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rollout_base::hop_by_hop;
use rollout_base::supervise::{self, Task};
use tokio::net::TcpStream;

/// The body of a reply, with the connection that it comes from.
#[derive(Debug)]
pub(super) struct ForwardedBody {
    body: Incoming,
    _connection: Task<()>,
}

/// Sends a request with an absolute address over a new connection to its host.
pub(super) async fn forward(
    stream: TcpStream,
    mut request: Request<Incoming>,
) -> Result<Response<ForwardedBody>, hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = supervise::spawn("egress-forward", async move {
        if let Err(error) = connection.await {
            tracing::debug!("a connection to an allowed host broke off: {error}");
        }
    });
    let authority = request.uri().authority().map(|host| host.as_str().to_owned());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().unwrap_or_default();
    hop_by_hop::remove(request.headers_mut());
    // The host that was checked, whatever the header of the request says.
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    let mut response = sender.send_request(request).await?;
    hop_by_hop::remove(response.headers_mut());
    Ok(response.map(|body| ForwardedBody { body, _connection: connection }))
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
