# Python with the package polars, which reads analysis tables: a virtual environment in the cache, made
# from the package index. Sourced by tests/run.

readonly python_polars=polars==2.1.0

# Exports ROLLOUT_TEST_PYTHON: the interpreter, or `no`.
python_find() {
  if [ -n "${ROLLOUT_TEST_PYTHON:-}" ]; then
    say "using Python from ROLLOUT_TEST_PYTHON: $ROLLOUT_TEST_PYTHON"
    return 0
  fi
  local directory=$cache/python/$python_polars
  if ! python_has_polars "$directory/bin/python"; then
    say "installing $python_polars"
    rm -rf "$directory"
    { python3 -m venv "$directory" && "$directory/bin/pip" --disable-pip-version-check install \
      --no-input "$python_polars"; } >"$logs/python.log" 2>&1 3>&- 9>&- || true
  fi
  if python_has_polars "$directory/bin/python"; then
    export ROLLOUT_TEST_PYTHON=$directory/bin/python
    say "$("$ROLLOUT_TEST_PYTHON" --version) with $python_polars: $ROLLOUT_TEST_PYTHON"
  else
    export ROLLOUT_TEST_PYTHON=no
    lack "Python with $python_polars: its tests are skipped (log: $logs/python.log)"
    return 1
  fi
}

python_has_polars() { "$1" -c 'import polars' 2>/dev/null; }
