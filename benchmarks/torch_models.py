"""The torch models of `benchmarks.torch_frontier`, at sizes whose step takes a CPU a second or so."""

from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests.support.torch_models import GPT, Translation

Model = tuple[nn.Module, tuple[torch.Tensor, ...]]
Tensor = torch.Tensor

# Transformers.


class _Bert(nn.Module):
    """torch's own encoder layers, normalized after each sum, with a loss on every word."""

    def __init__(self, layers: int, width: int, length: int, words: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, words)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.1, "gelu", batch_first=True)
            for _ in range(layers)
        )

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.embed(words) + self.place), 0.1)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())


class _VisionTransformer(nn.Module):
    """Images cut into squares, layers normalized before each branch."""

    def __init__(self, layers: int, width: int, image: int, square: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, square, square)
        self.place = nn.Parameter(torch.zeros((image // square) ** 2, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.cut(images).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.out(self.norm(x).mean(1)), labels)


class _LlamaLayer(nn.Module):
    """Norms by the root of the mean square, rotated queries and keys, fewer keys than queries, a gated branch."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.size, bias=False)
        self.value = nn.Linear(width, key_heads * self.size, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.first(x)
        query = self._rotated(self.query(y).view(batch, length, self.heads, -1).transpose(1, 2), cos, sin)
        key = self._rotated(self.key(y).view(batch, length, self.key_heads, -1).transpose(1, 2), cos, sin)
        value = self.value(y).view(batch, length, self.key_heads, -1).transpose(1, 2)
        key, value = (one.repeat_interleave(self.heads // self.key_heads, 1) for one in (key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    @staticmethod
    def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class _Llama(nn.Module):
    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.size = width // 8
        self.embed, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.layers = nn.ModuleList(_LlamaLayer(width, 8, 2) for _ in range(layers))
        self.out = nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        place = torch.arange(words.shape[1]).float()
        angle = place[:, None] * 10000.0 ** (-torch.arange(0, self.size, 2).float() / self.size)
        x, cos, sin = self.embed(words), angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.out(self.norm(x)).flatten(0, 1), labels.flatten())


class _Mixer(nn.Module):
    """MLP-Mixer: products over squares and over channels in turn."""

    def __init__(self, layers: int, width: int, image: int, square: int) -> None:
        super().__init__()
        places = (image // square) ** 2
        self.cut = nn.Conv2d(3, width, square, square)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.over_places = nn.ModuleList(_branch(places, places * 2) for _ in range(layers))
        self.over_channels = nn.ModuleList(_branch(width, width * 4) for _ in range(layers))
        self.out = nn.Linear(width, 100)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.cut(images).flatten(2).transpose(1, 2)
        for index, (places, channels) in enumerate(zip(self.over_places, self.over_channels)):
            x = x + places(self.norms[2 * index](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * index + 1](x))
        return F.cross_entropy(self.out(self.norms[-1](x).mean(1)), labels)


def _branch(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


# Convolutional networks.


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class _Residual(nn.Module):
    """A block of ResNet: two convolutions, or three with a bottleneck."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        sizes = ((inputs, width, 3, stride), (width, outputs, 3, 1))
        if expansion > 1:
            sizes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1))
        self.convs = nn.ModuleList(_conv(*size) for size in sizes)
        self.across = _conv(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for conv in self.convs[:-1]:
            y = F.relu(conv(y))
        return F.relu(self.convs[-1](y) + self.across(x))


class _ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], expansion: int) -> None:
        super().__init__()
        self.stem, inputs = _conv(3, 64, 7, 2), 64
        self.blocks = nn.ModuleList()
        for level, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if level and not index else 1
                self.blocks.append(_Residual(inputs, 64 << level, stride, expansion))
                inputs = (64 << level) * expansion
        self.out = nn.Linear(inputs, 100)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.out(x.mean((2, 3))), labels)


