"""Due times of the objects of a Run."""

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwokfleet.api import wave as wave_api
from kwokfleet.render import arrivals
from kwokfleet.render.seeded_random import SeededRandom


def seconds(trace: Sequence[float] = (), **fields: Any) -> list[float]:  # noqa: ANN401  # any part of a file
    """Return the due times of a Wave's objects, in seconds."""
    wave = wave_api.Wave.model_validate({"name": "w", "template": {}, **fields})
    return [
        round(offset.total_seconds(), 3)
        for offset in islice(arrivals.arrival_offsets(wave, SeededRandom("x"), trace), 100_000)
    ]


def test_each_kind_of_arrivals_has_exact_due_times() -> None:
    """Also with a trace and its speed."""
    assert seconds(count=3) == [0, 0, 0]
    assert seconds() == [0]
    assert seconds(count=4, arrivals={"rate": "2/s"}) == [0, 0.5, 1, 1.5]
    assert seconds(count=5, arrivals={"burst": {"size": 2, "every": "3s"}}) == [0, 0, 3, 3, 6]
    assert seconds(duration="3s", arrivals={"rate": "1/s"}) == [0, 1, 2]
    assert seconds(duration="5s", arrivals={"steps": [{"rate": "1/s", "for": "2s"}, {"rate": "2/s", "for": "1s"}]}) == [
        0, 1, 2, 2.5, 3, 3.5, 4, 4.5,
    ]  # fmt: skip
    assert seconds([0.0, 2.0, 5.0], arrivals={"trace": {"file": "x", "speed": 2}}) == [0, 1, 2.5]


def test_the_rate_of_a_ramp_is_linear() -> None:
    """The number of objects is the integral of the rate; the last rate continues after the ramp."""
    offsets = seconds(duration="110s", arrivals={"ramp": {"from": "0.1/s", "to": "10/s", "over": "100s"}})
    assert len([offset for offset in offsets if offset < 50]) == pytest.approx((0.1 + 5.05) / 2 * 50, abs=1)
    assert len([offset for offset in offsets if offset < 100]) == pytest.approx((0.1 + 10) / 2 * 100, abs=1)
    assert len([offset for offset in offsets if offset >= 100]) == 100
    falling = seconds(duration="100s", arrivals={"ramp": {"from": "10/s", "to": "0.1/s", "over": "100s"}})
    assert len(falling) == pytest.approx(505, abs=1)


def test_poisson_arrivals_have_exponential_gaps() -> None:
    """Mean and variance are those of an exponential distribution."""
    offsets = seconds(count=20_000, arrivals={"poisson": "20/s"})
    gaps = [second - first for first, second in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.05, rel=0.03)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(0.05**2, rel=0.08)


def test_due_times_are_sorted() -> None:
    """For random, linear and burst arrivals."""
    for fields in (
        {"poisson": "5/s"},
        {"ramp": {"from": "9/s", "to": "1/s", "over": "20s"}},
        {"burst": {"size": 3, "every": "1s"}},
    ):
        offsets = seconds(count=500, arrivals=fields)
        assert offsets == sorted(offsets)
        assert len(offsets) == 500


def test_a_random_ramp_has_the_same_number_of_objects() -> None:
    """On average; the due times differ."""
    regular = seconds(duration="200s", arrivals={"ramp": {"from": "1/s", "to": "50/s", "over": "200s"}})
    random_offsets = seconds(
        duration="200s", arrivals={"ramp": {"from": "1/s", "to": "50/s", "over": "200s"}, "random": True}
    )
    assert len(random_offsets) == pytest.approx(len(regular), rel=0.06)
    assert random_offsets == sorted(random_offsets)
    assert random_offsets[:100] != regular[:100]


RATES = st.floats(0.01, 300, allow_subnormal=False)
ARRIVALS = st.one_of(
    st.none(),
    RATES.map(lambda rate: {"rate": f"{rate:.4f}/s"}),
    RATES.map(lambda rate: {"poisson": f"{rate:.4f}/s"}),
    st.just({"burst": {"size": 7, "every": "1s"}}),
    st.just({"trace": {"file": "a.csv", "speed": 2}}),
)


@given(
    ARRIVALS,
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 9).map("{}s".format),
    st.lists(st.integers(0, 30), max_size=20),
)
def test_object_count_is_the_number_of_due_times(
    arrivals_fields: dict[str, Any] | None, count: int | None, duration: str | None, recorded: list[int]
) -> None:
    """A Run is done when all of them are submitted."""
    all_fields = {"arrivals": arrivals_fields, "count": count, "duration": duration}
    fields = {name: value for name, value in all_fields.items() if value is not None}
    wave = wave_api.Wave.model_validate({"name": "w", "template": {}, **fields})
    trace = sorted(float(second) for second in recorded)
    assert arrivals.object_count(wave, SeededRandom("x"), trace) == sum(
        1 for _ in arrivals.arrival_offsets(wave, SeededRandom("x"), trace)
    )
