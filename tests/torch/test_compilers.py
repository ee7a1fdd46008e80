"""Inductor and AOTAutograd with a partitioner of echo's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

from echo.errors import UnsupportedError  # noqa: E402
from echo.torch import compat, compilers  # noqa: E402


def test_inductor_without_the_setting_names_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import torch._inductor

    monkeypatch.setattr(torch._inductor, "config", SimpleNamespace())
    with pytest.raises(UnsupportedError, match='compiler="aot_eager" works with this version'):
        compilers.inductor_with(compat.min_cut_partition, "key")


def test_partitioners_of_inductor_are_told_apart() -> None:
    import pickle

    one, other = (compilers.CustomPartitioner(compat.min_cut_partition, key) for key in ("6GB", "4GB"))
    assert one.uuid() != other.uuid()
    assert pickle.loads(pickle.dumps(one)).uuid() == "6GB", "its settings are part of a key that is pickled"
    with_plans = compilers.CustomPartitioner(lambda *_, **__: None, "6GB")
    assert pickle.loads(pickle.dumps(with_plans)).uuid() == "6GB", "what it has planned is no part of that"
