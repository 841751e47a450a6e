"""The wheel holds what the tree holds, and the contract package runs with next to nothing installed."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tidegate.extras import PACKAGES

REPOSITORY = Path(__file__).parents[1]
ROOTS = {"tidegate": REPOSITORY / "spark_runtime", "airflow_tidegate": REPOSITORY / "provider"}


def packages_on_disk() -> list[str]:
    """Dotted names of every folder with an `__init__.py` below the two import names."""
    return sorted(
        ".".join(found.parent.relative_to(base).parts)
        for name, base in ROOTS.items()
        for found in (base / name).rglob("__init__.py")
    )


def setup_cfg() -> configparser.ConfigParser:
    """The package's metadata as written."""
    parser = configparser.ConfigParser()
    parser.read(REPOSITORY / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy of the tree so that no build output is left in it."""
    tree = tmp_path_factory.mktemp("tree")
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, tree / file)
    for base in ROOTS.values():
        shutil.copytree(base, tree / base.name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    build = subprocess.run(command, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stdout[-2000:] + build.stderr[-2000:]
    (file_name,) = (tree / "dist").glob("*.whl")
    return zipfile.ZipFile(file_name)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    """The wheel's METADATA."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_every_package_on_disk_is_listed_in_setup_cfg() -> None:
    listed = setup_cfg()["options"]["packages"].split()
    missing = sorted(set(packages_on_disk()) - set(listed))
    gone = sorted(set(listed) - set(packages_on_disk()))
    assert not missing, f"add to packages in setup.cfg: {missing}"
    assert not gone, f"remove from packages in setup.cfg: {gone}"
    assert len(listed) == len(set(listed)), "a package is listed twice"


def test_every_folder_with_modules_is_a_package() -> None:
    packages = set(packages_on_disk())
    folders = {
        ".".join(module.parent.relative_to(base).parts)
        for name, base in ROOTS.items()
        for module in (base / name).rglob("*.py")
    }
    assert not sorted(folders - packages), "folders with modules and no __init__.py are not shipped"


def test_every_module_on_disk_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    on_disk = {
        module.relative_to(base).as_posix() for name, base in ROOTS.items() for module in (base / name).rglob("*.py")
    }
    in_wheel = {name for name in wheel.namelist() if name.endswith(".py")}
    assert sorted(on_disk - in_wheel) == []
    assert sorted(in_wheel - on_disk) == []


@pytest.mark.parametrize("package", sorted(ROOTS))
def test_the_wheel_says_that_it_is_typed(wheel: zipfile.ZipFile, package: str) -> None:
    assert f"{package}/py.typed" in wheel.namelist()


def test_the_files_of_airflows_page_are_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    static = ROOTS["airflow_tidegate"] / "airflow_tidegate/plugins/static"
    on_disk = {f"airflow_tidegate/plugins/static/{file.name}" for file in static.iterdir()}
    assert "airflow_tidegate/plugins/static/page.html" in on_disk
    assert sorted(on_disk - set(wheel.namelist())) == []


def test_the_wheel_carries_the_licence(wheel: zipfile.ZipFile) -> None:
    (licence,) = (name for name in wheel.namelist() if name.endswith("/LICENSE"))
    assert "Apache License" in wheel.read(licence).decode()


def test_the_wheel_installs_the_command_and_the_airflow_provider(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(name).decode())
    assert dict(entry_points["console_scripts"]) == {"tidegate": "tidegate.cli.main:main"}
    assert list(entry_points["apache_airflow_provider"].values()) == [
        "airflow_tidegate.get_provider_info:get_provider_info"
    ]


def test_every_entry_point_names_a_function_that_exists(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(name).decode())
    targets = [target for section in entry_points.sections() for target in entry_points[section].values()]
    program = "import importlib, sys\nfor t in sys.argv[1:]:\n    m, f = t.split(':')\n    "
    program += "assert callable(getattr(importlib.import_module(m), f)), t\n"
    run = subprocess.run([sys.executable, "-c", program, *targets], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def required(metadata: Message, extra: str | None = None) -> list[str]:
    """Sorted names of the distributions that pip installs with the wheel; with `extra`: of those that it adds."""
    found = [line.partition(";") for line in metadata.get_all("Requires-Dist", [])]
    wanted = [name for name, _, when in found if (f'extra == "{extra}"' in when if extra else not when)]
    return sorted(re.split(r"[^A-Za-z0-9-]", name)[0] for name in wanted)


def test_the_wheel_alone_is_the_client(metadata: Message) -> None:
    assert required(metadata) == ["fsspec", "pendulum"]
    assert metadata["Requires-Python"] in ("<3.15,>=3.11", ">=3.11,<3.15")


def test_the_airflow_provider_brings_no_runtime(metadata: Message) -> None:
    assert required(metadata, "airflow") == ["apache-airflow"]
    assert required(metadata, "spark") == ["numba", "numpy", "pyarrow", "pyspark"]


def test_every_extra_of_users_is_known_where_missing_packages_are_named(metadata: Message) -> None:
    names = {"apache-airflow": "airflow", "confluent-kafka": "confluent_kafka", "protobuf": "google.protobuf"}
    extras = set(metadata.get_all("Provides-Extra", [])) - {"demo", "dev"}
    installed = {extra: {names.get(name, name) for name in required(metadata, extra)} for extra in extras}
    assert installed == {extra: set(packages) for extra, packages in PACKAGES.items()}


def test_the_extra_of_developers_refers_to_all_others_and_repeats_none() -> None:
    extras = {name: wanted.split() for name, wanted in setup_cfg()["options.extras_require"].items()}
    own = extras.keys() - {"demo", "dev"}
    assert f"tidegate[{','.join(sorted(own))}]" in extras["dev"]
    assert not {package for name in own for package in extras[name]} & set(extras["dev"])


def test_the_wheel_says_where_the_project_lives(metadata: Message) -> None:
    pages = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {"Documentation", "Source", "Issues", "Changelog"} <= pages.keys()
    assert all(page.startswith("https://") for page in pages.values())
    assert metadata["Author"] and metadata["Maintainer"]


def test_the_lock_pins_every_dependency_and_never_pyspark_client() -> None:
    lines = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.split(";")[0].strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert all("==" in pin for pin in pins)
    locked = {pin.split("==")[0] for pin in pins}
    assert "pyspark-client" not in locked
    assert not [line for line in lines if "http://" in line or "https://" in line]
    options = setup_cfg()
    wanted = options["options"]["install_requires"].split()
    wanted += [name for extra in options["options.extras_require"].values() for name in extra.split()]
    names = {name.split("[")[0].split(">")[0].split("<")[0].split("=")[0] for name in wanted if name[0].isalpha()}
    assert sorted(names - locked - {"tidegate"}) == [], "run `make lock`"


def test_the_contract_package_imports_with_fsspec_and_the_standard_library_alone() -> None:
    """All but the S3 store, which is the `s3` extra's and loaded when a root is on S3."""
    program = textwrap.dedent(
        """
        import importlib, importlib.abc, pkgutil, sys

        class Absent(importlib.abc.MetaPathFinder):
            there = sys.stdlib_module_names | {"tidegate", "fsspec"}

            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] not in self.there:
                    raise ModuleNotFoundError(f"{name} is not installed here", name=name)

        sys.meta_path.insert(0, Absent())
        import tidegate.jobs
        for module in pkgutil.walk_packages(tidegate.jobs.__path__, "tidegate.jobs."):
            if module.name != "tidegate.jobs.stores.s3":
                importlib.import_module(module.name)
        from tidegate.jobs.stores.store_registry import open_store
        open_store("memory://packaging").create("a", b"1")
        print(*sorted(sys.modules))
        """
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = run.stdout.split()
    assert "tidegate.errors" in loaded
    assert "tidegate.jobs.stores.s3" not in loaded
