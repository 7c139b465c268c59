"""The agent of a sample: asks the policy for the missing word, and writes it down."""

import json
import os
import urllib.request

with open(os.environ["ROLLOUT_TASK_INSTRUCTION"]) as file:
    instruction = file.read()
body = {"model": "policy", "messages": [{"role": "user", "content": instruction}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(request) as reply:
    word = json.load(reply)["choices"][0]["message"]["content"]
with open("/app/answer.txt", "w") as file:
    print(word, file=file)
