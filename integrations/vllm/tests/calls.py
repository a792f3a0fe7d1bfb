"""How many functions of routecap a piece of a program calls."""

import collections
import os
import sys

import routecap
import routecap_vllm

FOLDERS = tuple(os.path.dirname(each.__file__) for each in (routecap, routecap_vllm))


def calls_in(run):
    """{function of the package, by its qualified name: how often it was called} in run(), on this
    thread. A generator counts as often as it was resumed."""
    found = collections.Counter()

    def look(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(FOLDERS):
            found[getattr(code, "co_qualname", code.co_name)] += 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found
