"""Profiles as files: written, read, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest

import echo
from echo.errors import GraphError
from echo.report.profile import Profile
from tests.support.cases import any_case

pytestmark = pytest.mark.usefixtures("cheap_planning")


@pytest.fixture
def profile() -> Profile:
    case = any_case("dropout")
    shapes = dict(zip(case.symbol.list_arguments(), case.binding.arg_shapes))
    grad_req = dict(zip(case.symbol.list_arguments(), case.binding.grad_req))
    made: Profile = echo.profile(case.symbol, compare=("echo", "mirror"), grad_req=grad_req, **shapes)
    return made


def test_a_file_and_back(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile.save(path)
    again = Profile.load(path)
    assert again == profile
    assert list(again.usages) == ["stock", "echo", "mirror"]
    assert str(again) == str(profile)
    assert set(again.versions) == {"echo", "mxnet", "numpy", "python"}


def _without(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for key in keys[:-1]:
            value = value[key]
        del value[keys[-1]]

    return change


def _with(new: Any, *keys: str) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = new

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with("echo-profile-0", "format"), "expected format echo-profile-1, got 'echo-profile-0'"),
        (_without("format"), "not a profile"),
        (_without("usages", "stock"), "expected the usage 'stock', got echo, mirror"),
        (_without("usages", "echo", "planned"), "it lacks 'planned'"),
        (_with(-1, "usages", "echo", "planned"), "planned: expected a number of bytes, got -1"),
        (_with(True, "usages", "echo", "planned"), "planned: expected a number of bytes, got True"),
        (_with({"x": 0.5}, "usages", "echo", "beside"), "beside x: expected a number of bytes"),
        (_with([1], "usages", "echo", "steps"), "steps: expected names"),
        (_with([], "usages", "echo", "steps"), "expected bytes and steps of 0"),
        (_with([1], "usages", "echo", "tensors", "bytes"), "not a profile"),
        (_with({}, "plan"), "not a plan"),
        (_with([], "usages"), "not a profile"),
    ],
)
def test_damaged_files(change: Callable[[Any], None], message: str, profile: Profile, tmp_path: Path) -> None:
    value = profile.to_json()
    change(value)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(GraphError, match="is not a profile") as raised:
        Profile.load(path)
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"format": 1}', "{"])
def test_file_without_profile_raises_graph_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GraphError, match="is not a profile"):
        Profile.load(path)


def test_a_folder_and_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(OSError, match=path.name):
            Profile.load(path)
