#!/usr/bin/env bash
# tests/compat/check.sh ECHO PYTHON:NUMPY ...
# For each pair: installs echo (a wheel, or a folder with its sources) with that numpy into an environment of its own, below .venv-compat, and trains there:
# plain (which must fail, unless MXNet knows that numpy and Python: else nothing is shown), after `import echo.compat`,
# with ECHO=1, with `mxecho run` and with `python -S -m echo run`. All must end with the same weights.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export ECHO_CACHE_DIR=$out PYTHONWARNINGS=ignore OMP_NUM_THREADS=1
step=$PWD/tests/compat/step.py model=$out/model-symbol.json

fail() { echo "error: $*" >&2; cat "$out/log" >&2; exit 1; }

wheel=$(realpath "$1")
shift
for pair in "$@"; do
  python=${pair%%:*} numpy=${pair##*:}
  folder=$PWD/.venv-compat/$(basename "$python")-$numpy
  echo "== $python, numpy $numpy"
  "$python" -c 'import ensurepip, venv' 2>/dev/null || {
    echo "error: $python with its venv module is needed (or COMPAT='PYTHON:NUMPY ...')" >&2; exit 1; }
  "$folder/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$folder"
  # an installation of the same version is replaced, which pip would not do; the extras leave numpy as it is
  pip() { "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"; }
  "$folder/bin/python" -m pip uninstall -q -y mxnet-echo
  pip "numpy==$numpy"
  pip "$wheel[cpu,report,exact,demo]"
  "$folder/bin/python" -c "import numpy; assert numpy.__version__ == '$numpy', numpy.__version__" || {
    echo "error: an extra moved numpy" >&2; exit 1; }
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
    "$bin/python" "$step" --compat --save "$model" 2>log || fail "a symbol to profile"
    export ECHO_MAX_OVERHEAD=none ECHO_LOG=INFO
    ECHO=1 "$bin/python" "$step" >echo 2>log || fail "ECHO=1"
    grep -q "MB planned" log || fail "ECHO=1 planned nothing"
    "$bin/mxecho" run "$step" >run 2>log || fail "mxecho run"
    PYTHONPATH=$site "$bin/python" -S -m echo run "$step" >bare 2>log || fail "python -S -m echo run"
    grep -q "MB planned" log || fail "python -S -m echo run planned nothing"
    for other in $(ls plain 2>/dev/null) echo run bare; do
      cmp -s compat "$other" || fail "compat and $other: other weights"
    done
    "$bin/mxecho" profile "$model" data=16,3,12,12 --html page.html >/dev/null 2>log || fail "mxecho profile --html"
    grep -q vegaEmbed page.html || fail "a page without pictures"
    echo "   weights $(cut -c 1-16 compat) after echo.compat, ECHO=1, mxecho run and python -S -m echo run")
done
