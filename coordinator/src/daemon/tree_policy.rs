//! Rules for search documents that come over the network.

use std::collections::BTreeSet;

use rollout_environment::registry_lookups::RegistryLookups;

use super::policy::DocumentPolicy;
use super::principal::AllowedVariables;
use crate::config::TreeFile;

impl DocumentPolicy {
    /// The violations of a search, a line each, besides those of paths, which are refused when the
    /// document is read.
    pub(super) fn tree_violations(
        &self,
        tree: &TreeFile,
        variables: &AllowedVariables,
    ) -> Vec<String> {
        let mut found = Vec::new();
        let mut environments = BTreeSet::new();
        let lookups = RegistryLookups::new(|| false);
        let refusal = |image: &str| {
            let refusal = self.images.refusal(image, |name| lookups.addresses(name))?;
            Some(refusal.to_string())
        };
        let servers = tree.gateway.iter().flat_map(|gateway| &gateway.spec.upstreams);
        found.extend(servers.filter_map(|server| self.model_server(&server.url)));
        for (_, command) in tree.commands.named() {
            environments.extend(self.environment(&command.environment.provider));
            let image = command.environment.docker_image.as_deref();
            environments.extend(image.and_then(refusal));
        }
        found.extend(environments);
        found.extend(
            tree.variable_names().into_iter().filter(|name| !variables.contains(name)).map(
                |name| format!("${{{name}}}: your token may not use this variable of the server"),
            ),
        );
        found
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use rollout_protocol::spec::environment::ProviderKind;

    use super::*;
    use crate::daemon::datasets::AllowedUploads;
    use crate::daemon::search::checked_tree;
    use crate::daemon::submit::CheckFault;

    fn details(policy: &DocumentPolicy, text: &str) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tree.yaml");
        std::fs::write(&path, text).expect("written");
        let variables = AllowedVariables::Named(BTreeSet::new());
        match checked_tree(&path, policy, &variables, true, None) {
            Err(CheckFault::Refused { failure, .. }) => failure.details,
            Err(CheckFault::Config(fault)) => vec![format!("{fault:?}")],
            Ok(_) => Vec::new(),
        }
    }

    /// A search on a directory of the operator.
    fn document(root: &Path, rest: &str) -> String {
        let root = root.display();
        format!(
            "repository: {root}/repository\nroot_baseline_csv: {root}/baseline.csv\n\
             environment: {{type: process}}\ncommands:\n  ideas: {{run: a}}\n  \
             implement: {{run: b}}\n  sweep: {{run: c, env: {{KEY: '${{SECRET:-x}}'}}}}\n{rest}"
        )
    }

    fn with_files() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("repository")).expect("made");
        std::fs::write(root.path().join("baseline.csv"), "config_id\n").expect("written");
        let path = root.path().canonicalize().expect("a path");
        (root, path)
    }

    #[test]
    fn search_uses_nothing_that_the_operator_does_not_list() {
        let (_root, path) = with_files();
        let found = details(&DocumentPolicy::default(), &document(&path, "runs_root: /srv\n"));
        let found = found.join("\n");
        for part in ["runs_root", "/repository", "/baseline.csv", "type process", "${SECRET}"] {
            assert!(found.contains(part), "{part}: {found}");
        }
        let policy = DocumentPolicy {
            paths: vec![path.clone()],
            providers: [ProviderKind::Process].into(),
            ..DocumentPolicy::default()
        };
        let found = details(&policy, &document(&path, ""));
        assert_eq!(found.len(), 1, "only the variable: {found:?}");
        let found = details(&policy, &document(&path, "").replace("repository:", "#"));
        assert!(found.iter().any(|line| line.starts_with("repository: path .:")), "{found:?}");
    }

    #[test]
    fn context_of_an_environment_may_be_no_upload_and_no_path_of_the_host() {
        let (_root, path) = with_files();
        let uploads = path.join("datasets");
        let upload = uploads.join("1".repeat(64));
        for made in [&upload, &path.join("listed")] {
            std::fs::create_dir_all(made).expect("made");
            std::fs::write(made.join("Dockerfile"), "FROM x\n").expect("written");
        }
        let policy = DocumentPolicy {
            paths: ["repository", "baseline.csv", "listed"].map(|name| path.join(name)).into(),
            uploads: Some(AllowedUploads { directory: uploads, names: None }),
            ..DocumentPolicy::default()
        };
        let refused = |context: &Path| {
            let text = document(&path, "").replace("${SECRET:-x}", "x");
            let environment = format!("{{type: docker, context: '{}'}}", context.display());
            let all = text.replace("{type: process}", &environment);
            let one = "sweep: {run: c, ";
            let own = text.replace("{type: process}", "{type: docker, docker_image: x}");
            let own = own.replace(one, &format!("{one}environment: {environment}, "));
            [all, own].map(|text| details(&policy, &text).join("\n"))
        };
        assert_eq!(refused(&path.join("listed")), [""; 2]);
        for context in [upload.as_path(), Path::new("/etc"), Path::new("/nowhere")] {
            for found in refused(context) {
                assert!(found.contains("context: path"), "{}: {found}", context.display());
                assert!(found.contains("does not allow"), "{}: {found}", context.display());
            }
        }
    }

    #[test]
    fn profile_in_a_file_is_refused_and_repository_may_not_be_an_upload() {
        let (_root, path) = with_files();
        let text = document(&path, "profile: /etc/passwd\n").replace("${SECRET:-x}", "x");
        let policy = DocumentPolicy {
            paths: vec![path.clone()],
            providers: [ProviderKind::Process].into(),
            ..DocumentPolicy::default()
        };
        let found = details(&policy, &text).join("\n");
        assert!(found.contains("or a table") && !found.contains("root:"), "{found}");
        let upload = path.join("0".repeat(64));
        std::fs::rename(path.join("repository"), &upload).expect("renamed");
        std::fs::create_dir(path.join("repository")).expect("made");
        std::fs::rename(&upload, path.join("repository").join("0".repeat(64))).expect("renamed");
        let uploads = path.join("repository");
        let uploaded = uploads.join("0".repeat(64));
        let text = document(&path, "").replace("${SECRET:-x}", "x");
        let text = text.replace(
            &format!("repository: {}/repository", path.display()),
            &format!("repository: {}", uploaded.display()),
        );
        let uploads = Some(AllowedUploads { directory: uploads, names: None });
        let policy = DocumentPolicy { uploads, ..policy };
        let found = details(&policy, &text).join("\n");
        assert!(found.contains("does not allow"), "{found}");
    }
}
