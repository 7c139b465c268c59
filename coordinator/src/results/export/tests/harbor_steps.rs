//! Files of trials with steps in Harbor's layout.

use super::*;

#[tokio::test]
async fn artifacts_of_trial_with_steps_are_below_its_last_step_alone() {
    for (is_recorded, expected) in [(true, "kept"), (false, "left")] {
        let mut run = run().await;
        let settled = settlement(name(0, 1, 1), Verdict::completed(0.5));
        let mut recorded = with_files(&run, &settled).await;
        let logs = recorded.logs.as_mut().expect("logs");
        logs.archive = run.archive("artifacts/greet.sh", "left").await;
        recorded.artifacts[0].source = "/logs/artifacts".into();
        recorded.artifacts[0].path = "steps/one/artifacts/logs/artifacts".into();
        recorded.artifacts[0].archive = Some(run.archive("greet.sh", "kept").await);
        if !is_recorded {
            recorded.artifacts.clear();
        }
        run.settle(settled, Some(recorded)).await;
        run.close();
        let jobs = run.path().join("jobs");
        run.export(ExportFormat::Harbor, &jobs).await.expect("exported");
        let trials = fs::read_dir(jobs.join("a job")).expect("a directory");
        let mut trials = trials.map(|entry| entry.expect("an entry").path());
        let trial = trials.find(|path| path.join("steps").is_dir()).expect("a trial with steps");
        let artifacts = trial.join("steps/one/artifacts");
        let text = fs::read_to_string(artifacts.join("logs/artifacts/greet.sh")).expect("a file");
        assert_eq!(text, expected);
        assert!(artifacts.join("manifest.json").exists());
        assert!(!trial.join("artifacts").exists() && !trial.join("logs").exists());
    }
}
