//! Rules for job documents that come over the network. The operator lists exceptions.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use rollout_environment::descriptor;
use rollout_environment::egress::first_internal_host;
use rollout_environment::image_access::ImageAccess;
use rollout_protocol::spec::environment::{PreservePolicy, ProviderKind, ProviderSpec};

use super::datasets::AllowedUploads;
use super::principal::AllowedVariables;
use crate::config::{
    FetchNetwork, HostPathRules, HostSource, Job, SourceBounds, is_remote_repository,
    split_reference, without_secrets,
};

/// The operator's rules for documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentPolicy {
    /// Directories of this host below which datasets may be.
    pub paths: Vec<PathBuf>,
    /// Uploaded datasets that may be named.
    pub uploads: Option<AllowedUploads>,
    /// Beginnings of the URLs of registries that may be used: their entries name any repository.
    pub registries: Vec<String>,
    /// Beginnings of the URLs of model servers that gateways may call: workers reach servers that
    /// users may not.
    pub model_servers: Vec<String>,
    /// Providers that need permission and have it.
    pub providers: BTreeSet<ProviderKind>,
    /// Whether documents may have settings of providers, and environments that are kept.
    pub provider_settings: bool,
    /// Pools of workers that documents may name beside the default one.
    pub pools: BTreeSet<String>,
    /// The network that repositories and registries are fetched over.
    pub network: FetchNetwork,
    /// The registries whose images documents may use.
    pub images: ImageAccess,
}

/// Pool of jobs that name none.
pub(super) const DEFAULT_POOL: &str = "default";

/// Providers that run commands in containers of their own. `process` shares this host's kernel and,
/// by default, its network.
const ALWAYS_ALLOWED: [ProviderKind; 2] = [ProviderKind::Docker, ProviderKind::Kubernetes];

impl DocumentPolicy {
    /// The violations of a job, a line each, besides those of paths and addresses of sources, which
    /// are refused when the document is read.
    pub fn violations(&self, job: &Job, variables: &AllowedVariables) -> Vec<String> {
        let mut found = Vec::new();
        found.extend(self.environment(&job.settings.environment.provider));
        found.extend(self.kept_environments(job.settings.environment.preserve_env));
        let servers = job.settings.gateway.iter().flat_map(|gateway| &gateway.upstreams);
        found.extend(servers.filter_map(|server| self.model_server(&server.url)));
        found.extend(self.hosts(job));
        found.extend(job.variables().into_iter().filter(|name| !variables.contains(name)).map(
            |name| format!("${{{name}}}: your token may not use this variable of the server"),
        ));
        found
    }

    /// The violations of the hosts that a job allows to environments: workers connect to them, and reach
    /// addresses that users may not.
    fn hosts(&self, job: &Job) -> Vec<String> {
        if self.images == ImageAccess::Everything {
            return Vec::new();
        }
        let of_job =
            [("environment", &job.environment_changes.hosts), ("verifier", &job.verifier_hosts)];
        let of_job = of_job.map(|(element, hosts)| (Cow::Borrowed(element), hosts));
        let of_agents = job.agents.iter().map(|agent| {
            let hosts = &agent.spec.task_options.extra_allowed_hosts;
            (Cow::Owned(format!("agent {}", agent.spec.name)), hosts)
        });
        let refused = |(element, hosts): (Cow<'_, str>, &Vec<String>)| {
            let host = first_internal_host(hosts)?;
            Some(format!(
                "{element}: extra_allowed_hosts: `{host}` has addresses that are not public: runs of a \
                 server reach public ones only"
            ))
        };
        of_job.into_iter().chain(of_agents).filter_map(refused).collect()
    }

    /// The violation of the pool that a document names, if workers run its trials.
    pub(super) fn pool(&self, name: Option<&str>) -> Option<String> {
        let name = name.filter(|name| *name != DEFAULT_POOL && !self.pools.contains(*name))?;
        Some(format!("pool {name}: the operator does not allow it (`--allow-pool`)"))
    }

    fn registry(&self, url: &str) -> Option<String> {
        let is_listed = self.registries.iter().any(|prefix| is_below_url(url, prefix));
        (!is_listed).then(|| {
            let url = without_secrets(url);
            format!("registry {url}: the operator does not allow it (`--allow-registry`)")
        })
    }

