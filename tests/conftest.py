"""For all tests: ``pytester``, with which the pytest plugin's own tests make projects to run."""

pytest_plugins = ["pytester"]
