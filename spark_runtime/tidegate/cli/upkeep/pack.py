"""`tidegate pack`: write a pipeline and its packages into one file."""

from __future__ import annotations

import argparse
import ast
import csv
import difflib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.errors import EnvironmentProblemError, OptionError, PipelineError
from tidegate.jobs.artifacts.artifact import pack, resolve_pipeline
from tidegate.jobs.artifacts.packed_pipeline import SITE_PACKAGES, SUFFIX, Files, describe, pack_pipeline

RUNTIMES_OWN = (
    *("tidegate", "pyspark", "py4j", "pyarrow", "numpy", "numba", "llvmlite", "fsspec", "pendulum"),
    *("python-dateutil", "six", "tzdata"),
)
"""Packages that drivers and executors have with tidegate. Never packed; pip keeps the versions of this machine."""
INSTALL_LIMIT_S = 1800.0
"""Timeout of pip, in seconds: large packages may have to be built."""
TAIL = 2000
"""Length of pip's error output in an error message, in characters."""
_LEFT_OUT = ("INSTALLER", "REQUESTED", "direct_url.json")
"""Files of a `.dist-info` that describe this machine's installation."""

Install = Callable[[Sequence[str]], None]
"""Runs pip with these arguments."""


def add_pack(parser: Parser) -> None:
    """Add the arguments of `tidegate pack`."""
    parser.description = "Writes a zip file that `start`, `restore` and Airflow accept instead of PIPELINE."
    parser.add_argument("pipeline", metavar="PIPELINE", help="path/to/file.py:function or package.module:function")
    parser.add_argument("-r", "--requirements", metavar="FILE", help="requirements file of the packages to include")
    parser.add_argument("-o", "--output", metavar="FILE.zip", required=True, help="the file to write")
    parser.add_argument("--code-root", metavar="FOLDER", help="folder to pack as a whole")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Write the file and print its hash."""
    if not args.output.endswith(SUFFIX):
        raise OptionError(
            f"the name {args.output!r} does not end in {SUFFIX}", where="--output", remedy="Write -o pipeline.zip"
        )
    path, target = resolve_pipeline(args.pipeline, args.code_root)
    if path.endswith(SUFFIX):
        raise OptionError(
            "the file is a packed pipeline already",
            where=path,
            remedy="Name the Python file of the pipeline: path/to/file.py:build",
        )
    around.output.progress("packing")
    data, names = packed_pipeline(path, target, args.requirements)
    with open(args.output, "wb") as file:
        file.write(data)
    digest = hashlib.sha256(data).hexdigest()
    around.output.print(f"{args.output}: {target}, {len(names)} packages, {len(data)} bytes, sha256 {digest}")
    document = {"file": args.output, "pipeline": target, "packages": names, "sha256": digest, "bytes": len(data)}
    around.output.document(document)
    return 0


def packed_pipeline(
    path: str, target: str, requirements: str | None, install: Install | None = None
) -> tuple[bytes, list[str]]:
    """Return the packed file's bytes, and `name==version` of each package in it.

    Raises:
        PipelineError: the module has no such function, pip cannot install the requirements, or a package has a file
            name that is in use.
        EnvironmentProblemError: pip is not installed.
    """
    code = pack(path).files
    _check_function(dict(code), target)
    packages: Files = ()
    names: list[str] = []
    if requirements is not None:
        packages, names = _packages(requirements, install or run_pip)
    return pack_pipeline(describe(target, names, packages), (*code, *packages)), names


def _check_function(code: Mapping[str, bytes], target: str) -> None:
    """Raise PipelineError when the module certainly has no such function.

    The module is not imported: it may need packages that this machine does not have.
    """
    module, _, function = target.partition(":")
    name = module.replace(".", "/")
    file = next(path for path in (f"{name}.py", f"{name}/__init__.py") if path in code)
    try:
        tree = ast.parse(code[file], file)
    except (SyntaxError, ValueError) as error:
        raise PipelineError("the pipeline's code has a syntax error", where=file, cause=str(error)) from error
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if function in names | _other_names(tree) or "*" in _other_names(tree):
        return
    near = difflib.get_close_matches(function, names, n=1)
    raise PipelineError(
        f"there is no function {function!r}" + (f", did you mean {near[0]!r}?" if near else ""),
        where=file,
        cause=f"its functions are {', '.join(sorted(names))}" if names else "it has no functions",
        remedy="Name the function that takes the arguments and returns the Pipeline",
    )


def _other_names(tree: ast.Module) -> set[str]:
    """Return all names that code anywhere in the module binds; "*": it may bind any name.

    Too many names do no harm: the driver loads the function, and finds the mistakes that remain.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names) | ast.ImportFrom(names=names):
                found |= {(name.asname or name.name).partition(".")[0] for name in names}
            case ast.FunctionDef(name="__getattr__") | ast.Name(id="globals" | "exec" | "setattr"):
                found.add("*")
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                functions = [it for it in ast.walk(node) if isinstance(it, ast.FunctionDef | ast.ClassDef)]
                found |= {it.name for it in functions}
            case ast.ClassDef(name=name):
                found.add(name)
    return found


