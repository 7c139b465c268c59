//! A nats-server, workers and coordinators, each its own process that can be killed, paused and cut
//! off.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::id::ItemId;
use rollout_worker::spool::ScratchMark;
use rustix::process::Signal;

use crate::leak_check::directory_entries;
use crate::nats::NatsServer;
use crate::nats_cluster::NatsCluster;
use crate::program::{ProgramExit, RunningProgram};
use crate::project::Project;
use crate::results::json;
use crate::s3_process::S3Process;
use crate::s3_server::S3Server;
use crate::tcp_proxy::TcpProxy;
use crate::wait;

/// Time a killed process may take to exit.
const EXIT_DEADLINE: Duration = Duration::from_secs(30);

/// A project with its own servers, which end before its files are removed.
#[derive(Debug)]
pub struct Cluster {
    /// The server.
    pub server: NatsServer,
    /// The server of its blob store, unless that is a directory.
    pub s3: Option<S3Process>,
    /// The project's files.
    pub project: Arc<Project>,
    /// Addresses of the servers of a cluster, used instead of [`Cluster::server`].
    nats_urls: Option<String>,
    lease: Option<Duration>,
}

/// Variable with the queue's lease in seconds.
const LEASE: &str = "ROLLOUT_LEASE";

impl Cluster {
    /// Starts a server in the project; without a nats-server, the test is ignored.
    pub fn new(project: Project) -> Option<Self> {
        let server = NatsServer::start(&project.path().join("nats"))?;
        Some(Self { project: Arc::new(project), server, s3: None, nats_urls: None, lease: None })
    }

    /// Replaces the product's default lease.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Uses the servers of a cluster instead of its own server.
    #[must_use]
    pub fn with_nats_cluster(mut self, nats: &NatsCluster) -> Self {
        self.server.kill();
        self.nats_urls = Some(nats.urls());
        self
    }

    /// Addresses of its servers.
    fn nats_urls(&self) -> String {
        self.nats_urls.clone().unwrap_or_else(|| self.server.url())
    }

    /// Keeps the blobs in S3, on a server that `program` runs.
    #[must_use]
    pub fn with_s3_store(mut self, program: &Path) -> Self {
        self.s3 = Some(S3Process::start(program, &self.project.path().join("s3")));
        self
    }

    /// URL of the blob store.
    fn store_url(&self) -> String {
        match &self.s3 {
            Some(s3) => s3.store_url("runs"),
            None => text(&self.store()).to_owned(),
        }
    }

    /// Directory of the blob store.
    pub fn store(&self) -> PathBuf {
        self.project.path().join("store")
    }

    /// Files of the workers on this host: worker directories and sandboxes.
    pub fn host_files(&self) -> Vec<PathBuf> {
        let host = self.host_dir();
        let sandboxes = directory_entries(&host.join("sandboxes"));
        directories_of_workers(&host).into_iter().chain(sandboxes).collect()
    }

    fn host_dir(&self) -> PathBuf {
        self.project.path().join("host")
    }

    /// A worker, not started yet.
    pub fn worker(&self, name: &str, slots: u32) -> ClusterMember {
        let member =
            self.member(name, &["worker"]).with_arguments(&["--slots", &slots.to_string()]);
        member.with_arguments(&["--dir", text(&self.host_dir()), "--provider", "process"])
    }

    /// A coordinator, not started yet.
    pub fn coordinator(&self, job: &str) -> ClusterMember {
        self.member("coordinator", &["run", job])
    }

    /// A coordinator of a tree search, not started yet.
    pub fn search(&self, tree: &str) -> ClusterMember {
        self.member("search", &["tree", "run", tree])
    }

    fn member(&self, name: &str, words: &[&str]) -> ClusterMember {
        let member = ClusterMember {
            name: name.to_owned(),
            project: Arc::clone(&self.project),
            program: None,
            arguments: Vec::new(),
            variables: self.variables(),
            proxy: None,
            process: None,
            is_paused: false,
        };
        let member = member.with_arguments(words).with_arguments(&["--nats", &self.nats_urls()]);
        member.with_arguments(&["--store", &self.store_url()])
    }

    /// Starts a command of the program against this cluster's server.
    pub fn command(&self, arguments: &[&str]) -> RunningProgram {
        let urls = self.nats_urls();
        let mut command = self.project.command(&[arguments, &["--nats", &urls]].concat());
        command.envs(self.variables());
        self.project.start(command)
    }

    /// Starts a command line that the program printed, in the environment of this cluster but for the
    /// address of its server.
    pub fn paste(&self, line: &str) -> RunningProgram {
        self.project.paste_with(line, &self.variables())
    }

    fn variables(&self) -> Vec<(String, String)> {
        let lease = self.lease.iter().map(|lease| lease.as_secs().to_string());
        let lease = lease.map(|seconds| (LEASE.to_owned(), seconds));
        let key = self.s3.iter().flat_map(|_| S3Server::environment());
        lease.chain(key.map(|(name, value)| (name.to_owned(), value.to_owned()))).collect()
    }
}

