"""Samples of a farm as records of trainers: plain lists and dicts, without a trainer's package.

A trainer learns from samples with a verdict only. Each module keeps its trainer's own rule for the
others: they are masked, dropped, `None`, or an error. None of them has reward 0, unless that is
asked for by `missing_reward=0.0`.
"""

from . import areal, nemo_gym, rllm, skyrl, slime, verifiers, verl
from ._rows import MissingVerdictError, Sample, TokenRow, token_rows

__all__ = [
    "MissingVerdictError",
    "Sample",
    "TokenRow",
    "areal",
    "nemo_gym",
    "rllm",
    "skyrl",
    "slime",
    "token_rows",
    "verifiers",
    "verl",
]
