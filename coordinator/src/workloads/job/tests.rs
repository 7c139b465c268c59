//! Tests of the planner of a job.

mod remote;

use super::*;
use crate::plan::{PLAN_FILE, PlannedTrial, noop};

#[test]
fn plan_file_path_equals_that_of_run_layout() {
    let layout = RunLayout::new("/jobs/run");
    assert_eq!(layout.plan(), layout.root().join(PLAN_FILE));
}

#[test]
fn planner_names_trials_that_only_the_former_plan_has() {
    let plans = [2, 3].map(|tasks| Arc::new(noop(tasks).expect("a plan").0));
    let [small, large] = &plans;
    let trials: Vec<_> = large.trials().collect();
    let names = |former: Option<&Arc<JobPlan>>| {
        let planner = JobPlanner::new(Arc::clone(small), false)
            .with_former(former.cloned(), AcceptedChanges::default());
        let unplanned = trials.iter().filter(|trial| planner.find(&trial.item).is_none());
        let removed = unplanned.filter_map(|trial| planner.removed(&trial.item));
        removed.map(|name| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(Some(large)), [trials[2].name.to_string()]);
    assert_eq!(names(Some(small)), Vec::<String>::new());
    assert_eq!(names(None), Vec::<String>::new());
}

#[test]
fn lookup_finds_trials_by_name_and_by_item() {
    let (plan, _) = noop(3).expect("a plan");
    let planner = JobPlanner::new(Arc::new(plan), false);
    let key = |trial: &PlannedTrial| (trial.name.to_string(), trial.item.to_string());
    let [first, second] = [0, 1].map(|ordinal| planner.plan.trial(ordinal).expect("planned"));
    let ((name, item), (other_name, _)) = (key(&first), key(&second));
    let keys = [name, item, other_name, "a/d/unknown__1".to_owned()];
    let selection = ReopenSelection::Trials(keys.to_vec());
    let found = planner.item_lookup().expect("trials run again")(&selection);
    let items = [first.item, first.item, second.item];
    assert_eq!(found, keys[..3].iter().cloned().zip(items).collect());
    assert!(planner.ordinals.get().is_some(), "the next search by item is fast");
}
