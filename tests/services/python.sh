# Python with packages that tests need: virtual environments in the cache, made from the package index.
# Sourced by tests/run.

# Reads analysis tables.
readonly python_polars=polars==2.1.0
# Helm's own engine, which renders and checks the chart.
readonly python_helm=helm-python-sdk==0.2.2
# Test, check and build the Python client; httpx is its dependency.
readonly python_client=(httpx==0.28.1 pytest==9.2.0 mypy==2.4.1 ruff==0.17.6 hatchling==1.33.0)
# Generates requests from the description of the HTTP API.
readonly python_schemathesis=schemathesis==4.32.5
# Makes a wheel with the program.
readonly python_maturin=maturin==1.16.0
# Trainers, which the adapters of the Python client are tested with. TRL takes 6 GB: it brings torch.
readonly python_verifiers=(verifiers==0.4.0 httpx==0.28.1 pytest==9.2.0)
readonly python_trl=(trl==1.16.0 httpx==0.28.1 pytest==9.2.0)
# Its trainer's rollout manager also imports numpy and httpx_retries. It needs Python 3.12.
readonly python_agent_lightning=(agentlightning==1.0.2 numpy==2.5.5 httpx-retries==0.6.0 httpx==0.28.1
  pytest==9.2.0)

# Exports ROLLOUT_TEST_PYTHON, ROLLOUT_TEST_HELM and ROLLOUT_TEST_PYTHON_CLIENT: the interpreters, or
# `no`.
python_find() {
  local status=0
  python_packages ROLLOUT_TEST_PYTHON polars "$python_polars" || status=1
  python_packages ROLLOUT_TEST_HELM helm_python "$python_helm" || status=1
  python_packages ROLLOUT_TEST_PYTHON_CLIENT httpx,pytest,mypy,ruff,hatchling \
    "${python_client[@]}" || status=1
  return "$status"
}

# Exports ROLLOUT_TEST_MATURIN, ROLLOUT_TEST_SCHEMATHESIS, ROLLOUT_TEST_PYTHON_VERIFIERS, _TRL and
# _AGENT_LIGHTNING: the interpreters, or `no`.
python_find_extended() {
  local status=0
  python_packages ROLLOUT_TEST_MATURIN maturin "$python_maturin" || status=1
  python_packages ROLLOUT_TEST_SCHEMATHESIS schemathesis "$python_schemathesis" || status=1
  python_packages ROLLOUT_TEST_PYTHON_VERIFIERS verifiers,pytest "${python_verifiers[@]}" || status=1
  python_packages ROLLOUT_TEST_PYTHON_TRL trl,pytest "${python_trl[@]}" || status=1
  python_command=$(python_3_12) python_packages ROLLOUT_TEST_PYTHON_AGENT_LIGHTNING \
    agentlightning,numpy,httpx_retries,pytest "${python_agent_lightning[@]}" || status=1
  return "$status"
}

# python_packages VARIABLE MODULE,… PACKAGE…
python_packages() {
  local variable=$1 modules=$2
  shift 2
  if [ -n "${!variable:-}" ]; then
    say "using Python from $variable: ${!variable}"
    return 0
  fi
  local packages="$*"
  local directory=$cache/python/${packages// /_} log=$logs/python-${modules%%,*}.log
  if ! python_has "$directory/bin/python" "$modules"; then
    say "installing $packages"
    rm -rf "$directory"
    { "${python_command:-python3}" -m venv "$directory" && "$directory/bin/pip" --disable-pip-version-check install \
      --no-input "$@"; } >"$log" 2>&1 3>&- 9>&- || true
  fi
  if python_has "$directory/bin/python" "$modules"; then
    export "$variable=$directory/bin/python"
    say "$("${!variable}" --version) with $packages: ${!variable}"
  else
    export "$variable=no"
    lack "Python with $packages: its tests are ignored (log: $log)"
    return 1
  fi
}

# Prints a Python of at least 3.12, or `python3`.
python_3_12() {
  local found
  for found in python3 python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3; do
    if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
      printf '%s' "$found"
      return
    fi
  done
  printf python3
}

python_has() { "$1" -c "import $2" 2>/dev/null; }
