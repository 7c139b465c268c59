"""Cases of `.harborignore` that the tests of the command read, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[3] / "tests" / "fixtures" / "harborignore.json"


def shared_cases() -> Any:
    return json.loads(_FILE.read_text(encoding="utf-8"))
