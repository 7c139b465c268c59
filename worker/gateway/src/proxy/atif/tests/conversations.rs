//! Branches, changed histories, and calls that are no steps.

use super::*;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn says(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[test]
fn longest_conversation_is_the_trajectory_and_others_are_subagents() {
    let mut records = Records::default();
    records.chat(&json!([user("title?")]), &says("a title"));
    records.chat(&json!([user("u")]), &says("1"));
    records.chat(&json!([user("u"), says("1"), user("v")]), &says("2"));
    records.chat(&json!([user("u"), says("1"), user("w")]), &says("3"));
    records.chat(&json!([user("u"), says("1"), user("v"), says("2"), user("x")]), &says("4"));
    let made = records.trajectory();
    let texts = |one: &AtifTrajectory| -> Vec<String> {
        one.steps.iter().map(|step| step.message.clone()).collect()
    };
    assert_eq!(texts(&made), ["u", "1", "v", "2", "x", "4"]);
    let others: Vec<_> = made.subagent_trajectories.iter().map(texts).collect();
    assert_eq!(others, [vec!["title?", "a title"], vec!["w", "3"]]);
    let branch = &made.subagent_trajectories[1];
    assert_eq!(branch.extra["continues_call"], 2, "{branch:#?}");
    let ids: Vec<_> = made.subagent_trajectories.iter().map(|one| &one.trajectory_id).collect();
    assert_eq!(ids, [&Some("exec/call-1".to_owned()), &Some("exec/call-4".to_owned())]);
    let sums = made.final_metrics.expect("sums");
    assert_eq!(sums.total_prompt_tokens, Some(30), "those of its own steps");
    assert_eq!(sums.extra["all_calls"]["prompt_tokens"], 50);
    assert_eq!(sums.total_cost_usd, Some(10.0), "that of subagents is included");
}

#[test]
fn total_cost_is_absent_beside_a_call_without_price() {
    let (mut records, chat) = (Records::default(), ModelEndpoint::ChatCompletions);
    let unpriced = |records: &mut Records, messages: &Value, text: &str| {
        let reply = json!({"choices": [{"message": says(text), "finish_reason": "stop"}]});
        records.call(chat, &json!({"model": "m", "messages": messages}), &reply.to_string());
    };
    records.chat(&json!([user("title?")]), &says("a title"));
    records.chat(&json!([user("u")]), &says("1"));
    unpriced(&mut records, &json!([user("u"), says("1"), user("v")]), "2");
    unpriced(&mut records, &json!([user("summary?")]), "a summary");
    // A refused call costs nothing.
    let refused = records.begin(chat, "/", &json!({"model": "m", "messages": [user("u")]}));
    records.line(&ModelCallLine::Ended(Box::new(CallEnded {
        status: Some(429),
        reply: body("{\"error\":{}}"),
        ..ended(refused)
    })));
    let made = records.trajectory();
    let total = |one: &AtifTrajectory| one.final_metrics.as_ref().and_then(|of| of.total_cost_usd);
    assert_eq!(total(&made), None);
    let others: Vec<_> = made.subagent_trajectories.iter().map(total).collect();
    assert_eq!(others, [Some(2.0), None]);
    let sums = made.final_metrics.expect("sums");
    let all = &sums.extra["all_calls"];
    assert_eq!(all["unpriced_calls"], 2, "{all}");
    assert_eq!(all["known_cost_usd"], 4.0, "{all}");
}

#[test]
fn call_with_changed_history_continues_the_call_whose_reply_it_has() {
    let mut records = Records::default();
    let system = |date: &str| json!({"role": "system", "content": date});
    records.chat(&json!([system("Monday"), user("u")]), &says("1"));
    let second = json!([system("Tuesday"), user("u"), says("1"), user("v")]);
    records.chat(&second, &says("2"));
    let made = records.trajectory();
    assert_eq!(made.steps.len(), 5, "{made:#?}");
    assert_eq!(made.steps[4].extra["changes_history"], true);
    assert_eq!(made.steps[0].message, "Monday", "as it was sent first");
    assert!(made.subagent_trajectories.is_empty());
}

#[test]
fn calls_without_complete_reply_are_no_steps_but_their_tokens_count() {
    let (mut records, chat) = (Records::default(), ModelEndpoint::ChatCompletions);
    let request = json!({"model": "m", "messages": [user("u")]});
    let cut = records.begin(chat, "/", &request);
    let usage = TokenUsage { input: 7, output: 1, ..TokenUsage::default() };
    let text = stream(&[json!({"choices": [{"index": 0, "delta": {"content": "x"}}]})]);
    records.line(&ModelCallLine::Ended(Box::new(CallEnded {
        end: CallEnd::Cut,
        usage: Some(usage),
        reply: body(&text),
        ..ended(cut)
    })));
    let refused = records.begin(chat, "/", &request);
    records.line(&ModelCallLine::Ended(Box::new(CallEnded {
        status: Some(429),
        reply: body("{\"error\":{}}"),
        ..ended(refused)
    })));
    records.chat(&json!([user("u")]), &says("1"));
    let _without_end = records.begin(chat, "/", &request);
    let counted = records.begin(ModelEndpoint::CountTokens, "/", &request);
    records.line(&ModelCallLine::Ended(Box::new(ended(counted))));
    let made = records.trajectory();
    assert_eq!(messages(&made.steps), [(AtifSource::User, "u"), (AtifSource::Agent, "1")]);
    assert!(made.subagent_trajectories.is_empty());
    let sums = made.final_metrics.expect("sums");
    let others = &sums.extra["calls_without_step"];
    assert_eq!((&others["calls"], &others["prompt_tokens"]), (&3.into(), &7.into()), "{others}");
    assert_eq!(sums.extra["all_calls"]["calls"], 4, "those that sample");
    assert!(made.notes.expect("notes").contains("3 calls without a complete reply"));
}

#[test]
fn history_that_no_call_made_is_copied_context() {
    let mut records = Records::default();
    let call = json!([{"id": "c", "function": {"name": "sh", "arguments": "{}"}}]);
    let history = json!([user("u"),
        {"role": "assistant", "content": "old", "tool_calls": call},
        {"role": "tool", "tool_call_id": "c", "content": "r"}, user("v")]);
    records.chat(&history, &says("new"));
    let made = records.trajectory();
    let copied: Vec<_> = made.steps.iter().map(|step| step.is_copied_context).collect();
    assert_eq!(copied, [None, Some(true), None, None]);
    let step = &made.steps[1];
    assert!(step.metrics.is_none() && step.llm_call_count.is_none());
    let result = &step.observation.as_ref().expect("an observation").results[0];
    assert_eq!(
        (result.source_call_id.as_deref(), result.content.as_deref()),
        (Some("c"), Some("r"))
    );
}

#[test]
fn results_go_to_their_calls_and_unknown_ones_are_steps_of_their_own() {
    let mut records = Records::default();
    let call =
        |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": ""}});
    let reply = json!({"role": "assistant", "content": "",
        "tool_calls": [call("a", "x"), call("b", "y")]});
    let result =
        |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    records.chat(&json!([user("u")]), &reply);
    let second = json!([user("u"), reply, result("b", "2"), result("a", "1"), result("z", "?")]);
    records.chat(&second, &says("end"));
    let made = records.trajectory();
    let observation = made.steps[1].observation.as_ref().expect("results");
    let found: Vec<_> = observation
        .results
        .iter()
        .map(|one| (one.source_call_id.as_deref(), one.content.as_deref()))
        .collect();
    assert_eq!(found, [(Some("b"), Some("2")), (Some("a"), Some("1"))]);
    let unknown = &made.steps[2].observation.as_ref().expect("a result").results[0];
    assert_eq!((unknown.source_call_id.as_deref(), &unknown.extra["call_id"]), (None, &"z".into()));
}

#[test]
fn call_with_several_choices_is_a_step_without_text() {
    let mut records = Records::default();
    let choice =
        |index: u64| json!({"index": index, "finish_reason": "stop", "message": says("x")});
    let reply = json!({"model": "m", "choices": [choice(0), choice(1)]});
    let request = json!({"messages": [user("u")], "n": 2});
    records.call(ModelEndpoint::ChatCompletions, &request, &reply.to_string());
    let made = records.trajectory();
    assert_eq!(made.steps[1].message, "");
    assert_eq!(made.steps[1].extra["choices"], 2);
    assert_eq!(made.final_metrics.expect("sums").total_prompt_tokens, None, "no figures");
}
