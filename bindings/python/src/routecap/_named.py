"""What the enums of _constants.py are made of."""

from enum import Enum, IntEnum, IntFlag
from operator import index
from typing import Self, SupportsIndex


class Named(Enum):
    """Prints as its name, where an IntEnum has its number. Formats of numbers give that, as :d."""

    def __str__(self) -> str:
        return self.name or "0"  # no flag at all has no name

    def __format__(self, form: str) -> str:
        return format(self.value if form.endswith(tuple("bcdeEfFgGnoxX%")) else str(self), form)


class Constant(Named, IntEnum):
    """One of several."""


class Flags(Named, IntFlag):
    """Some of several, or none."""


class Open(Constant):
    """What later libraries may say more of: a number that is not known here is a member called
    UNKNOWN.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, SupportsIndex):
            return None
        number = index(value)
        unknown = int.__new__(cls, number)
        unknown._name_, unknown._value_ = "UNKNOWN", number
        return unknown

    def __reduce_ex__(self, protocol: object) -> tuple[type[Self], tuple[int]]:
        return type(self), (self._value_,)  # by its number: Python before 3.11.4 takes the name

    def __str__(self) -> str:
        return self.name if self.name in type(self).__members__ else f"{self.name}({self.value})"
