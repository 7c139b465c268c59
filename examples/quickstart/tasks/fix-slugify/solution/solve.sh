#!/bin/bash
set -euo pipefail
cat >/app/slugify.sh <<'SCRIPT'
#!/bin/bash
# Prints the title as a slug.
printf '%s\n' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9]+/-/g; s/^-//; s/-$//'
SCRIPT
