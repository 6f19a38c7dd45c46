"""Variables of a Wave: their value for each object."""

import math
from collections.abc import Callable

from kwokfleet.api.wave import Scalar, Variable
from kwokfleet.render import distributions
from kwokfleet.render.seeded_random import SeededRandom


def drawer(variable: Variable, random: SeededRandom) -> Callable[[int], Scalar]:
    """Return a function from an object's index to the value of a variable."""
    if variable.cycle is not None:
        cycle = variable.cycle
        return lambda index: cycle[index % len(cycle)]
    if variable.choice is not None:
        choice, weights = variable.choice, variable.weights or (1.0,) * len(variable.choice)
        return lambda index: choice[random.choice(index, weights)]
    distribution = distributions.from_model(variable)
    if distribution is None:
        raise ValueError("the variable has no distribution")
    low = -math.inf if variable.min is None else variable.min
    high = math.inf if variable.max is None else variable.max

    def draw(index: int) -> Scalar:
        number = min(high, max(low, random.draw(index, distribution)))
        return round(number) if variable.integer else round(number, 3)

    return draw
