"""Does a script see the same world under `launch` as under `python`?"""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
DOOR = """
import sys
sys.path.insert(1, {source!r})
from lowtide.integrations.script.launch import Launch, launch
words = sys.argv[1:]
module = words[0] == "-m"
words = words[1:] if module else words
ended = launch(Launch(words[0], tuple(words[1:]), module))
if ended is not None:
    raise ended
"""
FACTS = """
import pickle, sys
from pathlib import Path

class Thing: ...

main = sys.modules["__main__"]
assert main.Thing is Thing and pickle.loads(pickle.dumps(Thing())).__class__ is Thing
print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "other.py").write_text("WORD = 'relative'\n")
    (package / "__main__.py").write_text("from .other import WORD\nprint(WORD)\n" + FACTS)
    (package / "deeper.py").write_text(FACTS)
    (tmp_path / "facts.py").write_text(FACTS)
    (tmp_path / "door.py").write_text(DOOR.format(source=str(SOURCE)))
    return tmp_path


def both(
    folder: Path, *words: str
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], check=False, cwd=folder, capture_output=True, text=True
        )

    return run(*words), run("door.py", *words)


def same(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plain, ours = both(folder, *words)
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        plain.returncode, plain.stdout, plain.stderr,
    )  # fmt: skip
    return ours


def script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(textwrap.dedent(text))
    return "script.py"


def test_main_is_the_script(folder: Path) -> None:
    assert "--lr" in same(folder, "facts.py", "--lr", "1", "-m", "--budget").stdout


def test_main_is_the_module(folder: Path) -> None:
    assert same(folder, "-m", "pack", "--its", "own").stdout.startswith("relative")
    same(folder, "-m", "pack.deeper")


def test_a_folder_runs(folder: Path) -> None:
    (folder / "flat").mkdir()
    (folder / "flat" / "__main__.py").write_text(FACTS)
    same(folder, "flat", "1")


@pytest.mark.parametrize("argument", ["7", "0", "None", "'words'"])
def test_exit_status_passes_through(folder: Path, argument: str) -> None:
    same(folder, script(folder, f"import sys\nsys.exit({argument})"))


def test_uncaught_exceptions_are_shown_without_our_frames(folder: Path) -> None:
    text = """
        def inner():
            raise ValueError("no such luck")
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("worse") from error
        """
    assert same(folder, script(folder, text)).returncode == 1


def test_a_syntax_error_is_the_scripts_own(folder: Path) -> None:
    assert same(folder, script(folder, "x = (\n")).returncode == 1


def test_the_scripts_own_excepthook_is_used(folder: Path) -> None:
    text = "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\n1 / 0\n"
    assert same(folder, script(folder, text)).stdout == "mine ZeroDivisionError\n"


def test_ctrl_c_ends_by_the_signal_after_everything_else(folder: Path) -> None:
    text = "import atexit\natexit.register(print, 'at exit')\nraise KeyboardInterrupt\n"
    assert same(folder, script(folder, text)).returncode == -signal.SIGINT


def test_spawned_processes_find_main(folder: Path) -> None:
    text = """
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """
    assert same(folder, script(folder, text)).stdout == "[2, 4]\n"


def test_what_does_not_exist_is_refused(folder: Path) -> None:
    for words in (["nothing.py"], ["-m", "nothing"], ["-m", "pack.nothing"]):
        _, ours = both(folder, *words)
        assert "OptionError: F050" in ours.stderr
