//! A container: local processes in namespaces of their own.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, watch};

use super::cgroup::MemoryGroup;
use super::root_directory::OWN_SHELL;

/// Script that makes the root and becomes the first process.
const START_SCRIPT: &str = include_str!("start_container.sh");

/// Search path of the programs that make and enter containers.
const TOOL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Time that a container may take to be gone after its processes were killed.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// Time between two looks at the kernel's count of processes that want of memory ended.
const MEMORY_CHECK: Duration = Duration::from_millis(100);

/// Runs a command as a child, without words of its own about how it ended.
const RUN_CHILD: &str = "exec 3>&2 2> /dev/null; (exec \"$@\" 2>&3 3>&-); exit $?";

/// A container could not be started or entered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContainerError {
    /// A program of its command does not exist; the text is that of the runtime.
    #[error("{0}")]
    ProgramMissing(String),
    /// It does not run.
    #[error("container not running")]
    NotRunning,
    /// The system refuses.
    #[error("cannot start a container: {0}")]
    System(#[from] io::Error),
    /// The namespaces or mounts cannot be made.
    #[error("cannot start a container: {0}")]
    Setup(String),
}

/// Settings of a container's processes.
#[derive(Debug)]
pub(super) struct ContainerPlan {
    pub(super) name: String,
    /// Directory with its log and its own files.
    pub(super) directory: PathBuf,
    /// Trees below its own files, the first on top.
    pub(super) layers: Vec<PathBuf>,
    pub(super) host_name: String,
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) workdir: String,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) may_gain_privileges: bool,
    /// Capabilities by their names without `CAP_`.
    pub(super) capabilities: Vec<String>,
    /// Source, target, and whether it is read-only.
    pub(super) mounts: Vec<(PathBuf, String, bool)>,
    /// Programs of the host that it does not have.
    pub(super) removed: Vec<String>,
    pub(super) memory_limit: Option<u64>,
    /// Lines of its `/etc/hosts`.
    pub(super) hosts: String,
}

/// A container that was started, or that starts at its first exec.
#[derive(Debug)]
pub(super) struct Container {
    plan: ContainerPlan,
    running: Mutex<Option<RunningContainer>>,
    exit: watch::Sender<Option<i32>>,
    memory: Option<MemoryGroup>,
    /// A container of the same pod whose network it joins if it has none of the host's.
    network_of: OnceLock<Pid>,
    /// Execs run on without a client.
    execs: std::sync::Mutex<Vec<Task<()>>>,
}

#[derive(Debug)]
struct RunningContainer {
    /// Process ID of its first process on the host.
    pid: Pid,
    /// Waits for the end of its first process.
    _waiter: Task<()>,
    has_network: bool,
}

impl Container {
    /// A container without processes.
    pub(super) fn new(plan: ContainerPlan) -> Arc<Self> {
        let memory =
            plan.memory_limit.and_then(|limit| MemoryGroup::create(&plan.directory, limit));
        Arc::new(Self {
            plan,
            running: Mutex::default(),
            exit: watch::Sender::default(),
            memory,
            network_of: OnceLock::new(),
            execs: std::sync::Mutex::default(),
        })
    }

    /// Keeps the task of an exec until the container is dropped.
    pub(super) fn own(&self, exec: Task<()>) {
        let mut execs = self.execs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        execs.retain(|exec| !exec.is_finished());
        execs.push(exec);
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.name
    }

    /// Process ID of its first process on the host, once it runs.
    pub(super) async fn pid(&self) -> Option<Pid> {
        self.running.lock().await.as_ref().map(|running| running.pid)
    }

    /// Shares the network of another container.
    pub(super) fn join_network_of(&self, pid: Pid) {
        // All containers of a pod have the network of the first one.
        self.network_of.get_or_init(|| pid);
    }

    /// Directory with its log and its own files.
    pub(super) fn directory(&self) -> &Path {
        &self.plan.directory
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.plan.directory.join("log")
    }

    /// Exit code of its first process, once it has ended.
    pub(super) fn exit_code(&self) -> Option<i32> {
        *self.exit.borrow()
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> i32 {
        let mut exits = self.exit.subscribe();
        let ended = exits.wait_for(Option::is_some).await;
        ended.ok().and_then(|code| *code).unwrap_or(137)
    }

    /// Whether the kernel ended one of its processes for want of memory.
    pub(super) fn was_out_of_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(MemoryGroup::was_exceeded)
    }

