"""The rules of the soak: they let what is steady pass, and nothing else."""

from dataclasses import replace

import pytest

from tests.soak import samples

STEADY = samples.Sample(
    at_s=0, shards=1, nodes=30, fds=12, connections=20, threads=5, children=1, rss_mb=70, kwok_mb=55, leases=30
)
MANY = [replace(STEADY, at_s=float(number), shards=1 + number % 3, children=1 + number % 3) for number in range(100)]


def test_what_is_steady_is_well() -> None:
    """Also if the number of shards changes all the time."""
    assert samples.verdict(MANY) == []


@pytest.mark.parametrize(
    ("field", "step"), [("fds", 1), ("threads", 1), ("rss_mb", 10), ("kwok_mb", 10), ("children", 1), ("leases", 1)]
)
def test_what_grows_is_not(field: str, step: int) -> None:
    """One more after half of the time is enough; of memory, more than a tenth."""
    grown = [replace(each, **{field: getattr(each, field) + step * (number >= 50)}) for number, each in enumerate(MANY)]
    assert samples.verdict(grown)


def test_few_samples_prove_nothing() -> None:
    """A soak that was too short has not passed."""
    assert samples.verdict(MANY[:10])
