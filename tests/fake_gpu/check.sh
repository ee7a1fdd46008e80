#!/usr/bin/env bash
# tests/fake_gpu/check.sh PYTHON WHEEL NUMPY [pytest's arguments]
# Installs a CUDA wheel of MXNet, which takes no GPU, and echo into an environment of their own, below .venv-gpu, and runs
# the tests of GPU contexts there on a fake CUDA device, that of Sockeye too where it can be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/fake_gpu/wheel.sh
python=$1 wheel=$2 numpy=$3
shift 3

echo "== GPU contexts: $wheel on a fake device"
environment "$python" "$wheel" "$numpy" || exit 0
pip -e '.[ilp,test]' "numpy==$numpy"
sockeye=$PWD/.venv-gpu/sockeye  # next to the wheels: its requirements contradict MXNet 1.9.1
[ -e "$sockeye/.installed" ] || {
  pip --no-deps --target "$sockeye" --upgrade -r projects/packages/sockeye_1.txt && touch "$sockeye/.installed"
} || echo "note: pip cannot install Sockeye"
PYTHONWARNINGS=ignore "$folder/bin/python" -m tests.fake_gpu "$folder/fake" -q -p no:cacheprovider -n 2 --dist loadfile "$@"
