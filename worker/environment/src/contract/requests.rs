//! Checks of request options besides the image: users, variables, directory, network, limits.

use std::sync::Arc;

use rollout_protocol::record::LimitEnforcement;
use rollout_protocol::spec::resources::{ResourceCeilings, Resources};
use rollout_protocol::spec::task::NetworkPolicy;

use super::{
    ContractOutput, Environment, ExecCommand, OutputStream, ProviderUnderTest, output, shell,
};
use crate::{CaBundle, FailureKind, ListenerRoute};

pub(super) async fn user_existing_runs_commands(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    for user in ["root", "0"] {
        let command = ExecCommand { user: Some(user.to_owned()), ..shell("echo ran") };
        let printed = Arc::new(ContractOutput::default());
        let exit = environment.exec(command, printed.clone()).await;
        assert_eq!(exit.unwrap_or_else(|f| panic!("{user}: {}", f.chain())).code, 0);
        assert_eq!(printed.text(OutputStream::Stdout), "ran\n");
    }
}

pub(super) async fn user_missing_is_refused(_: &ProviderUnderTest, environment: &dyn Environment) {
    let command = ExecCommand { user: Some("no-such-user".to_owned()), ..shell("exit 0") };
    let failure = match environment.exec(command, Arc::new(ContractOutput::default())).await {
        Err(failure) => failure,
        Ok(exit) => panic!("it ran and exited with {exit:?}"),
    };
    // A provider without users supports no user.
    let kinds = [FailureKind::Refused, FailureKind::Unsupported];
    assert!(kinds.contains(&failure.kind), "{}", failure.chain());
    assert!(failure.chain().contains("no-such-user"), "{}", failure.chain());
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}

pub(super) async fn environment_variables_reach_every_command(
    subject: &ProviderUnderTest,
    _: &dyn Environment,
) {
    let made = subject.create_changed(|request| {
        let env = [("CONTRACT_A", "of the $environment"), ("CONTRACT_B", "of it too")];
        request.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    });
    let environment = made.await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let mut command = shell("echo \"$CONTRACT_A|$CONTRACT_B|\"");
    command.env.insert("CONTRACT_B".to_owned(), "of the command".to_owned());
    let printed = Arc::new(ContractOutput::default());
    let ended = environment.exec(command, printed.clone()).await;
    let plain = output(environment.as_ref(), "echo \"$CONTRACT_B|\"").await;
    environment.destroy().await.expect("destroyed");
    assert_eq!(ended.expect("it runs").code, 0);
    assert_eq!(printed.text(OutputStream::Stdout), "of the $environment|of the command|\n");
    assert_eq!(plain, "of it too|\n");
}

pub(super) async fn ca_bundle_is_placed_and_named_unless_request_names_another(
    subject: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    for name in CaBundle::VARIABLES {
        let named = output(environment, &format!("echo \"${name}\"")).await;
        assert_eq!(named.trim_end(), CaBundle::PATH, "{name}");
    }
    // Programs look there, too.
    assert_eq!(output(environment, "echo \"$SSL_CERT_DIR\"").await, "\n");
    let placed = output(environment, &format!("cat {}", CaBundle::PATH)).await;
    assert_eq!(placed.as_bytes(), subject.ca_bundle.pem());
    let made = subject.create_changed(|request| {
        request.env.insert("PIP_CERT".to_owned(), "/own.pem".to_owned());
    });
    let own = made.await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let named = output(own.as_ref(), "echo \"$PIP_CERT $SSL_CERT_FILE\"").await;
    own.destroy().await.expect("destroyed");
    assert_eq!(named.trim_end(), format!("/own.pem {}", CaBundle::PATH));
}

pub(super) async fn working_directory_requested_is_created_and_used(
    subject: &ProviderUnderTest,
    _: &dyn Environment,
) {
    let path = "/made/for/work";
    let made = subject.create_changed(|request| request.workdir = Some(path.to_owned())).await;
    let environment = made.unwrap_or_else(|f| panic!("{}", f.chain()));
    let seen =
        output(environment.as_ref(), "pwd; test -d /made/for/work; echo x > /made/for/work/x");
    let seen = seen.await;
    let workdir = environment.workdir().to_owned();
    environment.destroy().await.expect("destroyed");
    assert_eq!((workdir.as_str(), seen.trim_end()), (path, path));
    let relative =
        subject.create_changed(|request| request.workdir = Some("work".to_owned())).await;
    assert_eq!(relative.expect_err("not absolute").kind, FailureKind::Refused);
}

