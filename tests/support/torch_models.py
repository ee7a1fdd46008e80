"""Small torch models for the tests of `echo.torch`, and a step of training with everything that it changes."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import fx, nn

from echo.torch import compat, compilers
from echo.torch.capture import JointGraph, joint_graph

torch.set_num_threads(1)  # the sum of two threads may differ in its last bits from run to run


W = torch.randn(8, 8, requires_grad=True)
X = torch.randn(64, 8)


def deep(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Products with dropout and an activation, on `W` and `X`."""
    for _ in range(6):
        x = F.gelu(F.dropout(x @ w, 0.5))
    return x.square().mean()


class Block(nn.Module):
    """A block of a Transformer with attention written out, as models of today have it without SDPA."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        late = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = F.dropout(F.softmax(scores.masked_fill(late, float("-inf")), -1), self.drop, self.training)
        x = x + F.dropout(self.out((weights @ v).transpose(1, 2).reshape(batch, length, width)), self.drop)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), self.drop)


class GPT(nn.Module):
    """A language model with a loss; the output layer shares its weights with the embedding."""

    def __init__(self, layers: int = 2, width: int = 32, length: int = 24, drop: float = 0.1) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(50, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(words) + self.place(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.embed.weight).flatten(0, 1), labels.flatten())


class Translation(nn.Module):
    """LSTM cells with attention over the encoder's states, unrolled."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(40, width), nn.Embedding(40, width)
        self.encoder, self.decoder = nn.LSTMCell(width, width), nn.LSTMCell(2 * width, width)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score, self.join, self.out = nn.Linear(width, 1), nn.Linear(2 * width, width), nn.Linear(width, 40)

    def forward(self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        state = cell = torch.zeros(source.shape[0], self.query.in_features)
        states = []
        for step in range(source.shape[1]):
            state, cell = self.encoder(self.source(source[:, step]), (state, cell))
            states.append(state)
        memory = torch.stack(states, 1)
        keys, context, outs = self.key(memory), torch.zeros_like(state), []
        for step in range(target.shape[1]):
            state, cell = self.decoder(torch.cat([self.target(target[:, step]), context], 1), (state, cell))
            weights = F.softmax(self.score(torch.tanh(keys + self.query(state).unsqueeze(1))).squeeze(2), 1)
            found = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            context = torch.tanh(self.join(torch.cat([state, found], 1)))
            outs.append(context)
        return F.cross_entropy(self.out(torch.stack(outs, 1)).flatten(0, 1), labels.flatten())


class ResNet(nn.Module):
    """Residual blocks with BatchNorm, whose statistics are buffers that the forward pass writes."""

    def __init__(self, width: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2 * blocks + 1))
        self.out = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(images)), inplace=True), 2)
        for index in range(0, len(self.convs), 2):
            y = F.relu(self.norms[index + 1](self.convs[index](x)))
            x = F.relu(x + self.norms[index + 2](self.convs[index + 1](y)))
        return F.cross_entropy(self.out(x.mean((2, 3))), labels)


class Perceptron(nn.Module):
    """Linear layers with dropout; two outputs, of which only the first has a gradient."""

    def __init__(self, layers: int = 4, width: int = 32, drop: float = 0.5) -> None:
        super().__init__()
        self.layers, self.drop = nn.ModuleList(nn.Linear(width, width) for _ in range(layers)), drop

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), self.drop, self.training)
        return x.square().mean(), x.detach().amax()


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randint(0, 40, shape)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "perceptron": lambda: (Perceptron(), (torch.randn(96, 32),)),
    "gpt": lambda: (GPT(), (_numbers(3, 24), _numbers(3, 24))),
    "translation": lambda: (Translation(), (_numbers(24, 4), _numbers(24, 4), _numbers(24, 4))),
    "resnet": lambda: (ResNet(), (torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,)))),
}


def built(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model and its inputs, always the same."""
    torch.manual_seed(5)
    return MODELS[name]()


def step(model: Any, inputs: tuple[torch.Tensor, ...], original: nn.Module | None = None) -> list[torch.Tensor]:
    """The outputs, gradients, buffers and next random numbers of a step from a known state of these.

    ``original`` is the model whose parameters and buffers these are, if ``model`` is a compiled one.
    """
    owner = model if original is None else original
    torch.manual_seed(11)
    owner.zero_grad(set_to_none=True)
    result = model(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    results[0].backward()
    gradients = [parameter.grad for parameter in owner.parameters() if parameter.grad is not None]
    return [value.detach().clone() for value in [*results, *gradients, *owner.buffers(), torch.rand(2)]]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether two steps came to the same bits."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


class Traced(NamedTuple):
    """A joint graph as torch hands it to a partitioner."""

    module: fx.GraphModule
    inputs: Any
    options: dict[str, Any]

    @property
    def joint(self) -> JointGraph:
        return joint_graph(self.module, self.options["num_fwd_outputs"])


def traced(function: Any, *inputs: torch.Tensor, dynamic: bool | None = False) -> Traced:
    """The joint graph of a function or module under ``torch.compile``, operators as in eager mode."""
    found: list[Traced] = []

    def partition(module: fx.GraphModule, given: Any, **options: Any) -> Any:
        found.append(Traced(compat.copied(module), given, options))
        return compat.default_partition(module, given, **options)

    torch._dynamo.reset()
    torch.compile(function, backend=compilers.eager_with(partition), fullgraph=True, dynamic=dynamic)(*inputs)
    (graph,) = found
    return graph


@contextlib.contextmanager
def activation_budget(ratio: float, **changes: Any) -> Iterator[None]:
    """While this is open, torch's own partitioner works with this budget, a ratio; it warns about nothing."""
    with torch._functorch.config.patch(activation_memory_budget=ratio, **changes):
        yield
