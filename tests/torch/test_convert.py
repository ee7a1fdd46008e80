"""Symbols of MXNet as modules of torch: names, inputs, files, errors, and what compiles."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch has it")

import echo.torch  # noqa: E402
from echo.errors import GraphError, UnsupportedError  # noqa: E402
from echo.torch import convert, save_params  # noqa: E402
from echo.torch.params import Params, write_params  # noqa: E402
from tests.torch.oracle import Oracle  # noqa: E402
from tests.torch.test_convert_models import example  # noqa: E402

Row = tuple  # op, name, attributes, and inputs: names, or (name, output)


def symbol(rows: list[Row], heads: list[Any]) -> str:
    """The JSON of a symbol; operators are ("op", "name", {attributes}, *inputs), and other inputs are variables."""
    nodes: list[Any] = []
    known: dict[str, int] = {}

    def entry(source: Any) -> list[int]:
        name, index = source if isinstance(source, tuple) else (source, 0)
        if name not in known:
            known[name] = len(nodes)
            nodes.append({"op": "null", "name": name, "inputs": []})
        return [known[name], index, 0]

    for op, name, attrs, *inputs in rows:
        entries = [entry(source) for source in inputs]
        known[name] = len(nodes)
        nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": entries})
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    return json.dumps({"nodes": nodes, "arg_nodes": variables, "node_row_ptr": [3 * i for i in range(len(nodes) + 1)],
                       "heads": [entry(head) for head in heads]})  # fmt: skip


DENSE = ("FullyConnected", "fc", {"num_hidden": "3"}, "data", "fc_weight", "fc_bias")
NORM = ("BatchNorm", "bn", {"fix_gamma": "False"}, "fc", "bn_gamma", "bn_beta", "bn_mean", "bn_var")
NET = symbol([DENSE, NORM, ("SoftmaxOutput", "softmax", {}, "bn", "softmax_label")], ["softmax"])
ARGS = {"fc_weight": np.arange(6, dtype=np.float32).reshape(3, 2) / 6, "fc_bias": np.zeros(3, np.float32),
        "bn_gamma": np.ones(3, np.float32), "bn_beta": np.zeros(3, np.float32)}  # fmt: skip
AUX = {"bn_mean": np.zeros(3, np.float32), "bn_var": np.ones(3, np.float32)}
DATA, LABEL = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]]), torch.tensor([0.0, 2.0, 1.0])


def test_parameters_and_buffers_have_the_names_of_mxnet() -> None:
    module = convert(NET, ARGS, AUX)
    assert sorted(dict(module.named_parameters())) == sorted(ARGS)
    assert sorted(dict(module.named_buffers())) == sorted(AUX)
    assert [node.name for node in module.graph.nodes if node.op == "call_function"] == ["fc", "bn", "softmax"]


def test_inputs_are_named_or_in_the_order_of_the_arguments() -> None:
    module = convert(NET, ARGS, AUX).eval()
    assert torch.equal(module(DATA, LABEL), module(softmax_label=LABEL, data=DATA))
    assert torch.equal(module(DATA, LABEL), module(DATA))
    with pytest.raises(TypeError, match="data"):
        module(softmax_label=LABEL)


def test_input_before_one_that_is_needed_has_no_default() -> None:
    rows = [("SoftmaxOutput", "a", {}, "data", "label"), ("relu", "b", {}, "more")]
    with pytest.raises(TypeError, match="label"):
        convert(symbol(rows, ["a", "b"]), {})(DATA, more=DATA)


def test_moving_statistics_change_in_training_only() -> None:
    module = convert(NET, ARGS, AUX).eval()
    module(DATA)
    assert torch.equal(module.bn_var, torch.ones(3))
    module.train()(DATA)
    assert not torch.equal(module.bn_var, torch.ones(3))


def test_values_of_the_user_stay_as_they_are() -> None:
    module = convert(NET, ARGS, AUX)
    with torch.no_grad():
        module.fc_weight += 1
    module(DATA)
    assert ARGS["fc_weight"].max() < 1
    assert AUX["bn_var"].tolist() == [1, 1, 1]


def test_several_outputs_are_a_tuple() -> None:
    rows = [("SliceChannel", "parts", {"num_outputs": "2"}, "data"), ("tanh", "t", {}, ("parts", 1))]
    found = convert(symbol(rows, ["t", ("parts", 0)]), {})(DATA)
    assert torch.equal(found[0], DATA[:, 1:].tanh())
    assert torch.equal(found[1], DATA[:, :1])


def test_names_that_python_does_not_take_are_changed_for_inputs() -> None:
    rows = [("elemwise_add", "sum", {}, "my-data", "0"), ("elemwise_add", "all", {}, "sum", "lambda")]
    module = convert(symbol(rows, ["all"]), {})
    assert torch.equal(module(my_data=DATA, _0=DATA, _lambda=DATA), 3 * DATA)


def test_copies_train_apart_and_are_saved(tmp_path: Path) -> None:
    module = convert(NET, ARGS, AUX)
    other = copy.deepcopy(module)
    other.load_state_dict({name: value + 1 for name, value in module.state_dict().items()})
    save_params(other, tmp_path / "x.params")
    again = convert(NET, tmp_path / "x.params")
    assert torch.equal(again.fc_weight, module.fc_weight + 1)
    torch.save(module, tmp_path / "module.pt")
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    assert torch.equal(loaded(DATA, LABEL), module(DATA, LABEL))
    assert torch.equal(loaded.eval()(DATA), module.eval()(DATA))


# Files -------------------------------------------------------------------------------------------------------------


def test_files_convert_and_are_saved_with_the_same_bytes(oracle: Oracle, tmp_path: Path) -> None:
    """In the order of the file, in which a block's export mixes both kinds."""
    (tmp_path / "m-symbol.json").write_text(NET)
    values = {"arg:fc_weight": ARGS["fc_weight"], "aux:bn_mean": AUX["bn_mean"], "arg:bn_gamma": ARGS["bn_gamma"],
              "arg:fc_bias": ARGS["fc_bias"], "aux:bn_var": AUX["bn_var"], "arg:bn_beta": ARGS["bn_beta"]}  # fmt: skip
    oracle.ask("save", str(tmp_path / "m-0000.params"), values)
    module = convert(tmp_path / "m-symbol.json", tmp_path / "m-0000.params")
    assert torch.equal(module(DATA), convert(NET, ARGS, AUX)(DATA))
    module = convert(str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params"))
    save_params(module, tmp_path / "n-0000.params")
    assert (tmp_path / "n-0000.params").read_bytes() == (tmp_path / "m-0000.params").read_bytes()
    assert set(oracle.ask("load", str(tmp_path / "n-0000.params"))) == set(values)


def test_symbol_of_mxnet_converts() -> None:
    class Symbol:
        def tojson(self) -> str:
            return NET

    assert torch.equal(convert(Symbol(), ARGS, AUX)(DATA), convert(NET, ARGS, AUX)(DATA))


def test_parameters_may_have_the_prefixes_of_a_file() -> None:
    both = {**{f"arg:{name}": value for name, value in ARGS.items()},
            **{f"aux:{name}": torch.from_numpy(value) for name, value in AUX.items()}}  # fmt: skip
    assert torch.equal(convert(NET, both)(DATA), convert(NET, ARGS, AUX)(DATA))


def test_whole_numbers_are_not_trained() -> None:
    module = convert(symbol([("take", "rows", {}, "table", "which")], ["rows"]), {"which": np.array([1, 0])})
    assert not module.which.requires_grad
    assert torch.equal(module(DATA), DATA[[1, 0]])


# What cannot be converted ----------------------------------------------------------------------------------------


def test_all_that_is_unknown_is_in_one_error() -> None:
    rows = [
        ("Custom", "own", {"op_type": "mine"}, "data"), ("Correlation", "c", {}, "own", "data"),
        ("RNN", "layers", {"mode": "lstm", "state_size": "2", "num_layers": "1", "projection_size": "3"},
         "c", "rnn_parameters", "s", "h"),
        ("Activation", "act", {"act_type": "swish", "extra": "1"}, "layers"), ("transpose", "t", {"axes": "(0"}, "act"),
        ("clip", "cut", {"a_min": "0"}, "t"), ("Flatten", "one", {}, "cut", "data"), NORM,
        ("abs", "two", {}, ("bn", 1)),
    ]  # fmt: skip
    rows.insert(0, ("Flatten", "fc", {}, "data"))
    with pytest.raises(UnsupportedError) as caught:
        convert(symbol(rows, ["one", "two"]), {})
    assert str(caught.value).splitlines() == [
        "the symbol cannot be converted to torch:",
        "  own: operator Custom is unknown (op_type='mine': it is a program of the user's)",
        "  c: operator Correlation is unknown",
        "  layers: RNN: attribute projection_size: expected Literal['None'], got '3'",
        "  act: Activation: attribute act_type: expected Literal['relu', 'sigmoid', 'tanh', 'softrelu', 'softsign'], "
        "got 'swish'",
        "  act: Activation: attribute extra='1' is unknown",
        "  t: transpose: attribute axes: expected Shape, got '(0'",
        "  cut: clip: attribute a_max is missing",
        "  one: Flatten: expected 1 to 1 inputs, got 2",
        "  two: abs: reads output 1 of BatchNorm 'bn', which has one in torch",
    ]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"fc_weight": None}, "without a value: arg:fc_weight$"),
        ({"bn_mean": None, "bn_gamma": None}, "without a value: arg:bn_gamma, aux:bn_mean$"),
        ({"more": np.ones(1)}, "not in the symbol: arg:more$"), ({"fc": np.ones(1)}, "not in the symbol: arg:fc$"),
        ({"fc_weight": None, "more": np.ones(1)}, "without a value: arg:fc_weight; not in the symbol: arg:more$"),
    ],
)  # fmt: skip
def test_names_that_are_not_the_symbols_raise_graph_error(changed: dict[str, Any], text: str) -> None:
    args, aux = ({name: value for name, value in {**held, **changed}.items() if value is not None and
                  (held is ARGS or name in AUX)} for held in (ARGS, AUX))  # fmt: skip
    with pytest.raises(GraphError, match=f"of the symbol, got names {text}"):
        convert(NET, args, aux)


