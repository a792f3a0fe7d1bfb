"""Rows across machines: who captured a routing writes it as an object, and each rank of a trainer
reads the rows that it needs, from where the object lies. What travels between them is a reference
of some 200 bytes.

    store = routecap.remote.connect("s3://bucket/rollouts")   # or file, http, memory, mooncake, ray
    reference = routecap.remote.write(store, routing)         # where it was captured

    reader = routecap.remote.Reader(store, layers=48, k=8, experts=128)
    ids = plan.gather([reader.rows(each) for each in references]).ids  # on each rank

Stores and transports are those of others: fsspec, Mooncake Store, Ray. How they authenticate, retry
and wait is theirs to say, by the settings that `connect` passes to them.
"""

from ._account import Report
from ._blocks import BlockRows
from ._conversation import Conversation
from ._reader import Reader, RemoteRows
from ._reference import Reference
from ._stores import Files, Mooncake, ObjectStore, RayObjects, SizedStore, connect
from ._write import write, write_as_set

__all__ = [
    "BlockRows",
    "Conversation",
    "Files",
    "Mooncake",
    "ObjectStore",
    "RayObjects",
    "Reader",
    "Reference",
    "RemoteRows",
    "Report",
    "SizedStore",
    "connect",
    "write",
    "write_as_set",
]
