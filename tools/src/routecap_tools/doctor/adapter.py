"""What others need to judge routing as the doctor does: `routecap_tools.conform`."""

from ._case import Case, of_array, of_sample
from ._examine import like
from ._messages import Shape
from ._server_answers import cases_of
from ._subject import Bools, Found, Subject, away, runs

__all__ = [
    "Bools",
    "Case",
    "Found",
    "Shape",
    "Subject",
    "away",
    "cases_of",
    "like",
    "of_array",
    "of_sample",
    "runs",
]
