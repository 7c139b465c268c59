#!/bin/bash
if [ "$(cat /app/sum.txt)" = 36668 ]; then
  echo 1 >/logs/verifier/reward.txt
else
  echo "expected 36668, found $(cat /app/sum.txt)"
  echo 0 >/logs/verifier/reward.txt
fi
