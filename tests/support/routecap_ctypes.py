"""The C API of routecap for Python tests, as the headers of this tree declare it.

Constants, structs and functions have their names without the prefix; structs as LayerStats.

A test loads the library once and calls its functions as attributes of a Library:

    lib = Library(path)
    config = Config()
    lib.expect(lib.config_init(byref(config), sizeof(config)))
"""

import ctypes
import re
from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from pathlib import Path

_HEADERS = Path(__file__).resolve().parents[2].glob("include/routecap/*.h")
_TEXT = "".join(path.read_text() for path in sorted(_HEADERS))
_CODE = re.sub(r"/\*.*?\*/", "", _TEXT, flags=re.DOTALL)

# ---- Constants ----------------------------------------------------------------------------------

_NUMBER = re.compile(r"^#define ROUTECAP_(\w+) \(?(-?[0-9]\w*)\)?", re.MULTILINE)
globals().update({name: int(value.rstrip("uUlL"), 0) for name, value in _NUMBER.findall(_CODE)})

# ---- Types --------------------------------------------------------------------------------------

_TYPES = {
    "int32_t": c_int32,
    "uint32_t": c_uint32,
    "int64_t": c_int64,
    "uint64_t": c_uint64,
    "uint8_t": c_uint8,
    "size_t": c_size_t,
    "float": c_float,
}
for _integer, _alias in re.findall(r"^typedef (\w+_t) (routecap_\w+);", _CODE, re.MULTILINE):
    _TYPES[_alias] = _TYPES[_integer]
_HANDLES = {"void", "routecap_stream"}
_HANDLES |= set(re.findall(r"^typedef struct (routecap_\w+) \1;", _CODE, re.MULTILINE))
_HANDLES |= set(re.findall(r"^typedef void \(\*(routecap_\w+)\)", _CODE, re.MULTILINE))


def _type(declared, address=False):
    """What ctypes has for a type of C. `address`: a pointer to memory is a plain address."""
    words = declared.replace("const", "").replace("ROUTECAP_NODISCARD", "")
    name, stars = re.search(r"\w+", words)[0], words.count("*")
    if name == "char":
        return c_char_p
    if name in _HANDLES:
        found, stars = (None if name == "void" and stars == 0 else c_void_p), stars - 1
    else:
        found = c_void_p if address and stars > 0 else _TYPES[name]
        stars = 0 if address else stars
    for _ in range(stars):
        found = POINTER(found)
    return found


def _camel(name):
    return "".join(word.capitalize() for word in name.split("_"))


# ---- Structs ------------------------------------------------------------------------------------

_STRUCT = re.compile(r"^typedef struct (routecap_(\w+)) \{\n(.*?)^\} ", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    (\w[\w *]*?)(\w+);(?: +/\*(.*?)\*/)?", re.MULTILINE | re.DOTALL)

for _name, _short, _body in _STRUCT.findall(_TEXT):
    if _short == "api":  # ctypes needs no function table
        continue
    _TYPES[_name] = type(
        _camel(_short),
        (ctypes.Structure,),
        {
            "_fields_": [
                (field, _type(declared, address="[device]" in comment))
                for declared, field, comment in _FIELD.findall(_body)
            ]
        },
    )
    globals()[_camel(_short)] = _TYPES[_name]

# ---- Functions ----------------------------------------------------------------------------------

_FUNCTION = re.compile(r"^ROUTECAP_API ([^;]*?)routecap_(\w+)\(([^;]*)\);", re.MULTILINE)


def _parameters(declared):
    for each in declared.split(","):
        if each != "void":
            yield _type(re.sub(r"\w+$", "", each), address="uint8_t" in each)  # a mask


FUNCTIONS = {  # name without prefix: result, arguments
    name: (_type(result), list(_parameters(declared)))
    for result, name, declared in _FUNCTION.findall(_CODE)
    if name != "get_api"
}


class Library:
    """Functions of the library as attributes. ctypes lets other Python threads run during a call."""

    def __init__(self, path=None):
        if path is not None:
            self.load(path)

    def load(self, path):
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(loaded, "routecap_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def name_of(self, status):
        return self.status_name(status).decode()

    def expect(self, status, expected=OK, what="call"):
        """The status of a call, which must be the expected one."""
        if status != expected:
            raise AssertionError(
                f"{what}: {self.name_of(status)} ({status}) instead of {self.name_of(expected)}"
                f" ({expected}); last error: {self.last_error().decode()!r}"
            )
        return status

    def config(self, **fields):
        """A configuration with the defaults and these fields."""
        config = Config()
        self.expect(self.config_init(config, sizeof(Config)), what="config_init")
        for name, value in fields.items():
            setattr(config, name, value)
        return config

    def copy_options(self, **fields):
        """Copy options with the defaults and these fields."""
        options = CopyOptions()
        self.expect(self.copy_options_init(options, sizeof(CopyOptions)), what="copy_options_init")
        for name, value in fields.items():
            setattr(options, name, value)
        return options
