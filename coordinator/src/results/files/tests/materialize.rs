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

#[tokio::test]
async fn fuller_mode_keeps_files_whose_content_is_lost_since() {
    let mut place = fixture().await;
    let settled = settlement(trial("a", "t", 1), 1, passed(1.0));
    let mut record = record(&settled);
    record.logs = Some(place.logs(&[("agent/trace.json", "{}")]).await);
    record.outputs = vec![
        place.output("command/stdout.txt", b"out\n").await,
        place.output("command/stderr.txt", b"err\n").await,
        place.output("logs/verifier/stdout.txt", b"ok\n").await,
    ];
    let directory = trial_dir(&place.run_dir(), &trial("a", "t", 1));
    place.writer = place.writer_with(MaterializeMode::OutputsOnly);
    place.write(settled.clone(), &record).await.expect("written");
    let logs = record.logs.as_ref().expect("logs").archive.digest;
    for lost in [record.outputs[0].blob.digest, record.outputs[2].blob.digest, logs] {
        place.lose(&lost);
    }
    place.writer = place.writer_with(MaterializeMode::Full);
    let lost = place.write(settled.clone(), &record).await.expect("written");
    assert_eq!(lost.len(), 3, "{lost:?}");
    let expected = [
        "command/stderr.txt",
        "command/stdout.txt",
        "logs/verifier/stdout.txt",
        "missing.txt",
        "result.json",
    ];
    assert_eq!(names(&directory), expected);
    let read = |name| fs::read_to_string(directory.join(name)).expect("a text");
    assert_eq!(read("command/stdout.txt") + &read("logs/verifier/stdout.txt"), "out\nok\n");
    let missing = read("missing.txt");
    assert!(missing.contains("the logs") && !missing.contains("stdout"), "{missing}");
    // The files of another execution are not those of this one.
    let again = settlement(trial("a", "t", 1), 2, passed(1.0));
    record.exec = again.by.as_ref().expect("settled by an execution").exec;
    place.write(again, &record).await.expect("written");
    assert_eq!(names(&directory), ["command/stderr.txt", "missing.txt", "result.json"]);
}

#[tokio::test]
async fn fuller_mode_keeps_directory_whose_record_is_damaged_since() {
    let mut place = fixture().await;
    let settled = settlement(trial("a", "t", 1), 1, passed(1.0));
    let mut record = record(&settled);
    record.outputs = vec![place.output("command/stdout.txt", b"out\n").await];
    let directory = trial_dir(&place.run_dir(), &trial("a", "t", 1));
    place.writer = place.writer_with(MaterializeMode::OutputsOnly);
    place.write(settled.clone(), &record).await.expect("written");
    let before = tree(&directory);
    let bytes = serde_json::to_vec(&record).expect("serializable");
    let stored = place.blob_path(&Digest::sha256(&bytes));
    fs::remove_file(&stored).expect("removed");
    fs::write(&stored, "{}").expect("written");
    let writer = place.writer_with(MaterializeMode::Full);
    let blob = BlobRef::for_bytes(&bytes, MediaType::Text);
    let settled = Arc::new(with_record(settled, blob));
    let lost = writer.write(settled).await.expect("kept");
    assert_eq!((lost.len(), tree(&directory)), (1, before));
}

#[tokio::test]
async fn mode_none_removes_directory_of_former_settlement_only() {
    let mut place = fixture().await;
    let settled = |exec, superseded: Vec<u8>| {
        let mut settled = settlement(trial("a", "t", 1), exec, passed(1.0));
        let former = superseded
            .into_iter()
            .filter_map(|exec| settlement(trial("a", "t", 1), exec, passed(0.0)).by);
        settled.superseded = former.collect();
        settled
    };
    let directory = trial_dir(&place.run_dir(), &trial("a", "t", 1));
    place.write(settled(1, vec![]), &record(&settled(1, vec![]))).await.expect("written");
    place.writer = place.writer_with(MaterializeMode::None);
    assert!(!place.writer.concerns(&settled(1, vec![])));
    assert!(place.writer.concerns(&settled(2, vec![1])));
    place.writer.write(Arc::new(settled(1, vec![3]))).await.expect("looked at");
    assert!(directory.exists(), "it is that of the settlement");
    place.writer.write(Arc::new(settled(2, vec![1]))).await.expect("removed");
    place.writer.close().expect("durable");
    assert_eq!(tree(&place.run_dir()), [], "nor are empty directories left");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("result.json"), "{}").expect("written");
    place.writer.write(Arc::new(settled(2, vec![1]))).await.expect("looked at");
    assert!(directory.join("result.json").exists(), "it is nothing of the run");
}
