"""What the tests of the Python packages share: settings, steps with known ids, models' published
configurations, a pretended server, a scraper of metrics.

The tests find it by `pythonpath` in the pytest settings of their pyproject.toml. `fixtures` is for a
conftest.py.
"""
