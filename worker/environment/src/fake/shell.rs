//! The fake's shell: see the table in the parent module.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch;

use super::{FakeEnvironmentState, FakeLifecycle, FileNode, FileTree, WORKDIR};
use crate::{CommandExit, ExecCommand, Failure, FailureKind, OutputSink, OutputStream, time_limit};

/// Gives a statement short access to its environment.
pub(super) type WithEnvironment<'a> =
    &'a (dyn Fn(&mut dyn FnMut(&mut FakeEnvironmentState)) -> Result<(), Failure> + Sync);

/// Context of a script.
pub(super) struct ShellContext<'a> {
    pub(super) place: WithEnvironment<'a>,
    pub(super) output: &'a dyn OutputSink,
}

/// Outcome of a statement that ends the script.
enum StatementEnd {
    Exit(i32),
    Lost(Failure),
}

impl From<Failure> for StatementEnd {
    fn from(failure: Failure) -> Self {
        Self::Lost(failure)
    }
}

/// Runs a command until it ends or the environment's processes are killed.
pub(super) async fn run(
    world: &ShellContext<'_>,
    command: ExecCommand,
    mut kills: watch::Receiver<u64>,
) -> Result<CommandExit, Failure> {
    let (mut env, mut workdir) = (BTreeMap::new(), None);
    (world.place)(&mut |place| {
        env.clone_from(&place.request.env);
        workdir.clone_from(&place.request.workdir);
    })?;
    env.extend(command.env.clone());
    let workdir = command.workdir.clone().or(workdir).unwrap_or_else(|| WORKDIR.to_owned());
    let (limit, argv) = without_limit(&command.argv);
    let script = script(world, argv, &workdir)?;
    let shell = FakeShell { world, env, workdir, stdin: Mutex::default() };
    kills.borrow_and_update();
    let at_limit = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        _ = kills.changed() => {
            shell.with(|_| ())?;
            Ok(CommandExit { code: 137 })
        }
        () = at_limit => Ok(CommandExit { code: 137 }),
        ended = shell.script(&script) => match ended {
            Ok(()) => Ok(CommandExit { code: 0 }),
            Err(StatementEnd::Exit(code)) => Ok(CommandExit { code }),
            Err(StatementEnd::Lost(failure)) => Err(failure),
        }
    }
}

/// The time limit that the environment keeps for a command, and the command.
fn without_limit(argv: &[String]) -> (Option<Duration>, &[String]) {
    match argv {
        [_, _, script, seconds, command @ ..] if script == time_limit::SCRIPT => {
            (seconds.parse().ok().map(Duration::from_secs), command)
        }
        _ => (None, argv),
    }
}

/// The script text of a command.
fn script(world: &ShellContext<'_>, argv: &[String], workdir: &str) -> Result<String, Failure> {
    let not_started = |what: &str| Failure::new(FailureKind::NotStarted, format!("no {what}"));
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    match argv[..] {
        ["/bin/sh" | "sh" | "bash", "-c", text] => Ok(text.to_owned()),
        ["/bin/sh" | "sh" | "bash", path, ..] => {
            let mut text = None;
            (world.place)(&mut |place| {
                text = read(&place.files, &below(workdir, path));
            })?;
            text.ok_or_else(|| not_started(path))
        }
        _ => Err(not_started(argv.first().unwrap_or(&"program"))),
    }
}

/// An absolute path as it is, a relative one below the working directory.
fn below(workdir: &str, path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") }
}

