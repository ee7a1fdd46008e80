"""The sizes that others published."""

from __future__ import annotations

from benchmarks.gpu_sizes import DEEPBENCH_GRU, DEEPBENCH_LSTM, FLASHRNN, Loss, Recurrent, Scores, Sizes


def test_deepbench_sizes_are_those_published() -> None:
    assert len(set(DEEPBENCH_LSTM)) == len(DEEPBENCH_LSTM) == 22
    assert len(set(DEEPBENCH_GRU)) == len(DEEPBENCH_GRU) == 19
    for size in (Recurrent(512, 16, 25), Recurrent(4096, 128, 25), Recurrent(1536, 8, 50), Recurrent(256, 64, 150)):
        assert size in DEEPBENCH_LSTM
    for size in (Recurrent(2816, 32, 1500), Recurrent(512, 32, 1), Recurrent(1024, 64, 1500), Recurrent(1536, 32, 187)):
        assert size in DEEPBENCH_GRU


def test_flashrnn_sizes_are_those_published() -> None:
    assert {size.heads * size.hidden for size in FLASHRNN} == {768}
    assert {(size.batch, size.steps) for size in FLASHRNN} == {(16, 1024)}
    assert [size.heads for size in FLASHRNN] == [1, 3, 6, 12, 24, 48]


def test_our_own() -> None:
    sizes = Sizes()
    assert set(sizes.routes) == {Recurrent(h, b, 50) for h in (256, 512, 1024) for b in (16, 64, 256)}
    assert sizes.repetitions == 20
    assert sizes.scores == (Scores(256, 38, 37, 1024),)
    assert len(set(sizes.losses)) == len(sizes.losses) == 18


def test_sizes_print_their_dimensions() -> None:
    assert str(Recurrent(16, 2, 3)) == "H=16 B=2 T=3"
    assert str(Recurrent(16, 2, 3, 4)) == "H=16 x 4 B=2 T=3"
    assert str(Loss(1, 2, 3)) == "N=1 I=2 V=3"
