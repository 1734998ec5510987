"""Settings for the unit tests."""

import matplotlib
from hypothesis import settings

matplotlib.use("Agg")  # figures are drawn, never shown

# A slow machine is no failure; the same examples each time, so that a failure can be repeated.
settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")
