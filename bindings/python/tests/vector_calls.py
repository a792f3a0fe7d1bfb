"""What the replayer of test_vectors.py calls by its signature: the method of which object, and
the names of its arguments and results.
"""

# Generated from the headers: run python3 dev/generate. Do not edit.

CALLS = {
    "capturer_destroy": ("capturer.close", "", ""),
    "step_begin": ("capturer.begin", "rows", ""),
    "step_snapshot": ("capturer.snapshot", "", ""),
    "step_discard": ("capturer.discard", "", ""),
    "capturer_stats": ("capturer.stats", "", "stats"),
    "capturer_layer_stats": ("capturer.layer_stats", "count", "stats"),
    "capturer_progress": ("capturer.progress", "", ""),
    "request_truncate": ("request.truncate", "rows", ""),
    "request_fork": ("request.fork", "rows", "child"),
    "request_attach": ("request.attach", "routing rows", ""),
    "request_finish": ("request.finish", "rows", "routing"),
    "request_close": ("request.close", "", ""),
    "routing_split": ("routing.split", "prompt_tokens generated_tokens", "prompt generated"),
    "routing_slice": ("routing.slice", "first rows", "slice"),
    "routing_free": ("routing.free", "", ""),
    "sequence_free": ("sequence.free", "", ""),
    "sequence_truncate": ("sequence.truncate", "tokens", ""),
    "store_free": ("store.close", "", ""),
    "store_stats": ("store.stats", "", "counts"),
    "store_advance": ("store.advance", "generation", ""),
    "request_publish": ("request.publish", "store first keys generation", ""),
    "request_adopt": ("request.adopt", "store first keys generation", "adoption"),
    "store_retain": ("store.retain", "keys", "reasons"),
    "store_release": ("store.release", "keys", ""),
    "store_evict": ("store.evict", "keys", "evicted"),
}
