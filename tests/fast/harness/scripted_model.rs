//! Turns of the scripted model.

use rollout_tests::model_server::{ScriptedTask, Turn};
use serde_json::json;

#[test]
fn turn_follows_tools_and_results_of_request() {
    let task = ScriptedTask::new("f", "1");
    let call = |turn: Turn| match turn {
        Turn::Call { name, arguments, .. } => (name, arguments),
        Turn::Text(text) => panic!("{text}"),
    };
    let words = json!({"properties": {"command": {"type": "array"}}});
    let tools = json!([{"name": "apply_patch"}, {"name": "shell", "parameters": words}]);
    let (name, arguments) = call(task.turn(&json!({"tools": tools, "input": []})));
    let command = "printf '%s\\n' '1' >f";
    assert_eq!(name, "shell");
    assert_eq!(arguments, json!({"command": ["bash", "-c", command]}));
    let done = json!({"tools": tools, "input": [{"type": "function_call_output"}]});
    assert_eq!(task.turn(&done), Turn::Text("f is written.".to_owned()));

    let schema = json!({"properties": {"command": {"type": "string"},
        "risk": {"type": "string", "enum": ["LOW"]}}, "required": ["command", "risk"]});
    let tools = json!([{"functionDeclarations": [
        {"name": "terminal", "parametersJsonSchema": schema},
        {"name": "finish", "parametersJsonSchema": {"properties": {"message": {}}}}]}]);
    let (_, arguments) = call(task.turn(&json!({"tools": tools, "contents": []})));
    assert_eq!(arguments, json!({"command": command, "risk": "LOW"}));
    let result = json!([{"role": "user", "parts": [{"functionResponse": {}}]}]);
    let ending = call(task.turn(&json!({"tools": tools, "contents": result})));
    assert_eq!(ending, ("finish".to_owned(), json!({"message": "f is written."})));

    let prompt = json!({"messages": [{"role": "user", "content": "*SEARCH/REPLACE*"}]});
    let Turn::Text(edit) = task.turn(&prompt) else { panic!("a call without tools") };
    assert!(edit.starts_with("f\n```\n<<<<<<< SEARCH\n=======\n1\n"), "{edit}");
}