def test_many_missing_names_are_cut_short() -> None:
    with pytest.raises(GraphError, match=r"arg:n19 and 10 more$"):
        convert(NET, {**ARGS, **{f"n{i:02}": np.ones(1) for i in range(30)}}, AUX)


def test_files_without_prefixes_or_with_states_beside_them_raise_graph_error(tmp_path: Path) -> None:
    write_params(tmp_path / "x.params", Params({"fc_weight": torch.ones(3, 2)}))
    with pytest.raises(GraphError, match=r"x\.params: expected names that start with arg: or aux:.* got fc_weight"):
        convert(NET, tmp_path / "x.params")
    with pytest.raises(GraphError, match=r"a \.params file holds the auxiliary states, expected none with it"):
        convert(NET, tmp_path / "x.params", AUX)


@pytest.mark.parametrize(
    ("given", "text"),
    [(3, "expected a path, JSON or a symbol of MXNet, got int"), ("{", "expected JSON as MXNet writes it"),
     ("{}", "not an NNVM graph")],
)  # fmt: skip
def test_invalid_symbol_raises_graph_error(given: Any, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        convert(given, {})


def test_parameter_named_like_a_method_raises_graph_error() -> None:
    with pytest.raises(GraphError, match="forward: torch takes no parameter of this name"):
        convert(symbol([("tanh", "t", {}, "forward")], ["t"]), {"forward": np.ones(2)})


def test_other_module_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"expected a module that echo\.torch\.convert made, got Linear"):
        save_params(torch.nn.Linear(2, 2), tmp_path / "x.params")


