//! Ideas: a command that writes them for one node of a search.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::limits::NAME_BYTES;
use crate::name;
use crate::spec::environment::EnvironmentSpec;
use crate::spec::eval::{EvalCommand, RepositorySpec};
use crate::spec::gateway::GatewaySpec;
use crate::spec::task::TaskEnvironment;

/// Maximum number of ideas per node: far above the number that any search tries.
pub const MAX_IDEAS: usize = 1000;

/// Maximum size of an idea, bytes.
pub const MAX_IDEA_BYTES: u64 = 256 * 1024;

/// The command that writes ideas for a node, and all its inputs: everything resolved, its files
/// stored as blobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdeasSpec {
    /// The node.
    pub name: IdeasOrigin,
    /// The node's commit. The command sees its files, without a `.git`.
    pub repository: RepositorySpec,
    /// The command.
    pub command: EvalCommand,
    /// Its environment.
    pub environment: TaskEnvironment,
    /// Provider and settings of the environment.
    pub settings: EnvironmentSpec,
    /// Number of ideas that the search tries on the node.
    pub count: u32,
    /// Directories of earlier ideas, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierIdeas>,
    /// Archive of the files that describe the node: changes, results, failed ideas.
    pub pack: BlobRef,
    /// The model servers of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewaySpec>,
    /// Variables whose values are secrets: masked in all output.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub secrets: BTreeSet<String>,
}

/// A directory of earlier ideas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierIdeas {
    /// Its name in the environment: one component of a path.
    pub name: String,
    /// Its files as an archive.
    pub archive: BlobRef,
}

/// The node that the ideas are for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdeasOrigin {
    /// The search.
    pub tree: String,
    /// The node.
    pub node: String,
}

/// Why a file with this name and content is not an idea; `None` when it is one.
pub fn invalid_idea_reason(name: &str, content: &[u8]) -> Option<String> {
    if let Err(why) = name::check_component(name, NAME_BYTES) {
        return Some(format!("its name {why}"));
    }
    let bytes = content.len() as u64;
    if bytes > MAX_IDEA_BYTES {
        return Some(format!("it has {bytes} bytes, at most {MAX_IDEA_BYTES} are accepted"));
    }
    if let Some(why) = non_text_reason(content) {
        return Some(why);
    }
    let is_blank = String::from_utf8_lossy(content).trim().is_empty();
    is_blank.then(|| "it is blank".to_owned())
}

/// Why content is not text; `None` when it is. Ideas are shown to people and to models.
pub fn non_text_reason(content: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(content) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            return Some(format!("it is not text: byte {at} is not UTF-8"));
        }
    };
    let harmless = ['\t', '\n', '\r', '\u{c}', '\u{1b}'];
    let odd = text.char_indices().find(|(_, c)| c.is_control() && !harmless.contains(c));
    odd.map(|(at, c)| {
        format!("it is not text: byte {at} is the control character {:#04x}", c as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idea_file_with_bad_name_or_content_is_refused() {
        assert_eq!(invalid_idea_reason("a.md", "- Schneller \u{1f680}\n".as_bytes()), None);
        for (name, content, why) in [
            (".hidden", &b"- x"[..], "its name"),
            ("a/b", b"- x", "its name"),
            ("bell\u{7}", b"- x", "its name"),
            ("a.md", b" \n", "is blank"),
            ("a.md", b"\xff", "byte 0 is not UTF-8"),
            ("a.md", b"x\0", "control character 0x00"),
            ("a.md", &[b'x'; MAX_IDEA_BYTES as usize + 1], "bytes"),
        ] {
            let fault = invalid_idea_reason(name, content).expect(why);
            assert!(fault.contains(why), "{name}: {fault}");
        }
    }

    #[test]
    fn idea_content_not_text_is_refused_with_byte_offset() {
        for (content, at) in [
            (&b"\xff\xfeidea"[..], "byte 0 is not UTF-8"),
            (b"idea \xc3", "byte 5 is not UTF-8"),
            (b"an\0idea", "byte 2 is the control character 0x00"),
            (b"\x7fELF", "byte 0 is the control character 0x7f"),
        ] {
            let why = non_text_reason(content).unwrap_or_default();
            assert!(why.ends_with(at), "{why}");
        }
        for text in
            ["", "- An idea\r\n\twith a tab", "\u{feff}caf\u{e9} \u{1f980}", "\u{1b}[1mbold"]
        {
            assert_eq!(non_text_reason(text.as_bytes()), None, "{text}");
        }
    }
}
