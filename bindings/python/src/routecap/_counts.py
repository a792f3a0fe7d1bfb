"""What is counted."""

# Generated from the headers: run python3 dev/generate. Do not edit.

from typing import NamedTuple

from ._constants import StoreFlag


class Stats(NamedTuple):
    """Counters of a capturer since it was created; see routecap_stats in the header.

    Each row issued is in one of the counts from rows_in_flight to rows_refused.
    """

    silent_layers: int
    """Layers without a valid cell in the last step that landed with rows."""
    steps_issued: int
    """Lost ones included."""
    steps_landed: int
    """Lost ones included."""
    steps_lost: int
    """Too many were in flight, the copy failed, or the rows did not arrive."""
    rows_issued: int
    rows_in_flight: int
    rows_provisional: int
    """Drafts that have landed and wait for accept."""
    rows_delivered: int
    """Landed with at least one valid cell."""
    rows_missing: int
    """Landed without a valid cell."""
    rows_lost: int
    """Of a lost step."""
    rows_late: int
    """Cut by close or truncate, or by `rows` of finish, while in flight or provisional. A cut draft
    counts here if accept kept it, if close dropped it, or if truncate cut it and finish dropped it.
    """
    rows_rejected: int
    """Drafts that accept did not keep, cut or not; and drafts that finish dropped unsettled, unless
    truncate had cut them.
    """
    rows_unplaced: int
    """Their device position was outside the span's bounds."""
    rows_refused: int
    """There was no memory for them."""
    rows_skipped: int
    """In spans of unknown requests."""
    rows_shared: int
    """Of spans whose sink row another span of the step has too; see ROUTECAP_SPAN_SHARED."""
    rows_overlapped: int
    """Delivered with a valid cell where the request already had one."""
    rows_mismatched: int
    """Rows of rows_overlapped with different sets of ids in a cell that is valid in both; needs
    ROUTECAP_CONFIG_COMPARE.
    """
    rows_dropped: int
    """Recorded rows outside the rows that were begun, of steps that landed."""
    cells_conflicting: int
    """Recorded twice in one step, of steps that landed; one of the two records was kept."""
    cells_unwritten: int
    """Cells of landed rows that their step did not write, or not completely. Late and unplaced rows
    are not counted.
    """
    cells_out_of_range: int
    """Likewise, with the reason OUT_OF_RANGE (reading.h)."""
    cells_duplicate: int
    """Likewise, with the same id twice."""
    requests_open: int
    steps_in_flight: int
    bytes_in_use: int
    """Of the budget: pages of requests and routings, provisional rows, and the charges of spans in
    flight.
    """
    bytes_peak: int
    """The highest bytes_in_use so far. It includes memory that an issue reserved and gave back at
    once, such as for a page that two of its spans share.
    """
    bytes_budget: int
    """The limit of bytes_in_use, except for the excess that routecap_step_issue describes."""


class StoreStats(NamedTuple):
    """Contents of a store, and counters since it was created; see routecap_store_counts in the
    header.
    """

    block_rows: int
    """Rows of a block."""
    key_bytes: int
    """Bytes of a key."""
    flags: StoreFlag
    """ROUTECAP_STORE_*."""
    generation: int
    """The generation that the store is at."""
    blocks: int
    """Blocks in the store, those in flight and stale ones included."""
    blocks_in_flight: int
    """Of these: published, and not landed yet."""
    blocks_retained: int
    """Of these: retained by at least one caller."""
    bytes_in_use: int
    """Of the budget."""
    bytes_peak: int
    """The highest bytes_in_use so far."""
    bytes_budget: int
    """The limit of bytes_in_use."""
    blocks_published: int
    """Landed under their key, or added cells that a block lacked."""
    blocks_repeated: int
    """Published again, with no new cells."""
    blocks_empty: int
    """Published without a row that landed."""
    blocks_refused: int
    """There was no room."""
    blocks_stale: int
    """A row of it, or its publisher, was of an older generation."""
    blocks_adopted: int
    """Found by adopt."""
    blocks_absent: int
    """Not found by adopt."""
    blocks_mismatched: int
    """Published again with different ids in a valid cell."""
    blocks_replaced: int
    """Replaced by a later publish under the same slot key."""
    blocks_evicted: int
    """Dropped for room, or by routecap_store_evict."""
    rows_copied: int
    """Rows that were copied, because their page was not shared."""
