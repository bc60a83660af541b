"""What the recorded runs run under."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(autouse=True, scope="module")
def unchecked_shapes() -> Iterator[None]:
    """Switches the checks of tensor shapes off, which take most of the time of these tests.

    The unit tests run the same code with them.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
