#!/bin/bash
set -euo pipefail
cat base.ini local.ini |
  awk '/^[[:space:]]*(;|#|$)/ { next }
       /^\[/ { section = $0; next }
       { key = $0; sub(/[[:space:]]*=.*/, "", key)
         value = $0; sub(/^[^=]*=[[:space:]]*/, "", value)
         values[section "\t" key] = value }
       END { for (name in values) print name "\t" values[name] }' |
  sort |
  awk -F '\t' '$1 != section { section = $1; print section } { print $2 "=" $3 }' >merged.ini
