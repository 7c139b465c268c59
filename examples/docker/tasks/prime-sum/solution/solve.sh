#!/bin/bash
set -euo pipefail
awk '$1 > 1 { prime = 1
              for (d = 2; d * d <= $1; d++) if ($1 % d == 0) { prime = 0; break }
              sum += prime * $1 }
     END { print sum }' /app/numbers.txt >/app/sum.txt
