//! Conversion of the errors of NATS servers.

use rollout_protocol::exit::ExitCode;
use rollout_queue::nats::{BindError, ConnectError, NatsOptionsError, NatsSetupError};
use rollout_queue::traits::QueueError;

use crate::cli::error::CliError;
use crate::launch::nats::ServerError;

/// The failed operation of most errors.
const WHAT: &str = "cannot use the NATS server";

/// Hint for an address that is not valid.
const ADDRESS_HINT: &str =
    "give an address such as nats://host:4222 or tls://host with `--nats` or `ROLLOUT_NATS_URL`";

/// Hint for a server that does not respond.
const UNREACHABLE_HINT: &str =
    "check that the server runs, and its address in `--nats` or `ROLLOUT_NATS_URL`";

/// Hint for a server that needs credentials when none are given.
const NO_CREDENTIALS_HINT: &str = "give `--nats-user` with `--nats-password-file`, \
                                   `--nats-token-file`, `--nats-nkey` or `--nats-creds`";

/// Hint for credentials that the server does not accept.
const CREDENTIALS_HINT: &str = "check the credentials: `--nats-user` and its password, \
                                `--nats-token-file`, `--nats-nkey`, `--nats-creds`, or those in \
                                `ROLLOUT_NATS_URL`";

/// Hint for a user without the required permissions.
const ROLE_HINT: &str = "give the user the permissions of its role in `examples/nats/roles`: \
                         `rollout worker` needs the worker of its pool, `rollout workers` any \
                         role, all other commands the coordinator";

impl From<ServerError> for CliError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Connect(error) => error.into(),
            ServerError::Setup(error) => error.into(),
            ServerError::Bind(error) => error.into(),
            ServerError::Queue(error) => error.into(),
        }
    }
}

impl From<NatsOptionsError> for CliError {
    fn from(error: NatsOptionsError) -> Self {
        let refused = Self::config(WHAT, &error);
        match error {
            NatsOptionsError::Address { .. } => refused.hint(ADDRESS_HINT),
            NatsOptionsError::Unauthenticated { .. } => refused.hint(NO_CREDENTIALS_HINT),
            NatsOptionsError::Name(_) => refused,
        }
    }
}

impl From<ConnectError> for CliError {
    fn from(error: ConnectError) -> Self {
        let refused = Self::config(WHAT, &error);
        match &error {
            ConnectError::Unreachable { reason, .. } => {
                let hint = if is_tls_fault(reason) { tls_hint(reason) } else { UNREACHABLE_HINT };
                Self::new(ExitCode::OutOfReach, error.to_string()).hint(hint)
            }
            ConnectError::Tls { reason, .. } => refused.hint(tls_hint(reason)),
            ConnectError::Denied { reason, .. } if is_missing_permission(reason) => {
                refused.hint(ROLE_HINT)
            }
            ConnectError::Denied { .. } => refused.hint(CREDENTIALS_HINT),
            ConnectError::NoCredentials { .. } => refused.hint(NO_CREDENTIALS_HINT),
            ConnectError::Options(error) => error.clone().into(),
            ConnectError::NoJetStream { .. } => {
                refused.hint("enable JetStream on the server, for the account of this user")
            }
            ConnectError::SmallMessages { .. } => {
                refused.hint("set `max_payload` of the server; its default is 1MB")
            }
            ConnectError::TlsFile(_)
            | ConnectError::Credentials { .. }
            | ConnectError::TooOld { .. } => refused,
        }
    }
}

impl From<NatsSetupError> for CliError {
    fn from(error: NatsSetupError) -> Self {
        match error {
            NatsSetupError::Queue(QueueError::Denied { reason }) => refused_request(
                "cannot set up the NATS server",
                &reason,
                "use the coordinator's user (docs/operations.md, Users and permissions)",
            ),
            NatsSetupError::Queue(error) => error.into(),
            error @ NatsSetupError::Resources { .. } => {
                Self::config("the NATS server is not set up", &error).hint(
                    "give the account and the server more disk (`max_file`, `max_file_store`), or \
                     create the stream beforehand with a smaller `max_bytes` (docs/operations.md, \
                     Streams and buckets)",
                )
            }
            error @ NatsSetupError::Copies { .. } => {
                Self::config("the NATS servers are not set up", &error).hint(
                    "start the missing servers, or choose the number of copies with \
                     `rollout setup --nats-replicas N`",
                )
            }
            error @ NatsSetupError::Differs { .. } => {
                let failed = Self::config("the NATS server is not set up", &error).hint(
                    "`rollout doctor` shows what differs; `rollout setup` creates what is missing",
                );
                match &error {
                    NatsSetupError::Differs { setting, .. } if setting == "ack_wait" => {
                        failed.hint("start all processes of a namespace with the same `--lease`")
                    }
                    _ => failed,
                }
            }
        }
    }
}

impl From<BindError> for CliError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Queue(error) => error.into(),
            error @ BindError::OtherStore { .. } => Self::config(
                "the workers of the pool use another blob store",
                &error,
            )
            .hint(
                "use the same `--store` everywhere, name another `pool:` in the job, or, once no \
                 run uses the pool, rebind it: `rollout setup --pool NAME --store DIR --rebind`",
            ),
        }
    }
}

