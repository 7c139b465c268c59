#!/bin/bash
# The reward is the share of files with the expected path and content.
passed=0
check() {
  if [ "$(cat "$1" 2>/dev/null)" = "$2" ]; then
    passed=$((passed + 1))
  else
    echo "$1 is missing or has the wrong content"
  fi
}
check /app/inbox/minutes_march.txt "minutes of march"
check /app/inbox/budget.csv "budget"
check /app/inbox/notes.txt "plain"
check "/app/trash/Old Draft.tmp" "scrap"
if [ "$(ls -A /app/inbox | wc -l)" -ne 3 ]; then
  echo "/app/inbox has unexpected files:"
  ls -A /app/inbox
  passed=0
fi
awk -v passed=$passed 'BEGIN { print passed / 4 }' >/logs/verifier/reward.txt
