"""A softmax policy over a small vocabulary, and its server with an OpenAI-compatible endpoint."""

import json
import math
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ["red", "green", "blue", "white", "black"]


class Policy:
    """One row of logits for each prompt; a reply is one token."""

    def __init__(self, logits=None):
        self.logits = logits or {}

    def logprobs(self, prompt):
        row = self.logits.get(prompt, [0.0] * len(WORDS))
        total = math.log(sum(math.exp(value) for value in row))
        return [value - total for value in row]

    def update(self, samples, learning_rate, clip=0.2):
        """One step of clipped policy gradient on (prompt, token, logprob, advantage)."""
        steps = {}
        for prompt, token, logprob, advantage in samples:
            now = self.logprobs(prompt)
            ratio = math.exp(now[token] - logprob)
            if ratio > 1 + clip and advantage > 0 or ratio < 1 - clip and advantage < 0:
                continue
            row = steps.setdefault(prompt, [0.0] * len(WORDS))
            for word, value in enumerate(now):
                gradient = (word == token) - math.exp(value)
                row[word] += ratio * advantage * gradient / len(samples)
        for prompt, step in steps.items():
            row = self.logits.get(prompt, [0.0] * len(WORDS))
            self.logits[prompt] = [a + learning_rate * b for a, b in zip(row, step)]


class PolicyServer(ThreadingHTTPServer):
    """Serves `POST /v1/chat/completions` with token ids and log probabilities."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, policy):
        super().__init__(address, Handler)
        self.policy = policy

    def start(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["messages"][-1]["content"].strip()
        logprobs = self.server.policy.logprobs(prompt)
        token = random.choices(range(len(WORDS)), [math.exp(value) for value in logprobs])[0]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": WORDS[token]},
            "token_ids": [token],
            "logprobs": {"content": [{"token": WORDS[token], "logprob": logprobs[token]}]},
        }
        prompt_ids = list(prompt.encode())
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": 1}
        body = json.dumps(
            {
                "id": "reply",
                "object": "chat.completion",
                "created": 0,
                "model": request["model"],
                "prompt_token_ids": prompt_ids,
                "choices": [choice],
                "usage": usage,
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
