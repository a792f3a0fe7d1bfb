"""The fixtures that all packages' tests share."""

pytest_plugins = ["routecap_testing.fixtures"]
