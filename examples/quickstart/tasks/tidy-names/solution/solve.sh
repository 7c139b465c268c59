#!/bin/bash
set -euo pipefail
mkdir -p /app/trash
mv /app/inbox/*.tmp /app/trash/
for file in /app/inbox/*; do
  name=$(basename "$file" | tr '[:upper:] ' '[:lower:]_')
  [ "$file" = "/app/inbox/$name" ] || mv "$file" "/app/inbox/$name"
done