    fn path(&self, path: &Path) -> Option<String> {
        let is_allowed = resolved(path).is_some_and(|path| match self.upload(&path) {
            // Also below a listed directory.
            Some(_) => self.uploads.as_ref().is_some_and(|uploads| uploads.allows(&path)),
            None => self.is_listed(&path),
        });
        (!is_allowed).then(|| refused(path))
    }

    /// A path that only the operator may provide: not an upload. The entries of a registry, for one,
    /// name any repository, also a path of this host.
    fn operators_path(&self, path: &Path) -> Option<String> {
        let is_allowed = resolved(path)
            .is_some_and(|path| self.is_listed(&path) && self.upload(&path).is_none());
        (!is_allowed).then(|| refused(path))
    }

    fn is_listed(&self, resolved: &Path) -> bool {
        self.listed(resolved).is_some()
    }

    /// The listed directory that has a path.
    fn listed(&self, resolved: &Path) -> Option<PathBuf> {
        let real = |allowed: &PathBuf| allowed.canonicalize().ok();
        self.paths.iter().filter_map(real).find(|allowed| resolved.starts_with(allowed))
    }

    fn upload(&self, resolved: &Path) -> Option<PathBuf> {
        self.uploads.as_ref().and_then(|uploads| uploads.find(resolved))
    }

    fn repository(&self, url: &str) -> Option<String> {
        if is_remote_repository(url) {
            let refused = self.network.refusal(url);
            return refused.map(|why| format!("repository {}: {why}", without_secrets(url)));
        }
        let path = Path::new(url.strip_prefix("file://").unwrap_or(url));
        // Git would read what the configuration of an uploaded repository names.
        let shown = without_secrets(url);
        if self.operators_path(path).is_some() {
            return Some(format!(
                "repository {shown}: it is on the server, and the operator does not allow it \
                 (`--allow-path`)"
            ));
        }
        // Git reads a file as a bundle, to its end.
        let is_file = !path.is_dir();
        is_file.then(|| format!("repository {shown}: it is on the server, and no directory"))
    }

    pub(super) fn model_server(&self, url: &str) -> Option<String> {
        let is_listed = self.model_servers.iter().any(|prefix| is_below_url(url, prefix));
        (!is_listed).then(|| {
            let url = without_secrets(url);
            format!("model server {url}: the operator does not allow it (`--allow-model-server`)")
        })
    }

    /// The violation of environments that are kept after their trials: nothing removes them from a
    /// worker's engine or disk, and they are the disk of no user.
    fn kept_environments(&self, kept: PreservePolicy) -> Option<String> {
        (kept != PreservePolicy::Never && !self.provider_settings).then(|| {
            "environment.preserve_env: the operator does not allow environments that are kept \
             (`--allow-provider-settings`)"
                .to_owned()
        })
    }

    pub(super) fn environment(&self, provider: &ProviderSpec) -> Vec<String> {
        let kind = provider.kind();
        let mut found = Vec::new();
        if !ALWAYS_ALLOWED.contains(&kind) && !self.providers.contains(&kind) {
            found.push(format!(
                "environment.type {kind}: the operator does not allow it (`--allow-provider {kind}`)"
            ));
        }
        let is_default = *provider == descriptor::for_kind(kind).default_spec();
        if !self.provider_settings && !is_default {
            found.push(
                "environment.provider_config: the operator does not allow settings of providers \
                 (`--allow-provider-settings`)"
                    .to_owned(),
            );
        }
        found
    }
}

impl HostPathRules for DocumentPolicy {
    fn refusal(&self, source: HostSource, written: &str) -> Option<String> {
        match source {
            HostSource::Path => self.path(Path::new(written)),
            HostSource::OperatorPath => self.operators_path(Path::new(written)),
            HostSource::Repository => self.repository(written),
            HostSource::RepositoryAtReference => self.repository(split_reference(written).0),
            HostSource::Registry => self.registry(written),
        }
    }

    fn bounds(&self, directory: &Path) -> SourceBounds {
        match (self.upload(directory), self.listed(directory)) {
            (Some(upload), _) => SourceBounds::Upload(upload),
            (None, Some(listed)) => SourceBounds::Listed(listed),
            (None, None) => SourceBounds::Listed(directory.to_owned()),
        }
    }
}

