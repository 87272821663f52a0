"""How does a script run inside this process exactly as under `python`?

`__main__` is the script's own module, `__file__`, `sys.argv` and `sys.path[0]` are what `python` would set, and `sys.exit`, its status and its
words pass through. What the script does not catch is shown by `sys.excepthook` without our frames; then the process ends as Python's would:
status 1, or by the signal after Ctrl-C. The script stays `__main__` afterwards, for what runs at exit.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType

from lowtide.errors import OptionError

__all__ = ["Launch", "launch"]


@dataclass(frozen=True)
class Launch:
    """What to run: a script, a folder or archive with a `__main__.py`, or (`-m`) a module."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @property
    def name(self) -> str:
        """`train` of `runs/train.py`: for the files that are written about it."""
        return self.target.rpartition(".")[2] if self.module else Path(self.target).stem

    @property
    def command(self) -> str:
        return " ".join([*(["-m"] if self.module else []), self.target, *self.arguments])


def launch(
    what: Launch, failed: Callable[[BaseException], object] = lambda error: None
) -> SystemExit | None:
    """Run it to its end. `failed` is told what the script did not catch, after it was shown. What is returned is the
    script's own `SystemExit` (or the one that follows from what it did not catch), for the caller to raise."""
    code, main = _prepared(what)
    sys.modules["__main__"] = main
    interrupted: list[BaseException] = []
    atexit.register(_end_by_signal, interrupted)  # registered first, so it runs last
    try:
        exec(code, main.__dict__)
    except SystemExit as ended:
        return ended
    except BaseException as error:
        _show(error, main)
        failed(error)
        if isinstance(error, KeyboardInterrupt):
            interrupted.append(error)
        return SystemExit(1)
    return None


def _prepared(what: Launch) -> tuple[CodeType, types.ModuleType]:
    if what.module:
        return _module(what)
    path = Path(what.target)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        return _folder(what)
    if not path.is_file():
        raise OptionError(f"there is no script {what.target}: give a file, or -m MODULE")
    _search_first(str(path.resolve().parent))
    sys.argv = [what.target, *what.arguments]
    file = str(path.absolute())
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    return _compiled(path.read_bytes(), file), _main(file, loader, None)


def _module(what: Launch) -> tuple[CodeType, types.ModuleType]:
    _search_first(str(Path.cwd()))
    sys.argv = ["-m", *what.arguments]
    return _found(what.target, what)


def _folder(what: Launch) -> tuple[CodeType, types.ModuleType]:
    _search_first(str(Path(what.target).absolute()))
    sys.argv = [what.target, *what.arguments]
    sys.modules.pop("__main__", None)  # or it would be found instead
    return _found("__main__", what)


def _found(name: str, what: Launch) -> tuple[CodeType, types.ModuleType]:
    """As `python -m` finds it: of a package its `__main__`."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise OptionError(f"cannot run {what.target}: {error}") from None
    loader = spec.loader if spec is not None else None
    if spec is None or not isinstance(loader, importlib.abc.InspectLoader):
        raise OptionError(f"there is no module {what.target} that can be run")
    code = loader.get_code(spec.name)
    if code is None:
        raise OptionError(f"{what.target} has no Python code")
    if what.module:
        sys.argv[0] = spec.origin or what.target
    return code, _main(spec.origin or what.target, loader, spec)


def _main(
    file: str, loader: object, spec: importlib.machinery.ModuleSpec | None
) -> types.ModuleType:
    main = types.ModuleType("__main__")
    package = None if spec is None else spec.parent
    more = {"__file__": file, "__loader__": loader, "__spec__": spec, "__package__": package}
    main.__dict__.update(more, __builtins__=sys.modules["builtins"], __cached__=None)
    return main


def _compiled(source: bytes, file: str) -> CodeType:
    try:
        return compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        raise SystemExit(1) from None


def _search_first(folder: str) -> None:
    """In place of the folder of the command itself. Python adds none when it is told to be safe."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _show(error: BaseException, main: types.ModuleType) -> None:
    trace = _without_us(error.__traceback__, main)
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.stdout.flush()
    sys.excepthook(type(error), error, trace)


def _without_us(trace: TracebackType | None, main: types.ModuleType) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals is not main.__dict__:
        trace = trace.tb_next
    return trace


def _end_by_signal(interrupted: list[BaseException]) -> None:
    """As Python ends after Ctrl-C, so that a shell's loop around us stops too."""
    if interrupted:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