fn read(files: &FileTree, path: &str) -> Option<String> {
    match files.get(path) {
        Some(FileNode::File { bytes, .. }) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

struct FakeShell<'a> {
    world: &'a ShellContext<'a>,
    env: BTreeMap<String, String>,
    workdir: String,
    /// Standard input.
    stdin: Mutex<String>,
}

impl FakeShell<'_> {
    fn with<T>(&self, work: impl FnOnce(&mut FakeEnvironmentState) -> T) -> Result<T, Failure> {
        let (mut work, mut result) = (Some(work), None);
        (self.world.place)(&mut |place| {
            result = work.take().map(|work| work(place));
        })?;
        Ok(result.expect("the environment was given"))
    }

    fn resolve_path(&self, path: &str) -> String {
        below(&self.workdir, path)
    }

    async fn script(&self, text: &str) -> Result<(), StatementEnd> {
        for statement in statements(text) {
            // A real command takes time: other tasks may act between two statements.
            tokio::task::yield_now().await;
            self.statement(&statement).await?;
        }
        Ok(())
    }

    async fn statement(&self, text: &str) -> Result<(), StatementEnd> {
        let text = text.strip_suffix(" || exit").unwrap_or(text);
        let (mut words, target) = redirect(self.words(text));
        if words.is_empty() || words[0].starts_with('#') {
            return Ok(());
        }
        let program = words.remove(0);
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let printed = match (program.as_str(), &arguments[..]) {
            ("echo", ["-n", words @ ..]) => words.join(" "),
            ("echo", words) => words.join(" ") + "\n",
            ("pwd", []) => format!("{}\n", self.workdir),
            ("cat", []) => std::mem::take(&mut *self.stdin.lock().expect("not poisoned")),
            ("exec", ["<", path]) => {
                let input = self.with(|p| read(&p.files, &self.resolve_path(path)))?;
                *self.stdin.lock().expect("not poisoned") = input.ok_or(StatementEnd::Exit(1))?;
                String::new()
            }
            ("cat", [path]) => self
                .with(|p| read(&p.files, &self.resolve_path(path)))?
                .ok_or(StatementEnd::Exit(1))?,
            ("flood", [bytes]) => return self.flood(number(bytes)?),
            ("exit", [code]) => return Err(StatementEnd::Exit(number(code)?)),
            ("sleep", [seconds]) => {
                tokio::time::sleep(Duration::from_secs_f64(number(seconds)?)).await;
                String::new()
            }
            ("wait-for", [path]) => {
                if !self.with(|p| test(&p.files, "-e", &self.resolve_path(path)))? {
                    std::future::pending::<()>().await;
                }
                String::new()
            }
            (program, arguments) => {
                self.effect(program, arguments)?;
                String::new()
            }
        };
        self.print(&printed, &target)
    }

    /// Statements that print nothing.
    fn effect(&self, program: &str, arguments: &[&str]) -> Result<(), StatementEnd> {
        let done = match (program, arguments) {
            ("test", [flag, path]) => {
                self.with(|p| test(&p.files, flag, &self.resolve_path(path)))?
            }
            ("test", [left, "=", right]) => left == right,
            ("mkdir", ["-p", path] | [path]) => {
                self.with(|p| p.files.make_dir(&self.resolve_path(path)).is_ok())?
            }
            ("ln", ["-s", target, path]) => {
                let link = FileNode::Link((*target).to_owned());
                self.with(|p| p.files.put(&self.resolve_path(path), link).is_ok())?
            }
            ("rm", ["-f", "--", paths @ ..]) => self.with(|p| {
                paths.iter().for_each(|path| p.files.remove(&self.resolve_path(path)));
                true
            })?,
            ("rm", ["-r" | "-rf" | "-f", path] | [path]) => self.with(|p| {
                p.files.remove(&self.resolve_path(path));
                true
            })?,
            ("mv", ["-f", "--", from, to]) => self.with(|p| {
                let (from, to) = (self.resolve_path(from), self.resolve_path(to));
                let moved = p.files.get(&from).cloned();
                p.files.remove(&from);
                moved.is_some_and(|node| p.files.put(&to, node).is_ok())
            })?,
            ("background", [name]) => self.with(|p| {
                p.background.push((*name).to_owned());
                true
            })?,
            ("alive", [name]) => self.with(|p| p.background.iter().any(|b| b == name))?,
            ("oom", []) => {
                self.with(|p| p.oom_killed = true)?;
                return Err(StatementEnd::Exit(137));
            }
            ("vanish", []) => {
                self.with(|p| p.end(FakeLifecycle::Gone))?;
                return self.with(|_| ()).map_err(StatementEnd::Lost);
            }
            ("remove", []) => {
                self.with(|p| p.lifecycle = FakeLifecycle::Gone)?;
                return Err(StatementEnd::Exit(1));
            }
            ("panic", []) => panic!("the script told the provider to panic"),
            _ => return Err(StatementEnd::Exit(127)),
        };
        if done { Ok(()) } else { Err(StatementEnd::Exit(1)) }
    }

    fn print(&self, text: &str, target: &RedirectTarget) -> Result<(), StatementEnd> {
        match target {
            RedirectTarget::Stream(stream) => {
                if !text.is_empty() {
                    self.world.output.write(*stream, text.as_bytes());
                }
                Ok(())
            }
            RedirectTarget::File { path, append } => {
                let path = &self.resolve_path(path);
                let put = self.with(|place| {
                    let old = if *append { read(&place.files, path) } else { None };
                    let bytes = (old.unwrap_or_default() + text).into_bytes().into();
                    place.files.put(path, FileNode::File { bytes, executable: false }).is_ok()
                })?;
                if put { Ok(()) } else { Err(StatementEnd::Exit(1)) }
            }
        }
    }

    fn flood(&self, bytes: u64) -> Result<(), StatementEnd> {
        let line = b"y\n".repeat(32 * 1024);
        let mut left = bytes;
        while left > 0 {
            let now = left.min(line.len() as u64);
            self.world.output.write(OutputStream::Stdout, &line[..now as usize]);
            left -= now;
        }
        Ok(())
    }

    /// Words of a statement, quotes removed and variables replaced.
    fn words(&self, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let (mut word, mut quote, mut open) = (String::new(), None, false);
        let mut characters = text.chars().peekable();
        while let Some(c) = characters.next() {
            match (c, quote) {
                ('\'' | '"', None) => (quote, open) = (Some(c), true),
                (c, Some(q)) if c == q => quote = None,
                ('$', None | Some('"')) => {
                    let mut name = String::new();
                    while let Some(c) = characters.next_if(|c| c.is_alphanumeric() || *c == '_') {
                        name.push(c);
                    }
                    word.push_str(self.env.get(&name).map_or("", String::as_str));
                    open = true;
                }
                (c, None) if c.is_whitespace() => {
                    if open {
                        words.push(std::mem::take(&mut word));
                    }
                    open = false;
                }
                (c, _) => {
                    word.push(c);
                    open = true;
                }
            }
        }
        if open {
            words.push(word);
        }
        words
    }
}