/// The path without links, which could lead elsewhere. A link below `/proc` leads to another place
/// than its text says.
fn resolved(path: &Path) -> Option<PathBuf> {
    let is_plain = path.is_absolute()
        && !path.starts_with("/proc")
        && !path.components().any(|part| matches!(part, Component::ParentDir));
    is_plain.then(|| path.canonicalize().ok()).flatten()
}

/// A missing path has the same answer as a forbidden one.
fn refused(path: &Path) -> String {
    format!(
        "path {}: the operator does not allow it (`--allow-path DIR`, for absolute paths below it)",
        without_secrets(&path.display().to_string())
    )
}

/// Whether a URL is below a prefix that ends a host or a part of a path.
fn is_below_url(url: &str, prefix: &str) -> bool {
    let rest = url.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
        && !has_dot_part(url)
}

/// Whether a part of a URL is `.` or `..`, also in percent-encoding. Parsers of URLs ignore control
/// characters and take `\` for `/`.
fn has_dot_part(url: &str) -> bool {
    let visible: String = url.chars().filter(|char| !char.is_control()).collect();
    let decoded = visible.to_ascii_lowercase().replace("%2e", ".");
    let decoded = decoded.replace("%2f", "/").replace("%5c", "/");
    decoded.split(['/', '\\', '?', '#']).any(|part| part == "." || part == "..")
}

#[cfg(test)]
mod tests {
    use rollout_environment::egress::AllowedHosts;

    use super::*;
    use crate::config::{Diagnostics, HostAccess, JobOptions, read_job};
    use crate::sources::datasets;

    fn violations(policy: &DocumentPolicy, text: &str, variables: &[&str]) -> String {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("job.yaml");
        std::fs::write(&file, text).expect("written");
        let mut problems = Diagnostics::default();
        let options = JobOptions { host: HostAccess::Listed(policy), ..JobOptions::new(&|_| true) };
        let job = read_job(&file, &options, &mut problems).expect("a job");
        let variables = variables.iter().map(|name| (*name).to_owned()).collect();
        let mut found = problems.refusals();
        found.extend(policy.violations(&job, &AllowedVariables::Named(variables)));
        found.join("\n")
    }

    /// A key of `environment` with a variable.
    const MCP_WITH_SECRET: &str =
        "mcp_servers: [{name: m, url: 'http://m', headers: {X-Token: '${HIDDEN}'}}]";

    fn all_in(directory: &Path) -> AllowedUploads {
        AllowedUploads { directory: directory.to_owned(), names: None }
    }

    fn with(rest: &str) -> String {
        format!("agents: [{{name: oracle}}]\n{rest}\n")
    }

    #[test]
    fn paths_of_the_server_are_refused_unless_listed() {
        let allowed = tempfile::tempdir().expect("a directory");
        let outside = tempfile::tempdir().expect("a directory");
        let link = allowed.path().join("link");
        std::os::unix::fs::symlink(outside.path(), &link).expect("a link");
        let policy =
            DocumentPolicy { paths: vec![allowed.path().to_owned()], ..Default::default() };
        let refused = |path: &str| {
            let text = with(&format!("datasets: [{{path: '{path}'}}]"));
            violations(&policy, &text, &[])
        };
        assert_eq!(refused(&allowed.path().display().to_string()), "");
        for path in ["/etc", "tasks", "/nowhere", &outside.path().display().to_string()] {
            assert!(refused(path).contains("does not allow"), "{path}");
        }
        assert!(refused(&link.display().to_string()).contains("does not allow"));
        assert!(refused("tasks").contains("`--allow-path DIR`"), "{}", refused("tasks"));
        let climbing = format!("{}/../x", allowed.path().display());
        assert!(refused(&climbing).contains("does not allow"));
    }

