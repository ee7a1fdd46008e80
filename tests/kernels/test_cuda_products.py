"""Products by the cuBLAS that a process has loaded: right, on the call's stream, and as accurate as MXNet's."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_library import build_library
from tests.kernels.cuda_emulation import built, compile_blas, kept
from tests.kernels.cuda_products import STREAM

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation is compiled by g++")

ROOM = 1 << 20  # bytes, of cuBLAS in the workspace of a call
DEFAULT, TENSOR, TF32 = 0, 1, 3  # cublasMath_t


@pytest.fixture(scope="module")
def blas() -> dict[int, Path]:
    """An emulated cuBLAS of CUDA 11, which MXNet's wheels load, and one of CUDA 12, which they do not."""
    versions, fibers = (11, 12), built().fibers
    folder = kept(lambda folder: [compile_blas(folder, fibers, version) for version in versions], "blas", versions)
    return {version: folder / f"libcublas.so.{version}" for version in versions}


@functools.lru_cache(maxsize=None)
def run(
    blas: Path, creating: int = 0, multiplying: int = 0, lasting: int = 0, cases: str = "layer",
    library: tuple[Path, ...] = (), **variables: str,
) -> tuple[Any, list[str]]:  # fmt: skip
    """The output of `tests.kernels.cuda_products`, and echo's lines on standard error; the same for all tests."""
    script = [sys.executable, "-m", "tests.kernels.cuda_products", str(built().driver), str(built().kernels), str(blas)]
    script += [str(creating), str(multiplying), str(lasting), cases, *map(str, library)]
    environment = {**os.environ, **variables}
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), [line for line in done.stderr.splitlines() if line.startswith("echo:")]


def tiles(said: Any, dtype: str) -> set[str]:
    """The kinds of products that echo's own kernels computed."""
    return {kernel.rsplit("_", 2)[0] for kernel in said[dtype]["loads"] if kernel.startswith("gemm_")}


@pytest.mark.slow
def test_layers_and_losses_of_any_size_are_right(blas: dict[int, Path]) -> None:
    """Also those of which a size is 0: their products are in tiles."""
    said, errors = run(blas[11], cases="all")
    assert errors == []
    for dtype in ("float32", "float16"):
        assert len({line.split(" type")[0] for line in said[dtype]["products"]}) > 4
        assert "gemm_inputs" in tiles(said, dtype)


def test_products_are_right(blas: dict[int, Path]) -> None:
    """Against float64, written and added. Of float16 those of two types stay in tiles; a device has one handle."""
    said, errors = run(blas[11])
    assert errors == []
    assert tiles(said, "float32") == set()
    assert tiles(said, "float16") == {"gemm_gates", "gemm_weights"}
    for dtype, number, kinds in (("float32", 0, {"TN", "NN", "NT"}), ("float16", 2, {"TN"})):
        products = said[dtype]["products"]
        assert {line.split()[0] for line in products} == kinds
        assert {line.split()[5] for line in products} == {str(number)}
        assert len({line.split()[-1] for line in products}) == 1
    layer = said["float32"]["products"][:6]
    assert [line.split(" type")[0] for line in layer] == [
        "TN 132 15 7",  # inputs of all steps by their weights
        "NN 7 15 132", "NT 7 132 15",  # gradients of inputs, and of their weights
        "NT 33 132 3", "NT 33 132 12",  # gradients of the recurrent weights, of the first step and of the others
        "TN 132 15 7",
    ]  # fmt: skip


def gradients(said: Any, dtype: str) -> set[str]:
    """The kernels that made the gradients of a loss, but for sums of biases."""
    ends = ("ds", "dx", "dw", "gemm_score", "gemm_gates", "gemm_weights")
    names = {kernel.replace("linear_cross_entropy", "loss").replace("softmax_output", "loss")
             for kernel in said[dtype]["loads"]}  # fmt: skip
    return {name.rsplit("_", 1)[0] for name in names if name.startswith(ends[3:]) or name.split("_")[1] in ends[:3]}


def test_losses_are_right(blas: dict[int, Path]) -> None:
    """Gradients of scores are arrays that cuBLAS multiplies, of float16 into float32."""
    said, errors = run(blas[11], cases="losses")
    assert errors == []
    for dtype in ("float32", "float16"):
        assert gradients(said, dtype) == {"loss_ds"}
    for dtype, number in (("float32", 0), ("float16", 2)):
        products = said[dtype]["products"][:3]
        assert [line.split(" mode")[0] for line in products] == [
            f"TN 51 150 6 type {number}", f"NT 6 51 150 type {number}", f"NN 6 150 51 type {number}"
        ]  # fmt: skip


