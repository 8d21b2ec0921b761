"""What can be wrong with an installed package, its environment and its metadata: exactly right, or refused whole."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ..queue.scenes import Venv, add_distribution
from ..queue.toy import FIRST, SECOND, TOY, write
from .world import Case, World, check, marked

CORE = "toy/core.py"
ORIGINAL = TOY["python/toy/core.py"]
Arrange = Callable[[World], Sequence[object]]


def installed(venv: Venv) -> Sequence[object]:
    """The arguments that name an environment's packages."""
    return ["--installed", venv.python]


def with_files(files: dict[str, str | bytes | None]) -> Arrange:
    """The environment with these files in its site-packages."""

    def arrange(world: World) -> Sequence[object]:
        venv = world.venv()
        write(venv.site, files)
        return installed(venv)

    return arrange


def in_folder(name: str) -> Arrange:
    """The environment at a place of this name."""
    return lambda world: installed(world.venv(name))


def only_there(world: World, folder: Path) -> Sequence[object]:
    """An environment that finds the packages in another folder, as Debian, `--user` and system-site-packages do."""
    venv = world.venv()
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(venv.site, folder)
    for path in venv.site.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(venv.site, {"there.pth": f"{folder}\n"})
    return installed(venv)


def conda(world: World) -> Sequence[object]:
    """conda's marks: its own folder of records, its name as the installer, files linked to its package cache."""
    venv = world.venv("conda")
    (venv.root / "conda-meta").mkdir()
    (venv.root / "conda-meta/history").write_text("")
    cache = world.root / "pkgs"
    shutil.copytree(venv.site, cache, copy_function=os.link)
    (venv.info() / "INSTALLER").unlink()
    (venv.info() / "INSTALLER").write_text("conda")
    return installed(venv)


def conda_record(world: World) -> Sequence[object]:
    """A RECORD that lists places outside site-packages and absolute ones, without the lines of compiled files."""
    venv = Venv(Path(str(conda(world)[1])).parent.parent)
    record = venv.info() / "RECORD"
    kept = [line for line in record.read_bytes().splitlines(keepends=True) if b".pyc" not in line]
    record.write_bytes(b"".join([b"../../../bin/toy,sha256=x,1\n", b"/opt/conda/share/toy,,\n", *kept]))
    return installed(venv)


def latin_record(world: World) -> Sequence[object]:
    venv = world.venv()
    record = venv.info() / "RECORD"
    text = record.read_bytes().replace(b"toy/core.py,sha256=", b"toy/core.py,sha256=\xe9")
    record.write_bytes(b"toy/caf\xe9.py,,\n" + text)
    return installed(venv)


def clone_on_the_path(world: World) -> Sequence[object]:
    """A folder of clones on the path: Python does not import a plain folder where a package is found later."""
    write(world.root / "src", {"toy/python/toy/__init__.py": "", "toy/README.md": ""})
    world.monkeypatch.setenv("PYTHONPATH", str(world.root / "src"))
    return installed(world.venv())


def twice_on_the_path(world: World) -> Sequence[object]:
    """lib64 is a link to lib, and both are on the path."""
    venv = world.venv()
    (world.root / "lib64").symlink_to(venv.site)
    world.monkeypatch.setenv("PYTHONPATH", str(world.root / "lib64"))
    return installed(venv)


def through_link(world: World) -> Sequence[object]:
    (world.root / "link").symlink_to(world.venv().root)
    return ["--installed", world.root / "link/bin/python"]


def no_record(world: World) -> Sequence[object]:
    venv = Venv(Path(str(conda(world)[1])).parent.parent)
    (venv.info() / "RECORD").unlink()
    return installed(venv)


def debian(world: World) -> Sequence[object]:
    return only_there(world, world.root / "usr/lib/python3/dist-packages")


def debian_without_record(world: World) -> Sequence[object]:
    arguments = debian(world)
    (world.root / "usr/lib/python3/dist-packages/toy-1.0.dist-info/RECORD").unlink()
    return arguments


def base_of_venv(world: World) -> Sequence[object]:
    return only_there(world, world.root / "base/lib/python3/site-packages")