    #[test]
    fn hosts_of_a_job_have_public_addresses() {
        let everything =
            DocumentPolicy { images: ImageAccess::Everything, ..DocumentPolicy::default() };
        for (host, is_refused) in
            [("127.0.0.1:4222", true), ("10.0.0.0/8", true), ("8.8.8.8", false), ("a.b", false)]
        {
            let agent = format!("agents: [{{name: oracle, extra_allowed_hosts: ['{host}']}}]\n");
            let of =
                |element: &str| with(&format!("{element}: {{extra_allowed_hosts: ['{host}']}}"));
            for (text, place) in [
                (agent, "agent oracle"),
                (of("environment"), "environment"),
                (of("verifier"), "verifier"),
            ] {
                let found = violations(&DocumentPolicy::default(), &text, &[]);
                let begin = format!("{place}: extra_allowed_hosts: `{host}` has addresses");
                assert_eq!(found.starts_with(&begin), is_refused, "{text}: {found}");
                assert_eq!(found.is_empty(), !is_refused, "{text}: {found}");
                assert_eq!(violations(&everything, &text, &[]), "", "{text}");
            }
        }
    }

    #[test]
    fn uploaded_dataset_may_be_named_and_the_directory_of_all_may_not() {
        let state = tempfile::tempdir().expect("a directory");
        let uploads = state.path().canonicalize().expect("a path").join("datasets");
        let one = uploads.join("0".repeat(64));
        std::fs::create_dir_all(one.join("tasks")).expect("made");
        let policy = DocumentPolicy { uploads: Some(all_in(&uploads)), ..Default::default() };
        assert_eq!(policy.path(&one.join("tasks")), None);
        for path in [&uploads, state.path(), &one.join("../")] {
            assert!(policy.path(path).is_some(), "{}", path.display());
        }
    }

    #[test]
    fn dataset_of_another_user_has_the_answer_of_an_absent_one() {
        let state = tempfile::tempdir().expect("a directory");
        let root = state.path().canonicalize().expect("a path");
        let directory = root.join("datasets");
        let [own, others, absent] =
            ["1", "2", "3"].map(|digit| directory.join(digit.repeat(64)).join("tasks"));
        for made in [&own, &others] {
            std::fs::create_dir_all(made).expect("made");
        }
        let names = Some(BTreeSet::from(["1".repeat(64)]));
        let uploads = Some(AllowedUploads { directory, names });
        for paths in [Vec::new(), vec![root]] {
            let policy = DocumentPolicy { paths, uploads: uploads.clone(), ..Default::default() };
            assert_eq!(policy.path(&own), None);
            let answer = |path: &Path| {
                policy.path(path).map(|text| text.replace(&*path.to_string_lossy(), "PATH"))
            };
            assert_eq!(answer(&others), answer(&absent));
            assert!(answer(&others).is_some() && policy.operators_path(&others).is_some());
        }
    }

    #[test]
    fn repositories_on_public_hosts_are_allowed_and_others_need_a_rule() {
        let policy = DocumentPolicy::default();
        let of = |url: &str| policy.repository(url);
        for url in ["https://h/r.git", "http://h.example/r"] {
            assert_eq!(of(url), None, "{url}");
        }
        for url in ["/srv/r", "file:///srv/r", "../r", "ext::sh -c id", "a@b::sh", "-x@h:p"] {
            assert!(of(url).is_some(), "{url}");
        }
        let on_others = ["ssh://git@h/r", "git@h:o/r.git", "http://127.0.0.1/r"];
        let rules = ["h", "127.0.0.1"].map(|rule| rule.parse().expect("a rule"));
        let network = FetchNetwork::Guarded(AllowedHosts::public(rules.to_vec()));
        let listed = DocumentPolicy { network, ..DocumentPolicy::default() };
        let network = FetchNetwork::OwnUser;
        let own = DocumentPolicy { network, ..DocumentPolicy::default() };
        for url in on_others {
            assert!(of(url).is_some(), "{url}");
            assert_eq!((listed.repository(url), own.repository(url)), (None, None), "{url}");
        }
        for url in ["http://user:word@127.0.0.1/r", "HTTP://user:word@h/r", "git://user:word@h/r"] {
            let refused = of(url).expect("refused");
            assert!(!refused.contains("word"), "{refused}");
        }
        let url = "https://user:word@h/r.json";
        for refused in [policy.registry(url), policy.model_server(url)] {
            let refused = refused.expect("refused");
            assert!(!refused.contains("word") && refused.contains("https://h/r.json"), "{refused}");
        }
        assert!(is_below_url("https://h/a/r.json", "https://h/a"));
        assert!(!is_below_url("https://h.evil/r", "https://h"));
    }

