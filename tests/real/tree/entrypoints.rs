//! Searches in an image whose ENTRYPOINT starts a service, or with a HEALTHCHECK: their commands begin
//! when it is ready.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::leak_check;
use rollout_tests::results::json;

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

const DOCKERFILE: &str = "FROM debian:bookworm-slim\nCOPY entry.sh /entry.sh\nRUN chmod +x \
                          /entry.sh\nENTRYPOINT [\"/entry.sh\"]\n";

const ENTRYPOINT: &str = "#!/bin/bash\n(sleep 1.5; touch /ready) &\nexec \"$@\"\n";

#[test]
fn search_commands_begin_after_service_of_entrypoint() {
    let Some(_engine) = DockerEngine::available() else { return };
    let small = SmallSearch::default();
    let needing = |script: &str| format!("[ -e /ready ] || exit 1\n{script}");
    let (ideas, implement) = (needing(&small.ideas), needing(&small.implement));
    let environment = "{context: image}".to_owned();
    let search = SmallSearch { ideas, implement, environment, ..small };
    let project = search.write();
    let project = project.write("image/Dockerfile", DOCKERFILE).write("image/entry.sh", ENTRYPOINT);
    let _ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let record =
        SmallSearch::directory(&project).join("eval/0000/experiment/attempt-1/record.json");
    let record = json(&record).expect("a record");
    let wait = &record["environment"]["start_wait"];
    // On a busy machine its shell is seen between its pause and the file.
    let until = wait["until"].as_str().unwrap_or_default();
    assert!(["idle", "settled"].contains(&until), "{record:#}");
    assert!(wait["waited_sec"].as_f64().is_some_and(|waited| waited < 10.0), "{record:#}");
    leak_check::assert_no_leaks(&project);
}

#[test]
fn search_ends_where_image_is_unhealthy_and_goes_on_with_a_grace() {
    let Some(_engine) = DockerEngine::available() else { return };
    let dockerfile = "FROM debian:bookworm-slim\nHEALTHCHECK --interval=1s --retries=1 CMD false\n";
    let environment = "{context: image}".to_owned();
    let search = SmallSearch { environment, ..SmallSearch::default() };
    let project = search.write().write("image/Dockerfile", dockerfile);
    let run = || project.rollout(&SmallSearch::run(&[])).wait(DEADLINE);
    let ended = run().expect_code(ExitCode::Failure);
    assert!(ended.stderr.contains("the command `ideas` for node 0"), "{}", ended.stderr);
    assert!(ended.stderr.contains("HEALTHCHECK"), "{}", ended.stderr);
    let tree = std::fs::read_to_string(project.path().join("tree.yaml")).expect("a search");
    let patient = tree.replace("context: image", "context: image, start_grace_sec: 0");
    project.write_file("tree.yaml", &patient);
    let _ended = run().expect_code(ExitCode::Success);
    leak_check::assert_no_leaks(&project);
}
