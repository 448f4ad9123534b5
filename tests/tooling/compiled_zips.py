"""Keeps what Python compiled out of a zip, as it does by itself for files in directories. Imported at the start of each
Python of build/venv.

Ansible hands a module to Python as a zip, and Python compiles the sources in a zip anew each time: half the processor
time of a module. The tests run modules by the thousand. What is run stays the same code, compiled by the same Python.
"""

from __future__ import annotations

import _frozen_importlib_external
import _imp
import marshal
import os
import sys
import zipimport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_KEPT = os.path.join(sys.prefix, "compiled-zips")

# As in hash-based .pyc files (PEP 552): the key is the version of the byte code, so no other Python takes it.
_KEY = int.from_bytes(_frozen_importlib_external.MAGIC_NUMBER, "little")
_HASH_LENGTH = 8

# Both are private. A Python without them says so at its start, and compiles as ever.
_NAME = "_compile_source"
_compile: Callable[[str, bytes], CodeType] = vars(zipimport)[_NAME]
_fix_filename: Callable[[CodeType, str], None] = vars(_imp)["_fix_co_filename"]


def _compile_once(path: str, source: bytes) -> CodeType:
    """In place of zipimport's own: the same result, out of a file where this very source was compiled before."""
    wanted = _imp.source_hash(_KEY, source)
    # One file for each module, so that the directory does not grow with every change.
    file = os.path.join(_KEPT, path.rpartition(".zip/")[2].replace("/", "."))
    code = _read(file, wanted)
    if code is None:
        code = _compile(path, source)
        _write(file, wanted + marshal.dumps(code))
    else:
        # What stands in a traceback is where the source is now.
        _fix_filename(code, path)
    return code


def _read(file: str, wanted: bytes) -> CodeType | None:
    try:
        with open(file, "rb") as kept:
            if kept.read(_HASH_LENGTH) != wanted:
                return None
            code: CodeType = marshal.loads(kept.read())
    except (OSError, EOFError, TypeError, ValueError):
        return None
    return code


def _write(file: str, content: bytes) -> None:
    """Whole or not at all, as others read it meanwhile. Whoever may not write there goes without."""
    fresh = f"{file}.{os.getpid()}"
    try:
        os.makedirs(_KEPT, exist_ok=True)
        with open(fresh, "xb") as kept:
            kept.write(content)
        os.replace(fresh, file)
    except OSError:
        pass


# See tests/tooling/environment.py, which cannot be imported from here.
if "GPUOPS_TESTS_COMPILE_ANEW" not in os.environ:
    vars(zipimport)[_NAME] = _compile_once
