"""Settings for the unit tests."""

import matplotlib
import pytest
from hypothesis import settings

matplotlib.use("Agg")  # figures are drawn, never shown

# A slow machine is no failure; the same examples each time, so that a failure can be repeated.
settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")


@pytest.fixture(scope="module")
def browser():
    """A Chromium for the tests of one file that read the book."""
    from browser import chromium

    with chromium() as found:
        yield found
