"""A model server of the tests: replies with one word, its token ids and log probabilities."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar

Server = TypeVar("Server", bound="ModelServer")

BEGIN, END = 1, 2

CALLER = r"""
import json, os, urllib.request
messages = []
for turn in range(int(os.environ.get("TURNS", "2"))):
    messages.append({"role": "user", "content": "say"})
    headers = {"Content-Type": "application/json",
               "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"model": "m", "messages": messages}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as reply:
        messages.append(json.load(reply)["choices"][0]["message"])
open("answer.txt", "w").write(messages[-1]["content"])
"""

AGENT = f"python3 - <<'PYTHON'\n{CALLER}\nPYTHON\n"
"""A script of an agent that makes two calls, the second of which continues the first."""


def tokens(message: dict[str, Any]) -> list[int]:
    """Return the token ids of a message."""
    return [BEGIN, *(ord(letter) for letter in message["content"]), END]


class ModelServer:
    """Answers chat completions: always with the same word."""

    def __init__(self, word: str = "yes") -> None:
        self._word = word
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                reply = json.dumps(server.reply(json.loads(body))).encode()
                head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                head += f"content-length: {len(reply)}\r\n\r\n"
                # At once: a second packet would wait for an acknowledgement of the first.
                self.wfile.write(head.encode() + reply)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def sample(self, messages: list[dict[str, Any]]) -> tuple[str, list[int], list[float]]:
        """Return the text of a reply, its token ids, and their log probabilities."""
        ids = [*(ord(letter) for letter in self._word), END]
        return self._word, ids, [-one / 1000 for one in ids]

    def prompt_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """Return the token ids of a prompt: those of its messages, and the begin of the reply."""
        return [one for message in messages for one in tokens(message)] + [BEGIN]

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request."""
        messages = request["messages"]
        text, ids, logprobs = self.sample(messages)
        content = [{"token": "x", "logprob": one, "top_logprobs": []} for one in logprobs]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": {"content": content},
        }
        prompt = self.prompt_ids(messages)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        head = {"id": "c", "object": "chat.completion", "model": "m"}
        return {**head, "choices": [choice], "prompt_token_ids": prompt, "usage": usage}

    def gateway(self) -> dict[str, Any]:
        """Return the gateway of a job that uses it."""
        upstream = {"name": "policy", "url": f"{self.origin}/v1", "capture": "tokens"}
        return {"upstreams": [upstream]}

    def __enter__(self: Server) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