# Compilation -------------------------------------------------------------------------------------------------------


def _steps(oracle: Oracle, name: str, **options: Any) -> tuple[Any, Any, list[Any]]:
    """One step of a model, in eager mode and compiled, and the plans of that."""
    found = example(oracle, name)
    module, backend = found.converted(), echo.torch.backend(strict=True, **options)
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    output = compiled(**found.given())
    output.sum().backward()
    gradients = {one: module.get_parameter(one).grad.numpy() for one in found.trained}
    return found.step(), {"": output.detach().numpy(), **gradients}, backend.plans


@pytest.mark.parametrize("name", ["own cell", "deepspeech2"])
def test_converted_model_keeps_a_budget_and_every_bit(oracle: Oracle, name: str) -> None:
    eager, compiled, (plan,) = _steps(oracle, name, memory_budget="95%", compiler="aot_eager", max_planning=1)
    assert plan.peak_bytes <= plan.budget_bytes < plan.stock_bytes
    assert all(np.array_equal(eager[one], value) for one, value in compiled.items())


@pytest.mark.slow
def test_own_cell_runs_compiled_by_inductor(oracle: Oracle) -> None:
    """A cell that is neither an LSTM nor a GRU, which no kernel of ours knows."""
    eager, compiled, (plan,) = _steps(oracle, "own cell", max_overhead=0.2)
    assert plan.peak_bytes < plan.stock_bytes
    for one, value in compiled.items():
        assert np.abs(value - eager[one]).max() <= 1e-5 * max(1e-6, np.abs(eager[one]).max()), one
