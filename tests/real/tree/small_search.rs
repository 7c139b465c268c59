//! Searches of a program with one file and fixed results.

use std::path::PathBuf;

use rollout_tests::project::Project;

use crate::tree::project;

/// Results with a row for each of three configurations.
pub(crate) const BASELINE: &str = "config_id,status,v,w\n0,ok,1,1\n1,ok,1,1\n2,ok,1,1\n";

/// A search that may be changed before it is written.
#[derive(Debug, Clone)]
pub(crate) struct SmallSearch {
    /// The results of the root.
    pub(crate) baseline: String,
    /// More keys of the file.
    pub(crate) keys: String,
    /// The environment of its commands.
    pub(crate) environment: String,
    /// The script for ideas.
    pub(crate) ideas: String,
    /// The script that implements an idea.
    pub(crate) implement: String,
    /// The script that measures a change.
    pub(crate) sweep: String,
}

impl Default for SmallSearch {
    fn default() -> Self {
        Self {
            baseline: BASELINE.to_owned(),
            keys: "sweep_config_limit: 3\nmax_depth: 1".to_owned(),
            environment: "{type: process}".to_owned(),
            ideas: "for i in 1 2; do\n  \
                    echo \"- idea $i of node $ROLLOUT_NODE_ID\" > \"$ROLLOUT_IDEAS_DIR/$i.md\"\n\
                    done"
                .to_owned(),
            implement: "cp \"$ROLLOUT_IDEA_FILE\" x.txt".to_owned(),
            sweep: results_script("config_id,status,v,w\n0,ok,2,2\n1,ok,2,2\n2,ok,2,2\n"),
        }
    }
}

/// A script that writes these results.
pub(crate) fn results_script(text: &str) -> String {
    format!("printf '{}' > \"$ROLLOUT_RESULTS_CSV\"", text.replace('\n', "\\n"))
}

impl SmallSearch {
    /// Directory of a search that was run with `--runs-root runs`.
    pub(crate) fn directory(project: &Project) -> PathBuf {
        project.path().join("runs/small")
    }

    /// Arguments of the command that runs it.
    pub(crate) fn run<'a>(more: &[&'a str]) -> Vec<&'a str> {
        [&["tree", "run", "tree.yaml", "--runs-root", "runs"], more].concat()
    }

    /// Writes it into a project, which becomes a git repository.
    pub(crate) fn write(&self) -> Project {
        let script =
            |text: &str| text.lines().map(|line| format!("      {line}\n")).collect::<String>();
        let [ideas, implement, sweep] =
            [&self.ideas, &self.implement, &self.sweep].map(|s| script(s));
        let text = format!(
            "tree_run_id: small\nrepository: program\nroot_baseline_csv: baseline.csv\n\
             ideas_per_node: 2\n{}\n\
             profile: {{name: speed, primary: {{column: v}}, metrics: [{{column: v, weight: 1}}, \
             {{column: w, weight: 1}}]}}\n\
             environment: {}\ncommands:\n  ideas:\n    run: |\n{ideas}  implement:\n    \
             run: |\n{implement}  sweep:\n    run: |\n{sweep}",
            self.keys, self.environment
        );
        project()
            .write("tree.yaml", &text)
            .write("program/x.txt", "nothing\n")
            .write("baseline.csv", &self.baseline)
            .commit()
    }
}
