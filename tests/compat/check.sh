#!/usr/bin/env bash
# tests/compat/check.sh PYTHON:NUMPY ...
# For each pair: installs echo with that numpy into an environment of its own, below .venv-compat, and trains there:
# plain (which must fail, unless MXNet knows that numpy and Python: else nothing is shown), after `import echo.compat`,
# with ECHO=1, with `mxecho run` and with `python -S -m echo run`. All must end with the same weights.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export ECHO_CACHE_DIR=$out PYTHONWARNINGS=ignore OMP_NUM_THREADS=1
step=$PWD/tests/compat/step.py

fail() { echo "error: $*" >&2; cat "$out/log" >&2; exit 1; }

for pair in "$@"; do
  python=${pair%%:*} numpy=${pair##*:}
  folder=$PWD/.venv-compat/$(basename "$python")-$numpy
  echo "== $python, numpy $numpy"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || {
    echo "error: $python with its venv module is needed (or COMPAT='PYTHON:NUMPY ...')" >&2; exit 1; }
  "$folder/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$folder"
  "$folder/bin/python" -m pip install -q --disable-pip-version-check ".[cpu]" "numpy==$numpy"
  bin=$folder/bin
  site=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  (cd "$out"
    if "$bin/python" -c "import sys, numpy; sys.exit(sys.version_info > (3, 12) or numpy.__version__ > '1.24')"; then
      "$bin/python" "$step" >plain 2>log || fail "plain"
    else
      if "$bin/python" "$step" >log 2>&1; then fail "mxnet needs no help here"; fi
      rm -f plain
    fi
    "$bin/python" "$step" --compat >compat 2>log || fail "import echo.compat"
    export ECHO_MAX_OVERHEAD=none ECHO_LOG=INFO
    ECHO=1 "$bin/python" "$step" >echo 2>log || fail "ECHO=1"
    grep -q "MB planned" log || fail "ECHO=1 planned nothing"
    "$bin/mxecho" run "$step" >run 2>log || fail "mxecho run"
    PYTHONPATH=$site "$bin/python" -S -m echo run "$step" >bare 2>log || fail "python -S -m echo run"
    grep -q "MB planned" log || fail "python -S -m echo run planned nothing"
    for other in $(ls plain 2>/dev/null) echo run bare; do
      cmp -s compat "$other" || fail "compat and $other: other weights"
    done
    echo "   weights $(cut -c 1-16 compat) after echo.compat, ECHO=1, mxecho run and python -S -m echo run")
done
