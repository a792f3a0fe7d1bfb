"""Makes a PyTorch wheel for CUDA usable on a machine without a GPU and without 3 GB of NVIDIA's
libraries: run it with the environment's Python, after

    pip install --no-deps torch==X nvidia-cuda-runtime==Y       (Y as torch X wants it: the real one, it is small and torch calls it)

The wheel's libraries name those of NVIDIA as needed. For each that is not there this writes a
shared library of that name into the environment, with the symbols, and their versions, that torch's
own libraries leave undefined. All of them do nothing; those that ask for devices find none. Needs
cc and binutils.
"""

import collections
import glob
import os
import re
import subprocess
import sysconfig
import tempfile

SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|quadmath|gomp|gfortran)\.so|ld-linux")
# Which library a symbol without a version belongs to.
OWNERS = [
    ("libcublasLt", "cublasLt"),
    ("libcublas", "cublas"),
    ("libcudnn", "cudnn"),
    ("libcufft", "cufft"),
    ("libcufile", "cuFile"),
    ("libcusolver", "cusolver"),
    ("libcusparseLt", "cusparseLt"),
    ("libcusparse", "cusparse"),
    ("libnccl", "p?nccl"),
    ("libnvrtc", "nvrtc"),
    ("libnvshmem_host", "nvshmem"),
    ("libcupti", "cupti"),
    ("libcudart", "(__)?cuda"),
    ("libcuda", "cu[A-Z]"),
]
FOLDERS = {
    "libcudnn": "cudnn",
    "libnvshmem_host": "nvshmem",
    "libnccl": "nccl",
    "libcusparseLt": "cusparselt",
}
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
ASK_FOR_DEVICES = {"cudaGetDeviceCount", "cudaGetDevice", "cuInit"}


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def owner(symbol):
    return next(
        (library for library, prefix in OWNERS if re.match(rf"(_Z\w*?\d+)?({prefix})", symbol)),
        None,
    )


def undefined_symbols(libraries):
    """name@version of what the libraries neither define nor get from one another, and the libraries
    that they need.
    """
    needed, undefined, defined = set(), set(), set()
    for path in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", path)))
        for line in output("nm", "-D", path).splitlines():
            *_, kind, symbol = line.split()
            (undefined if kind in "Uwv" else defined).add(symbol)
    own = {symbol.split("@")[0] for symbol in defined}
    present = {os.path.basename(path) for path in libraries}
    return {symbol for symbol in undefined if symbol.split("@")[0] not in own}, {
        n for n in needed - present if not SYSTEM.match(n)
    }


def write_library(path, versions):
    """A shared library with these symbols, by version."""
    names = sorted({name for symbols in versions.values() for name in symbols})
    source = "int nothing;\n" + "".join(
        f"long {name}(void) {{ return {NO_DEVICE if name in ASK_FOR_DEVICES else 0}; }}\n"
        for name in names
    )
    script = (
        "".join(
            f"{version} {{ global: {''.join(name + '; ' for name in sorted(symbols))} }};\n"
            for version, symbols in versions.items()
            if version
        )
        or "{ global: *; };\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/library.c", "w") as file:
            file.write(source)
        with open(f"{folder}/versions", "w") as file:
            file.write(script)
        subprocess.check_call(
            [
                "cc",
                "-w",
                "-O0",
                "-shared",
                "-fPIC",
                "-fno-builtin",
                f"-Wl,-soname,{os.path.basename(path)}",
                f"-Wl,--version-script={folder}/versions",
                "-o",
                path,
                f"{folder}/library.c",
            ]
        )


def main():
    site = sysconfig.get_paths()["purelib"]
    undefined, needed = undefined_symbols(sorted(glob.glob(f"{site}/torch/lib/*.so*")))
    missing = {name.split(".so")[0]: name for name in needed}
    symbols = collections.defaultdict(
        lambda: collections.defaultdict(set)
    )  # library, version: names
    for symbol in undefined:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        library = version.split(".so")[0]
        library = library if library in missing else owner(name)
        if library in missing:
            symbols[library][version].add(name)
    for library, file in sorted(missing.items()):
        folder = f"{site}/nvidia/{FOLDERS.get(library, 'cu13')}/lib"
        os.makedirs(folder, exist_ok=True)
        if not os.path.exists(f"{folder}/{file}"):
            write_library(f"{folder}/{file}", symbols[library])


if __name__ == "__main__":
    main()
