"""python -m routecap_sglang [ARGUMENT...]: SGLang's server with routecap, which its arguments are
of. For SGLang 0.5.10.post1, which has no plugins."""

import runpy

import routecap_sglang

if __name__ == "__main__":
    routecap_sglang.install()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
