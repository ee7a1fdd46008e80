"""The checks catch wrong kernels: each of these bugs, compiled into a library of its own, fails them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest

from echo.kernels import ADD, call, library
from tests.kernels.cases import SMALL, check_case, check_reqs, draw
from tests.kernels.large_scores import SIZES as SCORES
from tests.kernels.large_scores import VARIANTS, check_large_scores

SOURCES = Path(__file__).parents[2] / "echo" / "kernels"
COMPILER = shutil.which("g++")

# kernel, file, text, what is written in its place
BUGS = [
    ("lstm_cell", "lstm_cell.cc", "sigmoid_of(f[j]) * c[j] + sigmoid_of(i[j])",
     "sigmoid_of(i[j]) * c[j] + sigmoid_of(f[j])"),
    ("lstm_cell", "lstm_cell.cc", "o.value * cell.slope", "o.value"),
    ("lstm_cell", "lstm_cell.cc", "dcell * c[j] * f.slope", "dcell * f.slope"),
    ("lstm_cell", "lstm_cell.cc", "place((4 * b + gate) * H", "place((4 * b + (gate ^ 1)) * H"),
    ("gru_cell", "gru_cell.cc", "(1.0f - z) * n + z * h[j]", "z * n + (1.0f - z) * h[j]"),
    ("gru_cell", "gru_cell.cc", "d_sn[j] = dn * r.value", "d_sn[j] = dn"),
    ("mlp_score", "mlp_score.cc", "dv[j] += dscore * t.value", "dv[j] = dscore * t.value"),
    ("mlp_score", "statistics.h", "mean - norm * slope", "mean"),
    ("mlp_score", "mlp_score.cc", "rows.zeros(chunk, kDquery)", "rows.at(chunk, kDquery)"),
    ("attention", "attention.cc", "*total * shrink + sum", "*total + sum"),
    ("attention", "attention.cc", "out[d] *= shrink", "out[d] *= 1.0f"),
    ("attention", "attention.cc", "in_tiles(lengths[n],", "in_tiles(s.Tk,"),
    ("attention", "attention_grad.cc", "(dweights[j] - delta)", "dweights[j]"),
    ("attention", "attention_grad.cc", "std::max<int64_t>(length - key, 0)", "all"),
    ("attention", "attention_grad.cc", "if (!t.any_large(n, 0, t.Tq)) return;", "return;"),
    ("attention", "attention_grad.cc", "scores[j] = exp_of(scores[j] * scale + bias[j] - lse - rest);",
     "scores[j] = exp_of(scores[j] * scale + bias[j] - lse);"),
    ("attention", "attention_grad.cc", ", delta[i] = 0.0f;", ";"),
    ("attention", "blocks.cc", "for (; i < p.rows; ++i) {", "for (; i + 1 < p.rows; ++i) {"),
    ("attention", "blocks.cc", "whole < width && j < inner", "whole < width && j < 1"),
    ("layer_norm", "layer_norm.cc", "dgamma[j] += dy[j] * norm", "dgamma[j] += dy[j] * x[j]"),
    ("layer_norm", "statistics.h", "squares / static_cast<float>(n) +", "squares / static_cast<float>(n - 1) +"),
    ("layer_norm", "layer_norm.cc", "rows.zeros(chunk, kDbeta)", "rows.zeros(0, kDbeta)"),
    ("layer_norm", "view.cc", "if (add_) return add_to(at, values, n);", ""),
    ("bias_act", "bias_act.cc", "v * (1.0f - v)", "v"),
    ("bias_act", "math.h", "(x < 0.0f ? e : 1.0f)", "1.0f"),
    ("sequence_reverse", "sequence_reverse.cc", "length - 1 - t", "T - 1 - t"),
    ("dropout", "dropout.cc", "0x9E3779B9u", "0x9E3779B8u"),
    ("dropout", "dropout.cc", "1.0f / static_cast<float>(call.param(\"keep\"))", "1.0f"),
    ("relu", "bits.cc", ">> 56", ">> 55"),
    ("pack_mask", "mask.cc", "mask[j] != 0.0f", "mask[j] == 0.0f"),
    ("pack_mask", "mask.cc", "found = *first", "found = 1.0f"),
    ("apply_mask", "mask.cc", "factor_of(call));", "1.0f);"),
    ("apply_mask", "mask.cc", 'call.write_zeros("dscale");', ""),
    ("relu", "relu.cc", "x[j] > 0.0f", "x[j] < 0.0f"),
    ("lstm_layer", "lstm_rows.cc", "sigmoid_of(f[k]) * c[k] + sigmoid_of(i[k]) * tanh_of(g[k]);\n    c[k]",
     "sigmoid_of(i[k]) * c[k] + sigmoid_of(f[k]) * tanh_of(g[k]);\n    c[k]"),
    ("lstm_layer", "lstm_rows.cc", "dcell * f.value;", "dcell;"),
    ("lstm_layer", "lstm_rows.cc", "dh[k] + dy[k]", "dy[k]"),
    ("lstm_layer", "lstm_layer.cc", "{pre, 4 * H}, pre", "{bias_, 0}, pre"),
    ("lstm_layer", "lstm_layer.cc", "add_to(bias_ + at, bh.read(at, n, buffer), n);", ""),
    ("lstm_layer", "lstm_layer_grad.cc", 'Output(call_, "dbh").write(0, 4 * H, dbias_);', ""),
    ("lstm_layer", "lstm_layer_grad.cc", "first ? to.start(0, columns) :", "false ? to.start(0, columns) :"),
    ("lstm_layer", "lstm_layer_grad.cc", "add_product(dwh_, (shape_.time(0) - chunk.time) * B, B, h0, false);", ""),
    ("lstm_layer", "lstm_layer_grad.cc", "saved_ + (number * B + row) * H", "saved_ + row * H"),
    ("lstm_layer", "lstm_layer_grad.cc", "shape_.reverse ? time + 1 : time - 1", "time - 1"),
    ("lstm_layer", "lstm_layer_grad.cc", "place = shape_.time(step) * B", "place = step * B"),
    ("lstm_layer", "gemm.cc", "begin ? Start{c, c_stride} : start", "start"),
]  # fmt: skip

# Sizes beyond SMALL, where a kernel works on a part at a time.
MORE = {"lstm_layer": [{"T": 5, "B": 330, "I": 3, "H": 5}, {"T": 2, "B": 1, "I": 520, "H": 3}]}


def compile_all(sources: Path, into: Path, files: list[Path]) -> None:
    """Objects of these files; one process takes them all, which is quicker than one each."""
    command = [COMPILER or "", "-std=c++17", "-O1", "-fPIC", "-I", str(sources / "include"), "-I", str(sources), "-c"]
    subprocess.run([*command, *map(str, files)], cwd=into, check=True)


def link(objects: list[Path], library_file: Path) -> None:
    subprocess.run([COMPILER or "", "-shared", *map(str, objects), "-o", str(library_file)], check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects of the right sources."""
    if COMPILER is None:
        pytest.skip("there is no g++ to build wrong kernels with")
    folder = tmp_path_factory.mktemp("objects")
    compile_all(SOURCES, folder, [*SOURCES.glob("*.cc"), *SOURCES.glob("cpu/*.cc")])
    return folder


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes `call` use another library, until the test ends."""

    def use_library(file: Path) -> None:
        monkeypatch.setattr(library, "kernels_library", functools.partial(ctypes.CDLL, str(file)))
        library._of_backend.cache_clear()

    yield use_library
    library._of_backend.cache_clear()


PARAMS: dict[str, list[dict[str, float]]] = {
    "bias_act": [{"act": act} for act in range(5)],
    "lstm_layer": [{"reverse": 0}, {"reverse": 1}],
}


def check_kernel(name: str) -> None:
    sizes = [SMALL[name], *MORE.get(name, [])]
    for params, absent, dims in itertools.product(PARAMS.get(name, [{}]), (False, True), sizes):
        case = draw(name, dims, seed=3, absent=absent, **params)
        check_case(case, call)
        check_reqs(case, [0 if array is None else ADD for array in case.inputs], call)
    for size, variant in itertools.product(SCORES, VARIANTS) if name == "attention" else ():
        check_large_scores(call, size, "float32", variant)


@pytest.mark.slow
def test_the_right_sources_pass(built: Path, tmp_path: Path, use: Any) -> None:
    link(list(built.glob("*.o")), tmp_path / "right.so")
    use(tmp_path / "right.so")
    for name in SMALL:
        check_kernel(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file", "text", "instead"), BUGS, ids=range(len(BUGS)))
def test_bugs_are_caught(name: str, file: str, text: str, instead: str, built: Path, tmp_path: Path, use: Any) -> None:
    wrong = tmp_path / "kernels"
    shutil.copytree(SOURCES, wrong, ignore=shutil.ignore_patterns("*.py", "*.so", "__pycache__"))
    source = wrong / "cpu" / file
    assert text in source.read_text(), "the source has changed: so must this bug"
    source.write_text(source.read_text().replace(text, instead))
    # what the headers in the list hold is always inlined, so that no other file's copy of it takes its place
    users = [source] if file.endswith(".cc") else [wrong / "cpu" / f"{name}.cc"]
    compile_all(wrong, tmp_path, users)
    objects = {path.name: path for folder in (built, tmp_path) for path in folder.glob("*.o")}
    link(list(objects.values()), tmp_path / "wrong.so")
    use(tmp_path / "wrong.so")
    with pytest.raises(AssertionError):
        check_kernel(name)