    /// Starts its first process unless it runs. `has_network` is about a new process only.
    pub(super) async fn ensure_started(
        self: &Arc<Self>,
        has_network: bool,
    ) -> Result<Pid, ContainerError> {
        let mut running = self.running.lock().await;
        if self.exit_code().is_some() {
            return Err(ContainerError::NotRunning);
        }
        if let Some(running) = running.as_ref() {
            return Ok(running.pid);
        }
        let mut child = self.start_command(has_network)?.spawn()?;
        let pid = read_pid(&mut child).await?;
        let program = self.plan.command.first().map_or("", String::as_str);
        self.check_program(pid, program).map_err(ContainerError::ProgramMissing)?;
        if let Some(mut begin) = child.stdin.take() {
            begin.write_all(b"\n").await?;
        }
        let container = Arc::clone(self);
        let waiter = supervise::spawn("container", async move {
            let code = container.wait_for_end(&mut child, pid).await;
            container.exit.send_replace(Some(code));
        });
        *running = Some(RunningContainer { pid, _waiter: waiter, has_network });
        Ok(pid)
    }

    /// Waits for the end of the first process. Want of memory ends all processes, as the kernel
    /// does for containers of a cluster.
    async fn wait_for_end(&self, child: &mut Child, pid: Pid) -> i32 {
        let mut pauses = tokio::time::interval(MEMORY_CHECK);
        let code = loop {
            tokio::select! {
                ended = child.wait() => break ended.map_or(137, exit_code),
                _ = pauses.tick(), if self.memory.is_some() => {
                    if self.was_out_of_memory() {
                        let _gone = kill_process(pid, Signal::KILL);
                    }
                }
            }
        };
        if self.was_out_of_memory() { 137 } else { code }
    }

    fn start_command(&self, has_network: bool) -> io::Result<Command> {
        let plan = &self.plan;
        std::fs::create_dir_all(&plan.directory)?;
        let mounts: String = plan
            .mounts
            .iter()
            .map(|(source, target, read_only)| {
                format!(
                    "{}\t{target}\t{}\n",
                    source.display(),
                    if *read_only { "ro" } else { "rw" }
                )
            })
            .collect();
        std::fs::write(plan.directory.join("mounts"), mounts)?;
        let removed: String = plan.removed.iter().map(|program| format!("{program}\n")).collect();
        std::fs::write(plan.directory.join("removed"), removed)?;
        std::fs::write(plan.directory.join("hosts"), &plan.hosts)?;
        let layers: Vec<String> =
            plan.layers.iter().map(|layer| layer.display().to_string()).collect();
        let mut command = Command::new("setpriv");
        // A user namespace of an ordinary user may not join another one's network.
        let joined = self.network_of.get().filter(|_| !has_network);
        let joined = joined.filter(|_| rustix::process::geteuid().is_root());
        if !rustix::process::geteuid().is_root() {
            command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--", "setpriv"]);
        }
        // The end of the test process ends this one, and with it everything in the namespaces.
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(pid) = joined {
            let network = format!("--net=/proc/{}/ns/net", pid.as_raw_nonzero());
            command.args(["nsenter", &network, "--"]);
        }
        command.args(["unshare", "--mount", "--pid", "--ipc", "--uts"]);
        command.args(["--fork", "--kill-child=KILL", "--propagation", "private"]);
        if !has_network && joined.is_none() {
            command.arg("--net");
        }
        command.args(["--", "/bin/sh", "-c", START_SCRIPT, "start-container"]);
        command.arg(&plan.directory).arg(layers.join(":")).arg(&plan.host_name);
        command.arg(self.memory.as_ref().map(MemoryGroup::processes_file).unwrap_or_default());
        command.arg(&plan.workdir);
        command.args(self.inner_command(&plan.command));
        command.env_clear().env("PATH", TOOL_PATH).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        Ok(command)
    }

    /// A command with the user, capabilities, variables and directory of the container.
    fn inner_command(&self, command: &[String]) -> Vec<OsString> {
        let plan = &self.plan;
        let mut words: Vec<String> = vec!["/usr/bin/setpriv".to_owned()];
        if !plan.may_gain_privileges {
            words.push("--no-new-privs".to_owned());
        }
        if rustix::process::geteuid().is_root() {
            let capabilities: String =
                plan.capabilities.iter().map(|name| format!(",+{}", name.to_lowercase())).collect();
            words.push(format!("--bounding-set=-all{capabilities}"));
            words.push("--inh-caps=-all".to_owned());
            words.push(format!("--reuid={}", plan.user));
            words.push(format!("--regid={}", plan.group));
            words.push("--clear-groups".to_owned());
        }
        words.extend(["--", "/usr/bin/env", "-i"].map(str::to_owned));
        if !plan.workdir.is_empty() {
            words.extend(["-C".to_owned(), plan.workdir.clone()]);
        }
        words.extend(plan.env.iter().map(|(name, value)| format!("{name}={value}")));
        words.extend(command.iter().cloned());
        words.into_iter().map(OsString::from).collect()
    }

