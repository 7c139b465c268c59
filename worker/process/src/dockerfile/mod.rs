//! The subset of Dockerfiles that a process sandbox on the host's own system supports.
//!
//! A sandbox has no image: the base of `FROM` is replaced by the host's `/usr`. In a single stage,
//! `WORKDIR`, `ENV`, `ARG` and `COPY`/`ADD` of plain files are supported; instructions that scripts
//! cannot observe are ignored; everything else is reported as unsupported, with name and line.
//! Without a `WORKDIR` the working directory is `/`, as in an image.

mod copy;

use std::collections::BTreeMap;
use std::path::{Component, Path};

pub(super) use copy::matching;

use rollout_environment::descriptor::UnsupportedInstruction;
use rollout_environment::dockerfile::words::{self, VariableLookup, expand};
use rollout_environment::dockerfile::{Dockerfile, DockerfileInstruction, json_list};

/// Name of the file in a build context.
pub(crate) const DOCKERFILE_NAME: &str = "Dockerfile";

/// Search path of commands when the Dockerfile sets none; Docker's own default.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Instructions that scripts cannot observe.
const IGNORED: [&str; 9] = [
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "SHELL",
    "STOPSIGNAL",
    "VOLUME",
];

/// Directories that are the host's or the kernel's, read-only inside, ...
const READ_ONLY: [&str; 11] =
    ["bin", "dev", "lib", "lib32", "lib64", "libx32", "nix", "proc", "sbin", "sys", "usr"];

/// ... except this one, which images often use.
const WRITABLE: &str = "usr/src";

/// All instructions of a Dockerfile that a process sandbox does not support, in order.
pub(crate) fn check(dockerfile: &str) -> Vec<UnsupportedInstruction> {
    SandboxRecipe::read(dockerfile).unsupported
}

/// The supported part of a Dockerfile.
#[derive(Debug, Default)]
pub(super) struct SandboxRecipe {
    /// Variables of all commands.
    pub(super) env: BTreeMap<String, String>,
    /// Changes of the tree, in order.
    pub(super) steps: Vec<RecipeStep>,
    /// Working directory of commands.
    pub(super) workdir: String,
    /// Instructions that are not supported and not among the steps.
    pub(super) unsupported: Vec<UnsupportedInstruction>,
}

/// A change of the tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecipeStep {
    /// A directory that must exist.
    Dir(String),
    /// Files of the context.
    Copy(CopyInstruction),
}

/// `COPY` or `ADD`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CopyInstruction {
    /// Line of the instruction.
    pub(super) line: usize,
    /// Whether archives would be extracted.
    pub(super) add: bool,
    /// Patterns relative to the context.
    pub(super) sources: Vec<String>,
    /// Absolute path; a trailing slash means a directory.
    pub(super) target: String,
    /// Mode of everything copied.
    pub(super) mode: Option<u32>,
}

impl SandboxRecipe {
    /// The recipe of an environment without a Dockerfile.
    pub(super) fn empty() -> Self {
        let env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
        Self { env, workdir: "/".to_owned(), ..Self::default() }
    }

    /// Reads a Dockerfile.
    pub(super) fn read(text: &str) -> Self {
        let mut reader =
            RecipeReader { recipe: Self::empty(), args: BTreeMap::new(), stages: 0, escape: '\\' };
        let file = Dockerfile::read(text);
        reader.escape = file.escape;
        for instruction in &file.instructions {
            if let Err(reason) = reader.instruction(instruction) {
                reader.recipe.unsupported.push(UnsupportedInstruction {
                    line: instruction.line,
                    instruction: instruction.name.clone(),
                    reason,
                });
            }
        }
        if reader.stages == 0 {
            reader.recipe.unsupported.push(UnsupportedInstruction {
                line: 1,
                instruction: "FROM".to_owned(),
                reason: "there is none".to_owned(),
            });
        }
        reader.recipe
    }
}

struct RecipeReader {
    recipe: SandboxRecipe,
    args: BTreeMap<String, String>,
    stages: usize,
    escape: char,
}

impl VariableLookup for RecipeReader {
    fn get(&self, name: &str) -> Option<&str> {
        self.recipe.env.get(name).or_else(|| self.args.get(name)).map(String::as_str)
    }
}

/// Whether an instruction is supported; the error is the reason.
type InstructionResult = Result<(), String>;

impl RecipeReader {
    fn instruction(&mut self, instruction: &DockerfileInstruction) -> InstructionResult {
        if instruction.heredocs > 0 {
            return Err("here-documents are not supported in a process sandbox".to_owned());
        }
        let rest = instruction.rest.as_str();
        match instruction.name.as_str() {
            "FROM" => self.from(),
            "ARG" => self.arg(rest),
            "ENV" => self.env(rest),
            "WORKDIR" => self.workdir(rest),
            "COPY" | "ADD" => self.copy(instruction),
            "USER" => self.user(rest),
            "RUN" => Err("a process sandbox runs no build commands".to_owned()),
            "ONBUILD" => Err("not supported in a process sandbox".to_owned()),
            name if IGNORED.contains(&name) => Ok(()),
            _ => Err("not a Dockerfile instruction".to_owned()),
        }
    }

