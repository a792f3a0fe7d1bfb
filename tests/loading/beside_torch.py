"""routecap in one process with PyTorch, loaded before it or after it, from the same file or
another: both work, at once and to the end.

usage: beside_torch.py LIBRARY COPY {before|after|both}
"""

import ctypes
import sys

library, copy, order = sys.argv[1:4]
checks = 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        sys.exit(f"does not hold: {what}")


def use(path):
    """Opens a capturer of the library at `path` and captures nothing: the C suites look at rows,
    this one at two run times in one process.
    """
    routecap = ctypes.CDLL(path)
    routecap.routecap_last_error.restype = ctypes.c_char_p
    config = (
        ctypes.c_uint32 * 64
    )()  # routecap_config, and zeros behind it: struct_size, backend, role, device, layers, k, ...
    check(
        routecap.routecap_config_init(config, ctypes.c_size_t(ctypes.sizeof(config))) == 0,
        "config_init",
    )
    config[1], config[4], config[5], config[6], config[7] = 1, 4, 2, 16, 32
    capturer = ctypes.c_void_p()
    status = routecap.routecap_capturer_create(config, ctypes.byref(capturer))
    check(status == 0, f"capturer_create: {routecap.routecap_last_error()}")
    requests = (ctypes.c_uint64 * 100)()
    check(
        routecap.routecap_request_open(capturer, None, requests, ctypes.c_size_t(100)) == 0,
        "request_open",
    )
    check(routecap.routecap_step_begin(capturer, 8, None) == 0, "step_begin")
    too_many = routecap.routecap_step_begin(capturer, 33, None)
    check(
        too_many == -106 and b"33 rows" in routecap.routecap_last_error(), "an error and its text"
    )
    routecap.routecap_capturer_destroy.restype = None
    routecap.routecap_capturer_destroy(capturer)


def use_torch():
    import torch

    product = torch.ones(64, 64) @ torch.ones(64, 64)
    check(product.sum().item() == 64.0**3, "PyTorch's product")
    try:
        torch.ones(3) @ torch.ones(4)
    except RuntimeError:
        check(True, "an exception of PyTorch's C++")
    else:
        check(False, "an exception of PyTorch's C++")


if order != "after":
    use(library)
use_torch()
use(library if order == "before" else copy)
if order == "both":
    use(library)
use_torch()
print(f"{checks} checks passed, 0 failed")
