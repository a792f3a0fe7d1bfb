"""The settings of a Capturer that are switches."""

# Generated from the headers: run python3 dev/generate. Do not edit.

from typing import TypedDict


class Switches(TypedDict, total=False):
    """Settings that are switches, all off by default."""

    compare: bool
    """If a row is issued again, compare it with the row that is kept; see stats.rows_mismatched."""
    external_sink: bool
    """Allocate no sink: you bind memory to each layer by routecap_sink_bind. The cells of a layer
    without memory are missing.
    """
    manual_progress: bool
    """Start no worker thread: calls of the caller file the steps; see routecap_capturer_progress.
    """
    may_lose: bool
    """Host backend: if config.slots steps are in flight, the next one is lost, as on a device.
    Without the flag begin files the oldest step instead.
    """
    checked: bool
    """Checked mode, for development: mistakes in the order of calls are errors
    (ROUTECAP_ERR_NOT_BEGUN to ROUTECAP_ERR_TWO_THREADS). ROUTECAP_CHECKED=1 in the environment does
    the same.
    """
    load: bool
    """Count how often each expert was chosen; see load.h."""