impl From<QueueError> for CliError {
    fn from(error: QueueError) -> Self {
        match &error {
            QueueError::Denied { reason } => refused_request(WHAT, reason, ROLE_HINT),
            QueueError::Unreachable { .. } | QueueError::NoAnswerInTime { .. } => {
                Self::new(ExitCode::OutOfReach, error.to_string())
            }
            QueueError::NoAnswer { .. } | QueueError::Position => Self::failure(WHAT, &error),
        }
    }
}

/// The error of a request that the server refused; the hint is for a missing permission.
fn refused_request(what: &str, reason: &str, hint: &str) -> CliError {
    let refused = CliError::refused(format!("{what}: it refused the request: {reason}"));
    if is_missing_permission(reason) { refused.hint(hint) } else { refused }
}

/// Whether the server refused a subject, not the user.
fn is_missing_permission(reason: &str) -> bool {
    reason.to_ascii_lowercase().contains("permissions violation")
}

/// Whether a server was reached and did not agree about TLS. It may only not be ready.
fn is_tls_fault(reason: &str) -> bool {
    ["InvalidContentType", "invalid peer certificate", "received fatal alert"]
        .iter()
        .any(|text| reason.contains(text))
}

fn tls_hint(reason: &str) -> &'static str {
    if reason.contains("InvalidContentType") {
        "the server does not use TLS: use a `nats://` address without `--nats-ca` and `--nats-cert`"
    } else if ["not valid for name", "NotValidForName"].iter().any(|text| reason.contains(text)) {
        "use an address whose host the server's certificate names, or give the server another one"
    } else if reason.contains("invalid peer certificate") {
        "check the server's certificate, and the CA that `--nats-ca` trusts"
    } else if reason.contains("received fatal alert") {
        "the server does not accept the client certificate, or requires one: check `--nats-cert`, \
         `--nats-key` and the CA that the server trusts"
    } else {
        "check the TLS settings of the server, and `--nats-ca`, `--nats-cert` and `--nats-key`"
    }
}

#[cfg(test)]
mod tests {
    use rollout_queue::nats::NatsOptions;

    use super::*;

    const ADDRESS: &str = "nats://127.0.0.1:4222";
    const NO_PERMISSION: &str = "Permissions Violation for Publish to \"$JS.API.INFO\"";

    fn unreachable(reason: &str) -> CliError {
        ConnectError::Unreachable { address: ADDRESS.to_owned(), reason: reason.to_owned() }.into()
    }

    fn denied(reason: &str) -> CliError {
        ConnectError::Denied { address: ADDRESS.to_owned(), reason: reason.to_owned() }.into()
    }

    #[test]
    fn nats_server_out_of_reach_hints_address() {
        let error = unreachable("Connection refused (os error 111)");
        assert_eq!(error.code, ExitCode::OutOfReach);
        assert_eq!(
            error.message,
            "cannot reach the NATS server nats://127.0.0.1:4222: Connection refused (os error 111)"
        );
        assert_eq!(error.hints, [UNREACHABLE_HINT]);
    }

    #[test]
    fn nats_server_with_other_tls_settings_is_mistake_of_settings() {
        for (reason, hint) in [
            ("received corrupt message of type InvalidContentType", "`nats://`"),
            ("invalid peer certificate: UnknownIssuer", "`--nats-ca`"),
            ("invalid peer certificate: certificate not valid for name \"a\"", "an address"),
            ("received fatal alert: CertificateRequired", "`--nats-cert`"),
        ] {
            let (address, reason) = (ADDRESS.to_owned(), reason.to_owned());
            let error = CliError::from(ConnectError::Tls { address, reason });
            assert_eq!(error.code, ExitCode::Config);
            assert!(error.hints[0].contains(hint), "{:?}", error.hints);
        }
        let proxy = unreachable("received fatal alert: InternalError");
        assert_eq!(proxy.code, ExitCode::OutOfReach, "it may not be ready");
        assert!(proxy.hints[0].contains("`--nats-cert`"), "{:?}", proxy.hints);
    }

    #[test]
    fn nats_credentials_refused_hint_options() {
        let wrong = denied("authorization violation");
        assert_eq!((wrong.code, wrong.hints), (ExitCode::Config, vec![CREDENTIALS_HINT.into()]));
        assert_eq!(denied(NO_PERMISSION).hints, [ROLE_HINT]);
        let none = CliError::from(ConnectError::NoCredentials { address: ADDRESS.to_owned() });
        assert_eq!(none.hints, [NO_CREDENTIALS_HINT]);
        assert!(none.message.ends_with("requires credentials, and none were given"), "{none:?}");
        let open = NatsOptions::parse("nats://nats.example.org").expect("valid").check();
        let open = CliError::from(ConnectError::from(open.expect_err("no credentials")));
        assert_eq!(open.hints, [NO_CREDENTIALS_HINT]);
    }

    #[test]
    fn nats_request_refused_hints_role() {
        let denied = |reason: &str| QueueError::Denied { reason: reason.to_owned() };
        let setup = CliError::from(NatsSetupError::Queue(denied(NO_PERMISSION)));
        assert_eq!(
            (setup.code, setup.message),
            (
                ExitCode::Config,
                format!("cannot set up the NATS server: it refused the request: {NO_PERMISSION}")
            )
        );
        assert!(setup.hints[0].contains("coordinator's user"), "{:?}", setup.hints);
        assert_eq!(CliError::from(denied(NO_PERMISSION)).hints, [ROLE_HINT]);
        assert!(CliError::from(denied("maximum bytes exceeded")).hints.is_empty());
    }
}