@pytest.fixture(scope="module")
def bounded() -> Path:
    """The library with room for 25,600 bytes of scores, or of their gradients, only."""
    flags = ("-O0", "-DECHO_SCORES_BYTES=25600")
    return kept(lambda folder: build_library(folder, *flags), "library", flags) / "libecho_kernels.so"


@pytest.mark.slow
def test_losses_in_parts(blas: dict[int, Path], bounded: Path) -> None:
    """Of whole rows and some classes; of few rows where there would be few classes."""
    said, errors = run(blas[11], cases="losses", library=(bounded,))
    assert errors == []
    found = {line.split(" type")[0] for line in said["float32"]["products"]}
    assert found >= {"NT 6 51 114", "NT 6 51 36", "NT 6 320 20", "NT 6 41 20"}
    assert found >= {"NN 6 114 51", "NN 6 36 51", "NN 6 20 320", "NN 6 20 41"}
    halves = {line.split(" type")[0] for line in said["float16"]["products"]}
    assert halves >= {"NT 6 51 150", "NT 6 640 20", "NT 6 361 20", "NN 6 20 361"}


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [1, 2, 11])
def test_a_cublas_that_fails_between_parts(blas: dict[int, Path], bounded: Path, lasting: int) -> None:
    """Its sum is added once: tiles compute the other products."""
    said, errors = run(blas[11], multiplying=13, lasting=lasting, cases="losses", library=(bounded,))
    assert len(errors) == 2
    assert gradients(said, "float32") >= {"loss_ds", "gemm_weights_small"}
    behind_scores = lasting + 2  # which are computed in three products
    said, _ = run(blas[11], multiplying=13, lasting=behind_scores, cases="half losses", library=(bounded,))
    ours = {"gemm_score_inputs_small"} if lasting == 2 else {"gemm_score_weights_small", "gemm_score_inputs_small"}
    assert gradients(said, "float16") >= {"loss_ds", *ours}


@pytest.mark.slow
def test_losses_without_cublas(blas: dict[int, Path]) -> None:
    """Tiles make the gradients of scores; the room is the same, since a framework may load a cuBLAS at any time."""
    said, _ = run(blas[11], cases="losses", ECHO_DEBUG="cublas=0")
    for dtype in ("float32", "float16"):
        assert gradients(said, dtype) == {"loss_dx_small", "loss_dw_small"}
    assert said["rooms"] == run(blas[11])[0]["rooms"]
    assert len(said["rooms"]) == 8
    for name, room in said["rooms"].items():
        kind, rows = name.split()[1:]
        sums = 4 * 1024 * int(rows) if kind == "float16" else 0  # of dx
        assert (8 << 20) < room - sums < (72 << 20), name  # parts of the scores, sums of as much of dw, and of db


def test_a_product_has_the_stream_and_room_of_its_call(blas: dict[int, Path]) -> None:
    call = run(blas[11])[0]["call"]
    start, end, needed = call["inside"]
    assert call["stream"] == STREAM
    assert end - start == ROOM
    assert 0 <= start < end <= needed


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("version", "variables", "modes"),
    [
        (11, {}, (TF32, TENSOR)),
        (11, {"MXNET_CUDA_ALLOW_TENSOR_CORE": "0"}, (DEFAULT, DEFAULT)),
        (11, {"MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION": "1"}, (TENSOR, TENSOR)),
        (12, {}, (DEFAULT, TENSOR)),
    ],
    ids=str,
)
def test_products_are_as_accurate_as_the_frameworks(
    blas: dict[int, Path], version: int, variables: dict[str, str], modes: tuple[int, int]
) -> None:
    said, _ = run(blas[version], **variables)
    for dtype, mode in zip(("float32", "float16"), modes):
        assert {line.split(" mode ")[1].split()[0] for line in said[dtype]["products"]} == {str(mode)}


@pytest.mark.parametrize("failing", ["creating", "multiplying"])
def test_a_cublas_that_fails_costs_one_warning(blas: dict[int, Path], failing: str) -> None:
    """Of each device (the contexts of the second type are new ones): results are right all the same."""
    said, errors = run(blas[11], **{failing: 13})  # type: ignore[arg-type]
    assert errors == 2 * ["echo: cuBLAS refuses products (status 13): echo's own kernels compute them"]
    for dtype in ("float32", "float16"):
        assert said[dtype]["products"] == []
        assert tiles(said, dtype) == {"gemm_inputs", "gemm_gates", "gemm_weights"}


def test_a_user_who_wants_none(blas: dict[int, Path]) -> None:
    said, errors = run(blas[11], ECHO_DEBUG="cublas=0")
    assert errors == []
    assert said["float32"]["products"] == []
    assert tiles(said, "float32") == {"gemm_inputs", "gemm_gates", "gemm_weights"}