def _packages(requirements: str, install: Install) -> tuple[Files, list[str]]:
    if not os.path.isfile(requirements):
        raise OptionError(
            "the requirements file does not exist", where=f"--requirements {requirements}", remedy="Correct the path"
        )
    with tempfile.TemporaryDirectory(prefix="tidegate-pack-") as folder:
        constraints, target = os.path.join(folder, "constraints.txt"), os.path.join(folder, SITE_PACKAGES)
        with open(constraints, "w", encoding="utf-8") as file:
            file.writelines(f"{name}=={version}\n" for name, version in _own_versions())
        install(["install", "--target", target, "--no-compile", "-r", requirements, "-c", constraints])
        names: list[str] = []
        own: set[str] = set()
        for found in metadata.distributions(path=[target]):
            files = {str(file) for file in found.files or ()}
            if _normal(found.name) in RUNTIMES_OWN:
                own |= files
            else:
                names.append(f"{_normal(found.name)}=={found.version}")
        return tuple(_files(target, own)), sorted(names)


def _files(target: str, own: set[str]) -> list[tuple[str, bytes]]:
    """Return the files that pip installed, without the runtime's packages, scripts, and files about this machine."""
    kept: list[tuple[str, bytes]] = []
    for directory, folders, names in os.walk(target):
        relative = os.path.relpath(directory, target)
        folders[:] = sorted(n for n in folders if n != "__pycache__" and not (relative == "." and n == "bin"))
        for name in sorted(names):
            inside = name if relative == "." else f"{relative.replace(os.sep, '/')}/{name}"
            if inside in own or (relative.endswith(".dist-info") and name in _LEFT_OUT):
                continue
            with open(os.path.join(directory, name), "rb") as file:
                content = file.read()
            if relative.endswith(".dist-info") and name == "RECORD":
                content = _record(content)
            kept.append((f"{SITE_PACKAGES}/{inside}", content))
    return kept


def _record(content: bytes) -> bytes:
    """Return a package's list of files without the files that are not packed.

    Scripts contain the path of this interpreter. With their hashes, the packed file would differ on every machine.
    """
    kept = []
    for line in content.splitlines(keepends=True):
        path = next(csv.reader([line.decode()]), [""])[0]
        folder, _, name = path.rpartition("/")
        is_script = path.startswith(("../", "bin/"))
        if not is_script and not (folder.endswith(".dist-info") and name in _LEFT_OUT):
            kept.append(line)
    return b"".join(kept)


def run_pip(words: Sequence[str]) -> None:
    """Run pip of this interpreter. Raises PipelineError, EnvironmentProblemError."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PipelineError(
            f"pip did not install the requirements within {INSTALL_LIMIT_S:g} s",
            remedy="Check that this host can reach the package index",
        ) from error
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise EnvironmentProblemError(
            "pip is not installed for this Python, but `tidegate pack` needs it",
            cause=f"{sys.executable} cannot import pip",
            remedy=f"Run `{sys.executable} -m ensurepip`",
        )
    raise PipelineError(
        "pip could not install the requirements",
        cause=done.stderr[-TAIL:].strip(),
        remedy=f"Correct the requirements file. It cannot change the versions of {', '.join(RUNTIMES_OWN[:6])} and "
        "their requirements, which stay as installed on this machine",
    )


def _own_versions() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name in RUNTIMES_OWN:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
