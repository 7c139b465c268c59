//! Networks that services of an environment name themselves.

use std::net::TcpListener;

use rollout_environment::CreateRequest;
use rollout_protocol::spec::environment::{DockerNetwork, DockerSettings, ProviderSpec};
use rollout_protocol::spec::task::NetworkPolicy::NoNetwork;

use crate::docker_provider::compose::{
    created, labeled_objects, open, project_label, query_script, request, with_db,
};
use crate::docker_provider::fixture::{
    BASE, DockerFixture, destroy, labels, output, run, wait_for_script,
};
use crate::docker_provider::network::bridge;

#[tokio::test(flavor = "multi_thread")]
async fn compose_service_keeps_network_that_it_names() {
    let Some(lab) = open().await else { return };
    // A host beyond the services: the engine's own, where this process listens.
    let listener = TcpListener::bind(("0.0.0.0", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let bridge = bridge(&lab).await;
    let reaching = format!("timeout 5 bash -c '</dev/tcp/{bridge}/{port}' 2>/dev/null");
    let compose = with_db("    networks: [default]\n    volumes: ['./said.txt:/said:ro']\n", "")
        + &format!("  plain:\n    image: {BASE}\n    command: sleep infinity\n");
    let compose = compose.replacen("  main:\n", &format!("  main:\n    image: {BASE}\n"), 1);
    let files = [("docker-compose.yaml", compose.as_str()), ("said.txt", "inside\n")];
    let mut request = request(&lab, &files).await.expect("nothing to prepare");
    request.network = NoNetwork;
    let environment = created(&lab, request.clone()).await;
    let main = environment.as_ref();
    let service = |name: &str| environment.service(name).expect("a service");
    wait_for_script(service("db"), &reaching).await;
    assert_ne!(run(main, &reaching).await.0, 0, "the environment reaches its host");
    assert_ne!(run(service("plain"), &reaching).await.0, 0, "a service without networks does");
    for name in ["db", "old-name"] {
        assert_eq!(output(main, &query_script(name)).await, "inside\n", "{name}");
        assert_eq!(output(service("plain"), &query_script(name)).await, "inside\n", "{name}");
    }
    assert_eq!(output(service("db"), "cat /proc/sys/net/ipv4/ip_forward").await, "0\n");
    let label = project_label(main);
    destroy(environment).await;
    assert_eq!(labeled_objects(&lab, &label).await, Vec::<String>::new());

    // A job without network wins.
    assert_denied_by_job(&lab, request, &reaching).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_main_in_network_of_service_is_isolated_with_it() {
    let Some(lab) = open().await else { return };
    let listener = TcpListener::bind(("0.0.0.0", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let bridge = bridge(&lab).await;
    let reaching = format!("timeout 5 bash -c '</dev/tcp/{bridge}/{port}' 2>/dev/null");
    let compose = with_db("    networks: [default]\n    volumes: ['./said.txt:/said:ro']\n", "");
    let own = format!("  main:\n    image: {BASE}\n    network_mode: service:db\n");
    let compose = compose.replacen("  main:\n", &own, 1);
    let files = [("docker-compose.yaml", compose.as_str()), ("said.txt", "inside\n")];
    let mut request = request(&lab, &files).await.expect("nothing to prepare");
    request.network = NoNetwork;
    let environment = created(&lab, request).await;
    let main = environment.as_ref();
    let db = environment.service("db").expect("a service");
    assert_eq!(output(main, &query_script("127.0.0.1")).await, "inside\n");
    assert_ne!(run(main, &reaching).await.0, 0, "the environment reaches its host");
    // Its way out would be that of the environment.
    assert_ne!(run(db, &reaching).await.0, 0, "the service reaches the host");
    destroy(environment).await;
}

/// Asserts that no service of the request reaches anything in a job that denies the network.
async fn assert_denied_by_job(lab: &DockerFixture, mut request: CreateRequest, reaching: &str) {
    let settings = DockerSettings { network: DockerNetwork::None, ..DockerSettings::default() };
    request.settings = ProviderSpec::Docker(settings);
    request.labels = labels();
    let environment = created(lab, request).await;
    let db = environment.service("db").expect("a service");
    assert_ne!(run(db, reaching).await.0, 0, "it reaches the host");
    destroy(environment).await;
}
