"""overlay-manifest: the reader that runs at SGLang's start finds both manifests here, and every file as they say."""

from __future__ import annotations

from .kit import Answer, Card, Unshown, load_alone, one_of


def check(card: Card) -> Answer:
    """By the file alone: it imports nothing of SGLang."""
    reader = load_alone("sglang", "srt/overlay_manifest.py")
    try:
        report = reader.overlay_report()
        upstreams = {name: report["upstreams"][name] for name in ("sglang", "flashinfer")}
        wrong = {name: said["trouble"] or "files differ" for name, said in upstreams.items() if not said["ok"]}
        digests = {name: said["digest"] for name, said in upstreams.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise Unshown("the reader reports in another form than this check knows") from error
    missing = [f"{name} has no manifest" for name, digest in digests.items() if not digest]
    said = " and ".join(f"{name} {str(digest)[:12]}" for name, digest in digests.items())
    return one_of(
        [*(f"{name}: {why}" for name, why in wrong.items()), *missing], f"the reader agrees with every file of {said}"
    )
