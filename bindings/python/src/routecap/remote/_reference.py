"""What an engine answers in the place of rows: where they are."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from routecap import MAX_POSITION, Status
from routecap.adapter import error

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=+-]*(/[A-Za-z0-9_][A-Za-z0-9_.@=+-]*)*")
_LONGEST_KEY = 1024
_DIGEST_BYTES = 16


class Reference(NamedTuple):
    """Where the rows of a routing are. It names no host and no credential: who reads has a store of
    this scheme, and the key is one of that store.
    """

    scheme: str
    """Of the store: "file", "s3", "mooncake", ..."""
    key: Any
    """A text; with Ray its ObjectRef, which travels in Ray's messages alone."""
    first: int
    """Position of the first row."""
    rows: int
    bytes: int
    """Of the object."""
    digest: str
    """BLAKE2b of the object's header up to the checks of rows, 16 bytes in hexadecimal."""
    generation: int = 0
    """No row has a lower tag."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        if not isinstance(self.key, str):
            raise error(
                Status.ERR_ARGUMENT,
                f"a reference of {self.scheme} cannot be JSON: send it by Ray, or write to another"
                " store",
            )
        return self._asdict()

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> "Reference":
        """The reference that came as JSON, from whoever: its fields are checked."""
        try:
            made = Reference(**{name: value[name] for name in Reference._fields})
        except (KeyError, TypeError) as reason:
            raise error(
                Status.ERR_FORMAT,
                f"this is no reference: {reason} is missing. Give what Reference.to_dict returned",
            ) from None
        return checked(made)


def checked(reference: Reference) -> Reference:
    """It, if it can be right. Raises routecap.Error: it cannot."""
    if isinstance(reference.key, str):
        check_key(reference.key)
    limits = {name: MAX_POSITION for name in ("first", "rows", "bytes")}
    for name, most in (limits | {"generation": (1 << 64) - 1}).items():
        number = getattr(reference, name)
        if type(number) is not int or not 0 <= number <= most:
            raise error(
                Status.ERR_FORMAT,
                f"{name} of a reference is {number!r}: it must be a whole number from 0 to {most}",
            )
    digest = reference.digest
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{32}", digest):
        raise error(
            Status.ERR_FORMAT,
            f"digest of a reference is {digest!r}: it must be 32 hexadecimal digits in lower case",
        )
    return reference


def check_key(key: str) -> None:
    """Keys cannot lead out of the place that a store was given."""
    if len(key) > _LONGEST_KEY or not _KEY.fullmatch(key):
        raise error(
            Status.ERR_FORMAT,
            f"{key[:80]!r} cannot be a key: give names of letters, digits and _.@=+-, with / between"
            " them",
        )


def digest_of(header: Any) -> str:
    return hashlib.blake2b(header, digest_size=_DIGEST_BYTES).hexdigest()
