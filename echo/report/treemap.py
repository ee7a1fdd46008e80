"""The bytes that are held at the peak as nested areas: layers, and in each layer kinds of arrays."""

from __future__ import annotations

from collections import Counter
from typing import Any, Mapping

from echo.report.charts import KIND_COLORS, WIDTH, megabytes, scale
from echo.report.usage import Layer, Usage, layer_of

_SCHEMA = "https://vega.github.io/schema/vega/v6.json"
_MOST_LAYERS = 60
_HEIGHT, _LEAST_HEIGHT = 380, 24  # pixels
_CELLS = {
    "type": "rect",
    "from": {"data": "leaves"},
    "encode": {
        "enter": {
            "fill": {"scale": "color", "field": "kind"},
            "stroke": {"value": "#ffffff"},
            "tooltip": {"signal": "{layer: datum.layer, kind: datum.kind, MB: format(datum.mb, ',.1f')}"},
        },
        "update": {"x": {"field": "x0"}, "y": {"field": "y0"}, "x2": {"field": "x1"}, "y2": {"field": "y1"}},
    },
}
_LABELS = {
    "type": "text",
    "from": {"data": "layers"},
    "interactive": False,
    "encode": {
        "update": {
            "x": {"signal": "datum.x0 + 4"},
            "y": {"signal": "datum.y0 + 12"},
            "fill": {"value": "#ffffff"},
            "fontSize": {"value": 11},
            "fontWeight": {"value": "bold"},
            "text": {
                "signal": "datum.y1 - datum.y0 < 16 ? '' : datum.layer + '  ' + format(datum.total, ',.1f') + ' MB'"
            },
            "limit": {"signal": "datum.x1 - datum.x0 - 6"},
        }
    },
}


def _tree(usage: Usage, layer: Layer) -> list[dict[str, Any]]:
    sizes = usage.layers(layer)
    shown = set(sorted(sizes, key=lambda name: -sizes[name])[:_MOST_LAYERS])
    leaves: dict[tuple[str, str], int] = {}
    for (name, kind), size in usage.by_layer(layer).items():
        leaf = name if name in shown else f"{len(sizes) - len(shown)} more layers", kind
        leaves[leaf] = leaves.get(leaf, 0) + size
    totals: Counter[str] = Counter()
    for (name, _), size in leaves.items():
        totals[name] += size
    parents = dict.fromkeys(name for name, _ in leaves)
    return [
        {"id": "all", "parent": ""},
        *(
            {"id": f"layer {name}", "parent": "all", "layer": name, "total": megabytes(totals[name])}
            for name in parents
        ),
        *(
            {"id": f"{kind} of {name}", "parent": f"layer {name}", "layer": name, "kind": kind, "mb": megabytes(size)}
            for (name, kind), size in leaves.items()
        ),
    ]


def treemap(usage: Usage, layer: Layer = layer_of, most: int = 0) -> Mapping[str, Any]:
    """Returns a Vega specification of the bytes at the peak: an area for each layer, and in it one for each kind.

    ``most`` are the bytes of the largest graph that is drawn next to it: the same area then is the same memory.
    """
    total = sum(usage.layers(layer).values())
    names = list(dict.fromkeys(kind for _, kind in usage.by_layer(layer)))
    squares = {
        "type": "treemap",
        "field": "mb",
        "sort": {"field": "value", "order": "descending"},
        "round": True,
        "paddingInner": 1,
        "size": [{"signal": "width"}, {"signal": "height"}],
    }
    stratify = {"type": "stratify", "key": "id", "parentKey": "parent"}
    return {
        "$schema": _SCHEMA,
        "width": WIDTH,
        "height": max(round(_HEIGHT * min(total / most, 1)), _LEAST_HEIGHT) if most else _HEIGHT,
        "data": [
            {"name": "tree", "values": _tree(usage, layer), "transform": [stratify, squares]},
            {"name": "leaves", "source": "tree", "transform": [{"type": "filter", "expr": "!!datum.kind"}]},
            {"name": "layers", "source": "tree", "transform": [{"type": "filter", "expr": "datum.depth == 1"}]},
        ],
        "scales": [{"name": "color", "type": "ordinal", **scale(KIND_COLORS, names)}],
        "legends": [{"fill": "color", "orient": "bottom", "columns": 3, "symbolType": "square"}],
        "marks": [_CELLS, _LABELS],
    }
