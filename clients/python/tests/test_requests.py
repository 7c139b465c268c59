"""Requests and settings."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollout_client import _operations as operations
from rollout_client._programs import artifact_request, logs_request
from rollout_client._settings import Settings
from rollout_client._transport import lost_by


def test_arguments_are_encoded_as_one_part_of_the_path() -> None:
    request = operations.build(operations.ITEM, {"id": "r1", "item": "agent/data/té st__1?#%"})
    path = "/v1/runs/r1/items/agent%2Fdata%2Ft%C3%A9%20st__1%3F%23%25"
    assert request.path == path
    sent = httpx.Request("GET", "http://h" + request.path)
    assert sent.url.raw_path == path.encode()


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_argument_that_would_change_the_path_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="cannot use"):
        operations.build(operations.RUN, {"id": value})


def test_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter"):
        operations.build(operations.RUN, {"id": "r"}, query={"x": 1})


def test_query_is_encoded_and_leaves_out_what_is_not_given() -> None:
    request = artifact_request("r", "i", "a b/c&d=é")
    assert request.path.partition("?")[2] == "path=a%20b%2Fc%26d%3D%C3%A9"
    request = logs_request("r", "i", name=None, number=0, follow=True)
    assert request.path.partition("?")[2] == "try=0&follow=true"
    assert logs_request("r", "i", name=None, number=None, follow=False).path.endswith("/logs")


def settings(
    url: str | None = None, token: str | None = None, verify: Any = True, **variables: str
) -> Settings:
    return Settings.read(url, token, verify, 30.0, variables)


def test_arguments_stand_over_variables() -> None:
    variables = {"ROLLOUT_API_URL": "https://h:1/base/", "ROLLOUT_API_TOKEN": ["of", "variable"][0]}
    assert settings().url == "http://127.0.0.1:4280"
    found = settings(**variables)
    assert (found.url, found.token) == ("https://h:1/base", "of")
    found = settings("http://localhost:2", "given", **variables)
    assert (found.url, found.token) == ("http://localhost:2", "given")
    assert found.headers()["authorization"] == "Bearer given"
    assert settings(token="", **variables).token is None
    assert "authorization" not in settings().headers()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:4280",
        "ftp://h",
        "http://",
        "http://u:p@h",
        "http://h?x=1",
        "http://h#x",
        "http://h:x",
        "http://[x",
    ],
)
def test_url_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected http"):
        settings(url)


def test_token_with_odd_characters_is_refused_and_not_repeated() -> None:
    for token in ("secret\nx: y", "se cret", "secrét"):
        with pytest.raises(ValueError, match="cannot use the token") as caught:
            settings(token=token)
        assert "secr" not in str(caught.value)
    assert "hidden" not in repr(settings(token="hidden"))


def test_certificates_are_checked_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    assert settings("https://h").tls is True
    assert settings("https://h", verify=False).tls is False
    context = ssl.create_default_context()
    assert settings("https://h", verify=context).tls is context
    with pytest.raises(OSError, match="No such file"):
        settings("https://h", verify=tmp_path / "none.pem")


def test_proxy_of_the_environment_is_not_for_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"http": "http://proxy:1"})
    monkeypatch.setattr(urllib.request, "proxy_bypass", lambda host: host == "inner")
    found = [settings(f"http://{host}").proxy for host in ("outer", "inner", "127.0.0.1", "[::1]")]
    assert found == ["http://proxy:1", None, None, None]


def test_streams_have_other_time_limits_than_answers() -> None:
    found = settings()
    show = operations.build(operations.RUN, {"id": "r"})
    events = operations.build(operations.EVENTS, {"id": "r"})
    logs = logs_request("r", "i", name=None, number=None, follow=True)
    limits = [found.timeout(request).read for request in (show, events, logs)]
    assert limits == [30.0, 50.0, None]


def test_failures_say_whether_the_request_may_have_arrived() -> None:
    certificate = httpx.ConnectError("verify failed")
    certificate.__cause__ = ssl.SSLCertVerificationError("verify failed")
    failures: list[tuple[httpx.HTTPError, bool, bool]] = [
        (httpx.ConnectError("refused"), False, False),
        (httpx.ConnectTimeout("late"), False, False),
        (httpx.ReadTimeout(""), True, False),
        (httpx.RemoteProtocolError("closed"), True, False),
        (certificate, False, True),
    ]
    for error, may_have_arrived, is_permanent in failures:
        lost = lost_by(error)
        assert (lost.may_have_arrived, lost.is_permanent) == (may_have_arrived, is_permanent)
        assert lost.message
