//! `--executor`: where a run's trials are executed, as short forms of other options.

use clap::Args;

use super::args::RunArgs;
use super::error::CliError;
use super::remote_api::{ApiServerClient, is_api_url};
use crate::events::MaterializeMode;

/// Schemes of a NATS server as a remote endpoint: the client is built without WebSockets.
const ENDPOINT_SCHEMES: [&str; 2] = ["nats://", "tls://"];

/// Options of the executor.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Executor")]
pub(super) struct ExecutorArgs {
    /// Where trials run [default: as the job's `environment.type` and `--nats` say]
    #[arg(long, value_name = "KIND")]
    executor: Option<ExecutorKind>,

    /// Server whose workers run the trials: `nats://host:4222`, as for `--nats`; or a server of `rollout
    /// serve` that runs the job: `http://host:4280`, to which it is sent with its datasets
    #[arg(long, value_name = "URL")]
    remote_endpoint: Option<String>,

    /// Variable of this process that holds the token for the remote endpoint
    #[arg(long, value_name = "NAME", requires = "remote_endpoint")]
    remote_token_env: Option<String>,

    /// With an endpoint `http://…`: submit the job and do not follow it
    #[arg(long, requires = "remote_endpoint")]
    detach: bool,
}

/// Where trials run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum ExecutorKind {
    /// In containers of this host: `-e docker` without a server
    LocalDocker,
    /// In process sandboxes of this host: `-e process` without a server
    LocalProcess,
    /// On the workers of `--remote-endpoint`, with `--materialize metadata_only` by default
    Remote,
}

impl ExecutorKind {
    /// The environment that a local executor uses.
    const fn environment(self) -> Option<&'static str> {
        match self {
            Self::LocalDocker => Some("docker"),
            Self::LocalProcess => Some("process"),
            Self::Remote => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::LocalDocker => "local_docker",
            Self::LocalProcess => "local_process",
            Self::Remote => "remote",
        }
    }
}

impl ExecutorArgs {
    /// Whether trials run on a remote executor, and files of trials are fetched on demand only.
    fn is_remote(&self) -> bool {
        self.executor == Some(ExecutorKind::Remote) || self.remote_endpoint.is_some()
    }

    /// The server of `rollout serve` that runs the job, if the endpoint is one.
    ///
    /// # Errors
    /// The variable of the token is not set.
    pub(super) fn api_server(&self) -> Result<Option<ApiServerClient>, CliError> {
        let endpoint = self.remote_endpoint.as_deref().filter(|endpoint| is_api_url(endpoint));
        let token = self.remote_token_env.as_deref();
        endpoint.map(|endpoint| ApiServerClient::new(endpoint, token)).transpose()
    }

    /// Whether a server of `rollout serve` runs the job.
    pub(super) fn has_api_server(&self) -> bool {
        self.remote_endpoint.as_deref().is_some_and(is_api_url)
    }

    /// Whether the job is not followed.
    pub(super) fn is_detached(&self) -> bool {
        self.detach
    }

    /// The files to write, given those that the command line names.
    /// None of them leaves it to the sink.
    pub(super) fn materialize(&self, named: Option<MaterializeMode>) -> Option<MaterializeMode> {
        named.or(self.is_remote().then_some(MaterializeMode::MetadataOnly))
    }
}

/// Puts the options that an executor stands for in place of it.
///
/// # Errors
/// The options contradict each other, or one is missing.
pub(super) fn resolve(args: &mut RunArgs) -> Result<(), CliError> {
    let executor = args.executor.clone();
    if let Some(kind) = executor.executor
        && let Some(environment) = kind.environment()
    {
        let name = kind.name();
        if executor.remote_endpoint.is_some() || has_server(args) {
            return Err(CliError::usage(format!(
                "cannot use `--executor {name}` with a server: it runs trials on this host"
            ))
            .hint(
                "remove `--nats` and `--remote-endpoint`, and unset `ROLLOUT_NATS_URL`, or use \
                 `--executor remote`",
            ));
        }
        return args.keys.set_environment(environment, &format!("--executor {name}"));
    }
    if executor.has_api_server() {
        if has_server(args) {
            let what = "cannot use `--nats` with a server of `rollout serve`, which has its own";
            return Err(CliError::usage(what).hint("remove it, or unset `ROLLOUT_NATS_URL`"));
        }
        return Ok(());
    }
    if executor.detach {
        let what = "cannot use `--detach` with this endpoint: only a server of `rollout serve` runs \
                    a job without this process";
        return Err(CliError::usage(what));
    }
    resolve_remote(args, &executor)
}

/// Whether the command line or the environment names a server.
fn has_server(args: &RunArgs) -> bool {
    #[cfg(feature = "nats")]
    return args.nats.url.is_some();
    #[cfg(not(feature = "nats"))]
    {
        let _no_server_can_be_named = args;
        false
    }
}