    /// Starts a command in the container, with pipes for the streams that are asked for.
    pub(super) async fn exec(
        self: &Arc<Self>,
        command: &[String],
        has_stdin: bool,
        has_network: bool,
    ) -> Result<Child, ContainerError> {
        let pid = self.ensure_started(has_network).await?;
        let program = command.first().map_or("", String::as_str);
        self.check_program(pid, program).map_err(|cause| {
            ContainerError::ProgramMissing(format!(
                "error executing command in container: failed to exec in container: failed to start \
                 exec \"{:016x}\": OCI runtime exec failed: exec failed: unable to start container \
                 process: {cause}: unknown",
                rand::random::<u64>()
            ))
        })?;
        let joined = self.running.lock().await.as_ref().is_none_or(|running| running.has_network);
        let mut enter = Command::new("/bin/sh");
        enter.args(["-c", "[ -z \"$0\" ] || echo 0 > \"$0\"; exec \"$@\""]);
        enter.arg(self.memory.as_ref().map(MemoryGroup::processes_file).unwrap_or_default());
        enter.args(["nsenter", "--target", &pid.as_raw_nonzero().to_string()]);
        if !rustix::process::geteuid().is_root() {
            // A user namespace of an ordinary user has no groups to set.
            enter.args(["--user", "--preserve-credentials"]);
        }
        enter.args(["--mount", "--pid", "--ipc", "--uts", "--no-fork"]);
        if !has_network && !joined {
            enter.arg("--net");
        }
        // In place of the fork of `nsenter`, which would stop itself when its child is stopped, and
        // never end after a process of the container has stopped and killed all others.
        enter.args(["--", OWN_SHELL, "-c", RUN_CHILD, "exec"]);
        if !has_network && joined {
            enter.args(["/usr/bin/unshare", "--net", "--"]);
        }
        enter.args(self.inner_command(command));
        enter.env_clear().env("PATH", TOOL_PATH).current_dir("/");
        enter.stdin(if has_stdin { Stdio::piped() } else { Stdio::null() });
        enter.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(enter.spawn()?)
    }

    /// The runtime's words if a program does not exist, or cannot be run.
    fn check_program(&self, pid: Pid, program: &str) -> Result<(), String> {
        let missing = |cause: &str| Err(format!("exec: \"{program}\": {cause}"));
        let root = PathBuf::from(format!("/proc/{}/root", pid.as_raw_nonzero()));
        if program.contains('/') {
            let path = Path::new(&self.plan.workdir).join(program);
            return match is_program(&root, &path) {
                Ok(true) => Ok(()),
                Ok(false) => missing("permission denied"),
                Err(_) => {
                    Err(format!("exec: \"{program}\": stat {program}: no such file or directory"))
                }
            };
        }
        let search = self.plan.env.iter().find(|(name, _)| name == "PATH");
        let search = search.map_or(TOOL_PATH, |(_, value)| value);
        let found = search
            .split(':')
            .any(|place| is_program(&root, &Path::new(place).join(program)).unwrap_or(false));
        if found && !program.is_empty() {
            Ok(())
        } else {
            missing("executable file not found in $PATH")
        }
    }

    /// Ends its processes: TERM to the first, KILL to all after the time of grace.
    pub(super) async fn stop(&self, grace: Duration) -> i32 {
        let pid = self.running.lock().await.as_ref().map(|running| running.pid);
        let Some(pid) = pid else {
            // It never had a process.
            self.exit.send_if_modified(|exit| exit.replace(143).is_none());
            return self.exit_code().unwrap_or(143);
        };
        if self.exit_code().is_none() && !grace.is_zero() {
            // It may have ended in between.
            let _gone = kill_process(pid, Signal::TERM);
            if let Ok(code) = tokio::time::timeout(grace, self.ended()).await {
                return code;
            }
        }
        if self.exit_code().is_none() {
            let _gone = kill_process(pid, Signal::KILL);
        }
        tokio::time::timeout(KILL_LIMIT, self.ended()).await.unwrap_or(137)
    }
}

/// Reads the process ID that the script prints once the root is complete.
async fn read_pid(child: &mut Child) -> Result<Pid, ContainerError> {
    let stdout = child.stdout.take().expect("a pipe");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await?;
    if let Some(pid) = line.trim().parse().ok().and_then(Pid::from_raw) {
        return Ok(pid);
    }
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut text).await?;
    }
    Err(ContainerError::Setup(text.trim().to_owned()))
}

/// Whether a path of a container's root is a program; an error if it does not exist.
fn is_program(root: &Path, path: &Path) -> rustix::io::Result<bool> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    let status = rustix::fs::fstat(&file)?;
    let is_file = rustix::fs::FileType::from_raw_mode(status.st_mode).is_file();
    Ok(is_file && status.st_mode & 0o111 != 0)
}

/// Exit code as a runtime reports it: 128 plus the signal for processes that a signal ended.
pub(super) fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(9))
}
