//! The bundled NATS server of the chart: its users and its configuration.

use std::fs;
use std::process::Command;

use regex::Regex;
use rollout_tests::ignored::or_ignored_part;
use rollout_tests::nats;
use rollout_tests::project::repository;

use crate::chart::render::{Case, cases, chart};

/// Users and permissions of the server, with masked passwords.
fn without_passwords(roles: &str) -> Vec<String> {
    let password = Regex::new(r#"password: "[^"]*""#).expect("a pattern");
    let masked = password.replace_all(roles, "password: ");
    masked.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

fn text(case: &Case, kind: &str, name: &str, key: &str) -> String {
    let object = case.object(kind, name);
    let data = if kind == "Secret" { &object["stringData"] } else { &object["data"] };
    data[key].as_str().expect("a text").to_owned()
}

/// The pool of the workers of a case.
fn pool(case: &Case) -> String {
    let file = chart().join(format!("ci/{}-values.yaml", case.name));
    let values = fs::read_to_string(file).expect("readable");
    let values: serde_json::Value = serde_saphyr::from_str(&values).expect("YAML");
    values["worker"]["pool"].as_str().unwrap_or("default").to_owned()
}

#[test]
fn users_of_bundled_server_are_those_of_example() {
    for case in cases().iter().filter(|case| case.name != "external") {
        let directory = tempfile::tempdir().expect("a directory");
        let written = Command::new(repository().join("examples/nats/roles"))
            .arg(directory.path())
            .args(["rollout", &pool(case)])
            .status()
            .expect("started");
        assert!(written.success());
        let expected = fs::read_to_string(directory.path().join("roles.conf")).expect("written");
        let roles = text(case, "Secret", "demo-rollout-nats-server", "roles.conf");
        assert_eq!(without_passwords(&roles), without_passwords(&expected), "{}", case.name);
    }
}

#[test]
fn configuration_of_bundled_server_is_accepted() {
    let servers = or_ignored_part(nats::find_programs(), "the check by a server");
    let servers = servers.unwrap_or_default();
    // Certificates are secrets of the platform.
    let tls = Regex::new(r"(?s)\ntls \{.*?\n\}").expect("a pattern");
    for case in cases().iter().filter(|case| case.name != "external") {
        let directory = tempfile::tempdir().expect("a directory");
        let configuration = text(case, "ConfigMap", "demo-rollout-nats", "nats.conf");
        assert!(configuration.contains("sync_interval: always"));
        let is_cluster = case.name == "nats";
        assert_eq!(configuration.contains("include cluster.conf"), is_cluster);
        assert_eq!(tls.is_match(&configuration), is_cluster);
        let configuration = tls.replace(&configuration, "").into_owned();
        let file = |name: &str| directory.path().join(name);
        fs::write(file("nats.conf"), configuration).expect("written");
        let roles = text(case, "Secret", "demo-rollout-nats-server", "roles.conf");
        fs::write(file("roles.conf"), roles).expect("written");
        if is_cluster {
            let routes = text(case, "Secret", "demo-rollout-nats-cluster", "cluster.conf");
            let own = "demo-rollout-nats-2.demo-rollout-nats-peers:6222";
            assert!(routes.contains(own), "{routes}");
            // A masked password is no part of a URL.
            let routes = routes.replace("<password>", "password");
            fs::write(file("cluster.conf"), routes).expect("written");
        }
        for server in &servers {
            let checked = Command::new(server)
                .args(["-t", "-c"])
                .arg(file("nats.conf"))
                .env("POD_NAME", "demo-rollout-nats-0")
                .output()
                .expect("started");
            let message = String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{} {}: {message}", case.name, server.display());
        }
    }
}
