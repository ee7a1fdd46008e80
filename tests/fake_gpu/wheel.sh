# The environment for a CUDA wheel of MXNet, below .venv-gpu, for the scripts next to it.
# environment PYTHON WHEEL NUMPY: makes it where it is not there. Fails, and says why, where the wheel cannot be had: that
# is no fault of ours.
folder=

pip() { "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"; }

environment() {
  local python=$1 wheel=$2 numpy=$3
  folder=$PWD/.venv-gpu/$wheel
  command -v g++ >/dev/null || { echo "skipped: g++ is needed to build the device"; return 1; }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || {
    echo "error: $python with its venv module is needed (or PYTHON=...)" >&2; exit 1; }
  "$folder/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$folder"
  if ! [ -e "$folder/.wheel" ]; then
    pip "$wheel==1.9.1" "numpy==$numpy" || { echo "skipped: pip cannot install $wheel 1.9.1"; return 1; }
    touch "$folder/.wheel"
  fi
}