#[cfg(feature = "nats")]
fn resolve_remote(args: &mut RunArgs, executor: &ExecutorArgs) -> Result<(), CliError> {
    let ExecutorArgs { executor: kind, remote_endpoint, remote_token_env, .. } = executor;
    let Some(endpoint) = remote_endpoint else {
        if *kind == Some(ExecutorKind::Remote) && !has_server(args) {
            return Err(CliError::usage("cannot use `--executor remote` without a server").hint(
                "name it with `--remote-endpoint nats://host:4222`, or with the `http://` or \
                     `https://` address of a server of `rollout serve`",
            ));
        }
        return Ok(());
    };
    if !ENDPOINT_SCHEMES.iter().any(|scheme| endpoint.starts_with(scheme)) {
        let scheme = endpoint.split_once("://").map_or("no scheme", |(scheme, _)| scheme);
        return Err(CliError::usage(format!(
            "cannot use the remote endpoint: found {scheme}, expected `nats://`, `tls://`, `http://` or \
             `https://`"
        )));
    }
    if args.nats.url.as_ref().is_some_and(|url| url != endpoint) {
        return Err(CliError::usage("cannot use both `--nats` and another `--remote-endpoint`")
            .hint("remove one of them, or unset `ROLLOUT_NATS_URL`"));
    }
    args.nats.url = Some(endpoint.clone());
    args.nats.access.token_variable.clone_from(remote_token_env);
    Ok(())
}

#[cfg(not(feature = "nats"))]
fn resolve_remote(_: &mut RunArgs, executor: &ExecutorArgs) -> Result<(), CliError> {
    if !executor.is_remote() {
        return Ok(());
    }
    let _schemes_of_other_builds = ENDPOINT_SCHEMES;
    Err(CliError::usage("cannot use a remote executor: this program was built without it")
        .hint("build it with `--features nats`"))
}

#[cfg(all(test, feature = "nats"))]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn resolved(words: &str) -> Result<RunArgs, CliError> {
        let words = ["rollout", "run", "job.yaml"].into_iter().chain(words.split_whitespace());
        let Command::Run(mut args) = Cli::try_parse_from(words).expect("valid").command else {
            panic!("another command");
        };
        // The environment of the test must not matter.
        args.nats.url =
            args.nats.url.filter(|url| std::env::var("ROLLOUT_NATS_URL").as_ref() != Ok(url));
        resolve(&mut args).map(|()| *args)
    }

    fn mode(args: &RunArgs) -> Option<MaterializeMode> {
        args.executor.materialize(args.materialize)
    }

    #[test]
    fn executor_stands_for_environment_and_server() {
        let docker = resolved("--executor local_docker").expect("valid");
        assert_eq!(docker.keys.environment(), Some("docker"));
        assert_eq!((docker.nats.url.as_deref(), mode(&docker)), (None, None));
        let process = resolved("--executor local_process -e process").expect("valid");
        assert_eq!(process.keys.environment(), Some("process"));

        let endpoint = "--remote-endpoint nats://far:1";
        for words in [endpoint.to_owned(), format!("--executor remote {endpoint}")] {
            let remote = resolved(&words).expect("valid");
            assert_eq!(remote.nats.url.as_deref(), Some("nats://far:1"));
            assert_eq!(
                (remote.keys.environment(), mode(&remote)),
                (None, Some(MaterializeMode::MetadataOnly))
            );
        }
        let full = resolved(&format!("{endpoint} --materialize full")).expect("valid");
        assert_eq!(mode(&full), Some(MaterializeMode::Full));
        let nats = resolved("--nats nats://far:1").expect("valid");
        assert_eq!(mode(&nats), None);
        let same = resolved("--executor remote --nats nats://far:1").expect("valid");
        assert_eq!(mode(&same), Some(MaterializeMode::MetadataOnly));
        let token = resolved(&format!("{endpoint} --remote-token-env TOKEN")).expect("valid");
        assert_eq!(token.nats.access.token_variable.as_deref(), Some("TOKEN"));
    }

    #[test]
    fn executor_that_contradicts_other_options_is_refused() {
        for (words, message) in [
            ("--executor remote", "without a server"),
            ("--executor local_docker --nats nats://far:1", "with a server"),
            ("--executor local_process --remote-endpoint nats://far:1", "with a server"),
            ("--executor local_docker -e process", "`-e process`"),
            ("--remote-endpoint ftp://far", "found ftp"),
            ("--remote-endpoint ws://far:1", "found ws"),
            ("--remote-endpoint nats://far:1 --detach", "`--detach`"),
            ("--remote-endpoint https://far --nats nats://far:1", "`--nats`"),
            ("--remote-endpoint far:1", "found no scheme"),
            ("--remote-endpoint nats://far:1 --nats nats://other:1", "another"),
        ] {
            let error = resolved(words).expect_err(words);
            assert!(error.message.contains(message), "{words}: {}", error.message);
        }
    }

    #[test]
    fn executor_without_endpoint_names_both_kinds_of_servers() {
        let error = resolved("--executor remote").expect_err("no server");
        for scheme in ["nats://", "http://", "https://"] {
            assert!(error.hints.iter().any(|hint| hint.contains(scheme)), "{:?}", error.hints);
        }
    }

    #[test]
    fn documented_endpoints_are_those_that_are_accepted() {
        let page = include_str!("../../../docs/running.md");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let known = ENDPOINT_SCHEMES.map(|scheme| format!("`{scheme}`")).join(", ");
        let said = format!(
            "Endpoints are those of NATS ({known}) and of a server (`http://`, `https://`); others"
        );
        assert!(page.contains(&said), "{said}");
        for scheme in ENDPOINT_SCHEMES {
            assert!(rollout_queue::nats::NatsOptions::parse(&format!("{scheme}a:b@far")).is_ok());
        }
    }
}