def user_site(world: World) -> Sequence[object]:
    """`pip install --user`: the interpreter outside any environment finds the packages below PYTHONUSERBASE."""
    venv = world.venv()
    version = venv.site.parent.name
    folder = world.root / "user/lib" / version / "site-packages"
    folder.parent.mkdir(parents=True)
    venv.site.rename(folder)
    world.monkeypatch.setenv("PYTHONUSERBASE", str(world.root / "user"))
    world.monkeypatch.delenv("PYTHONNOUSERSITE", raising=False)
    base = venv.python.resolve()
    shutil.rmtree(venv.root)
    return ["--installed", base]


def shared_site(world: World) -> Sequence[object]:
    """Two environments with one site-packages: the second one's is a link to the first one's."""
    one, two = world.venv("one"), world.venv("two")
    shutil.rmtree(two.site)
    two.site.symlink_to(one.site)
    return installed(two)


def externally_managed(world: World) -> Sequence[object]:
    venv = world.venv()
    write(venv.site.parent, {"EXTERNALLY-MANAGED": "[externally-managed]\nError=no\n"})
    return installed(venv)


def read_only_record(world: World) -> Sequence[object]:
    venv = world.venv()
    (venv.info() / "RECORD").chmod(0o444)
    return installed(venv)


def linked_interpreter(world: World) -> Sequence[object]:
    """A link to the environment's interpreter is the interpreter outside of it."""
    (world.root / "python").symlink_to(world.venv().python)
    return ["--installed", world.root / "python"]


def dangling_interpreter(world: World) -> Sequence[object]:
    (world.root / "python").symlink_to("/nowhere/python3")
    return ["--installed", world.root / "python"]


def talking_interpreter(world: World) -> Sequence[object]:
    return with_files({"sitecustomize.py": "print('welcome')\n"})(world)


def uv_links(world: World) -> Sequence[object]:
    """uv --link-mode=symlink: every file is a link into its cache."""
    venv, cache = world.venv(), world.root / "uv"
    shutil.copytree(venv.site, cache)
    for path in [path for path in venv.site.rglob("*") if path.is_file()]:
        path.unlink()
        path.symlink_to(cache / path.relative_to(venv.site))
    return installed(venv)


def linked_record(world: World) -> Sequence[object]:
    venv = world.venv()
    record = venv.info() / "RECORD"
    shutil.move(record, world.root / "RECORD")
    record.symlink_to(world.root / "RECORD")
    return installed(venv)


def linked_info(world: World) -> Sequence[object]:
    venv = world.venv()
    info = venv.info()
    shutil.move(info, world.root / "info")
    info.symlink_to(world.root / "info")
    return installed(venv)


def linked_new_parent(world: World) -> Sequence[object]:
    venv = world.venv()
    (world.root / "other").mkdir()
    (venv.site / "toy/extra").symlink_to(world.root / "other")
    return installed(venv)


def egg_first(world: World) -> Sequence[object]:
    """A zipped egg earlier on the path: Python imports what is in it."""
    with zipfile.ZipFile(world.root / "toy-0.9-py3.egg", "w") as egg:
        egg.writestr("toy/__init__.py", "OLD = 1\n")
        egg.writestr("EGG-INFO/PKG-INFO", "Metadata-Version: 2.1\nName: toy\nVersion: 0.9\n")
    world.monkeypatch.setenv("PYTHONPATH", str(world.root / "toy-0.9-py3.egg"))
    return installed(world.venv())


def egg_alone(world: World) -> Sequence[object]:
    arguments = egg_first(world)
    venv = Venv(Path(str(arguments[1])).parent.parent)
    for name in ("toy", "gear", "toy-1.0.dist-info", "gear_python-1.0.dist-info"):
        shutil.rmtree(venv.site / name)
    return arguments


