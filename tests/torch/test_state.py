"""State of the process in the torch room, as `tests.test_architecture` knows it for the others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

pytest.importorskip("grimp", reason="grimp is not installed: state is searched where the tools are")

from tests.test_architecture import ROOT, STATE, TORCH_ROOM, state_of  # noqa: E402


def test_state_of_the_torch_room_is_where_it_is_known_to_be() -> None:
    found = {str(path.relative_to(ROOT)): state_of(path) for path in sorted(TORCH_ROOM.rglob("*.py"))}
    assert len(found) > 8
    assert {path for path, state in found.items() if state} == {
        path for path in STATE if path.startswith("echo/torch/")
    }
