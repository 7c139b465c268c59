//! Where the command `ideas` finds things, and the variables that say so.
//!
//! | Variable | What |
//! | --- | --- |
//! | `ROLLOUT_TREE`, `ROLLOUT_NODE_ID` | whose ideas are wanted |
//! | `ROLLOUT_STAGE` | `ideas` |
//! | `ROLLOUT_REPOSITORY` | the files of the node's commit, without a `.git`; commands run there |
//! | `ROLLOUT_IDEAS_DIR` | where to write ideas, a file each; empty |
//! | `ROLLOUT_IDEAS_COUNT` | how many are tried, besides those that repeat others |
//! | `ROLLOUT_CONTEXT_IDEAS_DIRS` | directories of earlier ideas, in their order, with `:` between |
//! | `ROLLOUT_CONTEXT_PACK_DIR` | what is known of the node: changes, results, what did not help |
//! | `ROLLOUT_LOGS_DIR` | kept as the command's logs |
//! | `ROLLOUT_COST_FILE` | where it may write what it cost: a number, in the unit of the budget |

use std::collections::BTreeMap;

use rollout_protocol::template::{Template, Unset};
use rollout_worker::executor::cost::COST;
use rollout_worker::secrets::{Redactor, TrialVariables};

use crate::workloads::search::driver::IdeasOrder;

/// The files of the node's commit.
pub const REPOSITORY: &str = "/repository";

/// Where ideas are written.
pub const IDEAS: &str = "/ideas";

/// Earlier ideas, a directory each, and what is known of the node.
pub const CONTEXT: &str = "/context";

/// What is known of the node.
pub const PACK: &str = "/context/pack";

/// What is kept as logs.
pub const LOGS: &str = "/logs";

/// Directory of the script.
pub(super) const COMMANDS: &str = "/commands";

/// The script.
pub(super) const SCRIPT: &str = "/commands/ideas.sh";

/// Expanded variables, and what must not be seen of them.
#[derive(Debug, Default)]
pub(super) struct Variables {
    pub(super) env: BTreeMap<String, String>,
    pub(super) redactor: Redactor,
}

/// Expands the variables of the command; `context` are the directories of earlier ideas.
pub(super) fn expand(
    known: &TrialVariables,
    templates: &BTreeMap<String, Template>,
    tree: &str,
    order: &IdeasOrder,
    context: &[String],
) -> Result<Variables, Unset> {
    let mut env = BTreeMap::new();
    known.add(templates, &mut env)?;
    let own = [
        ("ROLLOUT_TREE", tree.to_owned()),
        ("ROLLOUT_NODE_ID", order.node.node_id.to_string()),
        ("ROLLOUT_STAGE", "ideas".to_owned()),
        ("ROLLOUT_REPOSITORY", REPOSITORY.to_owned()),
        ("ROLLOUT_IDEAS_DIR", IDEAS.to_owned()),
        ("ROLLOUT_IDEAS_COUNT", order.count.to_string()),
        ("ROLLOUT_CONTEXT_IDEAS_DIRS", context.join(":")),
        ("ROLLOUT_CONTEXT_PACK_DIR", PACK.to_owned()),
        ("ROLLOUT_LOGS_DIR", LOGS.to_owned()),
        ("ROLLOUT_COST_FILE", COST.to_owned()),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value)));
    Ok(Variables { env, redactor: known.redactor(templates.values())? })
}
