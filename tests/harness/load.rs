//! A load: many small trials with known rewards, whose agents connect to a [`LiveCounter`].

use std::fs;
use std::time::Duration;

use crate::live_counter::LiveCounter;
use crate::project::Project;

/// How an agent finds the host: sandboxes share its network, containers reach it as their gateway.
const HOST: [(&str, &str); 3] = [
    ("process", "host=127.0.0.1"),
    // Pods of the double of a cluster share the host's network.
    ("kubernetes", "host=127.0.0.1"),
    (
        "docker",
        r#"while read -r _ to gateway _; do
        [ "$to" != 00000000 ] || g=$gateway
      done </proc/net/route
      host=$((16#${g:6:2})).$((16#${g:4:2})).$((16#${g:2:2})).$((16#${g:0:2}))"#,
    ),
];

/// A job with its tasks.
#[derive(Debug, Clone)]
pub struct Load {
    /// Name of the job, of its file and of its task directory.
    pub name: String,
    /// Number of tasks, each with one attempt.
    pub items: u32,
    /// Duration of the shortest and the longest agent.
    pub seconds: (f64, f64),
    /// Environment provider.
    pub provider: String,
    /// Additional lines of the job file.
    pub job: String,
    /// Image of the tasks, instead of their Dockerfile.
    pub image: Option<String>,
    /// Maximum number of concurrent trials.
    pub at_once: u32,
}

impl Load {
    /// `items` trials in sandboxes, which take `seconds` each.
    pub fn new(name: &str, items: u32, seconds: (f64, f64)) -> Self {
        let (name, provider) = (name.to_owned(), "process".to_owned());
        Self { name, items, seconds, provider, job: String::new(), image: None, at_once: 1000 }
    }

    /// Adds lines to the job file.
    #[must_use]
    pub fn with_lines(mut self, lines: &str) -> Self {
        self.job.push_str(lines);
        self.job.push('\n');
        self
    }

    /// The job file's path in its project.
    pub fn file(&self) -> String {
        format!("{}.yaml", self.name)
    }

    /// Name of a task, counted from 1.
    pub fn task(&self, number: u32) -> String {
        format!("{}-{number:04}", self.name)
    }

    /// How long the agent of a task works.
    pub fn duration(&self, number: u32) -> Duration {
        let (shortest, longest) = self.seconds;
        // Neighbours differ, so that ends and starts interleave.
        let share = f64::from(number * 37 % 100) / 99.0;
        Duration::from_secs_f64(shortest + share * (longest - shortest))
    }

    /// The reward of a task.
    pub fn reward(number: u32) -> f64 {
        f64::from(number) / 10_000.0
    }

    /// Writes job and tasks.
    ///
    /// # Panics
    /// When that fails.
    pub fn write(&self, project: &Project, counter: &LiveCounter) {
        for number in 1..=self.items {
            let task = project.path().join(format!("tasks-{}", self.name)).join(self.task(number));
            let write = |name: &str, text: &str| {
                let path = task.join(name);
                fs::create_dir_all(path.parent().expect("below the task")).expect("a directory");
                fs::write(path, text).expect("a file");
            };
            let seconds = self.duration(number).as_secs_f64();
            let image = self.image.iter().map(|image| format!("docker_image = \"{image}\"\n"));
            let environment: String = image.collect();
            write("task.toml", &format!("version = \"1.0\"\n[environment]\n{environment}"));
            write("environment/Dockerfile", "FROM debian:bookworm-slim\nWORKDIR /app\n");
            write("instruction.md", &format!("{} {seconds:.3} {number:04}\n", self.task(number)));
            write("tests/test.sh", "echo \"0.$(cat /app/answer)\" >/logs/verifier/reward.txt\n");
        }
        let path = project.path().join(self.file());
        fs::write(path, self.job_file(counter.port())).expect("a file");
    }

    /// Makes a task fail while nothing listens on a port of this host.
    ///
    /// # Panics
    /// When its file cannot be written.
    pub fn fail_without_listener(&self, project: &Project, number: u32, port: u16) {
        let tasks = project.path().join(format!("tasks-{}", self.name));
        let test = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} || exit 1\n\
             echo \"0.$(cat /app/answer)\" >/logs/verifier/reward.txt\n"
        );
        fs::write(tasks.join(self.task(number)).join("tests/test.sh"), test).expect("a file");
    }

    /// The key of a task's trial.
    pub fn trial(&self, number: u32) -> String {
        format!("busy/tasks-{}/{}__1", self.name, self.task(number))
    }

    fn job_file(&self, port: u16) -> String {
        let Self { name, provider, job, at_once, .. } = self;
        let host = HOST.iter().find(|(of, _)| of == provider).expect("a provider").1;
        format!(
            r#"name: {name}
n_concurrent_trials: {at_once}
{job}
environment: {{type: {provider}}}
agents:
  - name: busy
    execute: |
      set -eu
      {host}
      read -r task seconds answer <"$ROLLOUT_TASK_INSTRUCTION"
      exec 3<>"/dev/tcp/$host/{port}"
      echo "$task" >&3
      sleep "$seconds"
      echo "$answer" >answer
      echo done >&3
datasets:
  - path: tasks-{name}
"#
        )
    }
}
