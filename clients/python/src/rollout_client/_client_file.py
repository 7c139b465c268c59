"""The file with which a server tells shells of its user its address and its token."""

from __future__ import annotations

import ipaddress
import os
import shlex
from pathlib import Path
from urllib.parse import urlsplit

_NAME = "client.env"
"""Its name in the directory of a server."""

_SERVERS = ("up", "serve")
"""Commands that start a server; their default directories in the user's state have these names."""


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is one of this host alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_hint(url: str) -> str:
    """Return the commands with which a shell gets the token of a server at a URL."""
    state = os.environ.get("XDG_STATE_HOME", "")
    state = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    files = ((server, Path(state, "rollout", server, _NAME)) for server in _SERVERS)
    found = [(server, file) for server, file in files if os.path.isfile(file)]
    named = [_read(file) for _, file in found if _has_address(file, url)]
    if named:
        return f"a server at this address wrote its token for shells: {' or '.join(named)}"
    # The token of a server of this host may not be sent to another host.
    if not is_loopback(urlsplit(url).hostname or ""):
        return (
            f"a server without `--tokens` writes its token to `{_NAME}` in its directory, on its "
            "own host"
        )
    known = [f"{_read(file)} for `rollout {server}`" for server, file in found]
    known.append(f"`. DIR/{_NAME}` with `--dir DIR`")
    return f"a server without `--tokens` writes its token for shells: {', '.join(known)}"


def _has_address(file: Path, url: str) -> bool:
    """Return whether the file is that of a server at a URL. The server may have ended."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return f"export ROLLOUT_API_URL={url}" in text.splitlines()


def _read(file: Path) -> str:
    """Return the command with which a shell reads the file."""
    return f"`. {shlex.quote(str(file))}`"
