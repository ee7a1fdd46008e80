#!/usr/bin/env bash
# tests/fake_gpu/wheels.sh PYTHON "WHEEL ..." "NUMPY ..." [ECHO.whl]
# For each CUDA wheel of MXNet and each numpy: installs echo as the README says, trains a small language model on the
# CPU, stock and with ECHO=1, and with ECHO=1 on a fake CUDA device. Its libraries lie as NVIDIA's pip wheels lay out
# theirs, so that echo.compat has to find them; the driver alone is on LD_LIBRARY_PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/fake_gpu/wheel.sh
python=$1 wheels=$2 numpys=$3 built=${4:-}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export ECHO_CACHE_DIR=$out/cache PYTHONWARNINGS=ignore OMP_NUM_THREADS=1 ECHO_MAX_OVERHEAD=none ECHO_LOG=INFO
model=$PWD/tests/fake_gpu/small_lm.py

fail() { echo "error: $*" >&2; cat "$out/log" >&2; exit 1; }

for wheel in $wheels; do
  environment "$python" "$wheel" 1.23.5 || continue
  if [ -z "$built" ]; then
    "$folder/bin/python" -m pip wheel -q --disable-pip-version-check --no-deps -w "$out" .
    built=$(ls "$out"/mxnet_echo-*.whl)
  fi
  "$folder/bin/python" -m tests.fake_gpu.environment "$folder/fake" "$folder/wheels"
  "$folder/bin/python" -m pip uninstall -q -y mxnet-echo  # where it is there as a link to the sources
  for numpy in $numpys; do
    echo "== $wheel, numpy $numpy"
    pip "$built[${wheel#mxnet-}]" "numpy==$numpy"
    (cd "$out"
      . "$folder/wheels/variables.sh"
      train() { "$folder/bin/python" "$model" "$@" 2>log || fail "$*"; }
      train cpu --compat >stock
      ECHO=1 ECHO_FUSE=0 train cpu >same
      grep -q "MB planned" log || fail "ECHO=1 planned nothing on the CPU"
      cmp -s stock same || fail "other weights with ECHO=1 ECHO_FUSE=0 than without"
      ECHO=1 train gpu >gpu
      grep -q "MB planned" log || fail "ECHO=1 planned nothing on the GPU"
      echo "   CPU: weights $(cut -c 1-16 stock), stock and with ECHO=1; fake GPU: $(cut -d ' ' -f 2- gpu)")
  done
done
