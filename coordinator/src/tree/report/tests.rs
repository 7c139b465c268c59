use super::super::ids::NodeId;
use super::super::search::testing::finished;
use super::*;

#[test]
fn equal_manifests_give_equal_reports() {
    let (one, mut other) = (finished(), finished());
    other.updated_at =
        other.updated_at.saturating_add(jiff::SignedDuration::from_secs(5)).expect("a time");
    for (name, make) in REPORTS {
        assert_eq!(make(&one), make(&other), "{name}");
    }
}

#[test]
fn the_summary_says_what_came_of_every_idea() {
    let manifest = finished();
    let text = summary(&manifest);
    for eval in manifest.evaluations.values() {
        assert!(text.contains(&format!("| {} |", eval.eval_id)), "{text}");
    }
    for words in ["promoted to 0001", "primary\\_regressed", "repeats", "max_depth_reached"] {
        let plain = words.replace('\\', "");
        assert!(text.contains(words) || text.contains(&plain), "{words}: {text}");
    }
}

#[test]
fn the_best_path_begins_at_the_root() {
    let path = best_path(&finished());
    assert_eq!(path.first(), Some(&NodeId(0)));
    assert!(path.len() > 1);
}

#[test]
fn hostile_names_are_text() {
    let mut manifest = finished();
    let evil = "x|</title><script>alert(1)</script>\"]\n`#.md";
    for eval in manifest.evaluations.values_mut() {
        eval.idea_path = format!("node_ideas/0000/{}", evil.replace('/', ""));
    }
    let page = html(&manifest);
    assert!(!page.contains("<script"), "{page}");
    assert!(!graph(&manifest).contains("\"]\n`"));
    let table = summary(&manifest);
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| 0000 | 0000")).collect();
    assert_eq!(rows.len(), 1, "{table}");
}
