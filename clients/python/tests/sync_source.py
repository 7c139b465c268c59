"""Sources of the synchronous client, which are made from those of the asynchronous one.

`python tests/sync_source.py` writes them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "rollout_client"

SOURCES = {
    "_async.py": "_sync.py",
    "_async_executor.py": "_sync_executor.py",
    "_async_farm.py": "_sync_farm.py",
}
"""Files by the files that they are made from."""

RULES = (
    (r"The asynchronous client, for asyncio\.", "The synchronous client."),
    (r"of the asynchronous client", "of the synchronous client"),
    (r"an asynchronous context manager\.", "a context manager, and threads may share it."),
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(Generator|Iterator|Client|Executors|Executor|Farms|Farm)\b", r"\1"),
    (r"\bAsyncShell\b", "SyncShell"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\b_async(_\w+)?\b", r"_sync\1"),
)


def sync_source(name: str) -> str:
    """Return the source that is made from a file."""
    text = (PACKAGE / name).read_text(encoding="utf-8")
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    head, _, rest = text.partition("\n")
    text = f"{head}\n# Made from {name} by tests/sync_source.py.\n{rest}"
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache"]
        text = subprocess.run(
            [*ruff, "--stdin-filename", str(PACKAGE / SOURCES[name]), "-"],
            input=text,
            cwd=PACKAGE,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return text


if __name__ == "__main__":
    for source, made in SOURCES.items():
        (PACKAGE / made).write_text(sync_source(source), encoding="utf-8")
