"""Which steps of a history a launch can notice, and the reasons that are given."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sm120_overlay.bisection.history import Reach
from sm120_overlay.bisection.reach import Judged, Rules, Sweep, judge
from sm120_overlay.errors import Missing, Refused
from sm120_overlay.queue.build import build_root
from sm120_overlay.queue.git import Repository, run

RULES = Rules("the launch", "python", ("toy",), ("toy.start",), build=("python/pyproject.toml",))
MODELS = Sweep("toy.registry", "toy.models", "EntryClass", ("Glm",))
START = "python/toy/start.py"
Files = dict[str, str]


def base(start: str = "", **more: str) -> Files:
    """A package whose start asks for something; `a__b` is the module toy.a.b, each file beside its __init__."""
    files = {"python/toy/__init__.py": "", START: textwrap.dedent(start)}
    for name, text in more.items():
        path = name.replace("__", "/")
        for end in range(1, path.count("/") + 1):
            files.setdefault(f"python/toy/{path.rsplit('/', end)[0]}/__init__.py", "")
        files[f"python/toy/{path}.py"] = textwrap.dedent(text)
    return files


def trees(repo: Repository, *revisions: Mapping[str, str]) -> list[str]:
    """Commits that hold these files."""
    return [
        build_root(repo, {path: ("100644", text.encode()) for path, text in files.items()}, "tree")
        for files in revisions
    ]


def step(repo: Repository, old: Files, new: Mapping[str, str | None], rules: Rules = RULES) -> Judged:
    """The judgement of one step: files changed, added, or (None) removed."""
    after = {path: text for path, text in {**old, **new}.items() if text is not None}
    (judged,) = judge(repo, trees(repo, old, after), rules)
    return judged


FORMS = [
    ("import toy.target", Reach.LOADED),
    ("import toy.target as t", Reach.LOADED),
    ("from toy import target", Reach.LOADED),
    ("from . import target", Reach.LOADED),
    ("from .target import thing", Reach.LOADED),
    ("from toy.target import *", Reach.LOADED),
    ("try:\n    from toy.target import x\nexcept ImportError:\n    x = None", Reach.LOADED),
    ("try:\n    import nothing\nexcept ImportError:\n    import toy.target", Reach.LOADED),
    ("if cuda():\n    import toy.target", Reach.LOADED),
    ("with quiet():\n    import toy.target", Reach.LOADED),
    ("match x:\n    case 1:\n        import toy.target", Reach.LOADED),
    ("class A:\n    import toy.target", Reach.LOADED),
    ("if not TYPE_CHECKING:\n    import toy.target", Reach.LOADED),
    ("if TYPE_CHECKING:\n    pass\nelse:\n    import toy.target", Reach.LOADED),
    ("def f():\n    import toy.target", Reach.LAZY),
    ("class A:\n    async def f(self):\n        from .target import x", Reach.LAZY),
    ("if __name__ == '__main__':\n    import toy.target", Reach.LAZY),
    ("import importlib\nimportlib.import_module('toy.target')", Reach.LAZY),
    ("import importlib\nimportlib.import_module('.target', __package__)", Reach.LAZY),
    ("__import__('toy.target')", Reach.LAZY),
    ("from importlib import import_module\nimport_module(f'toy.{name}')", Reach.LAZY),
    ("from importlib import import_module\nimport_module('toy.' + name)", Reach.LAZY),
    ("from importlib import import_module\nimport_module('toy.%s' % name)", Reach.LAZY),
    ("from importlib import import_module\nimport_module('toy.{}'.format(name))", Reach.LAZY),
    ("from importlib import import_module\nimport_module(f'{__package__}.{name}')", Reach.LAZY),
    ("from importlib import import_module\nNAMES = ['target']\nimport_module(NAMES[0])", Reach.LAZY),
    ("from importlib import import_module\ndef load(name): return import_module(__package__ + '.' + name)", Reach.LAZY),
    ("from importlib import import_module\nimport_module(__package__ + '.tar' + name)", Reach.LAZY),
    ("from importlib import import_module\nimport_module(f'{__package__}.other_{name}')", Reach.NONE),
    ("from ... import target", Reach.NONE),
    ("backend = lazy('toy.target', 'Backend')", Reach.LAZY),
    ("kernel = resolve('toy.target.Kernel')", Reach.LAZY),
    ("kernel = resolve('toy.target:Kernel')", Reach.LAZY),
    ("run([python, '-m', 'toy.target'])", Reach.LAZY),
    ("run('python3 -m toy.target --port 1')", Reach.LAZY),
    ("if TYPE_CHECKING:\n    import toy.target", Reach.NONE),
    ("if typing.TYPE_CHECKING:\n    from . import target", Reach.NONE),
    ("# import toy.target", Reach.NONE),
    ("def f():\n    '''import toy.target'''", Reach.NONE),
    ("'toy.target'", Reach.NONE),
    ("if 'toy.target' in sys.modules:\n    pass", Reach.NONE),
    ("logging.getLogger('toy.target')", Reach.NONE),
    ("import target", Reach.NONE),
    ("import other.toy.target", Reach.NONE),
    ("print('see toy.target for more')", Reach.NONE),
]


@pytest.mark.parametrize(("start", "expected"), FORMS, ids=[text.replace("\n", "; ") for text, _ in FORMS])
def test_every_way_to_ask_for_a_module_counts_as_what_it_is(repo: Repository, start: str, expected: Reach) -> None:
    judged = step(repo, base(start, target="x = 1"), {"python/toy/target.py": "x = 2"})
    assert judged.reach is expected, judged.why


def test_the_reason_names_the_lines_that_lead_to_the_file(repo: Repository) -> None:
    files = base("import os\nimport toy.a", a="\n\nfrom toy.b import x", b="def f():\n    import toy.c", c="")
    assert step(repo, files, {"python/toy/b.py": "x = 1"}).why == (
        "python/toy/b.py: loaded at the start, python/toy/a.py:3 imports it; python/toy/start.py:2 imports it"
    )
    assert step(repo, files, {"python/toy/c.py": "x = 1"}).why == (
        "python/toy/c.py: loaded when needed, python/toy/b.py:2 imports it inside a function; "
        "python/toy/a.py:3 imports it; python/toy/start.py:2 imports it"
    )


def test_a_culled_step_says_who_would_load_the_files(repo: Repository) -> None:
    files = base("", cli="from toy.art import draw", art__draw="", art__paint="import toy.art.draw")
    assert step(repo, files, {"python/toy/art/draw.py": "x = 1", "docs/art.md": "draw"}).why == (
        "docs/art.md: it lies outside the package. python/toy/art/draw.py: the launch does not reach any module of "
        "toy.art (only toy.cli would)"
    )


def test_packages_above_a_module_are_loaded_with_it(repo: Repository) -> None:
    files = base("import toy.a.b.c", a__b__c="")
    assert step(repo, files, {"python/toy/a/__init__.py": "x = 1"}).reach is Reach.LOADED
    assert step(repo, files, {"python/toy/__init__.py": "x = 1"}).reach is Reach.LOADED


def test_what_a_lazy_module_imports_at_its_top_is_lazy(repo: Repository) -> None:
    files = base("def f():\n    import toy.a", a="import toy.b", b="")
    assert step(repo, files, {"python/toy/b.py": "x = 1"}).reach is Reach.LAZY


def test_a_walk_over_a_package_reaches_all_of_it_from_whoever_names_it(repo: Repository) -> None:
    walker = "import pkgutil\ndef load(package):\n    pkgutil.iter_modules(package.__path__)"
    files = base("from toy.walker import load\nload('toy.parts')", walker=walker, parts__one="", rest__two="")
    assert step(repo, files, {"python/toy/parts/one.py": "x = 1"}).reach is Reach.LAZY
    assert step(repo, files, {"python/toy/rest/two.py": "x = 1"}).reach is Reach.NONE


def test_names_that_a_package_exports_are_reached_by_a_star(repo: Repository) -> None:
    files = base("from toy.parts import *", parts__one="") | {"python/toy/parts/__init__.py": "__all__ = ['one']"}
    assert step(repo, files, {"python/toy/parts/one.py": "x = 1"}).reach is Reach.LAZY


def test_a_model_that_serves_the_launch_is_loaded_and_others_are_lazy(repo: Repository) -> None:
    rules = Rules("the launch", "python", ("toy",), ("toy.start", "toy.registry"), (MODELS,))
    files = base(
        "", registry="", models__glm="EntryClass = [Glm, GlmNext]", models__llama="EntryClass = Llama\nimport toy.l",
        l="", models__odd="EntryClass = Odd(",
    )  # fmt: skip
    glm, llama, deep, odd = (
        step(repo, files, {f"python/toy/{path}.py": f"{files[f'python/toy/{path}.py']}\n# more"}, rules)
        for path in ("models/glm", "models/llama", "l", "models/odd")
    )
    assert (glm.reach, llama.reach, deep.reach, odd.reach) == (Reach.LOADED, Reach.LAZY, Reach.LAZY, Reach.LOADED)
    assert glm.why.endswith("toy.registry imports it, which serves Glm")
    assert llama.why.endswith("toy.registry imports it with all of toy.models, but it serves another model")
    assert "cannot be parsed, line 1" in odd.why


def test_without_a_model_all_of_them_serve(repo: Repository) -> None:
    sweep = Sweep(MODELS.by, MODELS.package, MODELS.attribute)
    rules = Rules("the launch", "python", ("toy",), ("toy.registry",), (sweep,))
    files = base("", registry="", models__llama="EntryClass = Llama")
    assert step(repo, files, {"python/toy/models/llama.py": "EntryClass = [Llama]"}, rules).reach is Reach.LOADED


def test_before_the_model_came_all_of_them_serve(repo: Repository) -> None:
    rules = Rules("the launch", "python", ("toy",), ("toy.registry",), (MODELS,))
    old = base("", registry="", models__llama="EntryClass = Llama")
    files = [old, old | {"python/toy/models/llama.py": "EntryClass = [Llama]"}]
    files.append(files[-1] | {"python/toy/models/glm.py": "EntryClass = Glm"})
    files.append(files[-1] | {"python/toy/models/llama.py": "EntryClass = Llama"})
    first, came, later = judge(repo, trees(repo, *files), rules)
    assert (first.reach, came.reach, later.reach) == (Reach.LOADED, Reach.LOADED, Reach.LAZY)
    assert "imports it with all of toy.models, and none of them serves Glm here" in first.why


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("python/toy/near/table.json", Reach.LAZY),
        ("python/toy/near/deep/table.json", Reach.LAZY),
        ("python/toy/far/table.json", Reach.NONE),
        ("python/toy/far/named.json", Reach.LAZY),
        ("python/toy/README.md", Reach.NONE),
        ("python/toy/far/PROMPT.md", Reach.NONE),
        ("python/toy/PROMPT.md", Reach.LAZY),
        ("python/pyproject.toml", Reach.LOADED),
        ("python/pyproject_other.toml", Reach.NONE),
        ("README.md", Reach.NONE),
        ("python/toys/x.py", Reach.NONE),
    ],
)
def test_data_counts_beside_a_loaded_module_and_where_one_names_it(
    repo: Repository, path: str, expected: Reach
) -> None:
    files = base("import toy.near.code\nopen(f'{here}/named.json')\nread('PROMPT.md')", near__code="", far__code="")
    assert step(repo, files, {path: "1"}).reach is expected


def test_a_new_file_that_a_loaded_module_was_asking_for_is_loaded(repo: Repository) -> None:
    files = base("try:\n    from toy import fast\nexcept ImportError:\n    fast = None")
    assert step(repo, files, {"python/toy/fast.py": "x = 1"}).reach is Reach.LOADED
    assert step(repo, files | {"python/toy/fast.py": ""}, {"python/toy/fast.py": None}).reach is Reach.LOADED


def test_a_new_package_that_hides_a_module_is_loaded(repo: Repository) -> None:
    files = base("import toy.a", a="")
    assert step(repo, files, {"python/toy/a/__init__.py": ""}).reach is Reach.LOADED


def test_a_new_file_beside_the_package_that_hides_a_library_is_loaded(repo: Repository) -> None:
    assert step(repo, base("import torch"), {"python/torch.py": ""}).reach is Reach.LOADED


def test_what_a_step_stops_to_import_counts_on_the_side_before(repo: Repository) -> None:
    files = base("import toy.a", a="")
    old, new = files, files | {START: ""}
    judged = judge(repo, trees(repo, old, new, new | {"python/toy/a.py": "x = 1"}), RULES)
    assert [one.reach for one in judged] == [Reach.LOADED, Reach.NONE]


def test_a_file_that_cannot_be_parsed_reaches_all_that_it_names(repo: Repository) -> None:
    files = base("print 'old Python'\nfrom toy import a\nx = 'toy.b'", a="", b="", c="")
    reaches = [step(repo, files, {f"python/toy/{name}.py": "x = 1"}).reach for name in "abc"]
    assert reaches == [Reach.LOADED, Reach.LOADED, Reach.NONE]


def test_the_names_of_a_broken_import_over_several_lines_are_reached(repo: Repository) -> None:
    files = base("print 'old Python'\nfrom toy.parts import (\n    one,\n)", parts__one="")
    assert step(repo, files, {"python/toy/parts/one.py": "x = 1"}).reach is Reach.LOADED


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_lines_that_end_otherwise_are_read_as_python_reads_them(repo: Repository, end: str) -> None:
    files = base("", target="")
    files[START] = end.join(["x = 1", "", "def f():", "    pass", "import toy.target", ""])
    assert step(repo, files, {"python/toy/target.py": "x = 1"}).reach is Reach.LOADED


def test_a_link_reaches_what_it_leads_to(repo: Repository) -> None:
    entries = {path: ("100644", text.encode()) for path, text in base("import toy.link", real="").items()}
    entries["python/toy/link.py"] = ("120000", b"real.py")
    old = build_root(repo, entries, "old")
    new = build_root(repo, entries | {"python/toy/real.py": ("100644", b"x = 1")}, "new")
    assert judge(repo, [old, new], RULES)[0].reach is Reach.LOADED


def test_a_package_that_can_be_run_is_reached_where_its_name_stands(repo: Repository) -> None:
    files = base("run([python, '-m', 'toy.tool'])") | {"python/toy/tool/__init__.py": ""}
    files["python/toy/tool/__main__.py"] = ""
    assert step(repo, files, {"python/toy/tool/__main__.py": "x = 1"}).reach is Reach.LAZY


def test_nothing_is_culled_in_trees_that_lost_the_launch(repo: Repository) -> None:
    first = base("", a="")
    lost = {path: text for path, text in first.items() if path != START} | {"python/toy/begin.py": ""}
    judged = judge(repo, trees(repo, first, lost, lost | {"python/toy/a.py": "x = 1"}), RULES)
    assert [one.reach for one in judged] == [Reach.LOADED, Reach.LOADED]
    assert judged[1].why == (
        "python/toy/a.py: loaded at the start, it counts as loaded, as all do here: the launch begins elsewhere"
    )


def test_equal_trees_are_culled_and_one_tree_has_no_step(repo: Repository) -> None:
    (tree,) = trees(repo, base())
    assert judge(repo, [tree, tree, tree], RULES) == (Judged(Reach.NONE, "no file differs"),) * 2
    assert judge(repo, [tree], RULES) == ()


def test_a_module_of_a_whole_package_is_at_least_lazy(repo: Repository) -> None:
    rules = Rules("an import", "", ("toy",), ("toy",), whole=("toy",), data=(("csrc", "it may be compiled"),))
    files = {"toy/__init__.py": "", "toy/a.py": "", "csrc/a.cu": "", "tests/test_a.py": "import toy.a"}
    reaches = [step(repo, files, {path: "x = 1"}, rules).reach for path in files]
    assert reaches == [Reach.LOADED, Reach.LAZY, Reach.LAZY, Reach.NONE]


def test_a_tree_without_the_launch_is_refused(repo: Repository) -> None:
    ends = trees(repo, {"python/other/__init__.py": ""}, {})
    with pytest.raises(Refused, match=r"none of the modules that the launch begins with \(toy.start\) is there"):
        judge(repo, ends, RULES)


def test_a_commit_that_vanished_is_refused(repo: Repository) -> None:
    with pytest.raises(Missing, match="0123456789ab is no commit and no tree there"):
        judge(repo, [*trees(repo, base()), "0123456789abcdef" * 2 + "01234567"], RULES)


def test_a_model_that_no_file_serves_is_refused(repo: Repository) -> None:
    rules = Rules("the launch", "python", ("toy",), ("toy.registry",), (MODELS,))
    ends = trees(repo, base(registry="", models__llama="EntryClass = Llama"), base(registry=""))
    with pytest.raises(Refused, match="no model file serves the architecture Glm"):
        judge(repo, ends, rules)


def test_a_module_that_a_person_names_is_loaded_and_refused_where_none_is(repo: Repository) -> None:
    files = base("", client="")
    rules = replace(RULES, also=("toy.client",))
    judged = step(repo, files, {"python/toy/client.py": "x = 1"}, rules)
    assert judged == Judged(Reach.LOADED, "python/toy/client.py: loaded at the start, it was named as loaded, too")
    without = {path: text for path, text in files.items() if "client" not in path}
    assert step(repo, without, {"python/toy/client.py": ""}, rules).reach is Reach.LOADED
    with pytest.raises(Refused, match=r"there is no module toy\.client in "):
        step(repo, without, {"x.md": ""}, rules)


def test_a_file_that_the_repository_lacks_is_refused(repo: Repository) -> None:
    old, new = trees(repo, base(), base("import os  # of no other tree"))
    blob = run(repo, "rev-parse", f"{new}:{START}").decode().strip()
    pruned = Repository(repo.path / "partial")
    pruned.path.mkdir()
    run(pruned, "init", "--quiet", "--bare", ".")
    listed = run(repo, "rev-list", "--objects", "--no-object-names", old, new).decode().split()
    run(pruned, "unpack-objects", "-q", stdin=_pack(repo, [one for one in listed if one != blob]))
    with pytest.raises(Refused, match=r"start.py cannot be read: a partial clone"):
        judge(pruned, [old, new], RULES)


def _pack(repo: Repository, objects: list[str]) -> bytes:
    return run(repo, "pack-objects", "--stdout", "-q", stdin="".join(f"{one}\n" for one in objects).encode())


def test_many_steps_are_judged_as_each_alone(repo: Repository) -> None:
    turns = [
        base("import toy.a" if number % 3 else "", a=f"x = {number // 2}", b=f"x = {number}") for number in range(120)
    ]
    ids = trees(repo, *turns)
    together = judge(repo, ids, RULES)
    assert len(together) == 119
    for at in (0, 1, 2, 49, 50, 51, 118):
        assert together[at] == judge(repo, ids[at : at + 2], RULES)[0]
