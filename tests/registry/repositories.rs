//! Repositories as datasets, single tasks, filters, and what is said when something is not there.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::lab::Lab;

fn names(lab: &Lab) -> Vec<String> {
    lab.tasks().into_keys().collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_repository_is_a_dataset() {
    let lab = Lab::empty();
    lab.repository("more", &owned(&["one", "two", "three"]), "first");
    lab.git("more", &["tag", "-am", "v1", "v1"]);
    let tagged = lab.git("more", &["rev-parse", "HEAD"]);
    lab.commit("more", &owned(&["four"]), "second");
    let url = lab.url("more");

    lab.job(&format!("{{repo: '{url}'}}"));
    assert_eq!(names(&lab), ["four", "one", "three", "two"]);
    lab.job(&format!("{{repo: '{url}@v1', task_names: ['t*'], exclude_task_names: [two]}}"));
    assert_eq!(lab.tasks().into_iter().collect::<Vec<_>>(), [("three".to_owned(), tagged)]);
    lab.job("{repo: repos/more, ref: main, path: tasks, n_tasks: 2}");
    assert_eq!(names(&lab), ["four", "one"]);

    let refusals = [
        (format!("{{repo: '{url}', ref: mian}}"), "there is `main`"),
        (format!("{{repo: '{url}', task_names: [fuor]}}"), "did you mean `four`?"),
        (format!("{{repo: '{url}', path: nowhere}}"), "no task there"),
        (format!("{{repo: '{url}-gone'}}"), "cannot be reached"),
        (
            format!("{{repo: '{url}', ref: 0123456789abcdef0123456789abcdef01234567}}"),
            "the commit 0123456789abcdef0123456789abcdef01234567, which is not in",
        ),
    ];
    for (dataset, expected) in refusals {
        lab.job(&dataset);
        let said = lab.refusal();
        assert!(said.contains(expected), "{dataset}: {said}");
    }
}

#[test]
fn single_tasks_and_names_that_clash() {
    let lab = Lab::empty();
    lab.repository("one", &owned(&["a", "b"]), "first");
    lab.repository("two", &owned(&["b", "c"]), "first");
    let (one, two) = (lab.url("one"), lab.url("two"));
    let tasks = format!(
        "name: j\nagents: [{{name: nop}}]\nenvironment: {{type: process}}\n\
         tasks: [{{path: repos/one/tasks/a}}, {{git_url: '{two}', path: ./tasks/c/}}]\n"
    );
    lab.write("job.yaml", &tasks);
    assert_eq!(names(&lab), ["a", "c"]);

    lab.registry(&json!({"datasets": [{"name": "both", "tasks": [
        {"git_url": one, "path": "tasks/b"}, {"git_url": two, "path": "tasks/b"},
    ]}]}));
    lab.job("{registry: {path: registry.json}, name: both}");
    let said = lab.refusal();
    assert!(said.contains("the name `b`") && said.contains("one `tasks/b`"), "{said}");
    lab.job("{registry: {path: registry.json}, name: bhot}");
    assert!(lab.refusal().contains("did you mean `both`?"));
    lab.job("{registry: {path: registry.json}, name: both, version: '3'}");
    assert!(lab.refusal().contains("version 3 of `both`"));
    lab.registry(&json!([{"name": "both", "tasks": [{"git_url": one, "path": "tasks/bb"}]}]));
    lab.job("{registry: {path: registry.json}, name: both}");
    let said = lab.refusal();
    assert!(said.contains("`tasks/bb`, which is not in") && said.contains("`tasks/b`"), "{said}");
}

#[test]
fn nothing_of_a_repository_is_run_and_no_link_leads_out() {
    let lab = Lab::empty();
    let root = lab.path("").display().to_string();
    lab.repository("evil", &owned(&["good"]), "first");
    lab.write("repos/evil/.gitattributes", "* filter=run\n");
    lab.write("repos/evil/.lfsconfig", "[filter \"run\"]\nsmudge = touch ran\n");
    lab.program("repos/evil/.git/hooks/post-checkout", &format!("#!/bin/sh\ntouch {root}/ran\n"));
    lab.write("outside/task.toml", "version = \"1.0\"\n");
    symlink(lab.path("outside"), lab.path("repos/evil/linked")).expect("a link");
    lab.git("evil", &["add", "-A"]);
    lab.git("evil", &["commit", "-qm", "second"]);
    let url = lab.url("evil");
    lab.job(&format!("{{repo: '{url}'}}"));
    assert_eq!(names(&lab), ["good"]);
    assert!(!lab.path("ran").exists());
    lab.registry(&json!([{"name": "x", "tasks": [{"git_url": url, "path": "linked"}]}]));
    lab.job("{registry: {path: registry.json}, name: x}");
    assert!(lab.refusal().contains("`linked`, which is not in"));
    for (task, expected) in [
        (json!({"git_url": "ext::sh -c date", "path": "a"}), "git_url"),
        (json!({"git_url": "--upload-pack=touch", "path": "a"}), "git_url"),
        (json!({"git_url": url, "path": "../x"}), "task path"),
        (json!({"git_url": url, "path": ".git/hooks"}), "task path"),
    ] {
        lab.registry(&json!([{"name": "x", "tasks": [task]}]));
        let said = lab.refusal();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn files_of_lfs_are_fetched_where_the_program_is() {
    let lab = Lab::empty();
    lab.repository("large", &owned(&["t"]), "first");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    lab.write("repos/large/tasks/t/instruction.md", pointer);
    lab.git("large", &["commit", "-qam", "pointer"]);
    lab.job(&format!("{{repo: '{}'}}", lab.url("large")));
    let digest = |lab: &Lab| {
        let ended = lab.dry_run().wait(std::time::Duration::from_secs(60));
        let plan: serde_json::Value = serde_json::from_str(&ended.stdout).expect("a plan");
        (plan["plan_digest"].clone(), ended.stderr)
    };
    let (with_pointer, said) = digest(&lab);
    assert!(said.contains("`git-lfs` is not there"), "{said}");
    lab.program(
        "bin/git-lfs",
        "#!/bin/sh\ncase $1 in version) ;; smudge) grep -q '^oid' && echo large ;; esac\n",
    );
    std::fs::remove_dir_all(lab.path("home/.cache")).expect("removed");
    let (with_file, said) = digest(&lab);
    assert_ne!(with_pointer, with_file, "{said}");
}
