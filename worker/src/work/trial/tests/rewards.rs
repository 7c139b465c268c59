//! Valid and invalid reward files.

use rollout_protocol::record::ItemOutcome;

use super::super::testing::TrialFixture;
use super::{error, error_summary, run};

#[tokio::test]
async fn reward_file_missing_or_invalid_fails_trial() {
    let missing = "verifier_reward_missing reward_missing verifier permanent";
    let invalid = "verifier_reward_invalid reward_invalid verifier permanent";
    let file = "/logs/verifier/reward.txt";
    for (script, expected) in [
        (format!("echo 1 > {file}"), Ok(1.0)),
        (format!("echo ' 0.25 ' > {file}"), Ok(0.25)),
        (format!("echo -1e2 > {file}"), Ok(-100.0)),
        ("echo nothing".to_owned(), Err(missing)),
        ("echo 1 > /logs/verifier/reward".to_owned(), Err(missing)),
        ("rm -rf /logs".to_owned(), Err(missing)),
        (format!("echo 1 > {file}; rm -rf /logs/verifier"), Err(missing)),
        (format!("echo > {file}"), Err(invalid)),
        (format!("echo 1 1 > {file}"), Err(invalid)),
        (format!("echo nan > {file}"), Err(invalid)),
        (format!("echo inf > {file}"), Err(invalid)),
        (format!("mkdir {file}"), Err(invalid)),
        (format!("echo 1 > /tmp/r; ln -s /tmp/r {file}"), Err(invalid)),
        (format!("ln -s /etc/passwd {file}"), Err(invalid)),
        (format!("echo '1{}' > {file}", " ".repeat(5000)), Err(invalid)),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.set_tests(&script).await;
        let finished = run(&rig).await;
        let verdict = &finished.record.verdict;
        match expected {
            Ok(reward) => {
                assert_eq!(
                    (verdict.outcome, verdict.reward),
                    (ItemOutcome::Completed, Some(reward))
                );
            }
            Err(reason) => {
                assert_eq!(error_summary(error(&finished)), reason, "{script:.80}");
                assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Failed, None));
            }
        }
    }
}
