"""overlay-manifest: every process that starts a server says which patches run, and can refuse files that differ.

Upstream's own start-up functions run here, up to where a scheduler would be built or a process started, in a forked
child for each start. They stand on a copy of the tree that lies as a checkout has it (`repo/python/sglang`) and has
its dist-info beside it: the test writes the manifest to one of the two places, and to others that must not count.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import pytest

from sm120_overlay.serving import rig
from sm120_overlay.serving.rig import cards, models
from sm120_overlay.serving.rig.models import QuantForm

STRICT = "SM120_OVERLAY_STRICT"
ARGS, SCHEDULER = "python/sglang/srt/server_args.py", "python/sglang/srt/managers/scheduler.py"
NOTED = [ARGS, SCHEDULER, "python/sglang/gone.py"]  # the last one is deleted by the series: there is none
DIGEST, GEARS = "5e" * 32, "9a" * 32
PLACES = ["installed", "checkout", "worktree"]


def reached(*_: object, **__: object) -> NoReturn:
    """Stands where a scheduler would be built or a process started."""
    raise Reached("built")


def started(process: BaseProcess) -> NoReturn:
    raise Reached(process._target.__name__)  # type: ignore[attr-defined]


class Reached(BaseException):
    """A start went past its checks; upstream's own handlers do not catch it."""


class Start(NamedTuple):
    """How one start went: what was reached (None: nothing), what was raised, what was logged, whether the parent was
    told to quit, and what the child answered."""

    reached: str | None
    raised: str | None
    log: list[str]
    quit: bool
    answer: Any = None

    def said(self) -> list[str]:
        """The lines about the overlay."""
        return [line for line in self.log if "SM120 overlay:" in line]

    def refusal(self) -> str:
        """The one sentence that refuses the start, wherever upstream put it; none is a failure."""
        if self.reached:
            pytest.fail(f"the start was not refused: {self.reached} was reached")
        lines = [self.raised or "", *self.log]
        found = next((line for line in lines if line.startswith("RuntimeError: ")), None)
        if found is None:
            pytest.fail(f"no sentence refuses: {lines}")
        return found.removeprefix("RuntimeError: ")