def import_hook(world: World) -> Sequence[object]:
    """A finder of the kind that editable installs bring, with pip's metadata beside it."""
    write(world.root / "src", {"toy/__init__.py": "HOOKED = 1\n"})
    hook = (
        "import sys, importlib.util as u\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return u.spec_from_file_location(name, {str(world.root / 'src/toy/__init__.py')!r}) "
        "if name == 'toy' else None\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    return with_files({"_hook.py": hook, "hook.pth": "import _hook\n"})(world)


def egg_link(world: World) -> Sequence[object]:
    """`setup.py develop`: a link file, and metadata in the sources."""
    clone, venv = world.toy.clone(), world.venv()
    write(clone, {"python/toy.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"})
    shutil.rmtree(venv.site / "toy")
    shutil.rmtree(venv.info())
    write(venv.site, {"toy.egg-link": f"{clone}/python\n.", "easy-install.pth": f"{clone}/python\n"})
    return [*installed(venv), "--only", "toy"]


def second_version_behind(world: World) -> Sequence[object]:
    """Another version in a folder that comes later on the path is not what Python imports."""
    venv = world.venv()
    write(world.root / "behind", {"toy/__init__.py": "OLD = 1\n", "toy/core.py": ORIGINAL})
    add_distribution(world.root / "behind", "toy", "0.9", RECORD="")
    write(venv.site, {"behind.pth": f"{world.root / 'behind'}\n"})
    return installed(venv)


def second_version_before(world: World) -> Sequence[object]:
    write(world.root / "before", {"toy/__init__.py": "OLD = 1\n", "toy/core.py": ORIGINAL})
    add_distribution(world.root / "before", "toy", "0.9", RECORD="")
    world.monkeypatch.setenv("PYTHONPATH", str(world.root / "before"))
    return installed(world.venv())


def neighbour(world: World) -> Sequence[object]:
    venv = world.venv()
    info = venv.info().rename(venv.site / "toy-1.1.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.1\n")
    return installed(venv)


def local_build(world: World) -> Sequence[object]:
    venv = world.venv()
    info = venv.info().rename(venv.site / "toy-1.0+cu130.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0+cu130\n")
    return installed(venv)


def editable_finder(world: World) -> Sequence[object]:
    """An editable install as pip makes it today, of a checkout whose path needs quoting."""
    clone, venv = world.toy.clone(into="my src é"), world.venv()
    shutil.rmtree(venv.site / "toy")
    shutil.rmtree(venv.info())
    url = (clone / "python").as_uri()
    direct = json.dumps({"url": url, "dir_info": {"editable": True}})
    add_distribution(venv.site, "toy", "1.0", **{"direct_url.json": direct, "RECORD": ""})
    write(venv.site, {"__editable__.toy.pth": f"{clone / 'python'}\n"})
    return installed(venv)


def half_metadata(files: dict[str, str | bytes | None]) -> Arrange:
    return with_files({f"toy-0.9.dist-info/{name}": text for name, text in files.items()})


LIBRARY = with_files({"toy/core.cpython-311-x86_64-linux-gnu.so": b"\x7fELF"})
PACKAGE = with_files({"toy/core/__init__.py": "def answer():\n    return 0\n"})
SED = with_files({CORE: ORIGINAL.replace("return 41", "return 43")})
EXACT: list[tuple[str, Arrange, str]] = [
    ("spaces, quotes and unicode in the target's path", in_folder("ä b'\"c $HOME `x`;é"), "python-unidiff#93"),
    ("a line end in the target's path", in_folder("a\nb"), ""),
    ("a target's path that is not UTF-8", in_folder(os.fsdecode(b"caf\xe9")), ""),
    ("a conda-like prefix", conda, ""),
    ("a RECORD with lines of another installer", conda_record, ""),
    ("Debian's dist-packages", debian, ""),
    ("the packages lie in the base of the environment", base_of_venv, ""),
    ("a user site", user_site, ""),
    ("two environments share one site-packages", shared_site, ""),
    ("a RECORD that is not UTF-8", latin_record, ""),
    ("an externally managed environment", externally_managed, ""),
    ("a read-only RECORD", read_only_record, ""),
    ("a clone's folder on the path that Python does not import", clone_on_the_path, ""),
    ("the same folder twice on the path", twice_on_the_path, ""),
    ("the target is named through a link", through_link, ""),
    ("an interpreter that prints when it starts", talking_interpreter, ""),
    ("another version later on the path", second_version_behind, ""),
    ("a file whose name differs in case alone", with_files({"toy/Core.py": "mine\n"}), ""),
]
REFUSED: list[tuple[str, Arrange, tuple[str, ...], str]] = [
    ("pip's RECORD is missing", no_record, ("RECORD",), ""),
    ("pip's RECORD is missing, as in Debian's packages", debian_without_record, ("RECORD",), ""),
    ("the interpreter is named through a link", linked_interpreter, ("python", "not installed"), ""),
    ("a missing interpreter", dangling_interpreter, ("python", "interpreter"), ""),
    ("every file is a link into a cache", uv_links, ("symbolic link",), "ds300/patch-package#118"),
    ("pip's RECORD is a link", linked_record, ("RECORD", "symbolic link"), ""),
    ("the metadata folder is a link", linked_info, ("toy-1.0.dist-info", "symbolic link"), ""),
    ("a new file's folder is a link", linked_new_parent, ("toy/extra", "symbolic link"), "ds300/patch-package#118"),
    ("a zipped egg earlier on the path", egg_first, ("toy-0.9-py3.egg",), ""),
    ("a zipped egg alone", egg_alone, ("toy",), ""),
    ("an import hook that finds another copy", import_hook, ("/src, not from",), ""),
    ("an editable install of the old kind", egg_link, ("clone-toy",), ""),
    ("an editable install", editable_finder, ("my src é", "editable"), ""),
    ("another version earlier on the path", second_version_before, ("toy 0.9", "v1"), "Hyperloom#205"),
    ("a compiled library of a patched module beside it", LIBRARY, ("toy/core.cpython",), ""),
    ("a package of a patched module's name beside it", PACKAGE, ("toy/core/__init__.py",), ""),
    ("a neighbour release", neighbour, ("toy 1.1", "toy 1.0"), "Hyperloom#205"),
    ("a local build of the version", local_build, ("toy 1.0+cu130", "toy 1.0"), ""),
    ("metadata without a name", half_metadata({"RECORD": ""}), ("toy-0.9.dist-info",), ""),
    ("metadata without a version", half_metadata({"METADATA": "Name: toy\n"}), ("toy-0.9.dist-info",), ""),
    ("metadata that is no text", half_metadata({"METADATA": b"\xff\xfe\0"}), ("toy-0.9.dist-info",), ""),
    ("an origin file that is no JSON", with_files({"toy-1.0.dist-info/direct_url.json": "{"}), ("direct_url",), ""),
    ("an origin file of another form", with_files({"toy-1.0.dist-info/direct_url.json": "[]"}), ("direct_url",), ""),
    ("a touched file was changed by sed", SED,
     ("site-packages/toy/core.py", "9260a2ed757e"), "Hyperloom#505"),
    ("half of the series applied by hand", with_files({CORE: FIRST["python/toy/core.py"]}),
     ("toy/core.py", "manifest", "force-reinstall"), "intel/opencl-clang#834"),
    ("the files of the series copied over", with_files({"toy/core.py": SECOND["python/toy/core.py"],
     "toy/dos.py": SECOND["python/toy/dos.py"], "toy/extra/hook.py": "HOOK = True\n", "toy/extra/__init__.py": ""}),
     ("toy/core.py", "manifest", "force-reinstall"), "intel/opencl-clang#834"),
    ("a new file is there already, with the very content", with_files({"toy/extra/hook.py": "HOOK = True\n"}),
     ("toy/extra/hook.py",), ""),
    ("the patched block is there twice", with_files({CORE: ORIGINAL.partition("# line")[0] + ORIGINAL}),
     ("site-packages/toy/core.py",), "landley/toybox#533"),
    ("a touched file with other line ends", with_files({"toy/dos.py": "A = 1\nB = 2\nC = 3\n"}), ("toy/dos.py",),
     "electron/electron#28360"),
]  # fmt: skip
TOLD: list[tuple[str, Arrange, tuple[str, ...]]] = [
    ("a touched file was changed by sed", SED, ("drifted", "toy/core.py", "003f315f21ad")),
    ("half of the series applied by hand", with_files({CORE: FIRST["python/toy/core.py"]}), ("applied", "pending")),
    ("the patched block is there twice", with_files({CORE: ORIGINAL.partition("# line")[0] + ORIGINAL}),
     ("drifted", "toy/core.py")),
    ("a file whose line ends were converted", with_files({"toy/dos.py": "A = 1\nB = 2\nC = 3\n"}),
     ("drifted", "toy/dos.py")),
    ("a new file is there already, with the very content", with_files({"toy/extra/hook.py": "HOOK = True\n"}),
     ("interrupted", "not yet in toy/core.py")),
]  # fmt: skip
CASES = [Case(what, "installed", "exact", arrange, (), source) for what, arrange, source in EXACT]
CASES += [Case(what, "installed", "refused", arrange, names, source) for what, arrange, names, source in REFUSED]
CASES += [Case(what, "installed", "told", arrange, names) for what, arrange, names in TOLD]


@pytest.mark.parametrize("case", marked(CASES))
def test_a_package_is_exactly_right_or_refused_whole(world: World, case: Case) -> None:
    check(world, case)