    #[test]
    fn repository_of_the_server_that_is_a_file_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("a path");
        let (directory, file) = (root.join("repository"), root.join("bundle"));
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(&file, "# v2 git bundle\n").expect("written");
        let policy = DocumentPolicy { paths: vec![root], ..DocumentPolicy::default() };
        for scheme in ["", "file://"] {
            let of = |path: &Path| policy.repository(&format!("{scheme}{}", path.display()));
            assert_eq!(of(&directory), None, "{scheme}");
            let refused = of(&file).expect("a file");
            assert!(refused.ends_with("no directory"), "{refused}");
            let unlisted = DocumentPolicy::default().repository(&file.display().to_string());
            assert!(unlisted.expect("not listed").contains("does not allow it"), "{scheme}");
        }
    }

    #[test]
    fn directory_has_the_bounds_of_its_upload_or_listed_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("a path");
        let uploads = root.join("datasets");
        let upload = uploads.join("0".repeat(64));
        std::fs::create_dir_all(&upload).expect("made");
        let policy = DocumentPolicy {
            paths: vec![root.clone()],
            uploads: Some(all_in(&uploads)),
            ..DocumentPolicy::default()
        };
        assert_eq!(policy.bounds(&upload.join("set")), SourceBounds::Upload(upload.clone()));
        assert_eq!(policy.bounds(&root.join("set")), SourceBounds::Listed(root.clone()));
        let elsewhere = Path::new("/elsewhere");
        assert_eq!(policy.bounds(elsewhere), SourceBounds::Listed(elsewhere.to_owned()));
        assert!(policy.repository(&upload.display().to_string()).is_some());
    }

    #[test]
    fn url_with_a_dot_part_is_below_no_prefix() {
        for rest in
            ["..", ".", "../x", "./x", "x/..", "%2e%2E/x", ".%2e", "x%2F..%2fy", "..\\x", ".\t./x"]
        {
            let url = format!("https://h/a/{rest}");
            assert!(!is_below_url(&url, "https://h/a"), "{url}");
        }
        for rest in ["..x", "x.json", ".hidden/v1", "v1..2"] {
            assert!(is_below_url(&format!("https://h/a/{rest}"), "https://h/a"), "{rest}");
        }
    }

    #[test]
    fn registry_in_an_upload_is_refused_and_one_of_the_operator_is_not() {
        let state = tempfile::tempdir().expect("a directory");
        let root = state.path().canonicalize().expect("a path");
        let uploads = root.join("datasets");
        let one = uploads.join("0".repeat(64));
        std::fs::create_dir_all(&one).expect("made");
        let (uploaded, own) = (one.join("registry.json"), root.join("registry.json"));
        for file in [&uploaded, &own] {
            std::fs::write(file, "[]").expect("written");
        }
        let document = |file: &Path| {
            let file = file.display();
            with(&format!("datasets: [{{registry: {{path: '{file}'}}, name: x}}]"))
        };
        for paths in [Vec::new(), vec![root]] {
            let policy =
                DocumentPolicy { paths, uploads: Some(all_in(&uploads)), ..Default::default() };
            let found = violations(&policy, &document(&uploaded), &[]);
            assert!(found.contains("does not allow"), "{found}");
            let is_listed = !policy.paths.is_empty();
            assert_eq!(violations(&policy, &document(&own), &[]).is_empty(), is_listed);
        }
    }

    #[test]
    fn registry_of_the_operator_names_no_file_as_a_repository() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("a path");
        let (file, registry) = (root.join("big"), root.join("registry.json"));
        std::fs::write(&file, "# v2 git bundle\n").expect("written");
        let text = with(&format!(
            "datasets: [{{registry: {{path: '{}'}}, name: bench, version: '1.0'}}]",
            registry.display()
        ));
        std::fs::write(root.join("job.yaml"), text).expect("written");
        let policy = DocumentPolicy { paths: vec![root.clone()], ..DocumentPolicy::default() };
        for url in
            ["big".to_owned(), file.display().to_string(), format!("file://{}", file.display())]
        {
            let entry = serde_json::json!([{
                "name": "bench", "version": "1.0", "metrics": [],
                "tasks": [{ "git_url": url, "path": "a" }],
            }]);
            std::fs::write(&registry, entry.to_string()).expect("written");
            let mut problems = Diagnostics::default();
            let options =
                JobOptions { host: HostAccess::Listed(&policy), ..JobOptions::new(&|_| true) };
            let job = read_job(&root.join("job.yaml"), &options, &mut problems).expect("a job");
            let planned = datasets::read_planned_formats(&root.join("none"));
            let loaded = datasets::load(&job, &options, &planned, &mut problems);
            let refused = problems.finish(loaded).expect_err("a file").lines().join("\n");
            assert!(refused.contains("no directory"), "{url}: {refused}");
        }
    }

    #[test]
    fn process_sandboxes_settings_and_variables_need_permission() {
        let text = with(
            "datasets: [{repo: 'https://h/r'}]\nenvironment: {type: process, provider_config: \
             {network: none}}\ntask_env: [SECRET, PLAIN]\njobs_dir: /srv",
        );
        let found = violations(&DocumentPolicy::default(), &text, &["PLAIN"]);
        for part in ["jobs_dir", "environment.type process", "provider_config", "${SECRET}"] {
            assert!(found.contains(part), "{part}: {found}");
        }
        assert!(!found.contains("PLAIN"), "{found}");
        let text = text.replace("jobs_dir: /srv", "");
        let policy = DocumentPolicy {
            providers: [ProviderKind::Process].into(),
            provider_settings: true,
            ..DocumentPolicy::default()
        };
        assert_eq!(violations(&policy, &text, &["PLAIN", "SECRET"]), "");
        for changes in ["env: {A: '${HIDDEN}'}", MCP_WITH_SECRET] {
            let changed =
                with(&format!("datasets: [{{repo: 'https://h/r'}}]\nenvironment: {{{changes}}}"));
            let found = violations(&DocumentPolicy::default(), &changed, &[]);
            assert!(found.contains("${HIDDEN}"), "{changes}: {found}");
        }
        // A mask would tell whether a text is the value.
        let declared = with("secrets: [HIDDEN]\ndatasets: [{repo: 'https://h/r'}]");
        assert!(violations(&DocumentPolicy::default(), &declared, &[]).contains("${HIDDEN}"));
    }

    #[test]
    fn environments_that_are_kept_need_permission() {
        let allowed = DocumentPolicy { provider_settings: true, ..DocumentPolicy::default() };
        for (key, is_refused) in [
            ("preserve_env: always", true),
            ("preserve_env: on_failure", true),
            ("preserveEnv: true", true),
            ("preserve_env: never", false),
            ("preserveEnv: false", false),
        ] {
            let text =
                with(&format!("datasets: [{{repo: 'https://h/r'}}]\nenvironment: {{{key}}}"));
            let found = violations(&DocumentPolicy::default(), &text, &[]);
            assert_eq!(
                found.starts_with("environment.preserve_env: "),
                is_refused,
                "{key}: {found}"
            );
            assert_eq!(found.is_empty(), !is_refused, "{key}: {found}");
            assert_eq!(violations(&allowed, &text, &[]), "", "{key}");
        }
    }

    #[test]
    fn pools_besides_the_default_one_need_permission() {
        let policy = DocumentPolicy { pools: ["gpu".to_owned()].into(), ..Default::default() };
        for name in [None, Some("default"), Some("gpu")] {
            assert_eq!(policy.pool(name), None, "{name:?}");
        }
        let refused = policy.pool(Some("private")).expect("not listed");
        let expected = "pool private: the operator does not allow it (`--allow-pool`)";
        assert!(refused.contains(expected), "{refused}");
    }

    #[test]
    fn model_servers_and_their_keys_need_permission() {
        let text = with(
            "datasets: [{repo: 'https://h/r'}]\ngateway: {upstreams: [{name: main, \
             url: 'https://models/v1', key_env: KEY}]}",
        );
        let found = violations(&DocumentPolicy::default(), &text, &[]);
        assert!(found.contains("model server https://models/v1"), "{found}");
        assert!(found.contains("${KEY}"), "{found}");
        let policy = DocumentPolicy {
            model_servers: vec!["https://models".to_owned()],
            ..DocumentPolicy::default()
        };
        assert_eq!(violations(&policy, &text, &["KEY"]), "");
    }
}
