#!/bin/bash
set -euo pipefail
echo "Hello, world!" >/app/greeting.txt