fn some_hosts() -> NetworkPolicy {
    NetworkPolicy::Allowlist(vec!["example.org".to_owned()])
}

pub(super) async fn network_allowlist_is_enforced_or_refused(
    subject: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let created = subject.create_changed(|request| request.network = some_hosts()).await;
    match created {
        Err(failure) => {
            assert_eq!(failure.kind, FailureKind::Unsupported);
            let changed = environment.set_network(&some_hosts()).await;
            assert_eq!(changed.expect_err("not enforced").kind, FailureKind::Unsupported);
        }
        // The hosts are reached through a listener of the caller only.
        Ok(closed) => {
            let route = closed.listener_route().await;
            let routes = if subject.real_shell { routes(closed.as_ref()).await } else { (0, 1) };
            closed.destroy().await.expect("destroyed");
            assert!(matches!(route, Ok(ListenerRoute::OwnLoopback(_))), "{route:?}");
            assert_eq!(routes, (0, 1), "there is a way out");
            let changed = environment.set_network(&some_hosts()).await;
            // Some keep their first network.
            let refused = changed.err().map(|failure| failure.kind);
            assert!(matches!(refused, None | Some(FailureKind::Unsupported)), "{refused:?}");
        }
    }
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}

/// Number of the routes out of an environment, and whether it has a loopback interface.
async fn routes(environment: &dyn Environment) -> (usize, usize) {
    // Some kernels create tunnel devices in every new network. They are down and have no endpoint.
    let up = "while read name to rest; do [ \"$to\" = 00000000 ] && echo \"$name\"; done \
              < /proc/net/route; grep lo: /proc/net/dev | wc -l";
    let seen = output(environment, up).await;
    let mut lines: Vec<&str> = seen.lines().collect();
    let loopback = lines.pop().and_then(|count| count.parse().ok());
    (lines.len(), loopback.unwrap_or_default())
}

pub(super) async fn network_policy_in_effect_can_be_set_again(
    subject: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    environment.set_network(&NetworkPolicy::Public).await.expect("it is");
    let made = subject.create_changed(|request| request.network = NetworkPolicy::NoNetwork).await;
    let closed = made.unwrap_or_else(|f| panic!("{}", f.chain()));
    let same = closed.set_network(&NetworkPolicy::NoNetwork).await;
    closed.destroy().await.expect("destroyed");
    same.expect("it has none");
}

pub(super) async fn network_disabled_leaves_only_loopback(
    subject: &ProviderUnderTest,
    _: &dyn Environment,
) {
    let made = subject.create_changed(|request| request.network = NetworkPolicy::NoNetwork).await;
    let environment = made.unwrap_or_else(|f| panic!("{}", f.chain()));
    let routes = routes(environment.as_ref()).await;
    environment.destroy().await.expect("destroyed");
    assert_eq!(routes, (0, 1), "there is no way out, and a loopback interface");
}

pub(super) async fn resources_without_ceilings_are_not_limited(
    subject: &ProviderUnderTest,
    _: &dyn Environment,
) {
    // Far too little for anything if it were enforced.
    let resources = Resources {
        memory_mb: 1,
        storage_mb: 1,
        ceilings: ResourceCeilings::NONE,
        ..subject.resources
    };
    let made = subject.create_changed(|request| request.resources = resources).await;
    let environment = made.unwrap_or_else(|f| panic!("{}", f.chain()));
    let limits = environment.limits();
    let usable = output(environment.as_ref(), "echo usable").await;
    environment.destroy().await.expect("destroyed");
    assert_eq!(
        (limits.cpus, limits.memory, limits.storage),
        (LimitEnforcement::No, LimitEnforcement::No, LimitEnforcement::No)
    );
    assert_eq!(usable, "usable\n");
}
