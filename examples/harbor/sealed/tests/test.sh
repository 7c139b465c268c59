#!/bin/bash
[ "$(tr -d '[:space:]' < /app/answer.txt)" = 97 ] && reward=1 || reward=0
echo "$reward" > /logs/verifier/reward.txt
