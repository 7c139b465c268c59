//! Paths in the environment of a command that writes ideas, and the variables that name them.
//!
//! | Variable | Meaning |
//! | --- | --- |
//! | `ROLLOUT_TREE`, `ROLLOUT_NODE_ID` | the search and the node |
//! | `ROLLOUT_STAGE` | `ideas` |
//! | `ROLLOUT_REPOSITORY` | files of the node's commit, without a `.git`; the working directory |
//! | `ROLLOUT_IDEAS_DIR` | empty directory for ideas, a file each |
//! | `ROLLOUT_IDEAS_COUNT` | number of ideas that are tried; repeated ones do not count |
//! | `ROLLOUT_CONTEXT_IDEAS_DIRS` | directories of earlier ideas, in order, separated by `:` |
//! | `ROLLOUT_CONTEXT_PACK_DIR` | files that describe the node: changes, results, failed ideas |
//! | `ROLLOUT_LOGS_DIR` | directory kept as the command's logs |
//! | `ROLLOUT_TIMEOUT_SEC`, `ROLLOUT_DEADLINE`, `ROLLOUT_LIMITS` | limits, if there are any |
//! | `ROLLOUT_COST_FILE` | file for the cost of the command: a number, in the unit of the budget |

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rollout_base::secrets::{Redactor, TrialVariables};
use rollout_environment::{Upload, proxies};
use rollout_protocol::spec::gateway::{GatewaySpec, declared_secrets};
use rollout_protocol::spec::ideas::IdeasSpec;
use rollout_protocol::template::UnsetVariable;

use super::IdeasContext;
use crate::executor::ExecutionServices;
use crate::executor::cost::COST_FILE;
use crate::work::agent::command;

/// The files of the node's commit.
pub const REPOSITORY: &str = "/repository";

/// Directory for ideas.
pub const IDEAS: &str = "/ideas";

/// Parent of the directories of earlier ideas and of the files that describe the node.
pub const CONTEXT: &str = "/context";

/// Files that describe the node.
pub const PACK: &str = "/context/pack";

/// Directory kept as the command's logs.
pub const LOGS: &str = "/logs";

/// Directory of the script.
const COMMANDS: &str = "/commands";

/// The script.
pub(super) const SCRIPT: &str = "/commands/ideas.sh";

/// The uploads that place a script.
pub(super) fn script_uploads(text: &str) -> Vec<Upload> {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    vec![
        Upload::FreshDir { path: COMMANDS.to_owned() },
        Upload::File { path: SCRIPT.to_owned(), bytes, executable: true },
    ]
}

/// Expanded variables.
#[derive(Debug, Default)]
pub(super) struct IdeasVariables {
    /// For everything that runs in the environment.
    pub(super) environment: BTreeMap<String, String>,
    /// For the command.
    pub(super) command: BTreeMap<String, String>,
}

/// The context with the proxies of this host, if the environment names none.
pub(super) fn with_host_proxies(
    mut ctx: IdeasContext,
    services: &ExecutionServices,
) -> IdeasContext {
    let proxies = services.proxies(&ctx.ideas.settings.provider);
    if !proxies.is_empty() {
        proxies.add_to(&mut Arc::make_mut(&mut ctx.ideas).environment.env);
    }
    ctx
}

/// The path of a directory of earlier ideas in the environment.
pub(super) fn earlier_ideas_dir(name: &str) -> String {
    format!("{CONTEXT}/{name}")
}

/// Expands the variables of the command and its environment, and returns the redactor of their
/// secrets.
pub(super) fn expand(
    known: &TrialVariables,
    ideas: &IdeasSpec,
) -> Result<(IdeasVariables, Redactor), UnsetVariable> {
    let mut environment = BTreeMap::new();
    known.add(&ideas.environment.env, &mut environment)?;
    proxies::exempt(&mut environment, []);
    // The address of the gateway is added to the hosts without a proxy.
    let mut command = environment.clone();
    known.add(&ideas.command.env, &mut command)?;
    let directories: Vec<String> =
        ideas.earlier.iter().map(|dir| earlier_ideas_dir(&dir.name)).collect();
    let own = [
        ("ROLLOUT_TREE", ideas.name.tree.clone()),
        ("ROLLOUT_NODE_ID", ideas.name.node.clone()),
        ("ROLLOUT_STAGE", "ideas".to_owned()),
        ("ROLLOUT_REPOSITORY", REPOSITORY.to_owned()),
        ("ROLLOUT_IDEAS_DIR", IDEAS.to_owned()),
        ("ROLLOUT_IDEAS_COUNT", ideas.count.to_string()),
        ("ROLLOUT_CONTEXT_IDEAS_DIRS", directories.join(":")),
        ("ROLLOUT_CONTEXT_PACK_DIR", PACK.to_owned()),
        ("ROLLOUT_LOGS_DIR", LOGS.to_owned()),
        ("ROLLOUT_COST_FILE", COST_FILE.to_owned()),
    ];
    command.extend(own.map(|(name, value)| (name.to_owned(), value)));
    if ideas.command.agent.is_some() {
        command.extend(command::variables());
    }
    let templates = ideas.environment.env.values().chain(ideas.command.env.values());
    let templates = templates.chain(ideas.gateway.iter().flat_map(GatewaySpec::keys));
    let declared = declared_secrets(&ideas.secrets, ideas.gateway.as_ref());
    let redactor = known.redactor(templates, &declared, &proxies::logins(&environment))?;
    Ok((IdeasVariables { environment, command }, redactor))
}