@dataclass
class Ground:
    """The copy of the tree, and upstream's modules and arguments on it."""

    root: Path
    standing: rig.Standing
    checkpoint: Path
    args: Any
    """Upstream's ServerArgs for two GPUs."""
    modules: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def site(self) -> Path:
        """The folder that holds the package: `python/` of a checkout, and a site-packages as well."""
        return self.root / "repo/python"

    def file(self, path: str) -> Path:
        """A file by its path in the repository."""
        return self.root / "repo" / path

    def module(self, name: str) -> ModuleType:
        """One of upstream's, loaded once, before any child is forked."""
        return self.modules.setdefault(name, self.standing.module(f"sglang.srt.{name}"))

    def has(self, name: str) -> bool:
        """Whether this release has that module of upstream's."""
        try:
            return importlib.util.find_spec(f"sglang.srt.{name}") is not None
        except ModuleNotFoundError:
            return False

    def clear(self) -> None:
        """Takes away whatever a test wrote beside the copy."""
        others = [info for info in self.site.glob("*.dist-info") if not (info / "METADATA").is_file()]
        manifests = self.site.glob("*.dist-info/sm120-overlay")
        for folder in (*others, *manifests, *self.root.rglob(".git"), self.root / "elsewhere"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink(missing_ok=True)


def linked(source: str, target: str) -> None:
    """A hard link where that is possible; nothing here writes into a file of the tree."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def laid(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """The copy, and upstream's arguments for two GPUs."""
    root = tmp_path_factory.mktemp("overlay")
    for folder in (tree / "sglang", *tree.glob("sglang-*.dist-info")):
        shutil.copytree(folder, root / "repo/python" / folder.name, copy_function=linked)
    standing = rig.load(root / "repo/python")
    checkpoint = models.checkpoint(root / "model", models.QWEN3_MOE, QuantForm.NONE)
    return Ground(root.resolve(), standing, checkpoint, arguments(standing, checkpoint))


def arguments(standing: rig.Standing, checkpoint: Path, **asked: Any) -> Any:
    """Upstream's ServerArgs, as a launcher hands it to its processes."""
    with rig.present(cards.RTX_PRO_6000_SERVER):
        outcome = rig.resolve(standing, checkpoint, tp_size=2, log_level="info", **asked)
    assert outcome.refusal is None, outcome.refusal
    return outcome.record


@pytest.fixture
def ground(laid: Ground) -> Iterator[Ground]:
    """The same with no manifest anywhere, before and after."""
    laid.clear()
    yield laid
    laid.clear()


def blob(file: Path) -> str | None:
    """By git itself."""
    if not file.is_file():
        return None
    done = subprocess.run(
        ["git", "hash-object", "--no-filters", str(file)], capture_output=True, text=True, check=True, cwd="/"
    )
    return done.stdout.strip()


def manifest(ground: Ground, **changed: Any) -> dict[str, Any]:
    """What apply would say of the copy as it is."""
    files = {
        path: {"installed": path.removeprefix("python/"), "mode": "100644", "blob": blob(ground.file(path))}
        for path in NOTED
    }
    said = {"schema": 1, "line": "v9", "upstream": "sglang", "version": "0.5.9", "digest": DIGEST, "files": files}
    return {**said, "patches": [{"slug": slug, "subject": "x: y"} for slug in ("first-one", "second-one")], **changed}


def write(file: Path, data: Mapping[str, Any] | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


def place(ground: Ground, kind: str, said: Mapping[str, Any] | str | None = None) -> Path:
    """Writes the manifest where apply leaves it on that kind of target."""
    said = manifest(ground) if said is None else said
    inside = "sm120-overlay/manifest.json"
    if kind == "installed":
        return write(next(ground.site.glob("sglang-*.dist-info")) / inside, said)
    if kind == "checkout":
        return write(ground.root / "repo/.git" / inside, said)
    write(ground.root / "repo/.git", "gitdir: ../elsewhere/worktrees/repo\n")
    return write(ground.root / "elsewhere/worktrees/repo" / inside, said)


def run_child(work: Callable[[], Any], env: Mapping[str, str | None]) -> Start:
    """A start in a forked child of its own, as far as it comes; the parent hears upstream's SIGQUIT."""
    quits: list[int] = []
    before = signal.signal(signal.SIGQUIT, lambda number, _: quits.append(number))
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as answer:
        try:
            child = os.fork()
            if child == 0:
                _in_child(work, env, log.fileno(), answer.fileno())
            os.waitpid(child, 0)
        finally:
            signal.signal(signal.SIGQUIT, before)
        log.seek(0)
        answer.seek(0)
        said = json.loads(answer.read() or b'[null, "nothing", null]')
        return Start(said[0], said[1], log.read().decode().splitlines(), bool(quits), said[2])


def _in_child(work: Callable[[], Any], env: Mapping[str, str | None], log: int, answer: int) -> NoReturn:
    result: list[Any] = [None, None, None]
    try:
        os.dup2(log, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        logging.root.handlers.clear()  # pytest's
        os.environ.update({name: value for name, value in env.items() if value is not None})
        BaseProcess.start = started  # type: ignore[method-assign,assignment]
        result[2] = work()
    except Reached as point:
        result[0] = str(point)
    except BaseException as error:
        result[1] = f"{type(error).__name__}: {error}"
    os.write(answer, json.dumps(result).encode())
    os._exit(0)


def placed(function: Callable[..., object], **given: Any) -> dict[str, Any]:
    """A scheduler's arguments by name: releases differ in which ranks they count."""
    names = inspect.signature(function).parameters
    ranks = {name: 0 for name in names if name.endswith("_rank") and not name.startswith("display")}
    values = {**ranks, "gpu_id": 0, "tp_rank": 1, "dp_rank": None, "port_args": None, "pipe_writer": None, **given}
    return {name: value for name, value in values.items() if name in names}


def scheduler(ground: Ground, strict: str | None = None, flashinfer: Path | None = None) -> Start:
    """A scheduler's process, up to where the Scheduler would be built."""
    module = ground.module("managers.scheduler")

    def work() -> None:
        if flashinfer is not None:
            where = ModuleSpec("flashinfer", None, origin=str(flashinfer / "__init__.py"))
            importlib.import_module("flashinfer").__spec__ = where
        module.Scheduler = reached  # type: ignore[attr-defined]
        module.run_scheduler_process(**placed(module.run_scheduler_process, server_args=ground.args))

    return run_child(work, {STRICT: strict})


def edit(ground: Ground, path: str) -> str | None:
    """Another file in its place (the tree's own has links to it); its blob."""
    file = ground.file(path)
    data = file.read_bytes() if file.is_file() else b""
    file.unlink(missing_ok=True)
    file.write_bytes(data + b"# edited\n")
    return blob(file)


@pytest.fixture
def restored(ground: Ground) -> Iterator[None]:
    """The noted files as they were, after a test that edits them."""
    kept = {path: ground.file(path).read_bytes() for path in NOTED if ground.file(path).is_file()}
    yield
    for path in NOTED:
        ground.file(path).unlink(missing_ok=True)
        if path in kept:
            ground.file(path).write_bytes(kept[path])


@pytest.mark.parametrize(("kind", "strict"), [("installed", None), ("checkout", "0"), ("worktree", "1")])
def test_a_scheduler_says_line_digest_and_patches_in_one_line(ground: Ground, kind: str, strict: str | None) -> None:
    place(ground, kind)
    start = scheduler(ground, strict)
    (line,) = start.said() or [""]
    assert all(word in line for word in ("sglang 0.5.9", "v9", DIGEST, "first-one second-one"))
    assert "TP1" in line  # the rank that says it
    assert (start.reached, start.quit) == ("built", False)


@pytest.mark.parametrize(("kind", "path"), zip(PLACES, NOTED, strict=True))
@pytest.mark.usefixtures("restored")
def test_a_file_that_differs_is_named_with_what_was_expected_and_found(ground: Ground, kind: str, path: str) -> None:
    place(ground, kind)
    before, now = blob(ground.file(path)), edit(ground, path)
    start = scheduler(ground)
    told = [line for line in start.said() if str(ground.file(path)) in line]
    assert len(told) == 1, start.log
    assert (before or "no file") in told[0].partition(", found ")[0]
    assert str(now) in told[0].partition(", found ")[2]
    assert start.reached == "built"


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.usefixtures("restored")
def test_strict_refuses_a_file_that_differs_before_a_scheduler_is_built(ground: Ground, kind: str) -> None:
    place(ground, kind)
    edit(ground, ARGS)
    start = scheduler(ground, "1")
    said = start.refusal()
    assert f"{STRICT}=1" in said and str(ground.file(ARGS)) in said and said.count(". ") == 0
    assert start.quit, "upstream's own way to end a server was not taken"


@pytest.mark.usefixtures("restored")
def test_strict_counts_a_lost_file_and_says_how_many_more_there_are(ground: Ground) -> None:
    place(ground, "installed")
    edit(ground, SCHEDULER)
    ground.file(ARGS).unlink()
    start = scheduler(ground, "1")
    said = start.refusal()
    assert str(ground.file(ARGS)) in said and "found no file" in said and "1 more" in said
    assert any(str(ground.file(SCHEDULER)) in line for line in start.said())


def test_no_manifest_is_a_warning_and_strict_refuses_it(ground: Ground) -> None:
    assert any("manifest is not found" in line for line in scheduler(ground).said())
    assert scheduler(ground).reached == "built"
    assert "manifest is not found" in scheduler(ground, "1").refusal()


@pytest.mark.parametrize(
    "damage",
    [
        "", "{", "[]", "null", '{"schema": 1}', {"schema": 2}, {"upstream": "flashinfer"}, {"files": [1]},
        {"patches": [{}]}, {"files": {ARGS: {}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_that_is_damaged_proves_nothing(ground: Ground, damage: str | dict[str, Any]) -> None:
    kind = "installed" if isinstance(damage, str) else "checkout"
    place(ground, kind, damage if isinstance(damage, str) else manifest(ground, **damage))
    start = scheduler(ground)
    assert any("cannot be read" in line for line in start.said()) and start.reached == "built", start.log
    assert "cannot be read" in scheduler(ground, "1").refusal()


@pytest.mark.parametrize("kind", ["installed", "worktree"])
def test_an_apply_that_was_cut_proves_nothing(ground: Ground, kind: str) -> None:
    write(place(ground, kind).parent / "journal.json", "{}")
    assert any("was cut" in line for line in scheduler(ground).said())
    assert "was cut" in scheduler(ground, "1").refusal()


@pytest.mark.parametrize("where", [".git", "repo/python/.git", "repo/python/sglang/.git"])
def test_the_manifest_of_another_checkout_around_or_below_is_not_taken(ground: Ground, where: str) -> None:
    """As of an environment that lies in a checkout."""
    write(ground.root / where / "sm120-overlay/manifest.json", manifest(ground))
    assert "manifest is not found" in scheduler(ground, "1").refusal()


def test_an_installed_package_is_believed_before_a_checkout_around_it(ground: Ground) -> None:
    place(ground, "checkout", "{")
    place(ground, "installed")
    assert DIGEST in "".join(scheduler(ground, "1").said())


@pytest.mark.parametrize("version", ["0.5.8", "0.5.9.post1"])
def test_two_manifests_side_by_side_prove_nothing_and_both_are_named(ground: Ground, version: str) -> None:
    """As an upgrade leaves it that did not take the old dist-info away."""
    mine = place(ground, "installed").parents[1]
    other = f"sglang-{version}.dist-info"
    write(ground.site / other / "sm120-overlay/manifest.json", manifest(ground))
    start = scheduler(ground)
    assert any(mine.name in line and other in line for line in start.said()), start.log
    assert start.reached == "built"
    said = scheduler(ground, "1").refusal()
    assert mine.name in said and other in said
    _, answer = get(ground)
    assert answer["ok"] is False
    assert other in answer["upstreams"]["sglang"]["trouble"] and str(ground.root) not in json.dumps(answer)


def test_a_dist_info_without_a_manifest_beside_it_is_no_reason_to_refuse(ground: Ground) -> None:
    place(ground, "installed")
    write(ground.site / "sglang-0.5.8.dist-info/sm120-overlay/lock", "")
    assert scheduler(ground, "1").reached == "built"


def test_two_manifests_of_flashinfer_are_refused_too(ground: Ground) -> None:
    place(ground, "installed")
    package = geared(ground, "installed")
    other = "flashinfer_python-0.6.2.dist-info"
    write(package.parent / other / "sm120-overlay/manifest.json", "{}")
    assert other in scheduler(ground, "1", flashinfer=package).refusal()


@pytest.mark.parametrize("value", ["", "2", "true", " 1"])
def test_a_strictness_that_is_neither_0_nor_1_is_refused(ground: Ground, value: str) -> None:
    place(ground, "installed")
    said = scheduler(ground, value).refusal()
    assert STRICT in said and repr(value) in said


def geared(ground: Ground, kind: str) -> Path:
    """A FlashInfer with one patched source, installed or as a checkout; its package."""
    top = ground.root / "elsewhere" / kind
    path = "csrc/kernel.cu" if kind == "checkout" else "flashinfer/data/csrc/kernel.cu"
    source = write(top / path, "// patched\n")
    write(top / "flashinfer/__init__.py", "")
    files = {
        "csrc/kernel.cu": {"installed": "flashinfer/data/csrc/kernel.cu", "mode": "100644", "blob": blob(source)},
    }
    said = manifest(ground, upstream="flashinfer", version="0.6.3", digest=GEARS, files=files)
    info = ".git" if kind == "checkout" else "flashinfer_python-0.6.3.dist-info"
    write(top / info / "sm120-overlay/manifest.json", said)
    return top / "flashinfer"


@pytest.mark.parametrize("kind", ["installed", "checkout"])
def test_flashinfer_is_said_and_checked_where_it_has_one(ground: Ground, kind: str) -> None:
    place(ground, "installed")
    package = geared(ground, kind)
    start = scheduler(ground, "1", flashinfer=package)
    (line,) = start.said() or [""]
    assert DIGEST in line and "flashinfer 0.6.3" in line and GEARS in line
    assert start.reached == "built"
    source = next(package.parent.rglob("kernel.cu"))
    source.write_text("// edited\n")
    assert str(source) in scheduler(ground, "1", flashinfer=package).refusal()


def test_a_flashinfer_without_one_is_pips_own_and_no_reason_to_refuse(ground: Ground) -> None:
    place(ground, "installed")
    bare = write(ground.root / "elsewhere/bare/flashinfer/__init__.py", "").parent
    start = scheduler(ground, "1", flashinfer=bare)
    assert len(start.said()) == 1 and "flashinfer: no manifest" in start.said()[0]
    assert start.reached == "built"


def launcher(ground: Ground) -> Callable[..., object]:
    """What starts an engine's processes: a method since 0.5.16."""
    engine = ground.module("entrypoints.engine")
    found: Callable[..., object] = getattr(engine, "_launch_subprocesses", None) or engine.Engine._launch_subprocesses
    return found


def encoder(ground: Ground, kind: str) -> ModuleType:
    """The module of the encoder-only server."""
    places = {
        "http": ("disaggregation.encode_server", "disaggregation.encoder.http_server"),
        "grpc": ("disaggregation.encode_grpc_server", "disaggregation.encoder.grpc_server"),
    }[kind]
    return ground.module(next(place for place in places if ground.has(place)))


def launch(ground: Ground, way: str) -> None:
    """Each way that a server is launched, up to its first process (or, in that process, its weights)."""
    if way == "engine":
        launcher(ground)(ground.args, None, _named("run_scheduler_process"), None)
    elif way == "grpc":
        ground.module("grpc.scheduler_launcher").launch_scheduler_process_only(ground.args)
    elif way == "serve grpc":
        import asyncio

        server = "smg_grpc_servicer.sglang.server"
        pretend("smg_grpc_servicer", "smg_grpc_servicer.sglang", server)
        sys.modules[server].serve_grpc = reached  # type: ignore[attr-defined]
        asyncio.run(ground.module("entrypoints.grpc_server").serve_grpc(ground.args))
    elif way == "encoder":
        encoder(ground, "http").launch_server(ground.args)
    else:
        import asyncio

        pretend("grpc", "grpc_health", "grpc_health.v1", "grpc_reflection", "grpc_reflection.v1alpha", "smg_grpc_proto")
        asyncio.run(encoder(ground, "grpc").serve_grpc_encoder(ground.args))


def _named(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


def _ways() -> dict[str, str]:
    """Ways to launch that this release has, and what each starts first. After 0.5.9 the gRPC server is a package's."""
    ways = {"engine": "run_scheduler_process", "encoder": "launch_encoder"}
    if (Path(os.environ["SM120_OVERLAY_TREE"]) / "sglang/srt/grpc/scheduler_launcher.py").is_file():
        return ways | {"grpc": "run_scheduler_with_signal_handling"}
    return ways | {"serve grpc": "built", "grpc encoder": "launch_encoder"}


WAYS = _ways()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("restored")
def test_the_process_that_launches_refuses_before_it_starts_another(ground: Ground, way: str) -> None:
    place(ground, "checkout")
    clean = run_child(lambda: launch(ground, way), {STRICT: "1"})
    assert clean.reached == WAYS[way], clean
    edit(ground, ARGS)
    loose = run_child(lambda: launch(ground, way), {STRICT: None})
    assert loose.reached == WAYS[way], loose
    assert any(str(ground.file(ARGS)) in line for line in loose.said()), loose.log
    assert str(ground.file(ARGS)) in run_child(lambda: launch(ground, way), {STRICT: "1"}).refusal()


def test_data_parallel_schedulers_start_by_the_same_function(ground: Ground) -> None:
    """The controller's process starts schedulers; what it starts is what is checked above."""
    args = arguments(ground.standing, ground.checkpoint, dp_size=2, enable_dp_attention=True)
    controller = ground.module("managers.data_parallel_controller")
    ports = ground.module("server_args").PortArgs
    run = ground.module("managers.scheduler").run_scheduler_process

    waiting: Any = getattr(controller, "run_scheduler_process_with_init_pipe", None)

    def outer() -> None:
        launcher(ground)(args, None, run, None)

    def inner() -> None:
        controller.run_data_parallel_controller_process(args, ports.init_new(args), None)

    def early() -> None:
        waiting(reached, mock.Mock(recv=lambda: ((), ())))

    place(ground, "installed")
    first = run_child(outer, {STRICT: "1"}).reached
    assert run_child(inner, {STRICT: "1"}).reached == "run_scheduler_process"
    if waiting is None:
        assert first == "run_data_parallel_controller_process"
    else:  # 0.5.23 starts schedulers before the controller; each waits for its ranks, and is then what it was
        assert first == "run_scheduler_process_with_init_pipe"
        assert run_child(early, {STRICT: "1"}).reached == "built"


def pretend(*modules: str) -> None:
    """Packages that this environment has not, of which only the names count here."""
    for name in modules:
        sys.modules[name] = mock.MagicMock()


def act(ground: Ground, strict: str | None) -> Start:
    """An actor of Ray's, which stands in for a scheduler's process, up to where the Scheduler would be built."""

    def work() -> None:
        pretend("ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies")
        sys.modules["ray"].remote = lambda actor: actor  # type: ignore[attr-defined]
        sys.modules["ray"].get_runtime_context().get_accelerator_ids = dict
        ground.module("managers.scheduler").Scheduler = reached  # type: ignore[attr-defined]
        actor = ground.module("ray.scheduler_actor").SchedulerActor
        actor(**placed(actor.__init__, server_args=ground.args, gpu_id=0))

    return run_child(work, {STRICT: strict})


if (Path(os.environ["SM120_OVERLAY_TREE"]) / "sglang/srt/ray").is_dir():

    @pytest.mark.usefixtures("restored")
    def test_an_actor_of_rays_checks_as_a_schedulers_process_does(ground: Ground) -> None:
        """It may lie on another machine than the process that launched it."""
        place(ground, "installed")
        start = act(ground, "1")
        assert start.reached == "built" and any(DIGEST in line for line in start.said()), start
        edit(ground, ARGS)
        assert str(ground.file(ARGS)) in act(ground, "1").refusal()


def get(ground: Ground, after: Callable[[], object] = lambda: None) -> tuple[int, Any]:
    """The route's answer in a launched server's process, through upstream's own application."""
    app = ground.module("entrypoints.http_server").app

    def work() -> tuple[int, Any]:
        from starlette.testclient import TestClient

        with suppress(Reached):
            launch(ground, "engine")
        after()
        answer = TestClient(app, raise_server_exceptions=False).get("/sm120_overlay")
        return answer.status_code, answer.json()

    start = run_child(work, {STRICT: None})
    assert start.answer, start
    return start.answer[0], start.answer[1]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.usefixtures("restored")
def test_the_server_answers_what_runs_and_which_files_differ(ground: Ground, kind: str) -> None:
    place(ground, kind)
    mine = {"line": "v9", "version": "0.5.9", "digest": DIGEST, "patches": ["first-one", "second-one"]}
    code, answer = get(ground)
    assert code == 200
    assert answer["ok"] is True
    assert answer["upstreams"]["sglang"] == {**mine, "ok": True, "trouble": None, "drifted": []}
    before, now = blob(ground.file(ARGS)), edit(ground, ARGS)
    _, answer = get(ground)
    drifted = [{"file": ARGS, "expected": before, "found": now}]
    assert answer["ok"] is False
    assert answer["upstreams"]["sglang"] == {**mine, "ok": False, "trouble": None, "drifted": drifted}


@pytest.mark.usefixtures("restored")
def test_the_server_answers_what_it_started_with(ground: Ground) -> None:
    """An apply under a running server changes nothing of what runs there."""
    place(ground, "installed")
    _, answer = get(ground, lambda: place(ground, "installed", manifest(ground, digest="0" * 64)))
    assert answer.get("upstreams", {}).get("sglang", {}).get("digest") == DIGEST


def test_the_server_answers_without_a_manifest_and_names_no_path_of_the_machine(ground: Ground) -> None:
    code, answer = get(ground)
    assert (code, answer.get("ok")) == (200, False)
    assert "not found" in answer["upstreams"]["sglang"]["trouble"]
    assert str(ground.root) not in json.dumps(answer)


def test_a_tokenizer_worker_of_its_own_process_checks_too(ground: Ground) -> None:
    """With several tokenizer workers each has its own server, and the route answers from there."""
    server = ground.module("entrypoints.http_server")

    def work() -> None:
        import asyncio

        ports = ground.module("server_args").PortArgs.init_new(ground.args)
        server.get_main_process_id = os.getpid  # type: ignore[attr-defined]
        server.read_from_shared_memory = lambda _: (ports, ground.args, {})  # type: ignore[attr-defined]
        server.TokenizerWorker = reached  # type: ignore[attr-defined]
        server.get_tokenizer_worker_class = lambda _: reached  # type: ignore[attr-defined]
        asyncio.run(server.init_multi_tokenizer())

    place(ground, "checkout")
    assert run_child(work, {STRICT: "1"}).reached == "built"
    place(ground, "checkout", "{")
    assert "cannot be read" in run_child(work, {STRICT: "1"}).refusal()


def test_reading_the_manifest_runs_no_program_and_imports_nothing_of_sglang(ground: Ground) -> None:
    place(ground, "checkout")
    module = ground.site / "sglang/srt/overlay_manifest.py"
    assert module.is_file(), "there is no such module"
    code = (
        "import runpy, sys\n"
        "sys.addaudithook(lambda event, _: event == 'subprocess.Popen' and sys.exit('a program'))\n"
        f"found = runpy.run_path({str(module)!r})['overlay_report']()\n"
        "print(found['ok'], [name for name in sys.modules if name.startswith(('sglang', 'torch'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.strip() == "True []", done.stderr
