"""Items of runs on a real server: their output and their artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon import DEADLINE_SEC, Daemon
from rollout_client import Client, errors


def test_items_are_listed_over_pages_and_shown(shared: Daemon, client: Client) -> None:
    run = client.submit(shared.job("echo", n_attempts=3))
    client.wait(run, timeout_sec=DEADLINE_SEC)
    items = list(client.items(run, page_size=2))
    assert [item.attempt for item in items] == [1, 2, 3]
    assert {(item.state, item.reward, item.passed) for item in items} == {("completed", 0.5, False)}
    assert {(item.agent_name, item.task_name) for item in items} == {("printer", "second")}
    assert [item.item for item in client.items(run, agent="p*", state="completed")] == [
        item.item for item in items
    ]
    assert list(client.items(run, task="other")) == []
    page = client.items_page(run, limit=1, cursor=1)
    assert ([item.item for item in page.items], page.next) == ([items[1].item], 2)
    for reference in (items[1], items[1].item, items[1].name):
        detail = client.item(run, reference)
        assert (detail.item, detail.name) == (items[1].item, items[1].name)
    assert detail.executions[0]["role"] == "settled"
    assert detail.raw is not None
    assert detail.raw["item"] == detail.item
    with pytest.raises(errors.NotFoundError):
        client.item(run, "no/such item?")


def test_output_and_artifacts_are_read(shared: Daemon, client: Client, tmp_path: Path) -> None:
    size = 3_000_000
    script = f"echo begun; head -c {size} /dev/zero >/app/large; printf 'é\\n' >&2"
    run = client.submit(shared.job(script, artifacts=["/app/large"]))
    assert client.wait(run, timeout_sec=DEADLINE_SEC).state == "completed"
    (item,) = client.items(run)
    outputs = {output.path: output for output in client.outputs(run, item)}
    texts = {path: b"".join(client.logs(run, item, name=path)) for path in outputs}
    assert b"begun\n" in texts.values()
    assert "é\n".encode() in texts.values()
    for path, text in texts.items():
        assert len(text) == outputs[path].size_bytes
    everything = b"".join(client.logs(run, item))
    assert b"begun\n" in everything
    with pytest.raises(errors.NotFoundError):
        list(client.logs(run, item, name="../etc/passwd"))

    artifacts = client.artifacts(run, item)
    assert max(artifact.size_bytes for artifact in artifacts) > 0
    for number, artifact in enumerate(artifacts):
        content = b"".join(client.artifact(run, item, artifact.path))
        assert len(content) == artifact.size_bytes
        to = tmp_path / str(number)
        assert client.download(run, item, artifact, to) == to
        assert to.read_bytes() == content
        client.download(run, item, artifact.path, str(to))
    with pytest.raises(errors.NotFoundError):
        client.download(run, item, "none", tmp_path / "none")
    assert sorted(tmp_path.iterdir()) == sorted(
        tmp_path / str(number) for number in range(len(artifacts))
    )


def test_output_of_a_running_item_is_followed(
    shared: Daemon, client: Client, tmp_path: Path
) -> None:
    run = client.submit(shared.job("echo begun; sleep 4; echo over"))
    for event in client.events(run):
        if event.kind != "run_started":
            break
    received = b""
    for piece in client.logs(run, "printer", follow=True):
        if b"begun" in piece:
            assert not client.run(run).is_final
        received += piece
    assert received.index(b"begun") < received.index(b"over")
    assert received.count(b"begun") == 1
    client.wait(run, timeout_sec=DEADLINE_SEC)
