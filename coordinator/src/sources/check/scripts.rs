//! Heuristics on the text of scripts.

/// Commands that use the network.
const NETWORK_COMMANDS: &[&[&str]] = &[
    &["apt-get"],
    &["apt", "install"],
    &["apt", "update"],
    &["apk", "add"],
    &["dnf", "install"],
    &["yum", "install"],
    &["pip", "install"],
    &["pip3", "install"],
    &["uv", "pip"],
    &["uv", "add"],
    &["uvx"],
    &["npm", "install"],
    &["npx"],
    &["cargo", "install"],
    &["go", "install"],
    &["git", "clone"],
    &["curl"],
    &["wget"],
];

/// The first command of a script that uses the network: its line, from 1, and its words.
pub(super) fn find_network_command(text: &str) -> Option<(usize, String)> {
    text.lines().enumerate().find_map(|(index, line)| {
        let words = words(line);
        let fetcher = NETWORK_COMMANDS
            .iter()
            .find(|fetcher| words.windows(fetcher.len()).any(|window| window == **fetcher))?;
        let here = ["localhost", "127.0.0.1"].iter().any(|host| line.contains(host));
        (!here).then(|| (index + 1, fetcher.join(" ")))
    })
}

/// The words of a line, up to a comment.
fn words(line: &str) -> Vec<&str> {
    let separators = |c: char| c.is_whitespace() || ";&|()`\"'".contains(c);
    let words = line.split(separators).filter(|word| !word.is_empty());
    words.take_while(|word| !word.starts_with('#')).collect()
}

/// Whether a text may write a reward.
pub(super) fn mentions_reward(text: &str) -> bool {
    text.contains("/logs/verifier") || text.contains("reward")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_command_that_needs_network_is_found() {
        for (text, expected) in [
            ("set -e\napt-get update && apt-get install -y x\n", Some((2, "apt-get"))),
            ("python -m pip install x", Some((1, "pip install"))),
            ("# curl is not needed", None),
            ("echo done # curl", None),
            ("x=$(curl -s https://a)", Some((1, "curl"))),
            ("curl http://localhost:80/", None),
            ("pip --version; install x", None),
            ("mycurl x", None),
        ] {
            let found = find_network_command(text);
            let found = found.as_ref().map(|(line, words)| (*line, words.as_str()));
            assert_eq!(found, expected, "{text}");
        }
    }
}
