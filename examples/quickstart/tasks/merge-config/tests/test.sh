#!/bin/bash
# 1 when the merged file is the expected one, otherwise 0.
if diff /tests/expected.ini /app/merged.ini; then
  echo "the merged file is the expected one"
  echo 1 >/logs/verifier/reward.txt
else
  echo 0 >/logs/verifier/reward.txt
fi
