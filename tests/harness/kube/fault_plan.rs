//! Failures that the double shows on command.

use std::time::{Duration, Instant};

use super::status::ApiError;

/// Failure of a request.
#[derive(Debug, Clone)]
pub enum RequestFault {
    /// 429 with this many seconds in `Retry-After`.
    Throttle(u32),
    /// An error with a status code, such as 500 or 503.
    Error(u16, String),
    /// The answer comes after a time.
    Slow(Duration),
    /// The request has its effect at once, and the answer comes after a time.
    LateAnswer(Duration),
    /// The connection is closed without an answer.
    Drop,
}

/// Failure of an exec.
#[derive(Debug, Clone)]
pub enum ExecFault {
    /// Under v5, standard output ends after this many bytes, and success is reported all the same,
    /// as servers do when the process ends while its reader is behind. Under v4 all bytes arrive.
    LoseTail(usize),
    /// The connection is closed after this many bytes of output.
    DropAfter(usize),
    /// After this many bytes of output nothing more arrives, and the connection stays open.
    StallAfter(usize),
    /// The upgrade is refused with an error.
    Refuse(u16),
    /// Each message of output comes after a pause.
    Slow(Duration),
}

/// Failure of a container's start.
#[derive(Debug, Clone)]
pub enum StartFault {
    /// `CreateContainerConfigError` with a message.
    Config(String),
    /// `CreateContainerError` with a message.
    Create(String),
    /// `RunContainerError` with a message.
    Run(String),
}

/// How a server says that a resource version is too old.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpiredForm {
    /// An `ERROR` event in a watch that was accepted.
    #[default]
    Event,
    /// The HTTP status 410.
    HttpStatus,
}

/// A rule with the number of times that it still applies.
#[derive(Debug, Clone)]
pub(super) struct FaultRule<T> {
    /// Verb and resource of requests, or a text in the command of an exec.
    pub(super) verb: String,
    pub(super) pattern: String,
    pub(super) times: usize,
    pub(super) fault: T,
}

/// All failures in effect.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    pub(super) unschedulable: Option<String>,
    pub(super) pod_capacity: Option<usize>,
    pub(super) cpu_capacity: Option<u64>,
    pub(super) schedule_delay: Duration,
    pub(super) admission_denial: Option<String>,
    pub(super) denied_access: Vec<(String, String)>,
    /// Until when a server that starts has no rules, and with which code it refuses.
    pub(super) without_rules: Option<(Instant, u16)>,
    pub(super) requests: Vec<FaultRule<RequestFault>>,
    pub(super) execs: Vec<FaultRule<ExecFault>>,
    pub(super) starts: Vec<FaultRule<StartFault>>,
    /// Protocols of exec that are offered; empty means all.
    pub(super) exec_protocols: Vec<&'static str>,
    pub(super) expired_form: ExpiredForm,
    /// How long after the end of its containers a pod says why it was ended.
    pub(super) reason_delay: Duration,
    pub(super) ignores_network_policies: bool,
    /// How long after its selection a pod still has a network.
    pub(super) network_policy_delay: Duration,
    /// By how much the clock that dates answers is behind.
    pub(super) clock_behind: Duration,
}

impl FaultPlan {
    /// The fault of a request, which counts as shown.
    pub(super) fn take_request(&mut self, verb: &str, resource: &str) -> Option<RequestFault> {
        take(&mut self.requests, |rule| {
            (rule.verb == "*" || rule.verb == verb)
                && (rule.pattern == "*" || rule.pattern == resource)
        })
    }

    /// The fault of an exec, which counts as shown.
    pub(super) fn take_exec(&mut self, command: &[String]) -> Option<ExecFault> {
        let command = command.join(" ");
        take(&mut self.execs, |rule| command.contains(&rule.pattern))
    }

    /// The fault of the start of a container of an image, which counts as shown.
    pub(super) fn take_start(&mut self, image: &str) -> Option<StartFault> {
        take(&mut self.starts, |rule| image.contains(&rule.pattern))
    }

    /// Whether network policies have an effect.
    pub(super) fn enforces_network_policies(&self) -> bool {
        !self.ignores_network_policies
    }

    /// The code with which a server that has not loaded its rules refuses everything.
    pub(super) fn starting_code(&self) -> Option<u16> {
        self.without_rules.filter(|(until, _)| Instant::now() < *until).map(|(_, code)| code)
    }

    /// Whether access is denied.
    pub(super) fn denies(&self, verb: &str, resource: &str) -> bool {
        self.denied_access.iter().any(|(denied_verb, denied)| {
            (denied_verb == "*" || denied_verb == verb) && (denied == "*" || denied == resource)
        })
    }
}

fn take<T: Clone>(
    rules: &mut Vec<FaultRule<T>>,
    matches: impl Fn(&FaultRule<T>) -> bool,
) -> Option<T> {
    let rule = rules.iter_mut().find(|rule| rule.times > 0 && matches(rule))?;
    rule.times -= 1;
    let fault = rule.fault.clone();
    rules.retain(|rule| rule.times > 0);
    Some(fault)
}

/// The error of an exec that is refused.
pub(super) fn refused_upgrade(code: u16) -> ApiError {
    match code {
        429 => ApiError::too_many_requests(1),
        403 => ApiError::forbidden("pods", "", "the upgrade is refused"),
        500 => ApiError::internal("error dialing backend: dial tcp 192.0.2.7:10250: i/o timeout"),
        _ => ApiError::new(code, "ServiceUnavailable", "unable to upgrade connection"),
    }
}
