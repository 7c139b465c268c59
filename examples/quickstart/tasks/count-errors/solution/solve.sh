#!/bin/bash
set -euo pipefail
awk '$(NF - 1) >= 400 { count[$(NF - 1)]++ } END { for (code in count) print code, count[code] }' \
  /app/access.log | sort -k2,2nr -k1,1n >/app/report.txt
