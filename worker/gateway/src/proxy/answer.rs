//! The answer to a call: its sendings, and the servers that are asked in turn.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use hyper_util::client::legacy::connect::CaptureConnection;
use rollout_protocol::record::CallAttempt;
use tokio::time::Instant;

use super::call::Call;
use super::refusal::{ServerBody, ServerReply, asks_to_wait};
use super::route::OwnReply;
use super::run_guards::SentCall;
use super::server::{Admission, ModelServer, NotAdmitted};
use crate::proxy::budget::Reservation;
use crate::proxy::open_calls::OpenCall;

/// The course of a call so far.
#[derive(Debug)]
pub(super) struct Course<'a> {
    pub(super) open: OpenCall<'a>,
    /// Its part of the budget.
    pub(super) reservation: Option<Reservation>,
    /// Place of the server that has the call.
    pub(super) place: usize,
    pub(super) began: Instant,
    pub(super) queued: Duration,
    pub(super) first_byte: Option<Duration>,
    pub(super) attempts: Vec<CallAttempt>,
    /// Whether it left a server for another one for a cause of that server, which may have got nothing.
    has_left_failed: bool,
    /// The present sending.
    pub(super) sent: Option<SentCall>,
    /// Its connection, once there is one.
    connection: Option<CaptureConnection>,
    /// Whether the last sending ended without an answer although a server may have worked on it, for which
    /// its provider may ask money.
    pub(super) is_cut: bool,
    /// The policy version of the last sending.
    pub(super) dispatched: Option<u64>,
}

/// The answer to a call.
pub(super) enum Answer<'a> {
    /// The server's.
    Reply(Response<ServerBody>, Admission<'a>),
    /// The gateway's own. `outage`: because the server cannot be reached, or calls are paused;
    /// `elsewhere`: another server may answer.
    Own { reply: OwnReply, outage: bool, elsewhere: bool },
    /// The agent has gone.
    Gone,
}

impl Answer<'_> {
    /// An answer of the gateway that no server would change.
    pub(super) const fn own(reply: OwnReply, outage: bool) -> Self {
        Self::Own { reply, outage, elsewhere: false }
    }

    /// Whether another server may have a better one.
    fn is_failure(&self) -> bool {
        match self {
            Self::Reply(response, _) => {
                asks_to_wait(response.status()) || response.status().is_server_error()
            }
            Self::Own { elsewhere, .. } => *elsewhere,
            Self::Gone => false,
        }
    }
}

impl<'a> Course<'a> {
    pub(super) fn begin(open: OpenCall<'a>) -> Self {
        let (queued, first_byte, attempts) = (Duration::ZERO, None, Vec::new());
        let (sent, dispatched) = (None, None);
        let (place, began) = (0, Instant::now());
        let (reservation, connection) = (None, None);
        let (is_cut, has_left_failed) = (false, false);
        Self {
            open,
            reservation,
            place,
            began,
            queued,
            first_byte,
            attempts,
            has_left_failed,
            sent,
            connection,
            is_cut,
            dispatched,
        }
    }

    /// Whether a server has the call: one that is still being connected to has nothing of it.
    pub(super) fn is_at_server(&self) -> bool {
        let is_connected = |made: &CaptureConnection| made.connection_metadata().is_some();
        self.sent.is_some() && self.connection.as_ref().is_some_and(is_connected)
    }

    /// Whether a server failed it, also one that was known to be down.
    pub(super) fn has_failure(&self) -> bool {
        !self.attempts.is_empty() || self.has_left_failed
    }

    /// The name of the server that has the call, if it is another one than at the begin.
    pub(super) fn other_server(&self, server: &ModelServer) -> Option<String> {
        (self.place > 0).then(|| server.name().to_owned())
    }

    fn add_attempt(&mut self, server: &ModelServer, set: impl FnOnce(&mut CallAttempt)) {
        let upstream = self.other_server(server);
        let mut attempt = CallAttempt { upstream, ..CallAttempt::default() };
        set(&mut attempt);
        self.attempts.push(attempt);
    }

    fn dispatch(&mut self, sent: SentCall) {
        self.dispatched = sent.version;
        self.sent = Some(sent);
        self.connection = None;
    }

    /// Counts a sending that was cut before another server gets the call; whether the budget covers both.
    fn renew_reservation(&mut self) -> bool {
        if !self.is_cut {
            return true;
        }
        let is_covered = self.reservation.as_mut().is_none_or(Reservation::renew);
        self.is_cut = !is_covered;
        is_covered
    }
}

impl Call {
    /// Asks the servers in turn for an answer that counts.
    pub(super) async fn answer(&self, request: &Bytes, course: &mut Course<'_>) -> Answer<'_> {
        let mut deadline = course.began;
        loop {
            let server = &self.servers[course.place];
            deadline += server.hold();
            let answer = self.ask(server, request, course, deadline).await;
            if !answer.is_failure() || course.place + 1 == self.servers.len() {
                return answer;
            }
            if !course.renew_reservation() {
                return answer;
            }
            // It may also leave a server whose places its own execution has.
            course.has_left_failed |= !matches!(answer, Answer::Own { outage: false, .. });
            course.place += 1;
            deadline = Instant::now();
        }
    }

    /// Sends the call to a server until it has an answer that counts.
    async fn ask<'s>(
        &'s self,
        server: &'s Arc<ModelServer>,
        request: &Bytes,
        course: &mut Course<'_>,
        deadline: Instant,
    ) -> Answer<'s> {
        let mut retries = 0;
        let uri = match server.uri(&self.path) {
            Ok(uri) => uri,
            Err(reply) => return Answer::own(reply, false),
        };
        loop {
            course.sent = None;
            if course.open.wait_for_resume(deadline).await.is_err() {
                return Answer::own(OwnReply::paused(), true);
            }
            let admission = match server.admit(deadline, &self.opened.places).await {
                Ok(admission) => admission,
                // Another call may have found that the server is down or asks to wait.
                Err(NotAdmitted { reply, is_own }) => {
                    return Answer::Own { reply, outage: !is_own, elsewhere: true };
                }
            };
            // A pause may have begun meanwhile.
            let Some(sent) = course.open.send() else { continue };
            course.dispatch(sent);
            course.queued = course.began.elapsed();
            let (to, body) = (uri.clone(), request.clone());
            let sent = server.send(to, &self.headers, body, &mut course.connection).await;
            let ServerReply { response, wait } = match sent {
                Ok(reply) => reply,
                Err(failure) => {
                    course.add_attempt(server, |attempt| {
                        attempt.error = Some(failure.message.clone());
                    });
                    if failure.not_sent {
                        server.mark_down(&failure.message);
                        continue;
                    }
                    course.is_cut = failure.is_cut;
                    let message = "the model server broke the connection off without an answer";
                    let reply = OwnReply::new(StatusCode::BAD_GATEWAY, message);
                    return Answer::Own { reply, outage: true, elsewhere: true };
                }
            };
            let status = response.status();
            course.add_attempt(server, |attempt| {
                attempt.status = Some(status.as_u16());
                attempt.retry_after_sec = wait.map(|wait| wait.as_secs_f64());
            });
            if status.is_redirection() {
                let message = "the model server redirects, which the gateway does not follow";
                return Answer::own(OwnReply::new(StatusCode::BAD_GATEWAY, message), false);
            }
            if !asks_to_wait(status) {
                server.mark_answered();
                return Answer::Reply(response, admission);
            }
            let next = server.back_off(wait);
            if retries >= server.spec().max_retries || next > deadline {
                return Answer::Reply(response, admission);
            }
            retries += 1;
        }
    }
}
