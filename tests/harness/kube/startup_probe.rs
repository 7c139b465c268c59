//! Startup probes: commands that decide when a container has started.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::container::Container;
use super::container_plan::expand;
use super::network;
use super::pod_run::PodRun;
use super::pod_status::set_started;

/// Runs the probe of a running container until it succeeds. Returns false after it has failed too
/// often, or the container has ended.
pub(super) async fn wait_until_started(
    run: &PodRun,
    spec: &Value,
    container: &Arc<Container>,
) -> bool {
    let probe = &spec["startupProbe"];
    // The kubelet knows only the variables of the manifest here.
    let variable = |variable: &Value| {
        let text = |field: &str| variable[field].as_str().map(str::to_owned);
        Some((text("name")?, text("value")?))
    };
    let variables: BTreeMap<_, _> =
        spec["env"].as_array().into_iter().flatten().filter_map(variable).collect();
    let words: Vec<String> = probe["exec"]["command"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|word| word.as_str().map(|word| expand(word, &variables)))
        .collect();
    if words.is_empty() {
        return container.exit_code().is_none();
    }
    let seconds = |field: &str, default| probe[field].as_u64().unwrap_or(default);
    let period = Duration::from_secs(seconds("periodSeconds", 10));
    let limit = Duration::from_secs(seconds("timeoutSeconds", 1));
    for _ in 0..seconds("failureThreshold", 3) {
        if container.exit_code().is_some() {
            return false;
        }
        if succeeds(run, container, &words, limit).await {
            run.update(|pod| set_started(pod, container.name()));
            return true;
        }
        tokio::time::sleep(period).await;
    }
    if let Some(pod) = run.pod() {
        let message =
            format!("Container {} failed startup probe, will be restarted", container.name());
        run.cluster.record_event(&pod, "Normal", "Killing", &message);
    }
    container.stop(Duration::from_secs(1)).await;
    false
}

async fn succeeds(
    run: &PodRun,
    container: &Arc<Container>,
    words: &[String],
    limit: Duration,
) -> bool {
    let has_network = network::allows_egress(&run.cluster, &run.key);
    let Ok(child) = container.exec(words, false, has_network).await else { return false };
    // A probe that is too slow goes on in the container, as under some runtimes.
    let ended = tokio::time::timeout(limit, child.wait_with_output()).await;
    matches!(ended, Ok(Ok(output)) if output.status.success())
}