/// A worker or a coordinator, across restarts.
#[derive(Debug)]
pub struct ClusterMember {
    /// Name in the test's output.
    pub name: String,
    /// Another program than that under test.
    program: Option<PathBuf>,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    proxy: Option<TcpProxy>,
    process: Option<RunningProgram>,
    is_paused: bool,
    /// The last one: its files outlive the process.
    project: Arc<Project>,
}

impl ClusterMember {
    /// Uses another program from its next start on, such as one of an earlier version.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Sets an option, replacing its value if it has one.
    #[must_use]
    pub fn with_option(self, option: &str, value: &str) -> Self {
        self.without_option(option).with_arguments(&[option, value])
    }

    /// Removes an option and its value.
    #[must_use]
    pub fn without_option(mut self, option: &str) -> Self {
        if let Some(at) = self.arguments.iter().position(|argument| argument == option) {
            self.arguments.drain(at..at + 2);
        }
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Connects the member to the server through a TCP proxy.
    #[must_use]
    pub fn through_tcp_proxy(mut self, server: &NatsServer) -> Self {
        let proxy = TcpProxy::for_port(server.port());
        let url = format!("nats://127.0.0.1:{}", proxy.port());
        self.proxy = Some(proxy);
        self.with_option("--nats", &url)
    }

    /// Starts the member, unless it runs.
    #[must_use]
    pub fn started(mut self) -> Self {
        self.start();
        self
    }

    /// Starts the member, unless it runs.
    pub fn start(&mut self) {
        if self.process.is_none() {
            let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
            let mut command = match &self.program {
                Some(program) => self.project.command_of(program, &arguments),
                None => self.project.command(&arguments),
            };
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            self.process = Some(self.project.start(command));
        }
    }

    /// The process.
    ///
    /// # Panics
    /// When it is not started.
    #[track_caller]
    pub fn process(&mut self) -> &mut RunningProgram {
        self.process.as_mut().expect("it is started")
    }

    /// The member's TCP proxy.
    ///
    /// # Panics
    /// When it has none.
    #[track_caller]
    pub fn tcp_proxy(&self) -> &TcpProxy {
        self.proxy.as_ref().expect("it has a proxy")
    }

    /// Whether the process is started and has not ended.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|run| !run.has_ended())
    }

    /// kill -9.
    pub fn kill(&mut self) -> Option<ProgramExit> {
        let mut run = self.process.take()?;
        run.signal(Signal::KILL);
        self.is_paused = false;
        Some(run.wait(EXIT_DEADLINE))
    }

    /// SIGSTOP.
    pub fn pause(&mut self) {
        if let Some(run) = &mut self.process {
            run.signal(Signal::STOP);
            self.is_paused = true;
        }
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        if let Some(run) = self.process.as_mut().filter(|_| self.is_paused) {
            run.signal(Signal::CONT);
        }
        self.is_paused = false;
    }

    /// Whether [`ClusterMember::pause`] has paused it.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Waits for its exit.
    ///
    /// # Panics
    /// When it does not exit in time, or was not started.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ProgramExit {
        self.process.take().expect("it is started").wait(deadline)
    }

    /// Sends SIGTERM and waits for its exit.
    ///
    /// # Panics
    /// When it does not exit in time, or was not started.
    #[track_caller]
    pub fn terminate(&mut self, deadline: Duration) -> ProgramExit {
        self.process().signal(Signal::TERM);
        self.wait(deadline)
    }

    /// Value of a command-line option.
    fn option(&self, name: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == name)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Items of a worker's started and unfinished executions, according to its scratch directory.
    pub fn executing_items(&self) -> Vec<ItemId> {
        let scratch =
            self.own_dir().map_or_else(Vec::new, |dir| directory_entries(&dir.join("scratch")));
        scratch.iter().filter_map(|dir| ScratchMark::read(dir)).map(|mark| mark.item).collect()
    }

    /// Directory of the current process; `None` before a worker made it.
    pub fn own_dir(&self) -> Option<PathBuf> {
        let pid = self.process.as_ref()?.pid();
        let is_own = |dir: &PathBuf| {
            json(&dir.join("owner.json"))
                .is_some_and(|owner| owner["pid"].as_u64() == Some(pid.into()))
        };
        // Names that begin with a dot are unfinished directories.
        let is_hidden =
            |dir: &PathBuf| dir.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        let directories = directories_of_workers(Path::new(self.option("--dir")?)).into_iter();
        directories.filter(|dir| !is_hidden(dir)).find(is_own)
    }

    /// Waits until its standard error contains `text`.
    ///
    /// # Panics
    /// When that takes longer than `deadline`.
    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str, deadline: Duration) {
        let run = self.process();
        let found = wait::holds_within(deadline, || run.stderr().contains(text));
        assert!(found, "no {text:?} within {deadline:?} in\n{}", run.stderr());
    }
}

impl Drop for ClusterMember {
    fn drop(&mut self) {
        // A stopped process cannot react to its end; for an ended one this does nothing.
        self.resume();
    }
}

/// Worker directories: `workers` has one directory per deployment.
fn directories_of_workers(host: &Path) -> Vec<PathBuf> {
    directory_entries(&host.join("workers"))
        .iter()
        .flat_map(|deployment| directory_entries(deployment))
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a test's path is plain")
}
