//! The files of a trial in each mode.

use super::*;

/// Names of the files below a trial's directory.
fn names(directory: &Path) -> Vec<String> {
    let files = tree(directory).into_iter().filter(|(_, text)| text.is_some());
    files.map(|(path, _)| path).collect()
}

#[tokio::test]
async fn fuller_mode_adds_files_and_smaller_mode_removes_none() {
    let mut place = fixture().await;
    let settled = settlement(
        trial("a", "t", 1),
        1,
        failed(error(ErrorType::AgentExecutionFailed, ErrorClass::Agent, "no")),
    );
    let mut record = record(&settled);
    record.logs = Some(place.logs(&[("agent/trace.json", "{}")]).await);
    record.artifacts = vec![place.artifact("/a", "artifacts/a", &[("only", "x")]).await];
    record.outputs = vec![place.output("command/stdout.txt", b"out\n").await];
    let directory = trial_dir(&place.run_dir(), &trial("a", "t", 1));
    let metadata = ["error.txt", "result.json"];
    let outputs = ["command/stdout.txt", "error.txt", "result.json"];
    let full = [
        "artifacts/a",
        "artifacts/manifest.json",
        "command/stdout.txt",
        "error.txt",
        "logs/agent/trace.json",
        "result.json",
    ];
    let steps: [(MaterializeMode, &[&str]); 5] = [
        (MaterializeMode::MetadataOnly, &metadata),
        (MaterializeMode::OutputsOnly, &outputs),
        (MaterializeMode::MetadataOnly, &outputs),
        (MaterializeMode::Full, &full),
        (MaterializeMode::OutputsOnly, &full),
    ];
    let mut results = Vec::new();
    for (mode, expected) in steps {
        place.writer = place.writer_with(mode);
        place.write(settled.clone(), &record).await.expect("written");
        assert_eq!(names(&directory), expected, "{mode:?}");
        let mut result = result(&directory);
        let result = result.as_object_mut().expect("an object");
        let noted = result.remove("materialize");
        assert_eq!(noted.is_none(), expected == full, "{noted:?}");
        result.remove("content");
        results.push(result.clone());
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the result is the same");
}