    /// The last stage is the image; earlier ones are not part of it.
    fn from(&mut self) -> InstructionResult {
        self.stages += 1;
        if self.stages == 1 {
            return Ok(());
        }
        let unsupported = std::mem::take(&mut self.recipe.unsupported);
        self.recipe = SandboxRecipe { unsupported, ..SandboxRecipe::empty() };
        self.args.clear();
        Err("a process sandbox supports only one stage".to_owned())
    }

    fn arg(&mut self, rest: &str) -> InstructionResult {
        for word in words::split(rest, self.escape) {
            if let Some((name, default)) = word.split_once('=') {
                let value = self.expand(default)?;
                self.args.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    fn env(&mut self, rest: &str) -> InstructionResult {
        let words = words::split(rest, self.escape);
        let pairs: Vec<(String, String)> = match words.first() {
            None => return Err("has no variable name".to_owned()),
            Some(first) if first.contains('=') => words
                .iter()
                .map(|word| word.split_once('=').ok_or(format!("`{word}` has no value")))
                .map(|pair| pair.and_then(|(name, value)| Ok((name.into(), self.expand(value)?))))
                .collect::<Result<_, _>>()?,
            Some(name) => {
                let value = rest.trim_start().strip_prefix(name.as_str()).unwrap_or_default();
                vec![(name.clone(), self.expand(value.trim())?)]
            }
        };
        self.recipe.env.extend(pairs);
        Ok(())
    }

    fn workdir(&mut self, rest: &str) -> InstructionResult {
        let path = self.absolute(&self.expand(rest.trim())?)?;
        writable(&path)?;
        self.recipe.workdir.clone_from(&path);
        self.recipe.steps.push(RecipeStep::Dir(path));
        Ok(())
    }

    fn user(&self, rest: &str) -> InstructionResult {
        let user = self.expand(rest.trim())?;
        let root = user.split(':').all(|part| matches!(part, "0" | "root"));
        if root {
            Ok(())
        } else {
            Err(format!("`{user}`: a process sandbox has only the user root"))
        }
    }

    fn copy(&mut self, instruction: &DockerfileInstruction) -> InstructionResult {
        let add = instruction.name == "ADD";
        let mut mode = None;
        for flag in &instruction.flags {
            match flag.split_once('=').unwrap_or((flag, "")) {
                ("--chmod", text) => {
                    let text = self.expand(text)?;
                    let parsed = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
                    mode = Some(parsed.ok_or(format!("--chmod={text}: not an octal mode"))?);
                }
                ("--chown", owner) => self.user(owner)?,
                ("--link", _) => {}
                _ => return Err(format!("{flag} is not supported in a process sandbox")),
            }
        }
        let mut words = paths(&instruction.rest)
            .iter()
            .map(|w| self.expand(w))
            .collect::<Result<Vec<_>, _>>()?;
        let target =
            words.pop().filter(|_| !words.is_empty()).ok_or("needs a source and a target")?;
        let dir = target.ends_with('/') || matches!(target.as_str(), "." | "..") || words.len() > 1;
        let mut target = self.absolute(&target)?;
        writable(&target)?;
        if dir && target != "/" {
            target.push('/');
        }
        for source in &words {
            if add && (source.contains("://") || source.starts_with("git@")) {
                return Err(format!(
                    "`{source}`: downloads are not supported in a process sandbox"
                ));
            }
            if add && copy::has_archive_extension(source) {
                return Err(format!("`{source}`: archives are not extracted; use COPY"));
            }
        }
        let line = instruction.line;
        self.recipe.steps.push(RecipeStep::Copy(CopyInstruction {
            line,
            add,
            sources: words,
            target,
            mode,
        }));
        Ok(())
    }

    fn expand(&self, word: &str) -> Result<String, String> {
        expand(word, self.escape, self)
    }

    /// `path` resolved against the current working directory, without `.` and `..`.
    fn absolute(&self, path: &str) -> Result<String, String> {
        if path.is_empty() {
            return Err("has no path".to_owned());
        }
        let mut clean = Vec::new();
        for component in Path::new(&self.recipe.workdir).join(path).components() {
            match component {
                Component::Normal(name) => clean.push(name.to_string_lossy().into_owned()),
                Component::ParentDir => drop(clean.pop()),
                _ => {}
            }
        }
        Ok(format!("/{}", clean.join("/")))
    }
}

/// Refuses paths outside the sandbox's own tree.
fn writable(path: &str) -> InstructionResult {
    let below = Path::new(path.trim_start_matches('/'));
    match READ_ONLY.iter().find(|dir| below.starts_with(dir)) {
        Some(dir) if !below.starts_with(WRITABLE) => {
            Err(format!("`{path}`: /{dir} is the host's own and read-only in a process sandbox"))
        }
        _ => Ok(()),
    }
}

/// The paths of `COPY`: a JSON list or words.
fn paths(text: &str) -> Vec<String> {
    json_list(text).unwrap_or_else(|| text.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
