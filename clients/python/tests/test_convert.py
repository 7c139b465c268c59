"""Records of trainers: names, masks, lengths, turns, branches, and samples without a verdict."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rollout_client import Completion, PolicyVersions, Trajectory
from rollout_client.convert import (
    MissingVerdictError,
    Sample,
    areal,
    nemo_gym,
    rllm,
    skyrl,
    slime,
    token_rows,
    verifiers,
    verl,
)

TURNS = Trajectory(
    calls=(1, 2),
    by="tokens",
    ids=(1, 2, 3, 4, 9, 5),
    mask=(0, 0, 1, 1, 0, 1),
    logprobs=(None, None, -0.1, -0.2, None, -0.3),
)
BRANCH = Trajectory(
    calls=(1, 3),
    by="tokens",
    ids=(1, 2, 3, 4, 8, 5, 6),
    mask=(0, 0, 1, 1, 0, 1, 1),
    logprobs=(None, None, -0.1, -0.2, None, -0.4, -0.5),
)
MESSAGES = Trajectory(calls=(1,), by="messages")
LOST: dict[str, Any] = {"outcome": "no_result", "reward": None, "usable": False}


def completion(index: int = 0, **values: Any) -> Completion:
    given: dict[str, Any] = {
        "cursor": index + 1,
        "farm": "f",
        "group": "g",
        "index": index,
        "generation": 1,
        "consumer": "train",
        "outcome": "completed",
        "usable": True,
        "reward": 1.0,
        "policy": PolicyVersions(requested=3, admitted=3, ended=4),
        "at": datetime(2026, 1, 31, tzinfo=timezone.utc),
        "metadata": {"row": 7},
    }
    return Completion(**{**given, **values})


def sample(index: int = 0, *trajectories: Trajectory, **values: Any) -> Sample:
    return Sample(completion(index, **values), trajectories or (TURNS,))


WHOLE = sample()
WITHOUT_VERDICT = sample(1, **LOST, cause="agent")


def test_row_begins_with_the_first_sampled_token() -> None:
    (row,) = token_rows([TURNS])
    assert (row.prompt_ids, row.response_ids) == ([1, 2], [3, 4, 9, 5])
    assert row.mask == [1, 1, 0, 1]
    assert row.logprobs == [-0.1, -0.2, 0.0, -0.3]


def test_shared_calls_of_branches_count_once() -> None:
    first, second = token_rows([TURNS, BRANCH])
    assert first.mask == [1, 1, 0, 1]
    assert second.response_ids == [3, 4, 8, 5, 6]
    assert second.mask == [0, 0, 0, 1, 1]
    alone = Trajectory((4,), "tokens", TURNS.ids, TURNS.mask, TURNS.logprobs)
    assert [row.mask for row in token_rows([TURNS, alone])] == [first.mask, first.mask]


def test_sibling_that_samples_the_same_first_tokens_is_not_masked() -> None:
    sibling = Trajectory((1, 4), "tokens", (*TURNS.ids, 7), (*TURNS.mask, 1))
    assert token_rows([TURNS, sibling])[1].mask == [0, 0, 0, 1, 1]


def test_trajectory_without_sampled_token_ids_is_no_row() -> None:
    assert token_rows([MESSAGES, Trajectory((1,), "tokens", (1,), (0,), (None,))]) == []


def test_logprobs_are_absent_if_the_server_left_one_out() -> None:
    holes = Trajectory((1,), "tokens", (1, 2, 3), (0, 1, 1), (None, -0.1, None))
    assert [row.logprobs for row in token_rows([holes])] == [None]
    none = Trajectory((1,), "tokens", (1, 2, 3), (0, 1, 1))
    assert [row.logprobs for row in token_rows([none])] == [None]


def test_verdict_is_of_usable_samples_only() -> None:
    assert WHOLE.verdict == 1.0
    assert sample(reward=0.0).verdict == 0.0
    assert sample(reward=1.0, usable=False).verdict is None
    several = Sample(completion(reward=None, rewards={"style": 1}), reward_key="style")
    assert several.verdict == 1.0
    assert Sample(several.completion).verdict is None


def test_skyrl_output_has_a_row_for_each_sample() -> None:
    output = skyrl.generator_output([WHOLE, sample(1, outcome="truncated", reward=0.5)])
    assert output == {
        "prompt_token_ids": [[1, 2]] * 2,
        "response_ids": [[3, 4, 9, 5]] * 2,
        "rewards": [1.0, 0.5],
        "loss_masks": [[1, 1, 0, 1]] * 2,
        "stop_reasons": ["stop", "length"],
        "rollout_logprobs": [[-0.1, -0.2, 0.0, -0.3]] * 2,
        "trajectory_ids": [
            {"instance_id": "g", "repetition_id": 0},
            {"instance_id": "g", "repetition_id": 1},
        ],
    }


def test_skyrl_masks_samples_without_a_verdict_and_keeps_the_baseline() -> None:
    empty = Sample(completion(2, **LOST))
    output = skyrl.generator_output([WHOLE, WITHOUT_VERDICT, empty, sample(3, reward=0.5)])
    assert output["loss_masks"] == [[1, 1, 0, 1], [0, 0, 0, 0], [0], [1, 1, 0, 1]]
    assert output["rewards"] == [1.0, 0.75, 0.75, 0.5]
    assert output["response_ids"][2] == [0]
    assert output["stop_reasons"][1:3] == ["error", "error"]
    with pytest.raises(MissingVerdictError, match="no sample has a verdict"):
        skyrl.generator_output([WITHOUT_VERDICT])
    assert skyrl.generator_output([WITHOUT_VERDICT], missing_reward=0.0)["rewards"] == [0.0]


def test_skyrl_has_several_rows_of_a_sample_only_step_wise() -> None:
    branched = sample(0, TURNS, BRANCH)
    with pytest.raises(ValueError, match="2 trajectories"):
        skyrl.generator_output([branched])
    assert skyrl.generator_output([branched.main()])["response_ids"] == [[3, 4, 8, 5, 6]]
    output = skyrl.generator_output([branched, sample(1)], step_wise=True)
    assert output["is_last_step"] == [False, True, True]
    assert [one["repetition_id"] for one in output["trajectory_ids"]] == [0, 0, 1]
    assert output["loss_masks"][1] == [0, 0, 0, 1, 1]


def test_skyrl_has_logprobs_of_all_rows_or_none() -> None:
    holes = Trajectory((1,), "tokens", (1, 2), (0, 1))
    assert skyrl.generator_output([WHOLE, sample(1, holes)])["rollout_logprobs"] is None


def test_verl_output_has_its_fields() -> None:
    assert verl.agent_loop_output(WHOLE) == {
        "prompt_ids": [1, 2],
        "response_ids": [3, 4, 9, 5],
        "response_mask": [1, 1, 0, 1],
        "response_logprobs": [-0.1, -0.2, 0.0, -0.3],
        "reward_score": 1.0,
        "num_turns": 4,
        "metrics": {},
        "extra_fields": {"min_global_steps": 3, "max_global_steps": 4},
    }


def test_verl_refuses_samples_without_a_verdict() -> None:
    with pytest.raises(MissingVerdictError, match="sample 1 of g: it has no verdict"):
        verl.agent_loop_output(WITHOUT_VERDICT)
    with pytest.raises(MissingVerdictError, match="no sampled tokens"):
        verl.agent_loop_output(sample(0, MESSAGES))
    with pytest.raises(ValueError, match="2 trajectories"):
        verl.agent_loop_output(sample(0, TURNS, BRANCH))
    masked = verl.agent_loop_output(WITHOUT_VERDICT, missing_reward=0.0)
    assert (masked["reward_score"], masked["response_mask"]) == (0.0, [0, 0, 0, 0])


def test_slime_samples_of_a_group_have_their_fields() -> None:
    group = [sample(0, TURNS, BRANCH), sample(1, reward=0.0)]
    found = slime.samples(group, group_index=5, first_index=40)
    assert found[0] == {
        "group_index": 5,
        "index": 40,
        "rollout_id": 40,
        "tokens": [1, 2, 3, 4, 9, 5],
        "response_length": 4,
        "loss_mask": [1, 1, 0, 1],
        "rollout_log_probs": [-0.1, -0.2, 0.0, -0.3],
        "reward": 1.0,
        "status": "completed",
        "remove_sample": False,
        "weight_versions": ["3"],
        "metadata": {"row": 7},
    }
    assert [one["rollout_id"] for one in found] == [40, 40, 41]
    assert [one["index"] for one in found] == [40, 41, 42]
    for one in found:
        assert one["response_length"] == len(one["loss_mask"]) == len(one["rollout_log_probs"])


def test_slime_removes_samples_without_a_verdict() -> None:
    cancelled = Sample(completion(2, outcome="cancelled", reward=None, usable=False))
    group = [WHOLE, WITHOUT_VERDICT, cancelled, sample(3, reward=0.5)]
    found = slime.samples(group, group_index=0, first_index=0)
    assert [one["remove_sample"] for one in found] == [False, True, True, False]
    assert [one["status"] for one in found] == ["completed", "failed", "aborted", "completed"]
    assert [one["reward"] for one in found] == [1.0, 0.75, 0.75, 0.5]
    assert found[2]["response_length"] == len(found[2]["loss_mask"]) == 1
    with pytest.raises(MissingVerdictError):
        slime.samples([cancelled], group_index=0, first_index=0)


def test_areal_trajectory_is_padded_over_its_branches() -> None:
    assert areal.trajectory(sample(0, TURNS, BRANCH)) == {
        "input_ids": [[1, 2, 3, 4, 9, 5, 0], [1, 2, 3, 4, 8, 5, 6]],
        "loss_mask": [[0, 0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 1, 1]],
        "logprobs": [
            [0.0, 0.0, -0.1, -0.2, 0.0, -0.3, 0.0],
            [0.0, 0.0, -0.1, -0.2, 0.0, -0.4, -0.5],
        ],
        "versions": [[-1, -1, 3, 3, -1, 3, -1], [-1, -1, -1, -1, -1, 3, 3]],
        "attention_mask": [[True] * 6 + [False], [True] * 7],
        "rewards": [1.0, 1.0],
    }


def test_areal_rejects_samples_without_a_verdict() -> None:
    assert areal.trajectory(WITHOUT_VERDICT) is None
    assert areal.trajectory(sample(0, MESSAGES)) is None
    assert areal.trajectory(sample(0, Trajectory((1,), "tokens", (1, 2), (0, 1)))) is None
    given = areal.trajectory(WITHOUT_VERDICT, missing_reward=0.0)
    assert given is not None
    assert given["rewards"] == [0.0]


def test_rllm_episode_has_a_step_for_each_call() -> None:
    found = rllm.episode(sample(0, TURNS, BRANCH), task_id="t")
    assert (found["id"], found["termination_reason"], found["is_correct"]) == (
        "t:0",
        "env_done",
        True,
    )
    first, second = found["trajectories"]
    assert (first["reward"], first["name"]) == (1.0, "agent")
    assert first["steps"] == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4],
            "logprobs": [-0.1, -0.2],
            "done": False,
            "weight_version": 3,
        },
        {
            "prompt_ids": [1, 2, 3, 4, 9],
            "response_ids": [5],
            "logprobs": [-0.3],
            "done": True,
            "weight_version": 3,
            "reward": 1.0,
        },
    ]
    assert [step["response_ids"] for step in second["steps"]] == [[5, 6]]
    assert second["steps"][0]["prompt_ids"] == [1, 2, 3, 4, 8]


def test_rllm_episode_without_a_verdict_has_no_reward() -> None:
    lost = sample(1, **LOST, cause="agent", error={"code": "x"})
    found = rllm.episode(lost)
    assert (found["id"], found["termination_reason"], found["is_correct"]) == (
        "g:1",
        "error",
        False,
    )
    assert found["metadata"] == {"error": {"code": "x"}}
    (trajectory,) = found["trajectories"]
    assert trajectory["reward"] is None
    assert all("reward" not in step for step in trajectory["steps"])
    assert rllm.episode(lost, missing_reward=0.0)["trajectories"][0]["reward"] == 0.0


def gym_row(one: Sample) -> dict[str, Any] | None:
    return nemo_gym.row(one, task_index=4, agent="a", responses_create_params={"input": "x"})


def test_nemo_gym_row_has_token_ids_of_each_call() -> None:
    found = gym_row(WHOLE)
    assert found is not None
    assert (found["_ng_task_index"], found["_ng_rollout_index"]) == (4, 0)
    assert found["agent_ref"] == {"name": "a"}
    assert found["responses_create_params"] == {"input": "x"}
    assert found["reward"] == 1.0
    first, second = found["response"]["output"]
    assert first["prompt_token_ids"] == [1, 2]
    assert first["generation_token_ids"] == [3, 4]
    assert first["generation_log_probs"] == [-0.1, -0.2]
    assert second["prompt_token_ids"] == [1, 2, 3, 4, 9]
    assert second["generation_token_ids"] == [5]


def test_nemo_gym_failures_are_rows_of_their_own_file_without_reward(tmp_path: Path) -> None:
    agent, verifier = gym_row(WITHOUT_VERDICT), gym_row(sample(2, **LOST, cause="verifier"))
    assert agent is not None
    assert verifier is not None
    assert agent["_ng_failure_class"] == "rollout_agent"
    assert "_ng_failure_terminal" not in agent
    assert verifier["_ng_failure_terminal"] is True
    assert "reward" not in agent
    whole = gym_row(WHOLE)
    assert whole is not None
    path = tmp_path / "rollouts.jsonl"
    assert nemo_gym.append(path, whole) == path
    failures = nemo_gym.append(path, agent)
    nemo_gym.append(path, verifier)
    assert failures == tmp_path / "rollouts_failures.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [whole]
    assert len(failures.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "values", [{"cause": "infrastructure"}, {"outcome": "cancelled", "reason": "stale"}]
)
def test_nemo_gym_collects_samples_again_that_nothing_decided(values: dict[str, Any]) -> None:
    assert gym_row(sample(0, **{**LOST, **values})) is None


def test_verifiers_branches_share_the_nodes_of_shared_calls() -> None:
    found = verifiers.episode(sample(0, TURNS, BRANCH), {"name": "t", "x": 1}, model="m")
    assert (found["ok"], found["is_timeout"], found["errors"]) == (True, False, [])
    assert found["task"] == {"type": "Task", "data": {"name": "t", "x": 1}}
    (trace,) = found["traces"]
    nodes = trace["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0, 1, 2, 1, 4]
    assert [node["token_ids"] for node in nodes] == [[1, 2], [3, 4], [9], [5], [8], [5, 6]]
    assert [node["sampled"] for node in nodes] == [False, True, False, True, False, True]
    assert [node["logprobs"] for node in nodes][1::2] == [[-0.1, -0.2], [-0.3], [-0.4, -0.5]]
    assert [call["node"] for call in trace["calls"]] == [1, 3, 5]
    assert trace["rewards"] == {"reward": {"score": 1.0, "weight": 1.0}}
    assert trace["stop_condition"] == "agent_completed"


def test_verifiers_sample_without_a_verdict_has_an_error_and_no_reward() -> None:
    (trace,) = verifiers.episode(WITHOUT_VERDICT, {})["traces"]
    assert (trace["ok"], trace["rewards"]) == (False, {"reward": None})
    assert trace["errors"][0]["type"] == "HarnessError"
    assert trace["stop_condition"] == "harness_error"
    timeout = verifiers.episode(sample(outcome="truncated"), {})
    assert (timeout["ok"], timeout["is_timeout"]) == (True, True)


def test_verifiers_trace_with_an_unknown_logprob_has_no_tokens() -> None:
    holes = Trajectory((1,), "tokens", (1, 2), (0, 1), (None, None))
    (trace,) = verifiers.episode(sample(0, holes), {})["traces"]
    assert (trace["nodes"], trace["calls"], trace["ok"]) == ([], [], True)
