"""A trainer of TRL that learns from a farm: a tiny policy that is to say one word of four."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon import Daemon
from model_server import AGENT, ModelServer
from package import required
from rollout_client import Client, Farm
from rollout_client.adapters.trl import VERDICT, FarmRollouts, verdict_reward

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", OMP_NUM_THREADS="1")
torch = required("trl", "torch")
trl = required("trl", "trl")
transformers = required("trl", "transformers")
tokenizers = required("trl", "tokenizers")
datasets = required("trl", "datasets")

WORDS = ("red", "green", "blue", "gray")
SPECIAL = ("<pad>", "<end>", "say", "<unknown>")
VOCABULARY = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
PROMPT_ID = VOCABULARY["say"]
RIGHT = "blue"
TASK = "tasks/word"

# A sample whose policy says `gray` fails, and has no verdict.
EXECUTE = f'TURNS=1; export TURNS\n{AGENT}\n[ "$(cat answer.txt)" != gray ]\n'
VERIFY = f"""#!/bin/bash
if [ "$(cat answer.txt)" = {RIGHT} ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
"""


class Policy(ModelServer):
    """Samples one word from a model."""

    model: Any = None

    def logits(self) -> Any:
        with torch.no_grad():
            logits = self.model(torch.tensor([[PROMPT_ID]])).logits[0, -1].float()
        return logits.log_softmax(-1)

    def sample(self, messages: list[dict[str, Any]]) -> tuple[str, list[int], list[float]]:
        logprobs = self.logits()
        word = int(torch.multinomial(logprobs.exp(), 1))
        text = (*SPECIAL, *WORDS)[word]
        return text, [word], [float(logprobs[word])]

    def prompt_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        return [PROMPT_ID]

    def chance(self) -> float:
        """Return the probability of the right word."""
        return float(self.logits()[VOCABULARY[RIGHT]].exp())


@pytest.fixture
def policy() -> Iterator[Policy]:
    with Policy() as server:
        yield server


@pytest.fixture
def farm(start: Callable[..., Daemon], policy: Policy) -> Iterator[Farm]:
    daemon = start("--allow-model-server", policy.origin)
    (daemon.tasks / "second").rename(daemon.tasks / "word")
    (daemon.tasks / "word" / "tests" / "test.sh").write_text(VERIFY)
    with Client(daemon.url) as client:
        yield client.farms.create("policy", daemon.job(EXECUTE, gateway=policy.gateway()))


def small_model() -> Any:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    size = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16}
    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    config = transformers.GPT2Config(vocab_size=len(VOCABULARY), **size, **ends)
    model = transformers.GPT2LMHeadModel(config)
    # Only words, so that every reply is a sensible one.
    model.lm_head = torch.nn.Linear(32, len(VOCABULARY))
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.fill_(-1e4)
        model.lm_head.bias[len(SPECIAL) :] = 0
    return model


def small_tokenizer() -> Any:
    words = tokenizers.models.WordLevel(VOCABULARY, unk_token="<unknown>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unknown>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def settings(directory: Path, steps: int) -> dict[str, Any]:
    return {
        "output_dir": str(directory),
        "per_device_train_batch_size": 8,
        "num_generations": 8,
        "max_steps": steps,
        "learning_rate": 0.1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1,
    }


def test_trainer_learns_the_right_word_from_a_farm(
    farm: Farm, policy: Policy, tmp_path: Path
) -> None:
    seen: list[float | None] = []

    def reward(**values: Any) -> list[float | None]:
        seen.extend(values[VERDICT])
        return verdict_reward(**values)

    policy.model = small_model()
    trainer = trl.GRPOTrainer(
        model=policy.model,
        reward_funcs=reward,
        args=trl.GRPOConfig(**settings(tmp_path, 4), beta=0.0),
        train_dataset=datasets.Dataset.from_list([{"prompt": "say"}] * 32),
        processing_class=small_tokenizer(),
        rollout_func=FarmRollouts(farm, lambda _prompt: TASK),
    )
    before = policy.chance()
    trainer.train()
    assert len(seen) == 32
    assert set(seen) >= {0.0, 1.0}
    assert policy.chance() > before
    status = farm.info().status
    assert status is not None
    assert (status.totals.samples, status.unacknowledged) == (32, 0)
    assert status.policy_version == 3


def test_sample_without_a_verdict_has_no_trained_token_and_no_reward(
    farm: Farm, policy: Policy, tmp_path: Path
) -> None:
    class Trainer:
        state = transformers.TrainerState(global_step=5)

    policy.model = small_model()
    with torch.no_grad():
        policy.model.lm_head.bias[VOCABULARY["gray"]] = 100
    rows = FarmRollouts(farm, lambda _prompt: TASK)(["say"] * 2, Trainer())
    assert rows["prompt_ids"] == [[PROMPT_ID]] * 2
    assert rows["completion_ids"] == [[VOCABULARY["gray"]]] * 2
    assert rows["env_mask"] == [[0]] * 2
    assert rows[VERDICT] == [None, None]
