#!/bin/bash
# 1 when the report is the expected one, otherwise 0.
if diff /tests/expected.txt /app/report.txt; then
  echo 1 >/logs/verifier/reward.txt
else
  echo 0 >/logs/verifier/reward.txt
fi
