#!/bin/bash
# 1 when the answer is the expected word, otherwise 0.
if diff /tests/expected.txt /app/answer.txt; then
  echo 1 >/logs/verifier/reward.txt
else
  echo 0 >/logs/verifier/reward.txt
fi
