# Functions for install scripts of agents. AGENT_DIR is the agent's own directory; programs in its
# bin/ are found by the execute script.

NODE_VERSION=24.21.0
NPM_VERSION=11.21.2
UV_VERSION=0.13.9

fail() {
  printf 'cannot install the agent: %s\n' "$*" >&2
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# packages NAME…: installs packages of the image's distribution.
packages() {
  [ "$(id -u)" = 0 ] || fail "the image lacks $*, and only root can install packages"
  if have apt-get; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q -o Acquire::Retries=3
    apt-get install -q -y --no-install-recommends -o Acquire::Retries=3 "$@"
  elif have apk; then
    apk add --no-cache "$@"
  elif have dnf; then
    dnf install -q -y "$@"
  else
    fail "the image lacks $*, and has none of apt-get, apk and dnf"
  fi
}

# fetch URL: prints a file.
fetch() {
  have curl || have wget || packages curl ca-certificates >&2
  if have curl; then
    curl -fsSL --retry 3 "$1"
  else
    wget -q -O - "$1"
  fi
}

is_node_at_least() {
  have node && have npm && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge "$1" ]
}

# node_at_least MAJOR: the image's Node.js if it is new enough, otherwise one in AGENT_DIR.
node_at_least() {
  local machine registry=${NPM_CONFIG_REGISTRY:-https://registry.npmjs.org}
  registry=${registry%/}
  PATH="$AGENT_DIR/bin:$PATH"
  is_node_at_least "$1" && return
  if compgen -G '/lib/ld-musl-*' >/dev/null; then
    packages nodejs npm
    is_node_at_least "$1" || fail "the image's distribution has no Node.js $1"
    return
  fi
  case $(uname -m) in
    x86_64) machine=x64 ;;
    aarch64) machine=arm64 ;;
    *) fail "no Node.js for $(uname -m)" ;;
  esac
  mkdir -p "$AGENT_DIR/node" "$AGENT_DIR/npm" "$AGENT_DIR/bin"
  fetch "$registry/node-linux-$machine/-/node-linux-$machine-$NODE_VERSION.tgz" |
    tar -xz -C "$AGENT_DIR/node" --strip-components=1
  fetch "$registry/npm/-/npm-$NPM_VERSION.tgz" | tar -xz -C "$AGENT_DIR/npm" --strip-components=1
  ln -sf ../node/bin/node "$AGENT_DIR/bin/node"
  ln -sf ../npm/bin/npm-cli.js "$AGENT_DIR/bin/npm"
  chmod +x "$AGENT_DIR/npm/bin/npm-cli.js"
}

# npm_package PACKAGE MAJOR: installs the version of the agent; it needs Node.js MAJOR.
npm_package() {
  mkdir -p "$AGENT_DIR"
  node_at_least "$2"
  npm install --global --prefix "$AGENT_DIR" --no-fund --no-audit --no-update-notifier \
    "$1@$ROLLOUT_AGENT_VERSION"
}

# python_packages VERSIONS SPEC…: installs packages in a virtual environment in AGENT_DIR, with the
# image's Python if it is one of the versions, such as '>=3.10,<3.13', otherwise one that uv downloads.
python_packages() {
  local index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-https://pypi.org/simple}} versions=$1
  shift
  python3 -c 'import ensurepip, venv' 2>/dev/null || packages python3 python3-venv
  python3 -m venv "$AGENT_DIR/uv"
  "$AGENT_DIR/uv/bin/pip" install -q --no-cache-dir --disable-pip-version-check "uv==$UV_VERSION"
  export UV_PYTHON_INSTALL_DIR="$AGENT_DIR/python" UV_NO_CACHE=1 UV_NO_PROGRESS=1
  "$AGENT_DIR/uv/bin/uv" venv --python "$versions" "$AGENT_DIR/venv"
  "$AGENT_DIR/uv/bin/uv" pip install --python "$AGENT_DIR/venv/bin/python" --compile-bytecode \
    --default-index "$index" "$@"
  rm -rf "$AGENT_DIR/uv"
}

# python_program NAME: makes a program of the virtual environment available.
python_program() {
  mkdir -p "$AGENT_DIR/bin"
  ln -sf "../venv/bin/$1" "$AGENT_DIR/bin/$1"
}
