"""Error policies: which failure raises, which costs a warning, and what the user gets in its place."""

from __future__ import annotations

import logging
from typing import Any, Callable

import pytest

from echo.errors import BudgetError, EchoError, GraphError, LeftAloneError, OptionError, PlanError, TimeLimitError
from echo.plans.options import Options
from echo.runtime.error_policy import NeverStopTraining, RaiseUnmetRequests, first_bindable

WISHES = [
    BudgetError(10, 20, "weights"),
    OptionError("no such thing"),
    PlanError("another graph"),
    TimeLimitError(0.1, 0.9, 7),
]
FAULTS = [GraphError("malformed"), RuntimeError("surprise")]


def failing(error: Exception, until: Callable[[Options], bool] = lambda _: False) -> Callable[[Options], Any]:
    """An action that fails up to options for which ``until`` holds, which are its result."""

    def action(options: Options) -> Options:
        if until(options):
            return options
        raise error

    return action


def transparent(**options: Any) -> tuple[NeverStopTraining, list[str]]:
    told: list[str] = []
    return NeverStopTraining(Options(**options), told.append), told


@pytest.mark.parametrize("error", WISHES, ids=lambda error: type(error).__name__)
def test_optimize_raises_what_the_user_wished_for(error: Exception) -> None:
    with pytest.raises(type(error)):
        RaiseUnmetRequests(Options())(failing(error), lambda: "stock")


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_optimize_warns_of_faults(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "echo"):
        assert RaiseUnmetRequests(Options())(failing(error), lambda: "stock") == "stock"
    (record,) = caplog.records
    assert f"bound without a plan (strict=True raises): {type(error).__name__}: {error}" in record.getMessage()


def test_graph_that_is_left_alone_is_bound_quietly(caplog: pytest.LogCaptureFixture) -> None:
    error = LeftAloneError("MXNet binds _foreach only with the arrays of a call")
    policy, told = transparent()
    with caplog.at_level(logging.INFO, "echo"):
        for on_error in (RaiseUnmetRequests(Options()), policy):
            assert on_error(failing(error), lambda: "stock") == "stock"
    assert {record.getMessage() for record in caplog.records} == {f"echo: bound as it is: {error}"}
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert not told
    with pytest.raises(LeftAloneError):
        RaiseUnmetRequests(Options(strict=True))(failing(error), lambda: "stock")


@pytest.mark.parametrize("error", WISHES + FAULTS, ids=lambda error: type(error).__name__)
def test_strict_policy_raises_every_error(error: Exception) -> None:
    optimize = RaiseUnmetRequests(Options(strict=True))
    for policy in (optimize, optimize.later, transparent(strict=True)[0]):
        with pytest.raises(type(error)):
            policy(failing(error), lambda: "stock")


def test_later_the_nearest_plan_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    later = RaiseUnmetRequests(Options(memory_budget=10)).later
    within = failing(BudgetError(10, 20, "weights"), lambda options: options.memory_budget == 20)
    with caplog.at_level(logging.WARNING, "echo"):
        assert later(within, lambda: Options()).memory_budget == 20
    assert "The smallest plan is used" in caplog.text
    with pytest.raises(OptionError):
        later(failing(OptionError("no such thing")), lambda: "stock")


def test_a_budget_that_moves_away_is_given_up() -> None:
    """Aiming at the least that could be reached, the search came out somewhere else."""
    policy, told = transparent(memory_budget=10, max_overhead=0.2)
    found = policy(failing(BudgetError(10, 20, "w"), lambda options: options.memory_budget is None), lambda: Options())
    assert (found.memory_budget, found.max_overhead) == (None, 0.2)
    assert len(told) == 1


@pytest.mark.parametrize("budget_first", [True, False])
def test_budget_and_bound_that_are_both_out_of_reach_leave_the_smallest_of_the_fastest(budget_first: bool) -> None:
    policy, told = transparent(memory_budget=10, max_time=0.5)
    errors = [BudgetError(10, 20, "weights"), TimeLimitError(0.5, 1.0, 30)]

    def action(options: Options) -> Options:
        unmet = [options.memory_budget == 10, options.max_time == 0.5]
        for error, is_unmet in zip(errors, unmet) if budget_first else reversed(list(zip(errors, unmet))):
            if is_unmet:
                raise error
        return options

    found = policy(action, lambda: Options())
    assert (found.memory_budget, found.max_time) == (20, 1.0)
    assert [text.rpartition(". ")[2] for text in told] == [
        *["The smallest plan is used."] * budget_first,
        "The fastest plan is used.",
        *["The smallest plan is used."] * (not budget_first),
    ]


