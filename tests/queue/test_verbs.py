"""The verbs as a user meets them: answers, exit codes, sentences, and the JSON that docs/json.md promises."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sm120_overlay.cli import VERBS, main

from .test_proof import SHOWS_42, with_test
from .toy import HOOK, Toy, commit, git, write

ROOT = Path(__file__).resolve().parents[2]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON object of a verb; standard output must hold nothing else."""
    capsys.readouterr()
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {patch["slug"]: patch["state"] for target in found["targets"] for patch in target["patches"]}


def test_apply_without_a_target_makes_checkouts_of_the_whole_line(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, found = answer(capsys, "apply", "--source", "pypi")
    assert code == 0
    assert [target["path"] for target in found["targets"]] == [str(tmp_path / "build/v1" / n) for n in ("toy", "gear")]
    assert set(states(found).values()) == {"applied"}
    assert answer(capsys, "status")[1]["ok"]
    assert answer(capsys, "verify")[0] == 0


def test_applying_twice_changes_nothing_and_says_so(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = str(toy.clone())
    first, second = answer(capsys, "apply", clone)[1], answer(capsys, "apply", clone)[1]
    assert [found["targets"][0]["changed"] for found in (first, second)] == [True, False]
    assert first["targets"][0]["head"] == second["targets"][0]["head"]
    main(["apply", clone])
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["apply", "status", "verify"])
def test_json_has_the_promised_shape(toy: Toy, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    clone = str(toy.clone())
    main(["apply", clone])
    _, found = answer(capsys, verb, clone)
    assert list(found)[:2] == ["schema", "verb"]
    assert (found["schema"], found["verb"], found["line"], found["ok"]) == (1, verb, "v1", True)
    (target,) = found["targets"]
    promised = {"upstream", "path", "kind", "base", "head", "digest", "expected_digest", "patches"}
    assert promised <= target.keys()
    assert target["kind"] == "checkout"
    assert target["base"] == toy.pin().commit
    assert target["head"] == git(Path(clone), "rev-parse", "HEAD").strip()
    assert [patch["commit"] for patch in target["patches"]] == git(
        Path(clone), "log", "--reverse", "--format=%H", f"{toy.pin().commit}..HEAD"
    ).split()
    assert all(patch.keys() == {"slug", "state", "commit", "reason"} for patch in target["patches"])


def test_the_document_names_every_key_of_the_json(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = str(toy.clone())
    with_test(toy, SHOWS_42)
    said = (ROOT / "docs" / "json.md").read_text()
    keys: set[str] = set()
    for verb in (
        ["apply", clone, "--dry-run"],
        ["apply", clone],
        ["status", clone],
        ["verify", clone],
        ["verify", "--red-green", "right-answer"],
        ["export", clone],
        ["lint"],
        ["apply", "--line", "none"],
    ):
        keys |= _keys(answer(capsys, *verb)[1])
    missing = {key for key in keys if f"`{key}`" not in said and f'"{key}"' not in said}
    assert not missing


def _keys(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keys, value.values())) if value else set()
    return set().union(*map(_keys, value)) if isinstance(value, list) else set()


def test_status_says_no_for_a_pending_target_and_verify_names_the_file_of_a_drifted_one(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    code, found = answer(capsys, "status", str(clone))
    assert (code, states(found)) == (1, {"right-answer": "pending", "bring-hook": "pending"})
    main(["apply", str(clone)])
    write(clone, {HOOK: "HOOK = False\n"})
    code, found = answer(capsys, "verify", str(clone))
    assert code == 1
    assert states(found) == {"right-answer": "applied", "bring-hook": "drifted"}
    (reason,) = [patch["reason"] for patch in found["targets"][0]["patches"] if patch["state"] == "drifted"]
    assert HOOK in reason and "expected blob" in reason and "found" in reason
    assert found["targets"][0]["digest"] != found["targets"][0]["expected_digest"]


def test_through_and_without_select_and_move_an_applied_target(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = str(toy.clone())
    main(["apply", clone])
    code, found = answer(capsys, "apply", clone, "--through", "right-answer")
    assert (code, states(found)) == (0, {"right-answer": "applied", "bring-hook": "pending"})
    assert answer(capsys, "verify", clone)[0] == 1
    assert answer(capsys, "verify", clone, "--through", "right-answer")[0] == 0
    assert answer(capsys, "apply", clone, "--without", "bring-hook")[1]["targets"][0]["changed"] is False
    code, found = answer(capsys, "apply", clone, "--without", "right-answer")
    assert code == 1
    assert "bring-hook" in found["error"]["what"]


def test_only_leaves_the_other_upstream_alone(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "apply", "--into", str(tmp_path / "x"), "--only", "gear", "--source", "pypi")
    assert code == 0
    assert [target["upstream"] for target in found["targets"]] == ["gear"]
    assert not (tmp_path / "x" / "toy").exists()


def test_reverse_restores_the_bytes_and_the_branch(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    main(["apply", str(clone)])
    code, found = answer(capsys, "apply", str(clone), "--reverse")
    assert (code, set(states(found).values())) == (0, {"pending"})
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert git(clone, "branch", "--list", "sm120/*") == ""
    assert answer(capsys, "apply", str(clone), "--reverse")[1]["targets"][0]["changed"] is False


def test_a_dry_run_writes_nothing_and_says_what_would(
    toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = toy.clone()
    code, found = answer(capsys, "apply", str(clone), "--dry-run")
    assert (code, found["targets"][0]["would_change"]) == (0, True)
    assert git(clone, "branch", "--list", "sm120/*") == ""
    assert git(clone, "status", "--porcelain") == ""
    assert main(["apply", "--into", str(tmp_path / "x"), "--dry-run"]) == 0
    assert not (tmp_path / "x").exists()


def test_a_refusal_of_one_target_leaves_the_others_alone(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone, gear = toy.clone(), toy.clone("gear")
    write(gear, {"csrc/kernel.cu": "// mine\n"})
    code, found = answer(capsys, "apply", str(clone), str(gear))
    assert code == 1
    assert "csrc/kernel.cu" in found["error"]["what"]
    assert git(clone, "branch", "--list", "sm120/*") == ""


def test_red_green_shows_both_for_every_patch(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    with_test(toy, SHOWS_42)
    with_test(toy, "def test_hook(tree):\n    assert (tree / 'toy/extra/hook.py').exists()\n", "bring-hook")
    gears = "def test_gears(tree):\n    assert 'fifty' in (tree / 'gear/data/csrc/kernel.cu').read_text()\n"
    with_test(toy, gears, "more-gears")
    code, found = answer(capsys, "verify", "--red-green")
    assert code == 0
    for target in found["targets"]:
        assert target["kind"] == "installed"
        assert target["digest"] == target["expected_digest"]
        for patch in target["patches"]:
            assert (patch["red"]["ok"], patch["green"]["ok"]) == (True, True)
            assert patch["red"].keys() == {"ok", "outcome", "test", "seconds", "detail"}
    assert main(["verify", "--red-green", "more-gears"]) == 0
    assert "as it should be" in capsys.readouterr().out


def test_red_green_of_a_vacuous_test_fails(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    with_test(toy, "def test_nothing(tree):\n    assert tree\n")
    code, found = answer(capsys, "verify", "--red-green", "right-answer")
    assert (code, found["ok"]) == (1, False)
    assert answer(capsys, "verify", "--red-green", "no-such")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["apply", "--line", "v9"], 2, "no line 'v9'"),
        (["apply", "--only", "tow"], 2, "no upstream 'tow'"),
        (["apply", "--through", "no-slug"], 2, "no-slug"),
        (["apply", "--colour"], 2, "--colour"),
        (["apply", "x", "--installed"], 2, "one kind of target"),
        (["apply", "x", "--into", "y"], 2, "--into"),
        (["apply", "/no/such/folder"], 1, "/no/such/folder"),
        (["apply", "--source", "/no/such/mirror"], 2, "/no/such/mirror"),
        (["apply", "--installed", "/no/such/python"], 4, "/no/such/python"),
        (["status"], 1, "no checkout"),
        (["export", "--installed"], 2, "--installed"),
        (["apply", "x", "--source", "pypi"], 2, "--source"),
        (["apply", "--only", "gear", "--through", "right-answer"], 2, "right-answer is a patch on toy"),
        (["apply", "--source", "https://example.org/x"], 2, "a URL"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_gets_two_sentences_and_its_exit_code(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], code: int, what: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    said = capsys.readouterr()
    assert what in said.err + said.out
    assert "→" in said.err
    assert "Traceback" not in said.err


def test_a_broken_patch_file_is_named(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    file = toy.home.root / "patches/v1/toy/right-answer.patch"
    file.write_bytes(file.read_bytes().replace(b"return 42", b"return 43"))
    clone = str(toy.clone())
    assert main(["apply", clone]) == 1
    said = capsys.readouterr().err
    assert "python/toy/core.py" in said and "promises blob" in said
    file.unlink()
    assert main(["apply", clone]) == 2
    assert "right-answer.patch" in capsys.readouterr().err


def test_every_verb_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert "examples:" in said and "exit codes:" in said
    assert main([]) == 2
    assert main(["--help"]) == 0


def test_export_writes_what_git_made_of_the_series(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    main(["apply", str(clone)])
    assert answer(capsys, "export", str(clone), "--check")[0] == 0
    write(toy.home.root, {"tests/patches/test_third.py": ""})
    commit(clone, "third", {"python/toy/bare.txt": "one\n2\nthree"})
    code, found = answer(capsys, "export", str(clone), "--check")
    assert (code, found["targets"][0]["changed"]) == (1, ["patches/v1/toy/third.patch", "patches/v1/toy/series"])
    assert not (toy.home.root / "patches/v1/toy/third.patch").exists()
    assert answer(capsys, "export", str(clone))[0] == 0
    assert main(["lint"]) == 0
    code, found = answer(capsys, "apply", str(clone))
    assert (code, found["targets"][0]["changed"]) == (0, True), "only the ids change: the committer is fixed"
    assert answer(capsys, "export", str(clone), "--check")[0] == 0


def test_export_refuses_what_lint_refuses_and_writes_nothing(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    clone = toy.clone()
    main(["apply", str(clone)])
    commit(clone, "third", {"README.md": "mine\n"})
    code, found = answer(capsys, "export", str(clone))
    assert code == 1
    said = " ".join(finding["what"] for finding in found["targets"][0]["findings"])
    assert "README.md" in said and "tests/patches/test_third.py" in said
    assert not (toy.home.root / "patches/v1/toy/third.patch").exists()


def test_lint_answers_in_words_and_in_json(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint"]) == 0
    (toy.home.root / "tests/patches/test_right_answer.py").unlink()
    code, found = answer(capsys, "lint", "--line", "v1")
    assert code == 1
    assert found["findings"] == [
        {"line": "v1", "where": "right-answer", "what": "its test tests/patches/test_right_answer.py does not exist"}
    ]
    assert main(["lint"]) == 1
    assert "1 finding" in capsys.readouterr().out


def project_copy(toy: Toy) -> Path:
    """The toy project with these very tools in it, as a clone of the real one is laid out."""
    shutil.copytree(ROOT / "tools", toy.home.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    return toy.home.root


@pytest.mark.parametrize("flags", [[], ["-P"], ["-I"]])
def test_a_shim_runs_its_own_copy_and_shadows_nothing(toy: Toy, tmp_path: Path, flags: list[str]) -> None:
    if "-P" in flags and sys.version_info < (3, 11):
        flags = []
    tools = project_copy(toy) / "tools"
    write(tools, {"bisect.py": "raise SystemExit('shadowed')\n"})
    write(tmp_path / "other", {"sm120_overlay/__init__.py": "raise SystemExit('another copy')\n"})
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    clone = toy.clone()
    for cwd in (tmp_path, tools):
        command = [sys.executable, *flags, str(tools / "apply.py"), str(clone), "--json"]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ok"]


def test_what_is_missing_in_the_interpreter_is_said_in_two_sentences(toy: Toy, tmp_path: Path) -> None:
    tools = project_copy(toy) / "tools"
    bare = [sys.executable, "-I", "-S", str(tools / "apply.py")]
    done = subprocess.run(bare, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert re.search(r"module \w+ is not installed", done.stderr)
    assert "Traceback" not in done.stderr
