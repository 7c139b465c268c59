"""Exports of runs and overviews of searches on a real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon import DEADLINE_SEC, REPOSITORY, Daemon
from rollout_client import Client, ConflictError, InvalidRequestError, errors
from rollout_client._download import download_export
from rollout_client._effects import Reply
from script import CUT, Script


def test_export_has_every_trial(client: Client, shared: Daemon, tmp_path: Path) -> None:
    run = client.submit(shared.job("echo", n_attempts=2))
    client.wait(run, timeout_sec=DEADLINE_SEC)
    rows = [json.loads(line) for line in b"".join(client.export(run)).splitlines()]
    assert len(rows) == 2
    export = client.download_export(run, tmp_path / "results.csv", "csv")
    assert (export.missing, export.unplanned, export.keys_left_out) == (0, 0, False)
    assert export.path.read_bytes() == b"".join(client.export(run, "csv"))
    assert len(export.path.read_text(encoding="utf-8").splitlines()) == 3
    tables = client.download_export(run, tmp_path / "tables.tar", "tables")
    with tarfile.open(tables.path) as archive:
        assert any(name.endswith("trials.jsonl") for name in archive.getnames())
    with pytest.raises(InvalidRequestError):
        list(client.export(run, "xml"))  # type: ignore[arg-type]
    with pytest.raises(ConflictError):
        client.search(run)


def test_lost_export_begins_again_and_states_what_it_lacks(tmp_path: Path) -> None:
    headers = {
        "x-rollout-missing": "3",
        "x-rollout-unplanned": "1",
        "x-rollout-keys-left-out": "true",
    }
    head = Reply(200, headers, b"")
    script = Script([head, b"old", CUT, head, b"a,", b"b\n", None])
    to = tmp_path / "file"
    export = script.run(download_export(script.context, "r", "csv", to))
    assert (export.missing, export.unplanned, export.keys_left_out) == (3, 1, True)
    assert to.read_bytes() == b"a,b\n"
    script = Script([Reply(200, {}, b""), b"a", None])
    with pytest.raises(errors.AnswerError, match="x-rollout-missing"):
        script.run(download_export(script.context, "r", "csv", to))


def test_export_states_every_count_of_what_it_leaves_out(tmp_path: Path) -> None:
    counts = {
        "missing": 1,
        "unplanned": 2,
        "without_trajectory": 3,
        "below_reward": 4,
        "paths_left_out": 5,
    }
    headers = {f"x-rollout-{name.replace('_', '-')}": str(n) for name, n in counts.items()}
    script = Script([Reply(200, headers, b""), b"a", None])
    export = script.run(download_export(script.context, "r", "tables", tmp_path / "a"))
    assert {name: getattr(export, name) for name in counts} == counts
    # An earlier version states the first two only.
    earlier = {name: headers[name] for name in ("x-rollout-missing", "x-rollout-unplanned")}
    script = Script([Reply(200, earlier, b""), b"a", None])
    export = script.run(download_export(script.context, "r", "tables", tmp_path / "b"))
    assert (export.without_trajectory, export.below_reward, export.paths_left_out) == (0, 0, 0)
    broken = {**headers, "x-rollout-paths-left-out": "many"}
    script = Script([Reply(200, broken, b""), b"a", None])
    with pytest.raises(errors.AnswerError, match="x-rollout-paths-left-out"):
        script.run(download_export(script.context, "r", "tables", tmp_path / "c"))


def example_search(directory: Path) -> str:
    """Copy the example and return its document, with one eval of each node."""
    example = directory / "examples"
    shutil.copytree(REPOSITORY / "examples" / "tree", example)
    git = ["git", "-c", "user.name=user", "-c", "user.email=user@localhost"]
    environment = {**os.environ, "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "everything"]):
        subprocess.run([*git, *words], cwd=example, env=environment, check=True)
    text = (example / "tree.yaml").read_text(encoding="utf-8")
    for before, after in (
        ("repository: program", f"repository: {example / 'program'}"),
        ("root_baseline_csv: baseline.csv", f"root_baseline_csv: {example / 'baseline.csv'}"),
        ("max_depth: 3", "max_depth: 1"),
        ("ideas_per_node: 4", "ideas_per_node: 2"),
        ("k < 2000", "k < 300"),
    ):
        assert before in text
        text = text.replace(before, after)
    return text


def test_search_is_submitted_and_its_results_are_shown(
    start: Callable[..., Daemon], connect: Callable[..., Client], tmp_path: Path
) -> None:
    daemon = start("--allow-path", str(tmp_path / "examples"))
    client = connect(daemon.url, daemon.token)
    run = client.submit(example_search(tmp_path), kind="tree", name="integrate")
    assert (run.kind, run.name) == ("tree", "integrate")
    kinds = [event.kind for event in client.events(run)]
    assert {"search_started", "eval_ended"} <= set(kinds)
    run = client.wait(run, timeout_sec=DEADLINE_SEC)
    assert (run.state, run.code) == ("completed", 0), run.failure
    overview = client.search(run)
    assert (overview.stop_reason, overview.primary_metric) == ("max_depth_reached", "digits")
    assert overview.evals == overview.settled == len(overview.ideas)
    assert overview.evals >= 2
    assert overview.counts.open == 0
    assert overview.best_path[0].idea is None
    assert overview.best == overview.best_path[-1]
    assert {idea.parent_node_id for idea in overview.ideas} == {overview.best_path[0].node_id}
    assert {idea.status for idea in overview.ideas} <= {"completed", "no_changes", "failed"}
    assert overview.raw["tree_run_id"] == overview.tree_run_id
    assert client.run(run).kind == "tree"
    with pytest.raises(ConflictError):
        list(client.items(run))
    with pytest.raises(ConflictError):
        list(client.export(run))
