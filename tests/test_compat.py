"""The changes of `echo.compat`, and that it changes nothing else. `make test-compat` trains under the real versions."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo import compat
from echo.errors import UnsupportedError
from tests.support.stub_libraries import mxnet, stub, wheels


def program(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *options, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )


def fake_numpy(monkeypatch: pytest.MonkeyPatch, version: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType("numpy")
    vars(module).update(names, __version__=version)
    monkeypatch.setitem(sys.modules, "numpy", module)
    return module


def test_prepare_changes_nothing_if_nothing_is_needed() -> None:
    names, modules, finders = dict(vars(np)), set(sys.modules), list(sys.meta_path)
    assert np.__version__ == "1.23.5"
    assert compat.prepare() == ""
    assert dict(vars(np)) == names
    assert set(sys.modules) == modules
    assert sys.meta_path == finders, "mxnet is there already"


@pytest.mark.parametrize("version", ["1.24.0", "1.26.4", "1.25.0rc1", "1.26.0.dev0+51.gabc"])
def test_removed_aliases_come_back(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    numpy = fake_numpy(monkeypatch, version)
    before = set(vars(numpy))
    assert compat.prepare() == ""
    assert (numpy.bool, numpy.int) == (bool, int)
    assert set(vars(numpy)) - before == {"bool", "int"}


def test_existing_name_of_numpy_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = fake_numpy(monkeypatch, "1.26.4", bool=np.bool_)
    compat.prepare()
    assert numpy.bool is np.bool_


@pytest.mark.parametrize("version", ["2.0.0", "2.3.1", "3.0.0a1"])
def test_numpy_2_is_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    numpy = fake_numpy(monkeypatch, version)
    assert compat.prepare() == f"mxnet 1.9.1 needs numpy below 2, got {version}: pip install 'numpy<2'"
    assert not hasattr(numpy, "int")


def test_prepare_without_numpy_leaves_the_error_to_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert compat.prepare() == ""


def test_distutils_is_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "distutils"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    compat.prepare()
    try:
        from distutils.version import LooseVersion, StrictVersion

        assert "echo.compat" in str(sys.modules["distutils"].__doc__)
        for kind in (LooseVersion, StrictVersion):
            assert kind("1.26.4") >= kind("1.17")
            assert kind("1.9") < kind("1.10")
            assert kind("1.17") == kind("1.17")
        with pytest.raises(ImportError):
            importlib.import_module("distutils.core")
    finally:
        for name in ("distutils", "distutils.version"):
            sys.modules.pop(name, None)


def test_another_version_of_mxnet_is_named() -> None:
    compat.check_version("1.9.1")
    with pytest.raises(UnsupportedError, match=r"expected mxnet 1\.9\.1, got 1\.8\.0"):
        compat.check_version("1.8.0")


# numpy 1.23.5 that behaves as 1.26: the version, and no aliases
NEWER = """
import numpy
numpy.__version__ = "1.26.0"
for name in ("bool", "int"):
    del numpy.__deprecated_attrs__[name]
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "distutils":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
"""
NO_DISTUTILS = """
import importlib
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "distutils" else real(name, *more)
sys.meta_path.insert(0, Without())
"""
TRAIN = """
import mxnet as mx
weight = mx.np.ones((2,), dtype=bool)
symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(mx.sym.var("w"))))
executor = symbol.simple_bind(mx.cpu(), w=(3,))
executor.forward(is_train=True)
executor.backward()
print(executor.grad_dict["w"].asnumpy().sum())
"""


@pytest.mark.slow
def test_mxnet_trains_where_it_does_not_import_by_itself() -> None:
    stock = program(NEWER + TRAIN)
    assert stock.returncode == 1
    assert "numpy" in stock.stderr
    for first in ("import echo.compat", "import echo"):
        helped = program(NEWER + NO_DISTUTILS + first + TRAIN)
        assert helped.returncode == 0, helped.stderr
        assert helped.stdout.strip() == "3.0"


def test_importing_it_imports_nothing_heavy(tmp_path: Path) -> None:
    done = program("import sys, echo.compat; print(sorted({'mxnet', 'numpy', 'distutils'} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("first", ["import echo.compat", "import echo", "import echo.startup as s; s.watch(True)"])
def test_libraries_of_nvidias_wheels_are_loaded_when_mxnet_is_imported(first: str, tmp_path: Path) -> None:
    made = wheels(tmp_path, ["libcudart.so.11.0", "libcublas.so.11"])
    mxnet(tmp_path, list(made.values()))
    path = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    alone = program(path + "import mxnet")
    assert alone.returncode == 1
    assert "cannot open shared object file" in alone.stderr
    helped = program(f"{path}{first}\nimport mxnet; print(mxnet.__version__)")
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.strip() == "1.9.1"


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_cuda_libraries_that_are_nowhere_are_named_once(tmp_path: Path) -> None:
    made = wheels(tmp_path / "away", ["libcudart.so.11.0"])
    driver = stub(tmp_path / "away" / "libcuda.so.1", 1)
    mxnet(tmp_path, [*made.values(), driver])
    done = program(f"import sys, echo; sys.path.insert(0, {str(tmp_path)!r})\nimport mxnet")
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("echo: ")]
    assert said == ["echo: MXNet's CUDA wheel needs libcudart.so.11.0: see the README, \"On NVIDIA's GPUs\""]


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_damaged_mxnet_is_left_to_the_loader(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("")
    if content is not None:
        (tmp_path / "mxnet" / "libmxnet.so").write_bytes(content)
    done = program(f"import sys, echo.compat; sys.path.insert(0, {str(tmp_path)!r})\nimport mxnet")
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_mxnet_has_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compat.libmxnet() == Path(sys.modules["mxnet"].__path__[0], "libmxnet.so")
    made_up = types.ModuleType("mxnet")
    monkeypatch.setitem(sys.modules, "mxnet", made_up)
    assert compat.libmxnet() is None
