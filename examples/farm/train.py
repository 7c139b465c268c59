"""Teaches the policy four facts by reinforcement learning on the samples of a farm.

Every part may be killed and started again: progress is in `state.json`, and a group is acknowledged
only after what was learnt from it is there.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

import curve
from policy import Policy, PolicyServer
from rollout_client import Client

HERE = Path(__file__).resolve().parent
TASKS = sorted(path.name for path in (HERE / "tasks").iterdir())


def document(port):
    """The job of the farm: its agent, its tasks and the address of the policy."""
    agent = (HERE / "agent.py").read_text()
    return {
        "name": "facts",
        "environment": {"type": "process", "provider_config": {"ignore_dockerfile": True}},
        "gateway": {
            "upstreams": [
                {"name": "policy", "url": f"http://127.0.0.1:{port}/v1", "capture": "tokens"}
            ]
        },
        "agents": [{"name": "policy", "execute": f"python3 - <<'PYTHON'\n{agent}\nPYTHON\n"}],
        "datasets": [{"path": str(HERE / "tasks")}],
    }


def collect(farm, ended, step):
    """The ended groups of a step. Those of an earlier one were learnt before a kill."""
    groups = {}
    for group in ended:
        if group.metadata["step"] < step:
            farm.ack(group)
            continue
        groups[group.metadata["task"]] = group
        if len(groups) == len(TASKS):
            return groups
    raise SystemExit("the farm has ended")


def experience(farm, groups):
    """(prompt, token, logprob, advantage) of every usable sample; advantages within a group."""
    samples = []
    for task, group in sorted(groups.items()):
        prompt = (HERE / "tasks" / task / "instruction.md").read_text().strip()
        rewards = [completion.reward for completion in group.usable]
        if not rewards:
            continue
        mean, spread = statistics.mean(rewards), statistics.pstdev(rewards) or 1.0
        for completion in group.usable:
            [trajectory] = farm.calls(completion)
            at = trajectory.mask.index(1)
            token, logprob = trajectory.ids[at], trajectory.logprobs[at]
            samples.append((prompt, token, logprob, (completion.reward - mean) / spread))
    return samples


def save(path, state):
    """Replaces the file, whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--group", type=int, default=8, help="samples of a task in a step")
    parser.add_argument("--rate", type=float, default=4.0, help="learning rate")
    parser.add_argument("--port", type=int, default=8765, help="of the policy server")
    parser.add_argument("--out", type=Path, default=Path("facts"))
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    state = {"step": 0, "logits": {}, "rewards": []}
    if (out / "state.json").exists():
        state = json.loads((out / "state.json").read_text())
    policy = Policy(state["logits"])
    PolicyServer(("127.0.0.1", arguments.port), policy).start()
    with Client() as client:
        key = f"facts in {out.resolve()}"
        farm = client.farms.create("facts", document(arguments.port), idempotency_key=key)
        ended = farm.groups()
        while state["step"] < arguments.steps:
            step = state["step"]
            for task in TASKS:
                about = {"task": task, "step": step}
                name = f"{step}-{task}"
                farm.submit(
                    task, arguments.group, group=name, policy_version=step, metadata=about
                )
            groups = collect(farm, ended, step)
            samples = experience(farm, groups)
            with farm.weight_sync(step + 1):
                policy.update(samples, arguments.rate)
            by_task = {task: groups[task].rewards for task in TASKS}
            seen = [reward for row in by_task.values() for reward in row if reward is not None]
            state["rewards"].append(statistics.mean(seen) if seen else None)
            state.update(step=step + 1, logits=policy.logits)
            save(out / "state.json", state)
            farm.ack(*groups.values())
            print(f"step {step}: mean reward {state['rewards'][-1]}", flush=True)
        farm.close()
    (out / "curve.svg").write_text(curve.svg(state["rewards"]))


if __name__ == "__main__":
    main()
