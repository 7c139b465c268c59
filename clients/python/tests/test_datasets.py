"""Upload of directories of tasks."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon import DEADLINE_SEC, Daemon
from harborignore_cases import shared_cases
from proxy import Proxy
from rollout_client import Client, errors
from rollout_client._archive import pack
from rollout_client._datasets import upload
from rollout_client._effects import Reply
from script import CUT, Script, problem

DONE = Reply(204, {}, b"")

KNOWN_DIGEST = "54d571ecd0679010b10535972b4aa8f4b1435e0e6f7c23207f458a6a9ef9b626"
"""Of an archive that the tests of the command pack, too."""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    tree = tmp_path / "tasks"
    (tree / "t" / ".git").mkdir(parents=True)
    (tree / "t" / ".git" / "config").write_text("secret")
    (tree / "t" / "task.toml").write_text("")
    (tree / "t" / "environment" / ".git").mkdir(parents=True)
    (tree / "t" / "environment" / ".git" / "HEAD").write_text("kept")
    (tree / "t-x").mkdir()
    (tree / ".git").mkdir()
    (tree / "t" / "NOTES.md").write_text("not read")
    (tree / "README.md").write_text("not read")
    tests = tree / "t" / "tests"
    tests.mkdir()
    (tests / "b é").write_text("text")
    (tests / "run").write_text("#!/bin/sh\n")
    (tests / "run").chmod(0o700)
    (tests / "link").symlink_to("run")
    (tests / ("long" * 40)).mkdir()
    return tree


def test_equal_trees_give_equal_archives(tasks: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tasks, copy, symlinks=True)
    os.utime(copy / "t" / "tests" / "run", (1, 1))
    first, second = (pack(tree, "tasks", tmp_path / f"{tree.name}.tar") for tree in (tasks, copy))
    assert (first.digest, first.size_bytes) == (second.digest, second.size_bytes)
    with tarfile.open(first.path) as archive:
        members = {member.name: (member.type, member.mode) for member in archive}
        assert list(members) == [
            "tasks",
            "tasks/t",
            "tasks/t/environment",
            "tasks/t/environment/.git",
            "tasks/t/environment/.git/HEAD",
            "tasks/t/task.toml",
            "tasks/t/tests",
            "tasks/t/tests/b é",
            "tasks/t/tests/link",
            "tasks/t/tests/" + "long" * 40,
            "tasks/t/tests/run",
        ]
    assert members["tasks/t/tests/run"] == (tarfile.REGTYPE, 0o755)
    assert members["tasks/t/tests/link"][0] == tarfile.SYMTYPE
    (copy / "t" / "tests" / "run").chmod(0o600)
    assert pack(copy, "tasks", tmp_path / "other.tar").digest != first.digest


def test_archive_has_known_digest(tmp_path: Path) -> None:
    tree = tmp_path / "tasks"
    (tree / "t" / "tests").mkdir(parents=True)
    (tree / "t-x").mkdir()
    (tree / "t" / "task.toml").write_text("version = '1.0'\n")
    (tree / "t" / "tests" / "test.sh").write_text("true\n")
    (tree / "t" / "tests" / "test.sh").chmod(0o755)
    (tree / "t" / "tests" / ("long" * 40)).symlink_to("test.sh")
    (tree / "t" / "NOTES.md").write_text("notes\n")
    (tree / "README.md").write_text("tasks\n")
    assert pack(tree, "tasks", tmp_path / "tasks.tar").digest == KNOWN_DIGEST


def member_names(tree: Path, to: Path) -> set[str]:
    with tarfile.open(pack(tree, "x", to / "x.tar").path) as archive:
        return {member.name for member in archive}


def test_files_that_a_run_leaves_out_are_not_sent(tmp_path: Path) -> None:
    upload = shared_cases()["upload"]
    tree = tmp_path / "tasks"
    for name, text in upload["files"].items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for name, target in upload["links"].items():
        (tree / name).symlink_to(target)
    left_out = {Path(name) for name in upload["left_out"]}
    expected = {
        (Path("tasks") / path.relative_to(tree)).as_posix()
        for path in (tree, *tree.rglob("*"))
        if not left_out & {path.relative_to(tree), *path.relative_to(tree).parents}
    }
    archive = pack(tree, "tasks", tmp_path / "tasks.tar")
    with tarfile.open(archive.path) as members:
        assert {member.name for member in members} == expected
    assert archive.digest == upload["digest"]


@pytest.mark.parametrize("content", ["x\n" + 64 * 1024 * "#", None])
def test_files_are_sent_if_the_patterns_are_unusable(tmp_path: Path, content: str | None) -> None:
    tests = tmp_path / "task" / "tests"
    tests.mkdir(parents=True)
    (tests.parent / "task.toml").write_text("")
    (tests.parent / ".harborignore").write_text("x\n")
    (tests / "x").write_text("")
    assert "x/tests/x" not in member_names(tests.parent, tmp_path)
    if content is None:
        (tests / ".harborignore").mkdir()
    else:
        (tests / ".harborignore").write_text(content)
    assert "x/tests/x" in member_names(tests.parent, tmp_path)


@pytest.mark.parametrize("file", ["Dockerfile", "docker-compose.yaml", "docker-compose.yml"])
def test_build_context_keeps_ignored_files(tmp_path: Path, file: str) -> None:
    tests = tmp_path / "task" / "tests"
    tests.mkdir(parents=True)
    (tests.parent / "task.toml").write_text("")
    (tests / ".harborignore").write_text("*\n")
    (tests / "x").write_text("")
    assert "x/tests/x" not in member_names(tests.parent, tmp_path)
    (tests / file).write_text("")
    assert {"x/tests/x", f"x/tests/{file}"} <= member_names(tests.parent, tmp_path)


def test_task_with_links_between_its_parts_is_sent_whole(tasks: Path, tmp_path: Path) -> None:
    (tasks / "t" / "common").mkdir()
    assert "x/t/common" not in member_names(tasks, tmp_path)
    (tasks / "t" / "tests" / "up").symlink_to("../common")
    (tasks / "t" / "common" / ".git").mkdir()
    found = member_names(tasks, tmp_path)
    assert {"x/t/common", "x/t/common/.git", "x/t/NOTES.md"} <= found
    assert not {"x/t/.git", "x/README.md"} & found


def test_directory_without_tasks_is_sent_whole(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "ideas" / ".git").mkdir(parents=True)
    (tree / "baseline.csv").write_text("v\n1\n")
    assert member_names(tree, tmp_path) == {"x", "x/baseline.csv", "x/ideas"}
    (tree / "t").mkdir()
    (tree / "t" / "task.toml").write_text("")
    assert member_names(tree, tmp_path) == {"x", "x/t", "x/t/task.toml"}
    assert member_names(tree / "t", tmp_path) == {"x", "x/task.toml"}
    (tree / "link").symlink_to("t")
    found = {"x", "x/baseline.csv", "x/ideas", "x/link", "x/t", "x/t/task.toml"}
    assert member_names(tree, tmp_path) == found


def test_special_file_is_refused(tasks: Path, tmp_path: Path) -> None:
    os.mkfifo(tasks / "t" / "tests" / "pipe")
    with pytest.raises(ValueError, match="no file, directory or link"):
        pack(tasks, "tasks", tmp_path / "x.tar")


def test_directory_is_sent_only_if_the_server_lacks_it(tasks: Path) -> None:
    known = Script([DONE])
    path = known.run(upload(known.context, tasks))
    unknown = Script([problem(404, "not-found"), CUT, DONE])
    assert unknown.run(upload(unknown.context, tasks)) == path
    assert path.startswith("dataset:")
    assert path.endswith("/tasks")
    assert [request.method for request in unknown.requests] == ["GET", "PUT", "PUT"]
    sent = unknown.requests[1]
    assert sent.file is not None
    assert not sent.file.exists()


def test_uploaded_tasks_run(start: Callable[..., Daemon], connect: Callable[..., Client]) -> None:
    daemon = start()
    client = connect(daemon.url, daemon.token)
    # Larger than the buffers of sockets, so that a lost connection cuts it.
    (daemon.tasks / "second" / "environment" / "large").write_bytes(os.urandom(4_000_000))
    with Proxy(daemon.url, lost_answers=2) as proxy:
        path = connect(proxy.url, daemon.token).upload(daemon.tasks)
    assert client.upload(str(daemon.tasks)) == path
    run = client.submit(daemon.job("echo", datasets=[{"path": path}]))
    assert client.wait(run, timeout_sec=DEADLINE_SEC).state == "completed"
    (item,) = client.items(run)
    assert (item.dataset_name, item.task_name, item.reward) == ("tasks", "second", 0.5)


def test_dataset_that_was_not_uploaded_is_refused(shared: Daemon, client: Client) -> None:
    missing = f"dataset:{64 * '0'}/tasks"
    with pytest.raises(errors.MissingDatasetError, match="upload it"):
        client.submit(shared.job(datasets=[{"path": missing}]))
