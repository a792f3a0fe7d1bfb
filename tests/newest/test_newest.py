"""newest.py with an index of the test's own: a folder of small wheels, served as pip asks for it.

python3 -m unittest discover tests/newest
"""

import base64
import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from zipfile import ZipFile

HERE = Path(__file__).parent

INDEX = {
    "transformers": {"5.9.0": [], "5.23.1": [], "5.24.2": [], "5.25.0": [], "5.26.0rc1": []},
    "vllm": {"0.20.0": [], "0.30.0": [], "0.31.1": [], "0.33.0": []},
    "sglang": {"0.5.10.post1": [], "0.5.23": []},
    "verl": {
        "0.9.0": ["vllm==0.1"],
        "0.9.1": ["vllm==0.30.0; extra == 'vllm'", "transformers<5.24", "numpy"],
    },
    "skyrl": {"0.4.0": ["vllm==0.31.1", "transformers<=5.9.0,>=5.0"]},
    "openrlhf": {"0.11.2": ["vllm>=0.29.0"]},
    "torchtitan": {"0.3.0": []},
    "nemo-automodel": {"0.7.0": ["transformers"]},
    "areal": {"1.0.4": ["sglang[all]==0.5.10.post1"]},
    "trl": {"1.16.0": []},
}
ADAPTERS = {
    "transformers/_versions.py": "FIRST, LAST = (5, 10), (5, 24)\n",
    "vllm/_by_slot.py": 'RELEASES = (\n    *("0.22.0", "0.30.0"),\n    "0.33.0",\n)\n',
    "sglang/_first.py": 'FIRST = "0.5.10.post1"\nLAST = "0.5.12"\n',
    "sglang/_second.py": 'FIRST = "0.5.21"\nLAST = "0.5.23"\n',
}
CHECKS = {
    "integrations/transformers/releases.sh": 'echo "transformers runs $*"; exit 0\n',
    "integrations/vllm/release.sh": 'echo "vllm runs $*"; exit 1\n',
    "integrations/sglang/check.sh": "exit 1\n",
}


def wheel(folder: Path, name: str, release: str, needs: list[str]) -> None:
    stem = f"{name.replace('-', '_')}-{release}"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}"]
    files = {
        "METADATA": "\n".join([*lines, *(f"Requires-Dist: {each}" for each in needs)]) + "\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD,,\n"
    with ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for each, text in files.items():
            archive.writestr(f"{stem}.dist-info/{each}", text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{stem}.dist-info/{each},sha256={digest.rstrip(b'=').decode()},{len(text)}\n"
        archive.writestr(f"{stem}.dist-info/RECORD", record)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *unused: object) -> None:
        pass


class Newest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = Path(scratch.name) / "tree"
        self.index = Path(scratch.name) / "index"
        for name, releases in INDEX.items():
            folder = self.index / "simple" / name
            folder.mkdir(parents=True)
            for release, needs in releases.items():
                wheel(folder, name, release, needs)
        for path, text in ADAPTERS.items():
            engine, module = path.split("/")
            self.put(f"integrations/{engine}/src/routecap_{engine}/{module}", text)
        for path, text in CHECKS.items():
            self.put(path, text)
        self.put("tests/newest/seen.json", "{}")
        shutil.copy(HERE / "newest.py", self.tree / "tests/newest")
        handler = functools.partial(Quiet, directory=str(self.index))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}/simple"

    def put(self, path: str, text: str) -> None:
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run_it(self, *options: str) -> tuple[int, list[str]]:
        environment = {
            name: each for name, each in os.environ.items() if not name.startswith("PIP")
        }
        environment |= {"PIP_INDEX_URL": self.url, "PIP_CONFIG_FILE": os.devnull}
        done = subprocess.run(
            [sys.executable, self.tree / "tests/newest/newest.py", *options],
            env=environment | {"PIP_NO_CACHE_DIR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def test_what_is_new_is_told_from_what_is_checked_and_from_what_was_seen(self) -> None:
        status, lines = self.run_it("--enter")
        self.assertEqual(status, 1)
        self.assertEqual(
            lines,
            [
                "transformers 5.25.0: unchecked",
                "vllm 0.33.0: checked",
                "sglang 0.5.23: checked",
                "verl 0.9.1: new",
                "  transformers <5.24: 5.23.1 is checked",
                "  vllm ==0.30.0: 0.30.0 is checked",
                "skyrl 0.4.0: new",
                "  transformers <=5.9.0,>=5.0: 5.9.0 is refused",
                "  vllm ==0.31.1: 0.31.1 is unchecked",
                "openrlhf 0.11.2: new",
                "  vllm >=0.29.0: 0.33.0 is checked",
                "torchtitan 0.3.0: new",
                "nemo-automodel 0.7.0: new",
                "  transformers any: 5.25.0 is unchecked",
                "areal 1.0.4: new",
                "  sglang ==0.5.10.post1: 0.5.10.post1 is checked",
                "trl 1.16.0: new",
                "not checked: transformers 5.25.0, vllm 0.31.1",
            ],
        )

        seen = json.loads((self.tree / "tests/newest/seen.json").read_text())
        self.assertEqual(seen["verl"]["pins"], {"transformers": ["<5.24"], "vllm": ["==0.30.0"]})
        wheel(self.index / "simple/trl", "trl", "1.17.0", [])
        status, lines = self.run_it("--check")
        self.assertEqual([line for line in lines if line.endswith(": new")], ["trl 1.17.0: new"])
        self.assertIn("transformers runs 5.25.0", lines)
        self.assertIn("$ bash integrations/vllm/release.sh 0.31.1", lines)
        self.assertEqual((status, lines[-1]), (1, "not right: vllm 0.31.1"))

    def test_what_cannot_be_told_is_said_and_no_success(self) -> None:
        shutil.rmtree(self.index / "simple/trl")
        self.put("integrations/vllm/src/routecap_vllm/_by_slot.py", "RELEASE = ('0.33.0',)\n")
        wheel(self.index / "simple/torchtitan", "torchtitan", "0.4.0", ["sglang==9.9"])
        status, lines = self.run_it()
        self.assertEqual(status, 2)
        untold = [line for line in lines if line.startswith("cannot be told: ")]
        self.assertEqual(len(untold), 3, untold)
        self.assertIn("vllm: ", untold[0])
        self.assertIn("states no releases: RELEASES, FIRST and LAST", untold[0])
        self.assertIn("torchtitan 0.4.0: sglang ==9.9 allows no release", untold[1])
        self.assertIn("index versions --ignore-requires-python trl: ERROR", untold[2])


if __name__ == "__main__":
    unittest.main()
