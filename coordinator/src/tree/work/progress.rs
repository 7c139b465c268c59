//! What a search tells while it goes on.

use crate::tree::ids::{EvalId, NodeId};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A node's ideas are being written.
    IdeasBegin {
        /// The node.
        node: NodeId,
    },
    /// An eval is under way.
    EvalBegins {
        /// The eval.
        eval: EvalId,
        /// Its node.
        node: NodeId,
        /// File of its idea.
        idea: String,
    },
    /// An eval is settled.
    EvalEnds {
        /// The eval.
        eval: EvalId,
    },
}
