"""llama.cpp with the tap, by engine.c. Tokens are bytes.

program, library, model: the paths of the program, of libroutecap.so and of the folder with
model.gguf and config.json. version: of llama.cpp's libraries. split: a memory for each sequence.
trained: the type of the weights, if the model is that of tests/model.
"""

import subprocess
import tempfile
from pathlib import Path

import routecap
from routecap_tools import conform

AT_ONCE = 8


def engine(program, library, model, version, split="", trained=""):
    folder = Path(tempfile.mkdtemp())

    def generate(requests):
        found = [None] * len(requests)
        by_length = {}
        for number, request in enumerate(requests):
            by_length.setdefault(request.max_tokens, []).append(number)
        for most, numbers in by_length.items():
            for first in range(0, len(numbers), AT_ONCE):
                together(requests, numbers[first : first + AT_ONCE], most, found)
        return found

    def together(requests, numbers, most, found):
        command = [program, library, f"{model}/model.gguf", folder, f"--generate={most}", "--hex"]
        command += ["--split"] if split else []
        prompts = [bytes(requests[number].prompt).hex() for number in numbers]
        done = subprocess.run([*command, *prompts], capture_output=True, check=True)
        lines = done.stdout.decode().splitlines()[-len(numbers) :]
        for place, (number, line) in enumerate(zip(numbers, lines)):
            routing = routecap.load(folder / f"request-{place}.routecap")
            [(_, sample)] = routing.items()
            tokens = [*requests[number].prompt, *map(int, line.split())]
            found[number] = [(sample.routing, tokens)]

    return conform.Functions(
        f"llama.cpp {version}{', a memory for each sequence' if split else ''}, "
        f"{f'trained, {trained}, ' if trained else ''}"
        f"routecap {routecap.__version__}",
        generate,
        lambda output: output[0],
        lambda output: output[1],
    ), {
        "model": routecap.models.describe(f"{model}/config.json"),
        "vocabulary": 256,
        "requests": AT_ONCE,
        "generated": 8,
        "checkpoint": model,
    }