class _DenseNet(nn.Module):
    """DenseNet-121: each layer reads what all layers before it in its block made."""

    def __init__(self, blocks: tuple[int, ...], growth: int) -> None:
        super().__init__()
        self.stem, width = _conv(3, 2 * growth, 7, 2), 2 * growth
        self.blocks, self.between = nn.ModuleList(), nn.ModuleList()
        for count in blocks:
            self.blocks.append(nn.ModuleList(self._layer(width + index * growth, growth) for index in range(count)))
            width += count * growth
            self.between.append(self._halved(width))
            width //= 2
        self.out = nn.Linear(width, 100)

    @staticmethod
    def _layer(inputs: int, growth: int) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    @staticmethod
    def _halved(inputs: int) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, inputs // 2, 1, bias=False))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
        for layers, between in zip(self.blocks, self.between):
            for layer in layers:  # type: ignore[union-attr]
                x = torch.cat([x, layer(x)], 1)
            x = F.avg_pool2d(between(x), 2)
        return F.cross_entropy(self.out(x.mean((2, 3))), labels)


class _UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, each level joined with its counterpart."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(self._pair(inputs, outputs) for inputs, outputs in zip([3, *widths], widths))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in widths[-2::-1])
        self.up = nn.ModuleList(self._pair(2 * size, size) for size in widths[-2::-1])
        self.out = nn.Conv2d(width, 5, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(_conv(inputs, outputs), nn.ReLU(), _conv(outputs, outputs), nn.ReLU())

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x, kept = images, []
        for level, pair in enumerate(self.down):
            x = pair(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for wider, pair, beside in zip(self.wider, self.up, kept[-2::-1]):
            x = pair(torch.cat([wider(x), beside], 1))
        return F.cross_entropy(self.out(x), labels)


# A recurrent network.


class _Speech(nn.Module):
    """Convolutions over a spectrogram, GRU cells in both directions, a letter for each time step."""

    def __init__(self, layers: int, width: int, bands: int) -> None:
        super().__init__()
        self.width, inputs = width, 8 * (bands // 4)
        self.convs = nn.Sequential(_conv(1, 8, 3, 2), nn.Hardtanh(0, 20), _conv(8, 8, 3, 2), nn.Hardtanh(0, 20))
        self.cells = nn.ModuleList(
            nn.ModuleList(nn.GRUCell(inputs if not layer else 2 * width, width) for _ in range(2))
            for layer in range(layers)
        )
        self.out = nn.Linear(2 * width, 30)

    def forward(self, sounds: Tensor, labels: Tensor) -> Tensor:
        x = self.convs(sounds).flatten(1, 2).transpose(1, 2)  # batch, time, features
        for cells in self.cells:
            there = self._run(cells[0], list(x.unbind(1)))  # type: ignore[index]
            back = self._run(cells[1], list(x.unbind(1))[::-1])[::-1]  # type: ignore[index]
            x = torch.cat([torch.stack(there, 1), torch.stack(back, 1)], 2)
        return F.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())

    def _run(self, cell: nn.Module, steps: list[Tensor]) -> list[Tensor]:
        state, states = steps[0].new_zeros(steps[0].shape[0], self.width), []
        for step in steps:
            state = cell(step, state)
            states.append(state)
        return states


def _words(limit: int, *shape: int) -> Tensor:
    return torch.randint(0, limit, shape)


def _images(batch: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, size, size), _words(100, batch)


MODELS: dict[str, Callable[[], Model]] = {
    "gpt": lambda: (GPT(6, 256, 256, 0.0), (_words(50, 4, 256), _words(50, 4, 256))),
    "bert": lambda: (_Bert(8, 256, 128, 2000), (_words(2000, 8, 128), _words(2000, 8, 128))),
    "vit": lambda: (_VisionTransformer(8, 256, 128, 8), _images(4, 128)),
    "llama": lambda: (_Llama(6, 256, 2000), (_words(2000, 2, 512), _words(2000, 2, 512))),
    "mixer": lambda: (_Mixer(8, 256, 128, 8), _images(4, 128)),
    "unet": lambda: (_UNet(16, 4), (torch.randn(4, 3, 96, 96), _words(5, 4, 96, 96))),
    "resnet18": lambda: (_ResNet((2, 2, 2, 2), 1), _images(8, 160)),
    "resnet50": lambda: (_ResNet((3, 4, 6, 3), 4), _images(8, 96)),
    "densenet": lambda: (_DenseNet((6, 12, 24, 16), 16), _images(8, 96)),
    "translation": lambda: (Translation(256), (_words(40, 32, 20), _words(40, 32, 20), _words(40, 32, 20))),
    "speech": lambda: (_Speech(2, 256, 64), (torch.randn(8, 1, 64, 96), _words(30, 8, 24))),
}
