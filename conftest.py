"""Settings for every test and every notebook."""


def pytest_collection_modifyitems(items):
    """nbval waits 5 s for a cell's output once the cell is done; a busy machine needs more."""
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = 120
