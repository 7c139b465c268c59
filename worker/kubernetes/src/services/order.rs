//! How the services of a file are started: beside the environment, before others, or to their end.
//!
//! The environment itself only waits for commands, so nothing has to run before its container does.
//! It is ready when all services are. A service that another one waits for becomes an init
//! container, because those are started one after another.

use std::collections::{BTreeMap, BTreeSet};

use rollout_environment::compose::MAIN;

use super::model::{ServiceRole, ServiceSpec, StartCondition};
use super::problems::Problems;
use super::service::names;

/// Sets the roles of all services and orders those beside the environment.
pub(super) fn arrange(
    main: &mut ServiceSpec,
    mut others: Vec<ServiceSpec>,
    problems: &Problems,
) -> Vec<ServiceSpec> {
    let known: BTreeSet<String> = names(others.iter()).into_iter().map(str::to_owned).collect();
    for service in others.iter_mut().chain([&mut *main]) {
        let (at, name) = (format!("services.{}.depends_on", service.name), service.name.clone());
        service.waits_for.retain(|other, condition| {
            let is_known = known.contains(other) || (other == MAIN && name != MAIN);
            if !is_known {
                problems.unsupported(&format!("{at}.{other}"), "no such service is started");
            } else if other == MAIN && *condition != StartCondition::Started {
                let why = "the environment only waits for commands";
                problems.unsupported(&format!("{at}.{other}"), why);
            }
            is_known
        });
    }
    set_roles(main, &mut others, problems);
    check_conditions(main, &others, problems);
    sort(others, problems)
}

fn set_roles(main: &ServiceSpec, others: &mut [ServiceSpec], problems: &Problems) {
    let mut waited_for: BTreeMap<String, Vec<StartCondition>> = BTreeMap::new();
    let mut before: BTreeSet<String> = BTreeSet::new();
    for service in others.iter() {
        for (other, condition) in &service.waits_for {
            waited_for.entry(other.clone()).or_default().push(*condition);
            before.insert(other.clone());
        }
    }
    for (other, condition) in &main.waits_for {
        waited_for.entry(other.clone()).or_default().push(*condition);
    }
    for service in others.iter_mut() {
        let conditions = waited_for.get(&service.name).map(Vec::as_slice).unwrap_or_default();
        service.role = if conditions.contains(&StartCondition::Completed) {
            ServiceRole::Init
        } else if before.contains(&service.name) || service.restarts {
            ServiceRole::Sidecar
        } else {
            ServiceRole::Beside
        };
        let is_init = service.role == ServiceRole::Init;
        if is_init && conditions.iter().any(|condition| *condition != StartCondition::Completed) {
            let why = "some services wait for its end and others for its start";
            problems.unsupported(&format!("services.{}", service.name), why);
        }
        if is_init && service.restarts {
            let why = "a service whose end others wait for is not restarted";
            problems.unsupported(&format!("services.{}.restart", service.name), why);
        }
        if service.role != ServiceRole::Beside && service.waits_for.contains_key(MAIN) {
            let why = "the service starts before the environment";
            problems.unsupported(&format!("services.{}.depends_on.{MAIN}", service.name), why);
        }
    }
}

/// Refuses waits for a health that nothing determines.
fn check_conditions(main: &ServiceSpec, others: &[ServiceSpec], problems: &Problems) {
    for service in others.iter().chain([main]) {
        for (other, condition) in &service.waits_for {
            let awaited = others.iter().find(|awaited| awaited.name == *other);
            let is_checked = awaited.is_some_and(|awaited| awaited.health.is_some());
            if *condition == StartCondition::Healthy && !is_checked && other != MAIN {
                let at = format!("services.{}.depends_on.{other}.condition", service.name);
                let why = format!(
                    "the service `{other}` has no `healthcheck`, and Kubernetes does not run that \
                     of an image"
                );
                problems.unsupported(&at, &why);
            }
        }
    }
}

/// Orders services so that each comes after those that it waits for.
fn sort(mut waiting: Vec<ServiceSpec>, problems: &Problems) -> Vec<ServiceSpec> {
    let mut sorted: Vec<ServiceSpec> = Vec::new();
    while !waiting.is_empty() {
        let is_ready = |service: &ServiceSpec| {
            let started = |other: &String| sorted.iter().any(|done| done.name == *other);
            service.waits_for.keys().all(|other| other == MAIN || started(other))
        };
        let Some(next) = waiting.iter().position(is_ready) else {
            let names: Vec<_> = waiting.iter().map(|service| service.name.as_str()).collect();
            let why = format!("the services {} wait for each other", names.join(", "));
            problems.invalid("services", &why);
            break;
        };
        sorted.push(waiting.remove(next));
    }
    sorted
}
