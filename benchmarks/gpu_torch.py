"""The kernels' operators as torch writes them: what an unfused, a compiled and a cuDNN implementation would run."""

from __future__ import annotations

from typing import Any, Callable

Function = Callable[..., Any]
Params = dict[str, float]


def lstm_cell(torch: Any, params: Params, pre: Any, c: Any) -> Any:
    i, f, g, o = pre.chunk(4, 1)
    after = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(after), after


def gru_cell(torch: Any, params: Params, x: Any, s: Any, h: Any) -> Any:
    (x_r, x_z, x_n), (s_r, s_z, s_n) = x.chunk(3, 1), s.chunk(3, 1)
    z = torch.sigmoid(x_z + s_z)
    return (1 - z) * torch.tanh(x_n + torch.sigmoid(x_r + s_r) * s_n) + z * h


def mlp_score(torch: Any, params: Params, keys: Any, query: Any, v: Any, gamma: Any, beta: Any) -> Any:
    total = keys + query[:, None]
    if gamma is not None:
        total = torch.nn.functional.layer_norm(total, total.shape[-1:], gamma, beta, params["eps"])
    return torch.tanh(total) @ v


def layer_norm(torch: Any, params: Params, x: Any, gamma: Any, beta: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, params["eps"])


def bias_act(torch: Any, params: Params, x: Any, b: Any) -> Any:
    functions = (torch.relu, torch.sigmoid, torch.tanh, torch.nn.functional.softplus, lambda y: y)
    return functions[int(params["act"])](x + b)


def sequence_reverse(torch: Any, params: Params, x: Any, lengths: Any) -> Any:
    steps = torch.arange(x.shape[0], device=x.device)[:, None]
    source = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return torch.gather(x, 0, source[..., None].expand_as(x))


def dropout(torch: Any, params: Params, x: Any) -> Any:
    return torch.nn.functional.dropout(x, 1 - params["keep"])


def relu(torch: Any, params: Params, x: Any) -> Any:
    return torch.relu(x)


def attention(torch: Any, params: Params, q: Any, k: Any, v: Any) -> Any:
    heads = (array[:, None] for array in (q, k, v))  # one head: torch's fast kernels want four axes
    return torch.nn.functional.scaled_dot_product_attention(*heads, scale=params["scale"])[:, 0]


def eager_attention(torch: Any, params: Params, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(1, 2) * params["scale"], -1) @ v


def all_scores(torch: Any, params: Params, keys: Any, queries: Any, v: Any, gamma: Any, beta: Any) -> Any:
    """mlp_score of all queries at once, in one map of [B,Tq,Tk,H]."""
    total = keys[:, None] + queries[:, :, None]
    total = torch.nn.functional.layer_norm(total, total.shape[-1:], gamma, beta, params["eps"])
    return torch.tanh(total) @ v


def softmax_loss(torch: Any, params: Params, x: Any, w: Any, b: Any, label: Any) -> Any:
    """The sum of the losses: its gradient is that of MXNet's SoftmaxOutput."""
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w, b), label, reduction="sum")


def forward_of(torch: Any, kernel: str, params: Params) -> Function:
    """The operator over torch's arrays: one output, or a tuple of those that have gradients."""
    operator = globals()[kernel]

    def forward(*inputs: Any) -> Any:
        return operator(torch, params, *inputs)

    return forward


def step_of(torch: Any, forward: Function, inputs: list[Any], heads: list[Any]) -> Callable[[], Any]:
    """Forward and backward of an operator, all floating gradients."""
    leaves = [
        array.detach().clone().requires_grad_() if array is not None and array.is_floating_point() else array
        for array in inputs
    ]
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]

    def step() -> Any:
        outputs = forward(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return torch.autograd.grad(outputs, wanted, heads[: len(outputs)])

    return step


class UnfusedLstm:
    """An LSTM layer one operator at a time; hoisted: with one product for the inputs of all steps."""

    def __init__(self, torch: Any, hoisted: bool) -> None:
        self.torch, self.hoisted = torch, hoisted
        self.cell = forward_of(torch, "lstm_cell", {})

    def __call__(self, x: Any, *state_and_weights: Any) -> Any:
        h, c, wi, bi, wh, bh = state_and_weights
        linear, outputs = self.torch.nn.functional.linear, []
        projected = linear(x, wi, bi) if self.hoisted else None
        for t in range(x.shape[0]):
            pre = projected[t] if projected is not None else linear(x[t], wi, bi)
            h, c = self.cell(pre + linear(h, wh, bh), c)
            outputs.append(h)
        return self.torch.stack(outputs), h, c


def cudnn_step(torch: Any, x: Any, hidden: int, heads: list[Any], kind: str = "LSTM") -> Callable[[], Any]:
    """A training step of torch.nn.LSTM or torch.nn.GRU, whose kernels are cuDNN's on a GPU.

    ``heads`` are gradients of all outputs and of the last states.
    """
    layer = getattr(torch.nn, kind)(x.shape[2], hidden, device=x.device, dtype=x.dtype)
    x = x.detach().clone().requires_grad_()
    shape = (1, x.shape[1], hidden)
    state = [torch.zeros(shape, device=x.device, dtype=x.dtype, requires_grad=True) for _ in heads[1:]]
    wanted = [x, *state, *layer.parameters()]

    def step() -> Any:
        y, last = layer(x, tuple(state) if kind == "LSTM" else state[0])
        outputs = [y, *(one[0] for one in (last if kind == "LSTM" else [last]))]
        return torch.autograd.grad(outputs, wanted, heads)

    return step
