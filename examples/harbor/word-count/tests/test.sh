#!/bin/bash
# A reward per question, and their mean.
is() { [ "$(tr -d '[:space:]' < "$1" 2>/dev/null)" = "$2" ] && echo 1 || echo 0; }
words=$(is /app/words.txt 14)
lines=$(is /app/lines.txt 2)
case $((words + lines)) in 2) reward=1 ;; 1) reward=0.5 ;; *) reward=0 ;; esac
echo "{\"reward\": $reward, \"words\": $words, \"lines\": $lines}" > /logs/verifier/reward.json
