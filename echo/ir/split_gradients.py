"""Gradients of convolutions in two nodes: the weights' at once, the data's as late as it can be.

Where several convolutions read the same map, its gradient is a sum. The map has to be in memory until the last
convolution's gradient is computed, beside all other terms: it is there that ResNets and Inception networks need the
most. But only the gradients of weights read it. So one of these gradients becomes two nodes: that of the weights runs
before the last of the others, and that of the data after it, when the map is gone. Each product is still computed once,
by the same primitive of oneDNN, to the same bits. This costs the output's gradient of that convolution, which has to
wait: it is taken where that is smaller than the map.

In MXNet's source, ``MKLDNNConvolutionBackward`` computes both gradients, or one if the other's ``req`` is ``kNullOp``;
of the data, the data's gradient reads shape and type alone, and where it is left out, its memory is never touched.
"""

from __future__ import annotations

from collections import Counter

from echo.ir.attributes import is_true
from echo.ir.gradient_rule import GradientRule, Read, Source, own_inputs
from echo.ir.graph import Entry
from echo.ir.training_graph import TrainingGraph

_GRADIENT = "_backward_Convolution"
SUM = "add_n"  # MXNet's sum of up to seven gradients
_CUDNN_LAYOUTS = ("None", "NCW", "NCHW", "NCDHW")
_AXES = (3, 4, 5)  # of maps that oneDNN's convolutions take, which have to be of float32


def split_rule(has_bias: bool) -> GradientRule:
    """The rule for a convolution's gradient in two nodes.

    The second node reads the output's gradient and the weight, and as data it is given the last other term.
    """
    gradient, *rest = own_inputs(0, 2, 3) if has_bias else own_inputs(0, 2)
    return GradientRule(_GRADIENT, _GRADIENT, (gradient, Read(Source.SUM), *rest))


def split_gradients(training: TrainingGraph, cudnn: bool = False) -> dict[int, GradientRule]:
    """The convolutions, by number, whose gradients are worth two nodes; of each sum of gradients at most one.

    With ``cudnn``, of those convolutions alone that cuDNN computes for sure: it, too, leaves out a gradient whose
    ``req`` is ``kNullOp``, MXNet's own CUDA code does not.
    """
    sums = [(node, terms) for _, node in training.operators() if len(terms := _terms(training, node.inputs, cudnn)) > 1
            and node.op == SUM and not node.forward]  # fmt: skip
    if not sums:
        return {}
    reads = Counter(Entry(entry.node, entry.index) for node in training.nodes for entry in node.inputs)
    reads.update(Entry(entry.node, entry.index) for entry in training.outputs)
    rules: dict[int, GradientRule] = {}
    for node, terms in sums:
        size = node.outputs[0].bytes
        kept = {term: training.type_of(training.nodes[term].inputs[0]).bytes for term in terms[:-1]}
        offered = [term for term in kept if kept[term] < size and reads[Entry(term)] == 1]
        if offered:
            gradient = training.nodes[min(offered, key=lambda term: kept[term])]
            rules[gradient.control_deps[0]] = split_rule(len(gradient.inputs) > 3)
    return rules


def _terms(training: TrainingGraph, inputs: tuple[Entry, ...], cudnn: bool) -> list[int]:
    """The gradients of convolutions, in the order in which they run, whose first outputs are among these entries."""
    return sorted(entry.node for entry in inputs if entry.index == 0 and _is_offered(training, entry.node, cudnn))


def _is_offered(training: TrainingGraph, number: int, cudnn: bool) -> bool:
    node = training.nodes[number]
    tensor = node.outputs[0]
    if node.op != _GRADIENT or tensor.dtype != "float32" or len(tensor.shape) not in _AXES:
        return False
    attrs = training.nodes[node.control_deps[0]].attrs
    return not cudnn or (attrs.get("layout", "None") in _CUDNN_LAYOUTS and not is_true(attrs, "cudnn_off"))
