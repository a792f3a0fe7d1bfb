"""The generated module: everything in routecap.h under its own name, and what routecap.i adds."""
from typing import Any

def __getattr__(name: str) -> Any: ...
