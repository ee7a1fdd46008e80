#!/usr/bin/env bash
# tests/fake_gpu/check.sh PYTHON WHEEL NUMPY [pytest's arguments]
# Installs a CUDA wheel of MXNet, which takes no GPU, and echo into an environment of their own, below .venv-gpu, and runs
# the tests of GPU contexts there on a fake CUDA device. Where the wheel cannot be had, that is said, and no fault.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1 wheel=$2 numpy=$3
shift 3
folder=$PWD/.venv-gpu/$wheel
pip() { "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"; }

echo "== GPU contexts: $wheel on a fake device"
command -v g++ >/dev/null || { echo "skipped: g++ is needed to build the device"; exit 0; }
"$python" -c 'import ensurepip, venv' 2>/dev/null || {
  echo "error: $python with its venv module is needed (or PYTHON=...)" >&2; exit 1; }
"$folder/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$folder"
if ! [ -e "$folder/.wheel" ]; then
  pip "$wheel==1.9.1" "numpy==$numpy" || { echo "skipped: pip cannot install $wheel 1.9.1"; exit 0; }
  touch "$folder/.wheel"
fi
pip -e '.[exact,test]' "numpy==$numpy"
[ $# -gt 0 ] || set -- -n 2 --dist loadfile
PYTHONWARNINGS=ignore "$folder/bin/python" -m tests.fake_gpu "$folder/fake" -q -p no:cacheprovider "$@"
