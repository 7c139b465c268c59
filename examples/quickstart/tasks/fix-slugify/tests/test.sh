#!/bin/bash
# The reward is the share of titles with the expected slug.
passed=0 total=0
check() {
  local got
  got=$(bash /app/slugify.sh "$1")
  total=$((total + 1))
  if [ "$got" = "$2" ]; then
    passed=$((passed + 1))
  else
    echo "slugify '$1' prints '$got', expected '$2'"
  fi
}
check "hello" "hello"
check "Hello World" "hello-world"
check "  Two  spaces " "two-spaces"
check "What?! -- Really..." "what-really"
check "Version 2.0" "version-2-0"
check "*" ""
awk -v passed=$passed -v total=$total 'BEGIN { print passed / total }' >/logs/verifier/reward.txt
