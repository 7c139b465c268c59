//! A trial that prints lines for some seconds.

use crate::project::Project;

/// Lines that the agent prints, one every fifth of a second.
pub const LINES: u32 = 40;

/// Writes a job `talks` with one trial whose agent prints lines with the variable `TOKEN`.
pub fn write_talking_job(project: &Project) {
    let job = format!(
        "name: talks\n\
         environment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
         agents:\n  - name: talker\n    env: {{TOKEN: '${{TOKEN:-none}}'}}\n    execute: |\n      \
         for i in $(seq {LINES}); do echo \"line $i of $TOKEN.\"; sleep 0.2; done\n      \
         echo done >answer.txt\n\
         datasets: [{{path: tasks}}]\n"
    );
    project.write_file("job.yaml", &job);
    project.write_small_task("echo tested; echo 1 >/logs/verifier/reward.txt\n");
}

/// Fails unless a follower printed every line of the agent once, in order, and the output of the
/// tests after them.
#[track_caller]
pub fn assert_followed(stdout: &str, token: &str) {
    let lines: Vec<&str> = stdout.lines().filter(|line| line.starts_with("line ")).collect();
    let expected: Vec<String> = (1..=LINES).map(|n| format!("line {n} of {token}.")).collect();
    assert_eq!(lines, expected, "{stdout}");
    let headers = ["==> command/stdout.txt (", "==> logs/verifier/stdout.txt ("];
    for header in headers {
        assert_eq!(stdout.matches(header).count(), 1, "{header}: {stdout}");
    }
    assert!(stdout.trim_end().ends_with("tested"), "{stdout}");
}
