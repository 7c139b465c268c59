//! The CA bundle of a build's commands: BuildKit asks for it as for a secret, and mounts it only while
//! a command runs.

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use prost::Message as _;
use rollout_environment::CaBundle;
use rollout_environment::dockerfile::CA_BUNDLE_SECRET;

use super::filesync::next_message;

/// Largest request: it names a secret.
const REQUEST_BYTES: usize = 16 * 1024;

/// A request for a secret.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SecretRequest {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

/// Its answer.
#[derive(Clone, PartialEq, prost::Message)]
struct SecretAnswer {
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
}

/// Whether a request is for the bundle.
pub(super) async fn is_requested(mut body: RecvStream) -> bool {
    let mut message = BytesMut::new();
    while let Some(piece) = body.data().await {
        let Ok(piece) = piece else { return false };
        message.extend_from_slice(&piece);
        if message.len() > REQUEST_BYTES {
            return false;
        }
    }
    let request: Option<SecretRequest> = next_message(&mut message).ok().flatten();
    request.is_some_and(|request| request.id == CA_BUNDLE_SECRET)
}

/// The answer with the bundle.
pub(super) fn answer(bundle: &CaBundle) -> Vec<u8> {
    SecretAnswer { data: bundle.pem().clone() }.encode_to_vec()
}
