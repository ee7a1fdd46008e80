"""Values of the graphs have no dictionary where Python can do without."""

from __future__ import annotations

import sys

from echo.ir.graph import Node
from echo.ir.training_node import TrainingNode


def test_nodes_have_no_dictionary_from_python_3_10_on() -> None:
    for value in (Node("tanh", "a"), TrainingNode("tanh", "a", ())):
        assert hasattr(value, "__dict__") == (sys.version_info < (3, 10))
