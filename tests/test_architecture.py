"""ARCHITECTURE.md is true: its picture is drawn from the imports, and the files and names that it mentions are there.

``python -m tests.test_architecture`` draws the picture again. Tests stand where the modules do that they test, and keep
their hands off what is private in another room. State of the process is in the modules that are listed here.
"""

from __future__ import annotations

import ast
import functools
import importlib
import logging
import operator
import re
import types
from pathlib import Path
from typing import Iterator, TypeVar

import grimp
import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "ARCHITECTURE.md"
_PICTURE = re.compile(r"```mermaid\n.*?```", re.DOTALL)
_NAME = re.compile(r"`(echo(?:\.\w+)+)`")
_FILE = r"(?:echo|fuzz)/[\w/]+\.(?:py|cc|h)"


def picture() -> str:
    """The rooms, each with an arrow to those that it imports, but for arrows that follow from others."""
    imports = grimp.build_graph("echo", exclude_type_checking_imports=True, cache_dir=None)
    rooms: nx.DiGraph = nx.DiGraph()
    for module in imports.modules - {"echo"}:
        for imported in imports.find_modules_directly_imported_by(module) - {"echo"}:
            one, other = module.split(".")[1], imported.split(".")[1]
            if one != other and one != "__main__":
                rooms.add_edge(one, other)
    lines = sorted(f"  {one} --> {other}" for one, other in nx.transitive_reduction(rooms).edges)
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def test_the_picture_shows_the_imports() -> None:
    assert _PICTURE.findall(text()) == [picture()], "python -m tests.test_architecture draws it"


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_are_there(document: str) -> None:
    said = (ROOT / document).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:echo|tests|benchmarks|fuzz|projects|examples|startup)/[\w./]*)`", said))
    paths |= set(re.findall(r"\]\(((?!http)[\w./]+)\)", said))
    paths = {path for path in paths if "NAME" not in path and "FILE" not in path}
    assert len(paths) > 8
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_dotted_names_are_there() -> None:
    names = set(_NAME.findall(text()))
    assert names
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ImportError:
            assert hasattr(importlib.import_module(module), attribute), name


def named_in_files() -> set[tuple[str, str]]:
    """The files, each with a name that ARCHITECTURE.md puts in it: `` `file` (`name`) ``, or `` `name` (`file`) ``."""
    found = {(file, name) for file, names in re.findall(rf"`({_FILE})` \(([^()]*)\)", text())
             for name in re.findall(r"`(?:\w+[.:]+)?(\w+)`", names)}  # fmt: skip
    return found | {(file, name) for name, file in re.findall(rf"`(\w+)` \(`({_FILE})`", text())}


def test_names_are_in_the_files_that_the_map_names() -> None:
    found = named_in_files()
    assert len(found) > 50
    missing = [(file, name) for file, name in found if not re.search(rf"\b{name}\b", (ROOT / file).read_text("utf-8"))]
    assert not missing


# Tests -------------------------------------------------------------------------------------------------------------


def does_something(module: ast.Module) -> bool:
    """Whether a module has a function with more in it than words: data and protocols need no test of their own."""
    functions = (node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.Lambda)))
    bodies = (node.body if isinstance(node.body, list) else [node.body] for node in functions)
    return any(not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)) for body in bodies
               for each in body)  # fmt: skip


def mirrored(module: Path) -> list[Path]:
    """``tests/ROOM/test_NAME.py`` and ``tests/ROOM/test_NAME_*.py`` of ``echo/ROOM/NAME.py``."""
    folder = ROOT / "tests" / module.parent.relative_to(ROOT / "echo")
    return [*folder.glob(f"test_{module.stem}.py"), *folder.glob(f"test_{module.stem}_*.py")]


MODULES = [path for path in sorted((ROOT / "echo").rglob("*.py")) if not path.name.startswith("__")]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_tests_at_the_same_path(module: Path) -> None:
    if does_something(ast.parse(module.read_text(encoding="utf-8"))):
        tests = mirrored(module)
        assert tests, f"expected its tests in tests/{module.parent.relative_to(ROOT / 'echo')}/test_{module.name}"
        assert all("def test_" in test.read_text(encoding="utf-8") for test in tests)


def patched(test: Path) -> Iterator[str]:
    """The private names of echo that a file patches, as ``echo.ROOM.MODULE._NAME``."""
    tree = ast.parse(test.read_text(encoding="utf-8"))
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            known.update({alias.asname: alias.name for alias in node.names if alias.asname})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            what = [ast.unparse(argument) for argument in node.args[:2]]
            if what[0].startswith(("'", '"')):
                found = ast.literal_eval(what[0])
            else:
                first, _, rest = what[0].partition(".")
                found = ".".join(filter(None, (known.get(first, first), rest, what[1].strip("'\""))))
            if re.match(r"echo\..*\b_[a-z]\w*(?!_)$", found, re.IGNORECASE):
                yield found


@pytest.mark.parametrize("test", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: path.stem)
def test_private_names_are_patched_in_their_own_room_alone(test: Path) -> None:
    parts = test.relative_to(ROOT / "tests").parts
    room = parts[0] if len(parts) > 1 else test.stem[len("test_") :]
    assert [name for name in patched(test) if name.split(".")[1] != room] == []


def test_files_of_tests_have_at_most_400_lines() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100
    assert [str(path.relative_to(ROOT)) for path in files if path.read_text(encoding="utf-8").count("\n") > 400] == []


def test_names_of_tests_have_a_subject_and_more_than_one_word() -> None:
    """As far as that can be seen: no clause instead of a key, and more than one word."""
    vague = re.compile(r"^ *def (test_(?:what_\w+|[^\W_]+))\(", re.MULTILINE)
    assert vague.findall("def test_what_fails() -> None:\n    def test_gluon(") == ["test_what_fails", "test_gluon"]
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = {str(path.relative_to(ROOT)): vague.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


# Rows of registries, each a file, and files that hold one thing which others need without the rest.
ROWS = ("echo/cli", "echo/passes/patterns", "echo/policies")
SMALL = {
    "echo/pipeline.py": "the list of stages, to read first",
    "echo/runtime/patches.py": "everything that replaces a function of MXNet's goes through it",
}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def test_files_and_functions_have_a_size_to_work_in() -> None:
    long_files, short_files, long_functions = [], [], []
    for path in MODULES:
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        lines = text.count("\n")
        if lines > 400:
            long_files.append(name)
        if lines < 60 and path.parent.relative_to(ROOT).as_posix() not in ROWS:
            short_files.append(name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and lines_of(node) > 40:
                long_functions.append(f"{name}: {node.name}")
    assert (long_files, sorted(short_files), long_functions) == ([], sorted(SMALL), [])


def test_functions_of_packages_have_a_size_to_work_in() -> None:
    """Each option is a line of a signature in `echo`, and a line of its help: bodies count, without docstrings."""
    found = []
    for path in (path for path in WITH_PACKAGES if path.name == "__init__.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and (body[-1].end_lineno or 0) - body[0].lineno >= 40:
                    found.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert found == []


# State -------------------------------------------------------------------------------------------------------------

# The modules with state that outlives a call, and its purpose. State of one call is passed on; state of a thread for a
# while is a `PerThread`; messages that are logged once go through `ONCE`, which each test finds empty; replacements in
# MXNet go through `PATCHES`.
STATE = {
    "echo/cli/program.py": "arguments and the hook for errors, as the user's program finds them",
    "echo/cli/run.py": "the ECHO_* variables of the user's program",
    "echo/compat.py": "the module distutils, which MXNet imports and newer Pythons lack",
    "echo/estimators/cost_table.py": "tables as they stand in files, each with the state of its file when it was read",
    "echo/frontend/measurement_process.py": "belongs to the thread: the process that measures operators for it",
    "echo/frontend/mxnet_settings.py": "MXNet's variables and a flag, which threads share: locks, and how many have it "
    "off; belongs to the thread: that its operators draw from one space",
    "echo/frontend/install.py": "it is installed once: a lock; MXNet is marked by the copy of echo that works on it",
    "echo/native/__init__.py": "the library whose functions MXNet calls; belongs to the thread: its captures",
    "echo/passes/pass_manager.py": "belongs to the thread: the folder for the dumps of its stages",
    "echo/plans/options.py": "policies of users, by which keys of plans tell them apart",
    "echo/runtime/gluon.py": "whether the process trains by Gluon, and by hybridized blocks; belongs to the thread: "
    "the policy of the block whose CachedOps it makes",
    "echo/runtime/bind_plan.py": "the planner of the process, which remembers plans and says how many there were",
    "echo/runtime/peak_prediction.py": "the predicted peak of the process, and what was seen of it",
    "echo/runtime/patches.py": "MXNet's functions that it replaces by echo's, and the policy of transparent mode",
    "echo/instrument/recording.py": "MXNet's functions that end a step: it wraps them once mxnet is imported",
    "echo/startup.py": "Python's finders of modules; values of ECHO that make no sense and were told",
    "echo/torch/timing.py": "seconds and scratch memory of operators, which stay the same while a process lives",
    "echo/torch/planner.py": "schedules that earlier searches ended with: a named least is met when it is asked for",
    "echo/system/process.py": "whether Python's search for garbage is off, for a forked child",
    "echo/system/threads.py": "locks, for forks and their children; logged messages; whose binds a thread makes",
}
# Functions whose results are kept, and why these stay true: they follow from the arguments, or from what is loaded.
CACHES = {
    "echo.frontend.mxnet_settings.silenced": "changes MXNet's library once; whether that was done",
    "echo.frontend.plan_key._gpu": "the GPUs, drivers and libraries of a process stay the same",
    "echo.frontend.install.extension_blocker": "loads the operators into MXNet, once",
    "echo.frontend.install.device_blocker": "whether those that were loaded run on a device",
    "echo.frontend.derived_graphs._facts": "of an operator of MXNet's",
    "echo.frontend.install.onednn_activations": "of this MXNet",
    "echo.frontend.install.onednn_norms": "of this MXNet",
    "echo.frontend.symbols.type_name": "of a type",
    "echo.ir.op_spec._parsed": "of a text",
    "echo.ir.ops._is_named_as_drawing": "of a text",
    "echo.ir.training_node.tensor_type": "of a shape and a flag",
    "echo.kernels.library.kernels_library": "a native library, loaded once",
    "echo.kernels.library._function": "of a native library",
    "echo.meter.timer._counts_finely": "of this machine's clock",
    "echo.native._capture_functions": "of a native library",
    "echo.native._keep_unfused": "of a native library",
    "echo.native._load": "a native library, loaded once",
    "echo.native.planner_library": "a native library, loaded once",
    "echo.planning.plan_cache._source": "of echo's own files",
    "echo.verify.storage.counting_blocker": "of this MXNet and its native library",
    "echo.verify.compare._size": "installs a native library's way into MXNet, once",
    "echo.verify.compare.random_state_blocker": "of this MXNet and that library",
    "echo.runtime.backward_checks._library": "a native library, loaded once",
    "echo.report.pages._scripts": "of the version of a package",
    "echo.system.process.processor": "the processor of a machine stays the same",
}
WITH_PACKAGES = [path for path in sorted((ROOT / "echo").rglob("*.py")) if path.name != "__main__.py"]
TORCH_ROOM = ROOT / "echo" / "torch"  # imports torch, which is there in another environment: tests/torch/test_state.py
IMPORTABLE = [path for path in WITH_PACKAGES if TORCH_ROOM not in path.parents]
_CHANGING = ("add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update")
_TABLES = (dict, list, set)  # constants as long as nothing changes them
_CONSTANTS = (
    str, bytes, int, float, type(None), tuple, frozenset, type, types.FunctionType, types.MappingProxyType, re.Pattern,
    logging.Logger, TypeVar, Path, operator.attrgetter, functools._lru_cache_wrapper,
)  # fmt: skip


def is_constant(value: object) -> bool:
    frozen = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, _CONSTANTS) or bool(frozen and frozen.frozen)


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module gives values to, with the values' code."""
    inner = [each for node in tree.body if isinstance(node, ast.If) for each in (*node.body, *node.orelse)]
    for node in (*tree.body, *inner):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
            yield from ((name.id, node.value) for name in names)


def changed(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """The names outside of a function that it changes: by ``global``, an item, an attribute, or a method."""
    nodes = list(ast.walk(function))
    inside = {node.arg for node in nodes if isinstance(node, ast.arg)}
    inside |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    outside: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Global):
            inside.difference_update(node.names)
            outside.update(node.names)
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            outside.add(root(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            outside.add(root(node.func))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            outside.add(root(node.args[0]))
    return outside - inside


def root(node: ast.expr) -> str:
    """The name that an expression such as ``a.b[c].d`` begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def imported_from(path: Path) -> types.ModuleType:
    """The module of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def state_of(module: Path) -> set[str]:
    """The names of what holds state in a module: its own values that may change, and others' that it changes."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    values = vars(imported_from(module))
    own = dict(assigned(tree))
    imported = {(alias.asname or alias.name).partition(".")[0] for node in ast.walk(tree)
                if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}  # fmt: skip
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda)))
    state = set().union(*map(changed, functions)) & (own.keys() | imported)
    state |= {name.id for name in ast.walk(tree) if isinstance(name, ast.Name) and name.id in ("setattr", "delattr")}
    for name, code in own.items():
        value = values.get(name)
        if isinstance(value, _TABLES):
            state |= {name} if not ast.unparse(code).strip("[]{}") or ast.unparse(code) == "set()" else set()
        elif not is_constant(value) and isinstance(code, ast.Call):
            state.add(name)
    return state


def test_state_of_the_process_is_where_it_is_known_to_be() -> None:
    found = {str(path.relative_to(ROOT)): state_of(path) for path in IMPORTABLE}
    found = {path: state for path, state in found.items() if state}
    assert {path: found[path] for path in found.keys() - STATE} == {}, "more state: see STATE for what it is good for"
    assert sorted(path for path in STATE.keys() - found.keys() if not path.startswith("echo/torch/")) == []


def test_results_are_kept_where_they_stay_true() -> None:
    found = set()
    for module in map(imported_from, IMPORTABLE):
        kept = {value for value in vars(module).values() if isinstance(value, functools._lru_cache_wrapper)}
        found |= {f"{module.__name__}.{value.__name__}" for value in kept if value.__module__ == module.__name__}
    assert found == CACHES.keys()


@pytest.mark.parametrize("line", [
    "global TABLE; TABLE = 1", "TABLE[0] = 1", "TABLE[0] += 1", "del TABLE[0]", "TABLE.field = 1", "TABLE.field[0] = 1",
    "TABLE.append(1)", "TABLE.field.update(a=1)", "setattr(TABLE, 'field', 1)",
])  # fmt: skip
def test_a_change_is_seen(line: str) -> None:
    (function,) = ast.parse(f"def f(own):\n    own.append(1); more = []; more[0] = TABLE[0]; {line}").body
    assert isinstance(function, ast.FunctionDef)
    assert changed(function) == {"TABLE"}


if __name__ == "__main__":
    DOCUMENT.write_text(_PICTURE.sub(lambda _: picture(), text()), encoding="utf-8")