def test_option_is_named_by_the_variable_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_KEEP", "nothing")
    policy, said = transparent()
    policy(failing(OptionError("keep: 'nothing' matches no node")), lambda: "original")
    assert said[0].startswith("echo: bound without a plan: OptionError: ECHO_KEEP: 'nothing' matches no node")


def test_option_is_named_by_the_variable_under_strict_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_KEEP", "nothing")
    policy, _ = transparent(strict=True)
    with pytest.raises(OptionError, match=r"^ECHO_KEEP: 'nothing' matches no node"):
        policy(failing(OptionError("keep: 'nothing' matches no node")), lambda: "original")


def test_plans_for_something_else_are_made_again() -> None:
    policy, told = transparent(plan=())
    object.__setattr__(policy.options, "plan", ("given",))
    assert policy(failing(PlanError("another graph"), lambda options: not options.plan), lambda: None).plan == ()
    assert told == ["echo: another graph. A new plan is made."]


@pytest.mark.parametrize("error", [OptionError("no such thing"), *FAULTS], ids=lambda error: type(error).__name__)
def test_transparent_mode_never_stops_a_training(error: Exception) -> None:
    policy, told = transparent()
    assert policy.later is policy
    assert policy(failing(error), lambda: "stock") == "stock"
    (text,) = told
    assert text.startswith(f"echo: bound without a plan: {type(error).__name__}: {error}.")
    assert ("please report it" in text) == (error in FAULTS)


@pytest.mark.parametrize("policy", [RaiseUnmetRequests(Options()), transparent()[0]], ids=["optimize", "ECHO=1"])
def test_an_error_of_the_call_itself_is_mxnets(policy: Any) -> None:
    """Where the stock graph fails, too, its error is the one that the user sees, and nothing is said of plans."""

    def stock() -> None:
        raise ValueError("no such argument")

    with pytest.raises(ValueError, match="no such argument"):
        policy(failing(EchoError("anything")), stock)


# Graphs that MXNet refuses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "expected", "said"),
    [("", "planned", ""), ("planned", "unfused", "runs without fused operators: ValueError: planned. "),
     ("planned unfused", "stock", "runs without a plan: ValueError: planned. ")],
)  # fmt: skip
def test_the_next_best_runs(refused: str, expected: str, said: str) -> None:
    policy, told = transparent()
    result, choice = first_bindable("planned", refusing(refused), lambda: "unfused", "stock", policy, "runs")
    assert (result, choice) == (expected.upper(), expected)
    assert [text.startswith(f"echo: {said}") for text in told] == [True] * bool(said)


@pytest.mark.parametrize("unfused", [lambda: "stock", lambda: 1 // 0], ids=["none", "cannot be planned"])
def test_refused_plan_without_unfused_one_runs_the_users_graph(unfused: Callable[[], str]) -> None:
    policy, told = transparent()
    assert first_bindable("planned", refusing("planned"), unfused, "stock", policy, "bound") == ("STOCK", "stock")
    assert len(told) == 1


def test_wrong_call_raises_without_a_word_on_plans() -> None:
    policy, told = transparent()
    for choice in ("planned", "stock"):
        with pytest.raises(ValueError, match="stock"):
            first_bindable(choice, refusing("planned unfused stock"), lambda: "unfused", "stock", policy, "bound")
    assert told == []


def test_strict_policy_raises_mxnets_refusal() -> None:
    policy, _ = transparent(strict=True)
    with pytest.raises(ValueError, match="planned"):
        first_bindable("planned", refusing("planned"), lambda: "unfused", "stock", policy, "bound")


def refusing(choices: str) -> Callable[[str], str]:
    def run(choice: str) -> str:
        if choice in choices.split():
            raise ValueError(choice)
        return choice.upper()

    return run


def test_unreachable_bound_on_time_gets_the_fastest_plan() -> None:
    error = TimeLimitError(0.1, 0.9, 7)
    policy, told = transparent(max_time=0.1)
    assert policy(failing(error, lambda options: options.max_time == 0.9), lambda: Options()).max_time == 0.9
    assert told == [f"echo: {error}. The fastest plan is used."]


def test_fastest_plan_that_is_slower_by_now_gets_no_bound_on_the_step() -> None:
    policy, told = transparent(max_time=0.1)
    within = failing(TimeLimitError(0.1, 0.9, 7), lambda options: options.max_time is None)
    assert policy(within, lambda: Options()).max_overhead == 0
    assert len(told) == 1
