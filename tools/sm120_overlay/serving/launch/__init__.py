"""What a server launch of each upstream loads, as rules for bisection/reach: entry points, registries, data.

Read in the sources of SGLang 0.5.9 to 0.5.23 and FlashInfer 0.6.3 to 0.7.2. Most of what a launch loads follows from
the import graph; here stands only what no import statement says.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...bisection.reach.rules import Rules, Sweep

# What every launch of the default server imports, partly inside functions: launch_server picks the server, the
# scheduler (a process of its own) its worker. Other servers (gRPC, encoder only, Ray) stay lazy. `sglang.cli` is not
# here: `sglang serve` and `sglang generate` can also start the diffusion server (sglang.multimodal_gen), which this
# launch never does.
SERVER = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.tp_worker",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.models.registry",
)
MODELS = "sglang.srt.models"


def sglang(models: Sequence[str] = (), also: Sequence[str] = (), folder: str = "python") -> Rules:
    """A launch of SGLang's server.

    Args:
        models: architectures, as in a model's config.json (none: any model).
        also: further modules that the measured command runs, such as sglang.bench_serving or sglang.cli.main.
        folder: where packages begin in the tree ("": its root, as in a wheel).
    """
    inside = f"{folder}/" if folder else ""
    return Rules(
        launch="sglang.launch_server",
        folder=folder,
        packages=("sglang",),
        roots=SERVER,
        also=tuple(also),
        sweeps=(Sweep(f"{MODELS}.registry", MODELS, "EntryClass", tuple(models)),),
        build=(f"{inside}pyproject.toml", f"{inside}setup.py", f"{inside}MANIFEST.in"),
        data=(("rust", "it is compiled into the package's extension"),) if folder else (),
        scripts=(("sglang", "sglang.cli.main"),),
    )


def flashinfer(also: Sequence[str] = ()) -> Rules:
    """FlashInfer as a server uses it: every module may be asked for, every kernel may be compiled."""
    kernels = "it may be compiled when a kernel is first used"
    return Rules(
        launch="an import of flashinfer",
        folder="",
        packages=("flashinfer",),
        roots=("flashinfer",),
        also=tuple(also),
        build=("pyproject.toml", "setup.py", "build_backend.py", "build_utils.py", "requirements.txt", "version.txt"),
        data=tuple((folder, kernels) for folder in ("csrc", "include", "3rdparty")),
        whole=("flashinfer",),
    )


def launch_of(
    upstream: str, models: Sequence[str] = (), also: Sequence[str] = (), folder: str | None = None
) -> Rules | None:
    """The rules for an upstream by its name in pins.toml (None: none are known, and nothing can be culled by reach).

    Args:
        models: architectures that the launch serves (of SGLang only).
        also: further modules that the measured command runs.
        folder: where packages begin in the tree (None: where upstream's repository has them).
    """
    if upstream == "sglang":
        return sglang(models, also, "python" if folder is None else folder.removeprefix("."))
    return flashinfer(also) if upstream == "flashinfer" else None