/// Output target of a statement.
enum RedirectTarget {
    Stream(OutputStream),
    File { path: String, append: bool },
}

fn redirect(mut words: Vec<String>) -> (Vec<String>, RedirectTarget) {
    if words.last().is_some_and(|word| word == ">&2") {
        words.pop();
        return (words, RedirectTarget::Stream(OutputStream::Stderr));
    }
    if let [.., arrow, path] = &words[..]
        && (arrow == ">" || arrow == ">>")
    {
        let target = RedirectTarget::File { path: path.clone(), append: arrow == ">>" };
        words.truncate(words.len() - 2);
        return (words, target);
    }
    (words, RedirectTarget::Stream(OutputStream::Stdout))
}

/// Statements of a script: split at newlines and at `;` outside quotes.
fn statements(text: &str) -> Vec<String> {
    let (mut found, mut statement, mut quote) = (Vec::new(), String::new(), None);
    for c in text.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(q)) if c == q => quote = None,
            ('\n' | ';', None) => {
                found.push(std::mem::take(&mut statement));
                continue;
            }
            _ => {}
        }
        statement.push(c);
    }
    found.push(statement);
    found
}

fn test(files: &FileTree, flag: &str, path: &str) -> bool {
    match (flag, files.get(path)) {
        ("-e", node) => node.is_some(),
        ("-d", node) => node == Some(&FileNode::Dir),
        ("-f", Some(FileNode::File { .. })) | ("-L", Some(FileNode::Link(_))) => true,
        ("-s", Some(FileNode::File { bytes, .. })) => !bytes.is_empty(),
        _ => false,
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, StatementEnd> {
    text.parse().map_err(|_| StatementEnd::Exit(2))
}
