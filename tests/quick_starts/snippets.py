"""Takes the programs and commands out of the pages.

Every block of code in c, python, rust, go or sh has a mark before it that says how it is tested:

    <!-- test: run -->            it is whole: a program, or commands for the project's root
    <!-- test: run with NAME -->  the same, where NAME is installed: transformers
    <!-- test: in FILE -->        a part: it stands for the line /* BLOCK */ of around/FILE
    <!-- test: by FILE -->        FILE, a test of the project, runs the same
    <!-- test: story -->          commands that go on where those before them in the page ended
    <!-- test: story FILE -->     what the reader saves as FILE in ~/first-rows meanwhile

A block without a mark is an error. FOLDER gets a file for each block of the first three kinds, one
for the story of a page, and a line for each in FOLDER/list: its file, language, and what it runs
with. A program with a line that
keeps pace ("> 1") is written once more without that line, which is wrong on a device: its file
is in FOLDER/hasty.
"""

import argparse
import pathlib
import re
import sys

LANGUAGES = {"c": ".c", "python": ".py", "rust": ".rs", "go": ".go", "sh": ".sh"}
BLOCK = re.compile(
    r"^(?:<!-- test: (run|in|by|story)(?: (?:with )?(\S+))? -->\n)?```(\w+)\n(.*?)^```$",
    re.M | re.S,
)
TEMPLATES = pathlib.Path(__file__).parent / "around"


def without_pace(program: str, language: str) -> str:
    """The same program where no line does."""
    instead = "_ = step" if language == "go" else ""  # Go wants every variable used
    return re.sub(r"if .*(?:step|issued).* > 1.*", instead, program)


def main(folder: pathlib.Path, pages: list[pathlib.Path]) -> list[str]:
    errors, listed = [], []
    (folder / "hasty").mkdir(parents=True)
    for page in pages:
        text, story = page.read_text(), []
        called = "_".join(page.with_suffix("").parts)
        for match in BLOCK.finditer(text):
            kind, what, language, code = match.groups()
            line = text.count("\n", 0, match.start(3)) + 1
            where = f"{page}:{line}"
            if language not in LANGUAGES:
                continue
            if kind is None:
                errors.append(f"{where}: no mark says how this block is tested")
                continue
            if kind == "by":
                if not pathlib.Path(what).is_file():
                    errors.append(f"{where}: there is no {what}")
                continue
            if kind == "story":
                saved = f"cat > ~/first-rows/{what} << 'END_OF_FILE'\n{code}END_OF_FILE\n"
                story.append(saved if what else code)
                if not what or without_pace(code, language) == code:
                    continue
                what = None
            if kind == "in":
                before, _, after = (TEMPLATES / what).read_text().partition("/* BLOCK */\n")
                code = before.rstrip(" ") + code + after
            name = f"{called}_{line}{LANGUAGES[language]}"
            (folder / name).write_text(code)
            if (hasty := without_pace(code, language)) != code:
                (folder / "hasty" / name).write_text(hasty)
            listed.append(f"{name} {language} {what or '-'}\n")
        if story:
            (folder / f"{called}_story.sh").write_text("".join(story))
            listed.append(f"{called}_story.sh story -\n")
    (folder / "list").write_text("".join(listed))
    return errors


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
parser.add_argument("pages", metavar="PAGE", type=pathlib.Path, nargs="+")
options = parser.parse_args()
sys.exit("\n".join(main(options.folder, options.pages)) or None)
