"""The package and its README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import rollout_client
from daemon import DEADLINE_SEC, Daemon

PROJECT = Path(__file__).parents[1]


def code_blocks(language: str) -> list[str]:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_package_has_the_version_of_its_project() -> None:
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{rollout_client.__version__}"' in text


def test_package_is_installed_with_its_types(tmp_path: Path) -> None:
    (command,) = code_blocks("console")
    words = command.split()
    assert words[:2] == ["pip", "install"]
    # Without the package index: the tests have the build system and the dependencies.
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(tmp_path)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run(
        [*pip, *words[1:], *options],
        cwd=PROJECT.parents[1],
        check=True,
        capture_output=True,
        timeout=DEADLINE_SEC,
    )
    package = tmp_path / "rollout_client"
    assert (package / "py.typed").exists()
    program = "import rollout_client; print(rollout_client.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert Path(printed.strip()).parent == package


def test_programs_of_the_readme_run(start: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start()
    job = daemon.job("echo", artifacts=["/app"])
    (tmp_path / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    environment = {
        **os.environ,
        "ROLLOUT_API_URL": daemon.url,
        "ROLLOUT_API_TOKEN": daemon.token,
        "PYTHONPATH": str(PROJECT / "src"),
    }
    printed = [
        subprocess.check_output(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            text=True,
            timeout=DEADLINE_SEC,
        )
        for program in code_blocks("python")
    ]
    assert len(printed) == 6
    scored = (
        "Score(trials=1, passed=0, pass_rate=0.0, mean_reward=0.5, pass_rate_low=0.0, "
        "pass_rate_high=0.0)"
    )
    assert f"completed {scored}\nprinter/tasks/second__1 0.5\n" in printed[0]
    assert printed[0].startswith("1 run_started\n")
    assert printed[1] == "1\n"
    assert printed[3] == "oracle/tasks/second__1 0.5\ncompleted\n"
    assert printed[4] == "step-0 (0.5, 0.5, 0.5, 0.5) 4\nstep-1 (0.5, 0.5, 0.5, 0.5) 4\n"
    assert "n_attempts" in printed[5]
