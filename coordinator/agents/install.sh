# Functions for install scripts of agents. AGENT_DIR is the agent's own directory; programs in its
# bin/ are found by the execute script.

NODE_VERSION=24.21.0
NPM_VERSION=11.21.2
UV_VERSION=0.13.9

# Codes that the worker reads: the image cannot carry the agent; a registry lacks the package. With
# any other code than 0 the installation is tried again.
UNSUPPORTED=120
MISSING=121

# Texts of failed connections. Some programs also report a missing package then.
OUTAGE='retrying|could not resolve|temporary failure|timed out|connection (refused|reset|broken)'
OUTAGE="$OUTAGE|certificate|ECONN|ENOTFOUND|EAI_AGAIN|(error|HTTP|code):? 5[0-9][0-9]"

DECIDED=

# Temporary files.
LOGS=()

# Codes of other programs are not passed on, except those of signals.
finish() {
  local code=$?
  [ "${#LOGS[@]}" = 0 ] || rm -f "${LOGS[@]}"
  [ "$code" = 0 ] || [ "$code" -ge 128 ] || exit "${DECIDED:-1}"
}
trap finish EXIT

# end_with CODE TEXT…: ends the installation.
end_with() {
  DECIDED=$1
  shift
  printf 'cannot install the agent: %s\n' "$*" >&2
  exit "$DECIDED"
}

fail() { end_with 1 "$@"; }
unsupported() { end_with "$UNSUPPORTED" "$@"; }

have() { command -v "$1" >/dev/null 2>&1; }

# errors_in FILE: the first errors in the output of a program, else its last lines.
errors_in() {
  local lines begin='^ *(curl: \(|wget: |fatal: |error|npm (error|err!)|e: |warning: retrying|× |╰)'
  lines=$(grep -E -i -m 3 "$begin" "$1" | tr '\n' ' ') || lines=$(tail -n 2 "$1" | tr '\n' ' ')
  printf '%s' "$lines"
}

# attempt COMMAND…: runs a command, and ends the installation with its errors if it fails.
attempt() { attempt_package '' "$@"; }

# attempt_package PATTERN COMMAND…: the same; errors that match the pattern mean that a registry lacks
# the package, unless a connection failed.
attempt_package() {
  local absent=$1 log code=0 said
  shift
  log=$(mktemp)
  LOGS+=("$log")
  "$@" 2>"$log" || code=$?
  cat "$log" >&2
  if [ "$code" != 0 ]; then
    said="${1##*/} failed with code $code: $(errors_in "$log")"
    if [ -n "$absent" ] && grep -qE "$absent" "$log" && ! grep -qiE "$OUTAGE" "$log"; then
      end_with "$MISSING" "$said"
    fi
    [ "$code" -lt 128 ] || exit "$code"
    fail "$said"
  fi
  rm -f "$log"
}

# packages NAME…: installs packages of the image's distribution.
packages() {
  [ "$(id -u)" = 0 ] || unsupported "the image lacks $*, and only root can install packages"
  if have apt-get; then
    export DEBIAN_FRONTEND=noninteractive
    attempt apt-get update -q -o Acquire::Retries=3
    attempt apt-get install -q -y --no-install-recommends -o Acquire::Retries=3 "$@"
  elif have apk; then
    attempt apk add --no-cache "$@"
  elif have dnf; then
    attempt dnf install -q -y "$@"
  else
    unsupported "the image lacks $*, and has none of apt-get, apk and dnf"
  fi
}

# fetch URL FILE: downloads a file. A program that reads it comes later: its error about a file that is
# cut short would hide that of the download.
fetch() {
  have curl || have wget || packages curl ca-certificates
  if have curl; then
    attempt_package 'returned error: (404|410)' curl -fsSL --retry 3 -o "$2" "$1"
  else
    attempt_package '404 Not Found' wget -q -O "$2" "$1"
  fi
}

# fetch_npm NAME VERSION DIRECTORY: unpacks a package of the npm registry.
fetch_npm() {
  local registry=${NPM_CONFIG_REGISTRY:-https://registry.npmjs.org} file
  file=$(mktemp)
  mkdir -p "$3"
  fetch "${registry%/}/$1/-/$1-$2.tgz" "$file"
  attempt tar -xzf "$file" -C "$3" --strip-components=1
  rm -f "$file"
}

is_node_at_least() {
  have node && have npm && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge "$1" ]
}

# node_at_least MAJOR: the image's Node.js if it is new enough, otherwise one in AGENT_DIR.
node_at_least() {
  local machine said
  PATH="$AGENT_DIR/bin:$PATH"
  is_node_at_least "$1" && return
  if compgen -G '/lib/ld-musl-*' >/dev/null; then
    packages nodejs npm
    is_node_at_least "$1" || unsupported "the image's distribution has no Node.js $1"
    return
  fi
  case $(uname -m) in
    x86_64) machine=x64 ;;
    aarch64) machine=arm64 ;;
    *) unsupported "no Node.js for $(uname -m)" ;;
  esac
  mkdir -p "$AGENT_DIR/bin"
  fetch_npm "node-linux-$machine" "$NODE_VERSION" "$AGENT_DIR/node"
  fetch_npm npm "$NPM_VERSION" "$AGENT_DIR/npm"
  ln -sf ../node/bin/node "$AGENT_DIR/bin/node"
  ln -sf ../npm/bin/npm-cli.js "$AGENT_DIR/bin/npm"
  chmod +x "$AGENT_DIR/npm/bin/npm-cli.js"
  said=$(node --version 2>&1) || unsupported "Node.js does not run in this image: $said"
}

# npm_package PACKAGE MAJOR: installs the version of the agent; it needs Node.js MAJOR.
npm_package() {
  mkdir -p "$AGENT_DIR"
  node_at_least "$2"
  attempt_package 'E404|ETARGET' npm install --global --prefix "$AGENT_DIR" --no-fund --no-audit \
    --no-update-notifier "$1@$ROLLOUT_AGENT_VERSION"
}

# python_packages VERSIONS SPEC…: installs packages in a virtual environment in AGENT_DIR, with the
# image's Python if it is one of the versions, such as '>=3.10,<3.13', otherwise one that uv downloads.
python_packages() {
  local index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-https://pypi.org/simple}} versions=$1
  shift
  python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3 python3-venv
  attempt python3 -m venv "$AGENT_DIR/uv"
  attempt_package 'No matching distribution found' "$AGENT_DIR/uv/bin/pip" install -q --no-cache-dir \
    --disable-pip-version-check "uv==$UV_VERSION"
  export UV_PYTHON_INSTALL_DIR="$AGENT_DIR/python" UV_NO_CACHE=1 UV_NO_PROGRESS=1
  attempt "$AGENT_DIR/uv/bin/uv" venv --python "$versions" "$AGENT_DIR/venv"
  attempt_package 'No solution found|not found in the package registry' "$AGENT_DIR/uv/bin/uv" pip \
    install --python "$AGENT_DIR/venv/bin/python" --compile-bytecode --default-index "$index" "$@"
  rm -rf "$AGENT_DIR/uv"
}

# python_program NAME: makes a program of the virtual environment available.
python_program() {
  mkdir -p "$AGENT_DIR/bin"
  ln -sf "../venv/bin/$1" "$AGENT_DIR/bin/$1"
}
