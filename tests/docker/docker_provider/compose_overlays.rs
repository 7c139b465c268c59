//! Compose files of a job, over those of tasks.

use crate::docker_provider::compose::{created, open, query_script, request, with_db};
use crate::docker_provider::fixture::{BASE, destroy, output};

#[tokio::test(flavor = "multi_thread")]
async fn compose_file_of_job_adds_services_to_task_without_any() {
    let Some(lab) = open().await else { return };
    let dockerfile = format!("FROM {BASE}\n");
    let files = [("Dockerfile", dockerfile.as_str()), ("said.txt", "inside\n")];
    let mut request = request(&lab, &files).await.expect("an image");
    let compose = request.compose.as_mut().expect("it has one");
    compose.file = None;
    compose.overlays = vec![with_db("    volumes: ['./said.txt:/said:ro']\n", "")];
    let environment = created(&lab, request).await;
    assert_eq!(output(environment.as_ref(), &query_script("db")).await, "inside\n");
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_files_of_job_are_merged_onto_that_of_task_in_their_order() {
    let Some(lab) = open().await else { return };
    let main = |keys: &str| format!("services: {{main: {{{keys}}}}}\n");
    let own = main(&format!("image: {BASE}, environment: {{A: task, B: task, C: task}}"));
    let mut request = request(&lab, &[("docker-compose.yaml", &own)]).await.expect("nothing");
    let compose = request.compose.as_mut().expect("it has one");
    let overlays = ["environment: {B: first, C: first}", "environment: {C: second}"];
    compose.overlays = overlays.map(main).into();
    let environment = created(&lab, request).await;
    let seen = output(environment.as_ref(), "echo $A $B $C").await;
    assert_eq!(seen, "task first second\n");
    destroy(environment).await;
}
