"""What a command runs of the tree counts as what a run can see, though no server imports it."""

from __future__ import annotations

import pytest

from sm120_overlay.bisection.history import Reach
from sm120_overlay.bisection.reach import Rules, judge
from sm120_overlay.bisection.sees import Sees, rules_seeing, seen_by
from sm120_overlay.queue.git import Repository
from sm120_overlay.serving.launch import sglang

from .test_reach import RULES, base, trees

SCRIPTS = (("toy", "toy.cli"),)


@pytest.mark.parametrize(
    ("command", "modules", "paths"),
    [
        ("{python} -m toy.bench --port {port} --output-file {out}/b.jsonl", ["toy.bench"], []),
        ("{python} -mtoy.bench", ["toy.bench"], []),
        ("{python} -m pytest -q test_x.py", [], []),
        ("toy serve --port {port}", ["toy.cli"], []),
        ("cd {out} && toy serve", ["toy.cli"], []),
        ("mytoy serve; cat toy", [], []),
        ("{python} {path}/toy/bench.py", ["toy.bench"], []),
        ("{python} {tree}/python/toy/sub/__init__.py", ["toy.sub"], []),
        ("{python} {tree}/bench/run.py -c {tree}/bench/./c.json", [], ["bench/run.py", "bench/c.json"]),
        ("sh -c 'cat {path}/toy/data.json'", [], ["python/toy/data.json"]),
        ("pip install {tree}/python", [], []),
        ("ls {tree} {path}/ {path}/toy {tree}/../x", [], []),
        ("{python} -m 'toy.bench'", ["toy.bench"], []),
        ("{python} -um toy.bench", ["toy.bench"], []),
        ("PYTHONPATH={tree}/bench:{tree}/lib:$PYTHONPATH x", [], ["bench", "lib"]),
        ("x {tree}/a.json,{tree}/b.json", [], ["a.json", "b.json"]),
        ("cat {tree}/bench/sp* {tree}/lib/$X.py {tree}/data/[ab].txt", [], ["bench", "lib", "data"]),
        ("cat {tree}/b*/speed.txt", [], ["."]),
        ("cat {path}/toy/*.json", [], ["python/toy"]),
        ("cat {tree}/'my bench'/x {tree}/more/my\\ x", [], [".", "more"]),
        ('cat "$SM120_BISECT_TREE"/bench/x ${SM120_BISECT_TREE}/y', [], ["bench/x", "y"]),
        ("{python} $SM120_BISECT_PATH/toy/bench.py", ["toy.bench"], []),
        ("cd {tree} && {python} bench/x.py --file=c.json", [], ["bench/x.py", "c.json"]),
        ("cd {tree}/bench; ./x.sh -n 3", [], ["bench", "bench/x.sh", "bench/3"]),
        ("cd {path} && {python} toy/bench.py", ["toy.bench"], []),
    ],
)  # fmt: skip
def test_what_commands_name(command: str, modules: list[str], paths: list[str]) -> None:
    assert seen_by([command], "python", ["toy"], SCRIPTS) == Sees(tuple(modules), tuple(paths))


def test_in_a_wheel_packages_begin_at_the_root() -> None:
    seen = seen_by(["{python} {path}/toy/bench.py {tree}/toy/x.json"], "", ["toy"], ())
    assert seen == Sees(("toy.bench",), ("toy/x.json",))


def _reach(repo: Repository, command: str, changed: str, text: str, **files: str) -> Reach:
    """How near a launch measured by a command comes to one changed file."""
    old = {**base("import toy.engine", engine="", bench="import toy.client", client="", other=""), **files}
    ids = trees(repo, old, {**old, changed: text})
    rules: Rules = rules_seeing(repo, (ids[0], ids[-1]), RULES, seen_by([command], "python", ["toy"], SCRIPTS))
    (judged,) = judge(repo, ids, rules)
    return judged.reach


def test_a_change_to_the_benchmark_that_measures_is_no_change_that_a_launch_cannot_reach(repo: Repository) -> None:
    bench = "{python} -m toy.bench"
    assert _reach(repo, bench, "python/toy/bench.py", "import toy.client  # slower") is Reach.LOADED
    assert _reach(repo, bench, "python/toy/client.py", "slower = True") is Reach.LOADED
    assert _reach(repo, "./mine.sh", "python/toy/client.py", "slower = True") is Reach.NONE
    assert _reach(repo, bench, "python/toy/other.py", "slower = True") is Reach.NONE


def test_a_script_outside_the_package_counts_with_all_that_it_imports(repo: Repository) -> None:
    run_it = "{python} {tree}/benchmark/run.py"
    script = {"benchmark/run.py": "from toy import client\nimport toy.bench.nothing\n"}
    assert _reach(repo, run_it, "benchmark/run.py", "", **script) is Reach.LOADED
    assert _reach(repo, run_it, "python/toy/client.py", "slower = True", **script) is Reach.LOADED
    assert _reach(repo, "{python} {tree}/benchmark", "python/toy/client.py", "x = 1", **script) is Reach.LOADED
    assert _reach(repo, run_it, "benchmark/other.py", "", **script) is Reach.NONE


def test_sglang_serve_runs_sglangs_command_line() -> None:
    rules = sglang()
    assert seen_by(["sglang serve --model-path M"], rules.folder, rules.packages, rules.scripts).modules == (
        "sglang.cli.main",
    )


def test_where_the_shell_makes_the_name_all_that_it_can_be_counts(repo: Repository) -> None:
    bench = {"bench/run.py": "from toy import client", "bench/speed.txt": "100"}
    assert _reach(repo, "cat {tree}/b*/speed.txt", "bench/speed.txt", "150", **bench) is Reach.LOADED
    assert _reach(repo, "{python} {tree}/$X.py", "python/toy/client.py", "slower = True", **bench) is Reach.LOADED
    assert _reach(repo, "cd {tree} && {python} bench/run.py", "python/toy/client.py", "x = 1", **bench) is Reach.LOADED
